"""Benchmarks: ratios, each measured side by side in one run.

`ridgeway bench NAME` prints a table and writes bench-run/NAME.json; `python -m ridgeway bench NAME`
is the same where Ridgeway is not installed. Each module imports what it measures only when it
measures it.
"""
