"""The operator's side: statistics in, signed releases out."""
