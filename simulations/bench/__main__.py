"""`python -m ridgeway.simulations.bench prepare --json`: `ridgeway bench` where Ridgeway is not installed."""

from __future__ import annotations

import sys

import typer

from ridgeway.common.cli.terminal import run
from ridgeway.simulations.cli.bench_commands import app

if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
