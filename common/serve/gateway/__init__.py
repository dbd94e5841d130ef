"""The OpenAI-compatible gateway to experts: choosing one, calling it, passing its streams on."""
