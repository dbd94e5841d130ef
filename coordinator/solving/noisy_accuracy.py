"""How sure an accuracy is that was counted under noise.

Pure: counts and the size of the noise in, intervals out. Two things make it unsure: that the held-out
documents are a sample, and that each count has noise of every holder of its domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeway.common.routing.evaluation import Evaluation

Z_95 = 1.96
"""So many standard deviations to either side hold in 95 of 100 cases."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class AccuracyIntervals:
    """Intervals of 95 %, in percent: of the mean over domains, and of each domain."""

    mean: Interval
    domains: Mapping[str, Interval]


def accuracy_intervals(evaluation: Evaluation, sigma: float, holders: Mapping[str, int]) -> AccuracyIntervals:
    """sigma: of the noise on a count, in documents, that one holder adds. holders: by domain, how many added it."""
    variances = {
        name: _variance(row[place], sum(row), len(row), sigma**2 * holders[name])
        for place, (name, row) in enumerate(zip(evaluation.domains, evaluation.confusion, strict=True))
        if sum(row)
    }
    shares = evaluation.by_domain
    spread = math.sqrt(sum(variances.values())) / len(variances)
    by_domain = {name: _around(shares[name], math.sqrt(variance)) for name, variance in variances.items()}
    return AccuracyIntervals(_around(evaluation.accuracy, spread), by_domain)


def _variance(right: int, documents: int, domains: int, noise: float) -> float:
    """Of the share of documents that were routed right.

    It is a quotient of two numbers under noise: the right ones, and all. Neither a share of 0 nor one of 1 is
    taken to be sure, so two documents more of either kind are counted for the sampling.
    """
    share = right / documents
    careful = (right + 2) / (documents + 4)
    sampled = careful * (1 - careful) / documents
    noised = noise * ((1 - share) ** 2 + (domains - 1) * share**2) / documents**2
    return sampled + noised


def _around(accuracy: float, spread: float) -> Interval:
    """In percent, and within what a share can be."""
    half = 100 * Z_95 * spread
    return max(0.0, accuracy - half), min(100.0, accuracy + half)
