"""What crosses the network: cohorts, messages, signed packets, invitations, and their form in
Flower.
"""
