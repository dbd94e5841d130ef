"""The operator's deployment: its folder, the SuperLink and the proxy before it, certificates,
supervision.
"""
