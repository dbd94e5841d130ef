"""What both sides of a deployment need: processes, the bundle that a round runs, and the
SuperNode's key.
"""
