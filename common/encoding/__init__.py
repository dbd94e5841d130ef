"""Text to integer features: tokenizers, embedding tables, transformers, windows, and where encoders
come from.
"""
