"""Rows that hold a figure of ours against a peer's, and say which of them is better."""

from __future__ import annotations

from typing import Literal

from ridgeway.simulations.bench.measuring import Row

Better = Literal["more", "less"]


def compared(
    what: str, peer: str, ours: float, theirs: float, unit: str, better: Better
) -> Row:
    """The better figure is marked; alike ones, to the digits that are shown, are not."""
    own, other = (f"{figure:.4g}{unit}" for figure in (ours, theirs))
    if own != other:
        ahead = ours > theirs if better == "more" else ours < theirs
        own, other = (f"{own}, better", other) if ahead else (own, f"{other}, better")
    ratio = ours / theirs if theirs else None
    return Row(f"{what}, to {peer}", own, other, ratio)


def not_measured(what: str, peer: str, reason: str) -> Row:
    return Row(f"{what}, to {peer}", "", reason, None)
