"""Text to integer features: tokenizers, embedding tables, windows, and where encoders come from."""
