"""A holder's corpus summed on the holder's own cluster."""
