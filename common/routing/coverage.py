"""Coverage against accuracy: how many texts a router answers above a threshold, and how often it is
then right.

Shares and accuracies lie between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import InputError

_Floats = NDArray[np.float64]

MIN_ANSWERED_TEXTS = 30
"""An accuracy over fewer answered texts is not taken to mean anything."""
STANDARD_ERRORS_95 = 1.96
"""Standard errors to either side of a figure: nineteen times out of twenty the truth is within."""
_THRESHOLDS = (
    0.0,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.85,
    0.9,
    0.95,
    0.98,
    0.99,
    0.995,
    0.999,
)


class Point(NamedTuple):
    """What holds at one threshold.

    coverage: the share of texts that is answered.
    accuracy: the share of those that is answered right; None if none is answered.
    low, high: where the accuracy may truly lie.
    texts:    how many are answered.
    """

    threshold: float
    coverage: float
    accuracy: float | None
    low: float
    high: float
    texts: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """How texts fared: confidence, whether it was right, and what each text weighs."""

    confidence: _Floats
    right: NDArray[np.bool_]
    weight: _Floats

    def __post_init__(self) -> None:
        if not len(self.confidence) == len(self.right) == len(self.weight):
            raise InputError("every text needs a confidence, an outcome and a weight")
        if not len(self.confidence):
            raise InputError("there is no text to measure coverage on")
        if not (np.isfinite(self.confidence).all() and (self.weight > 0).all()):
            raise InputError(
                "confidences must be numbers, and weights must be positive"
            )


def equal_domains(parts: Sequence[tuple[_Floats, NDArray[np.bool_]]]) -> Outcomes:
    """The outcomes of several domains, weighted so that every domain weighs the same, however many
    texts it has.
    """
    filled = [(confidence, right) for confidence, right in parts if len(confidence)]
    if not filled:
        raise InputError("there is no text to measure coverage on")
    weights = [np.full(len(right), 1 / len(right) / len(filled)) for _, right in filled]
    confidences, rights = zip(*filled, strict=True)
    return Outcomes(
        np.concatenate(confidences), np.concatenate(rights), np.concatenate(weights)
    )


def at(outcomes: Outcomes, threshold: float) -> Point:
    """What holds when texts below the threshold are not answered."""
    answered = outcomes.confidence >= threshold
    weights = outcomes.weight[answered]
    mass = float(weights.sum())
    coverage = min(mass / float(outcomes.weight.sum()), 1.0)
    if not mass:
        return Point(threshold, 0.0, None, 0.0, 1.0, 0)
    accuracy = min(float(weights[outcomes.right[answered]].sum()) / mass, 1.0)
    low, high = wilson(accuracy, mass**2 / float(np.square(weights).sum()))
    return Point(threshold, coverage, accuracy, low, high, int(answered.sum()))


def curve(outcomes: Outcomes) -> list[Point]:
    """Law: coverage falls, or stays, as the threshold rises; at 0 all is answered."""
    return [at(outcomes, threshold) for threshold in _THRESHOLDS]


def proposal(
    outcomes: Outcomes, wish: float, least: int = MIN_ANSWERED_TEXTS
) -> Point | None:
    """The smallest threshold at which the accuracy among at least `least` answered texts reaches
    the wish.

    None if no threshold does. The threshold is picked on the very text that it is measured on, so
    it is a little better there than it will be elsewhere.
    """
    order = np.argsort(outcomes.confidence, kind="stable")[::-1]
    confidence = outcomes.confidence[order]
    weight = outcomes.weight[order]
    answered = np.cumsum(weight)
    right = np.cumsum(weight * outcomes.right[order])
    # equals are answered together or not at all
    last = np.append(confidence[1:] < confidence[:-1], True)
    enough = (
        last
        & (np.arange(1, len(order) + 1) >= least)
        & (right >= wish * answered * (1 - 1e-12))
    )
    if not enough.any():
        return None
    lowest = int(np.flatnonzero(enough)[-1])
    threshold = (
        0.0
        if lowest == len(order) - 1
        else _between(float(confidence[lowest + 1]), float(confidence[lowest]))
    )
    return at(outcomes, threshold)


def _between(below: float, above: float) -> float:
    """The shortest decimal that lies above the one and not above the other, so that people can type
    it.
    """
    for digits in range(1, 17):
        rounded = math.floor(above * 10.0**digits) / 10.0**digits
        if below < rounded <= above:
            return rounded
    return above


def wilson(share: float, count: float) -> tuple[float, float]:
    """Where a share that was seen among `count` texts (with unequal weights: as good as that) may
    truly lie.
    """
    square = STANDARD_ERRORS_95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = (
        STANDARD_ERRORS_95
        / (1 + square / count)
        * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    )
    return max(middle - half, 0.0), min(middle + half, 1.0)
