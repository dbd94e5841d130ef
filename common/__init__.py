"""What every party agrees on: encoder, statistics, router, release. Knows no Flower, no torch, no private files."""
