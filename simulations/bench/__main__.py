"""`ridgeway bench` for a machine on which Ridgeway is not installed: `python -m simulations.bench prepare --json`."""

from __future__ import annotations

import sys

import typer

from common.terminal import run
from simulations.bench_cli import app

if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
