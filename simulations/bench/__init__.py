"""Benchmarks: each compares a figure of ours with another one, measured in the same run.

They are not in the wheel. From a checkout: `python -m ridgeway.simulations.bench NAME`.
"""
