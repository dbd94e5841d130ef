"""Exact sums on a graphics card. Imported only where a card is used: everything in here knows
torch.
"""
