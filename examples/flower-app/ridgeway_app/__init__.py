"""A Ridgeway round as a Flower app."""
