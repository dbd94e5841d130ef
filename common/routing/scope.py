"""What text is in scope, told by its prominence: how far the best score stands out from the others.

What is usual is learnt from held-out text: scored by all domains it belongs to one, and scored by
all but its own it belongs to none, as text of a domain that nobody holds would. Counts of both are
all that is needed, so holders can tell them under masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import Scope
from ridgeway.common.routing.decision import prominence

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]

LENGTHS = 10
"""Texts are told apart by their number of tokens: 1, 2 or 3, 4 to 7, and so on; all from 512 on are
alike.
"""
_BINS = 32
SCOPE_COUNTS_SHAPE = (LENGTHS, _BINS, 2)
"""What is counted: texts by length and by prominence, scored by all domains and by all but their
own.
"""

COVERAGE = 0.98
"""The share of held-out text of eight tokens or more on which the router does not abstain."""
COVERED_LENGTHS = 3
_STEPS = 50


def scope_counts(scores: _Floats, voters: _Counts, column: int) -> _Counts:
    """Texts of the domain of one column, by length and prominence. Two domains give no counts."""
    if scores.shape[1] < 3:
        return np.zeros(SCOPE_COUNTS_SHAPE, dtype=np.int64)
    lengths = np.minimum(np.frexp(np.maximum(voters, 1))[1] - 1, LENGTHS - 1)
    counts = []
    for seen in (scores, np.delete(scores, column, axis=1)):
        bins = np.minimum((prominence(seen) * _BINS).astype(np.int64), _BINS - 1)
        counts.append(
            np.bincount(lengths * _BINS + bins, minlength=LENGTHS * _BINS).reshape(
                LENGTHS, _BINS
            )
        )
    return np.stack(counts, axis=-1)


def fit_scope(counts: Iterable[_Counts]) -> Scope | None:
    """The chance that a text belongs, by its prominence and its length, that best explains counts
    of several domains.

    Every domain weighs the same, and so do both ways of scoring. None if there is nothing to learn
    from, or prominence tells nothing.
    """
    shares = [
        domain / domain[..., 0].sum()
        for domain in counts
        if domain.min() >= 0 and domain[..., 0].any()
    ]
    if not shares:
        return None
    inside, outside = np.moveaxis(np.mean(shares, axis=0), -1, 0)
    if not outside.any():
        return None
    middles = (np.arange(_BINS) + 0.5) / _BINS
    features = np.stack(
        np.broadcast_arrays(middles, np.log(2.0 ** np.arange(LENGTHS))[:, None], 1.0),
        axis=-1,
    )
    slope, growth, offset = _logistic(
        features.reshape(-1, 3), inside.ravel(), outside.ravel()
    ).tolist()
    if not slope > 0:
        return None
    chances = 1 / (1 + np.exp(-(features @ [slope, growth, offset])))
    long = chances[COVERED_LENGTHS:].ravel()
    mass = inside[COVERED_LENGTHS:].ravel()
    if not mass.any():
        long = chances.ravel()
        mass = inside.ravel()
    order = np.argsort(-long, kind="stable")
    last = np.searchsorted(np.cumsum(mass[order]), COVERAGE * mass.sum())
    least = float(long[order][min(int(last), len(order) - 1)])
    return Scope(slope, growth, offset, math.floor(least * 1000) / 1000)


def separation(counts: Iterable[_Counts]) -> float:
    """How often a text scored by all domains stands out more than one scored by all but its own:
    0.5 is chance.
    """
    shares = [
        domain / domain[..., 0].sum() for domain in counts if domain[..., 0].any()
    ]
    inside, outside = np.moveaxis(np.mean(shares, axis=0).sum(axis=0), -1, 0)
    below = np.cumsum(outside) - outside
    return float(
        (inside * (below + outside / 2)).sum()
        / max(inside.sum() * outside.sum(), 1e-300)
    )


def _logistic(features: _Floats, inside: _Floats, outside: _Floats) -> _Floats:
    """Newton's method, held back a little so that it ends even where the two can be told apart by a
    line.
    """
    weights = np.zeros(features.shape[1])
    mass = inside + outside
    small = 1e-6 * np.eye(features.shape[1])
    for _ in range(_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        slope = features.T @ (inside - mass * chances) - small @ weights
        curve = (
            features * (mass * chances * (1 - chances))[:, None]
        ).T @ features + small
        step = np.linalg.solve(curve, slope)
        weights = weights + step * min(1.0, 4 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-10:
            break
    return weights
