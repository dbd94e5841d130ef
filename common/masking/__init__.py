"""Secure aggregation, apart from everything else: shares, keystreams, the session of members and
coordinator.
"""
