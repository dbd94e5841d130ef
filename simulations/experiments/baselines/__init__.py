"""Routers to compare ours with: each learns from a dataset's training text and routes its test
texts.

Task ──▶ RoutingMethod.fit ──▶ Trained (one or more variants) ──▶ choice on held-out text ──▶ rows
of a table
"""
