"""Serving under load, from other processes on loopback: the routing API beside a bare echo, the
gateway beside none.
"""
