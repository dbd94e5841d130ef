"""Benchmarks: ratios, each measured side by side in one run.

`python -m simulations.bench` prints a table and writes bench-run/bench.json.
"""
