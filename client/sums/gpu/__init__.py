"""Exact sums on a GPU. Imported only where a GPU is used: everything in here knows torch."""
