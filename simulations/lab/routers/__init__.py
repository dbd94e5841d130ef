"""Routers to hold ours against: each learns from a setting's training text and routes its test texts.

Task ──▶ Method.fit ──▶ Trained (one or more variants) ──▶ choice on held-out text ──▶ rows of a table
"""
