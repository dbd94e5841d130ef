"""The domain holder's side: private files in, exact sums out."""
