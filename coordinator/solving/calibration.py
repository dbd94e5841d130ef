"""Confidence of a router, fitted to what holders counted on their held-out documents.

Pure: counts in, a temperature and a curve out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import Confidence, Scope, Selector
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.routing.evaluation import (
    CONFIDENCE_EDGES,
    CURVES,
    Reliability,
    reliability_of,
    split_calibration,
)
from ridgeway.common.routing.scope import fit_scope, separation
from ridgeway.common.statistics.sums import Statistics

TEMPERATURE_STEPS = range(-27, 7)


@one_blas_thread()
def temperatures(
    total: Statistics, weights: NDArray[np.float64], scale: float, rule: Selector
) -> tuple[float, ...]:
    """Temperatures to try: around the spread of the router's scores over the text it was built
    from, or of votes.
    """
    unit = 1.0
    if rule.name == "average":
        scaled = weights.copy()
        scaled[:-1] *= scale
        squares = np.einsum("fc,fc->c", scaled, total.gram.astype(np.float64) @ scaled)
        unit = float(np.sqrt(max(squares.mean(), 1e-300) / total.mass))
    return tuple(unit * 2.0 ** (step / 3) for step in TEMPERATURE_STEPS)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The temperature and curve under which confidence was truest, and the gap to accuracy left, in
    percent.

    scope:      what text belongs to any domain, if that could be learnt.
    separation: how well text of a domain that was left out is told from text of the others: 0.5 is
                chance.
    reliability: of held-out documents and their beginnings.
    """

    temperature: float
    half: float
    tail: float
    gap: float
    scope: Scope | None = None
    separation: float | None = None
    reliability: Reliability = ()

    def confidence(self, plain: Confidence) -> Confidence:
        """plain: says when the router abstains."""
        return replace(
            plain,
            temperature=self.temperature,
            calibrated=True,
            scope=self.scope,
            half=self.half,
            tail=self.tail,
        )


def fit(
    tried: Sequence[float], counts: NDArray[np.int64], domains: int
) -> Fitted | None:
    """Choose temperature and curve by how surprising the counts are; None if there are none.

    counts: what holders counted to calibrate, all together.
    """
    reliability, scope_counts = split_calibration(counts, len(tried))
    # every document falls into one bin at each curve and temperature
    documents = reliability[0, 0, :, 0].sum()
    if not documents:
        return None
    met = reliability / documents
    fallen = met[..., 0]
    right = met[..., 1]
    middles = bin_middles(domains)
    # the cross-entropy of the outcomes under each bin's confidence
    surprises = right * np.log(middles) + (fallen - right) * np.log1p(-middles)
    lowest = [lowest_between(tried, row) for row in -surprises.sum(axis=-1)]
    curve = min(range(len(CURVES)), key=lambda index: round(lowest[index].surprise, 12))
    best = lowest[curve]
    chosen = met[curve, best.nearest]
    gap = np.abs(chosen[:, 1] - chosen[:, 0] * middles).sum() * 100
    scope = fit_scope([scope_counts])
    return Fitted(
        best.temperature,
        CURVES[curve].half,
        CURVES[curve].tail,
        float(gap),
        scope,
        separation([scope_counts]) if scope else None,
        reliability_of(chosen),
    )


def bin_middles(domains: int) -> NDArray[np.float64]:
    """The confidence that stands for each bin: no confidence is below one in so many domains."""
    edges = np.maximum((*CONFIDENCE_EDGES, 1.0), 1 / domains)
    middles: NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2
    return middles


class Lowest(NamedTuple):
    """nearest: the index of the temperature among those that were tried."""

    surprise: float
    temperature: float
    nearest: int


def lowest_between(tried: Sequence[float], surprise: NDArray[np.float64]) -> Lowest:
    """The bottom of the parabola through the best temperature tried and its neighbours; at an edge,
    the edge.
    """
    best = int(np.argmin(surprise.round(12)))
    least = float(surprise[best])
    if not 0 < best < len(tried) - 1:
        return Lowest(least, tried[best], best)
    before = surprise[best - 1]
    after = surprise[best + 1]
    bend = before - 2 * least + after
    shift = (before - after) / (2 * bend) if bend > 0 else 0.0
    temperature = float(tried[best] * (tried[best + 1] / tried[best]) ** shift)
    return Lowest(float(least - shift * (before - after) / 4), temperature, best)
