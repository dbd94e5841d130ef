"""How well a router does on labelled text: accuracy, confusion, and a temperature that makes confidence true.

Knows the router. Knows nothing of files. Accuracies are in percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.router import Router

BINS = 10


@dataclass(frozen=True, slots=True)
class Evaluation:
    """confusion[i][j]: how many texts of domain i were routed to domain j, abstentions apart from the threshold."""

    domains: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]

    @property
    def by_domain(self) -> dict[str, float]:
        """Percent of each domain's texts that were routed right."""
        return {
            name: 100 * row[place] / sum(row)
            for place, (name, row) in enumerate(zip(self.domains, self.confusion, strict=True))
        }

    @property
    def accuracy(self) -> float:
        """The mean over domains, in percent."""
        return sum(self.by_domain.values()) / len(self.domains)

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "domains": self.by_domain,
            "confusion": [list(row) for row in self.confusion],
            "order": list(self.domains),
            "unit": "percent",
        }


def evaluate(router: Router, texts: Mapping[str, Sequence[str]]) -> Evaluation:
    """Route every text; a text counts for the domain that is ahead, whether or not the router would abstain."""
    places = {name: place for place, name in enumerate(router.domains)}
    confusion = []
    for name in router.domains:
        best = [places[decision.best] for decision in router.route_many(texts[name])]
        confusion.append(tuple(np.bincount(best, minlength=len(places)).tolist()))
    return Evaluation(router.domains, tuple(confusion))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted temperature, and the gap between confidence and accuracy before and after, in percent."""

    temperature: float
    gap_before: float
    gap_after: float
    texts: int


def calibrate(router: Router, texts: Mapping[str, Sequence[str]]) -> Calibration:
    """The temperature under which held-out text is most likely, every domain weighing the same."""
    parts = [router.scores(texts[name]) for name in router.domains]
    scores = np.concatenate(parts)
    labels = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    weights = np.concatenate([np.full(len(part), 1 / len(part) / len(parts)) for part in parts])
    temperature = fit_temperature(scores, labels, weights)
    before = calibration_gap(scores / router.confidence.temperature, labels, weights)
    return Calibration(temperature, before, calibration_gap(scores / temperature, labels, weights), len(labels))


def fit_temperature(scores: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Minimise the negative log-likelihood of softmax(scores / T): convex in 1/T, so by bisection on its slope."""
    spread = float(np.ptp(scores, axis=1).max(initial=0.0))
    if spread == 0:
        return 1.0
    low, high = np.log(1e-3 / spread), np.log(1e4 / spread)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(float(np.exp(middle)), scores, labels, weights) < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def _slope(
    sharpness: float, scores: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64]
) -> float:
    expected = (softmax(scores * sharpness) * scores).sum(axis=1)
    return float((weights * (expected - scores[np.arange(len(labels)), labels])).sum())


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    odds = np.exp(values - values.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = odds / odds.sum(axis=1, keepdims=True)
    return result


def calibration_gap(logits: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """The expected calibration error over ten bins of confidence, in percent."""
    chances = softmax(logits)
    confidence = chances.max(axis=1)
    right = chances.argmax(axis=1) == labels
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights * (confidence - right), minlength=BINS)
    return float(100 * np.abs(gaps).sum() / weights.sum())
