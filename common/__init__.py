"""What every party agrees on: encoder, statistics, router, release.

Knows no Flower and no private files, and torch only where a contextual encoder's model runs.
"""
