"""The experts behind a router: where they are, what they cost, and which of them a decision leads
to.
"""
