"""The ClientApp of a simulation on Flower's engine in which holders fall away."""

from __future__ import annotations

from simulations.falling import falling_app, falls_of_this_run

app = falling_app(falls_of_this_run())
