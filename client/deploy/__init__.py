"""A holder's deployment: its folder, its SuperNode, and the guard that runs approved bundles
only.
"""
