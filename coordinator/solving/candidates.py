"""Candidate routers of one total, the choice among them by what holders counted on their held-out documents, and
whether the chosen one does worse than the last release, by more than chance explains.

Pure: counts in, a choice out. Knows nothing of messages, files or holders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ridgeway.common.base.schema import Record
from ridgeway.common.base.settings import DEFAULT, Confidence, Ridge, Scope, Selector, SelectorName
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.protocol.cohort import Penalty
from ridgeway.common.protocol.messages import MAX_CANDIDATES, Candidate
from ridgeway.common.routing.belonging import fit_scope, separation
from ridgeway.common.routing.evaluation import (
    CONFIDENCE_EDGES,
    CURVES,
    Evaluation,
    Reliability,
    reliability_of,
    split_calibration,
)
from ridgeway.common.statistics.sums import Statistics

Counts = NDArray[np.int64]
Voters = Annotated[int, Field(ge=1, le=1 << 20)]

TEMPERATURE_STEPS = range(-27, 7)
MAX_ROUTED_COUNTS = 1 << 17
"""How many numbers may tell where documents of each domain went, over all candidates: 48 of these up to 51 domains."""
CHANCE_STANDARD_ERRORS = 2.0
"""Two accuracies that differ by less than this many standard errors of the better one are taken for equal."""


class Grid(Record):
    """What is tried. Where chance could explain a difference the first wins, so the usual choice stands first."""

    ridges: tuple[Penalty, ...] = Field(default=(DEFAULT.ridge.value, 1e-4, 1e-2, 1e-1), min_length=1, max_length=16)
    normalise_columns: tuple[bool, ...] = Field(default=(False, True), min_length=1, max_length=2)
    selectors: tuple[SelectorName, ...] = Field(default=("average", "all", "entropy"), min_length=1, max_length=3)
    k: tuple[Voters, ...] = Field(default=(10, 5, 20, 50), min_length=1, max_length=16)

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        count = len(self.candidates())
        if not len(set(self.candidates())) == count <= MAX_CANDIDATES or len(set(self.ridges)) < len(self.ridges):
            raise ValueError(f"these are {count} candidates; holders try at most {MAX_CANDIDATES}, all different")
        return self

    def penalties(self) -> list[Ridge]:
        return [Ridge(value) for value in self.ridges]

    def candidates(self) -> tuple[Candidate, ...]:
        rules = [(name, k) for name in self.selectors for k in (self.k if name == "entropy" else (DEFAULT.selector.k,))]
        return tuple(
            Candidate(ridge=place, normalise_columns=normalise, selector=name, k=k)
            for place in range(len(self.ridges))
            for normalise in self.normalise_columns
            for name, k in rules
        )


def affordable(candidates: Sequence[Candidate], domains: int) -> tuple[Candidate, ...]:
    """Those that are tried with so many domains, in their order: every λ with the first's selector, then the others.

    Each candidate takes a count for every two domains, under masks that cost more than the counts tell.
    """
    most = max(1, MAX_ROUTED_COUNTS // (domains * (domains + 2)))
    usual = candidates[0].rule
    chosen = sorted(range(len(candidates)), key=lambda place: candidates[place].rule != usual)[:most]
    return tuple(candidates[place] for place in sorted(chosen))


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """The candidate that is released, how it did, and how many were tried on how many documents."""

    candidate: Candidate
    evaluation: Evaluation | None
    tried: int
    documents: int

    def to_json(self) -> dict[str, Any] | None:
        if self.evaluation is None:
            return None
        return {**self.evaluation.to_json(), "candidates": self.tried, "documents": self.documents}


def choose(candidates: Sequence[Candidate], domains: Sequence[str], counts: Mapping[str, Counts]) -> CandidateChoice:
    """The first candidate whose mean accuracy over the domains that had documents is within chance of the best.

    Few held-out documents cannot tell many candidates apart: the best of them is often just lucky, so the usual one
    stays unless another is ahead by more than CHANCE_STANDARD_ERRORS of them.

    counts: by domain, candidates × domains: where the domain's documents were routed.
    """
    heard = {name: rows for name, rows in counts.items() if rows[0].sum() > 0}
    if not heard:
        return CandidateChoice(candidates[0], None, len(candidates), 0)
    right = np.array([rows[:, domains.index(name)] for name, rows in sorted(heard.items())])
    totals = np.array([rows.sum(axis=1) for _, rows in sorted(heard.items())])
    accuracies = (right / totals).mean(axis=0)
    shares = (right + 1) / (totals + 2)  # so that no error is nought, however few documents there are
    errors = np.sqrt((shares * (1 - shares) / totals).sum(axis=0)) / len(totals)
    enough = accuracies.max() - CHANCE_STANDARD_ERRORS * errors[accuracies.argmax()]
    best = int(np.argmax(accuracies.round(12) >= enough.round(12)))
    confusion = tuple(tuple(heard[name][best].tolist()) if name in heard else (0,) * len(domains) for name in domains)
    documents = int(sum(rows[best].sum() for rows in heard.values()))
    return CandidateChoice(candidates[best], Evaluation(tuple(domains), confusion), len(candidates), documents)


@one_blas_thread()
def temperatures(total: Statistics, weights: NDArray[np.float64], scale: float, rule: Selector) -> tuple[float, ...]:
    """Temperatures to try: around the spread of the router's scores over the text it was built from, or of votes."""
    unit = 1.0
    if rule.name == "average":
        scaled = weights.copy()
        scaled[:-1] *= scale
        squares = np.einsum("fc,fc->c", scaled, total.gram.astype(np.float64) @ scaled)
        unit = float(np.sqrt(max(squares.mean(), 1e-300) / total.mass))
    return tuple(unit * 2.0 ** (step / 3) for step in TEMPERATURE_STEPS)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The temperature and curve under which confidence was truest, and the gap to accuracy left, in percent.

    scope:      what text belongs to any domain, if that could be learnt.
    separation: how well text of a domain that was left out is told from text of the others: 0.5 is chance.
    reliability: of held-out documents and their beginnings, every row of counts weighing the same.
    """

    temperature: float
    half: float
    tail: float
    gap: float
    scope: Scope | None = None
    separation: float | None = None
    reliability: Reliability = ()

    def confidence(self, threshold: float, fallback: str | None) -> Confidence:
        sure = Confidence(self.temperature, calibrated=True, threshold=threshold, fallback=fallback, scope=self.scope)
        return replace(sure, half=self.half, tail=self.tail)


def fit(tried: Sequence[float], counts: Mapping[str, Counts], domains: int) -> Fitted | None:
    """Choose temperature and curve by how surprising the counts are, every row that has any weighing the same.

    counts: by domain, what holders counted to calibrate, in one row; of many domains some stand in one together.
    """
    pairs = [split_calibration(row, len(tried)) for row in counts.values()]
    shares = [rows / rows[0, 0, :, 0].sum() for rows, _ in pairs if rows[0, 0, :, 0].sum() > 0]
    if not shares:
        return None
    met = np.mean(shares, axis=0)
    fallen, right = met[..., 0], met[..., 1]
    middles = bin_middles(domains)
    surprise = -(right * np.log(middles) + (fallen - right) * np.log1p(-middles)).sum(axis=-1)
    lowest = [lowest_between(tried, row) for row in surprise]
    row = min(range(len(CURVES)), key=lambda place: round(lowest[place].surprise, 12))
    curve, best = CURVES[row], lowest[row]
    fallen, right = fallen[row, best.nearest], right[row, best.nearest]
    gap = float(np.abs(right - fallen * middles).sum() * 100)
    told = [scope for _, scope in pairs]
    scope = fit_scope(told)
    apart = separation(told) if scope else None
    return Fitted(best.temperature, curve.half, curve.tail, gap, scope, apart, reliability_of(met[row, best.nearest]))


def bin_middles(domains: int) -> NDArray[np.float64]:
    """The confidence that stands for each bin: no confidence is below one in so many domains."""
    edges = np.maximum((*CONFIDENCE_EDGES, 1.0), 1 / domains)
    middles: NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2
    return middles


class Lowest(NamedTuple):
    """nearest: the place of the temperature among those that were tried."""

    surprise: float
    temperature: float
    nearest: int


def lowest_between(tried: Sequence[float], surprise: NDArray[np.float64]) -> Lowest:
    """The bottom of the parabola through the best temperature tried and its neighbours; at an edge, the edge."""
    best = int(np.argmin(surprise.round(12)))
    least = float(surprise[best])
    if not 0 < best < len(tried) - 1:
        return Lowest(least, tried[best], best)
    before, after = surprise[best - 1], surprise[best + 1]
    bend = before - 2 * least + after
    shift = (before - after) / (2 * bend) if bend > 0 else 0.0
    temperature = float(tried[best] * (tried[best + 1] / tried[best]) ** shift)
    return Lowest(float(least - shift * (before - after) / 4), temperature, best)


# Whether a new router does worse than the last release. Both have routed the same held-out documents, so only those
# matter on which they differ: if neither is better, each of these is as likely lost as won (McNemar's exact test,
# one-sided). Masks hide a false sum, but not what it does to a router.


SIGNIFICANCE = 1e-3
"""How often, at most, a round in which no domain got worse is called worse in any: it is shared among the domains."""
LEAST_LOSS = 0.02
"""A smaller share of a domain's documents is not called worse, however sure it is."""


@dataclass(frozen=True, slots=True)
class DomainChange:
    """lost, won: how many of a domain's documents only the last release, and only the new router, routed rightly."""

    domain: str
    lost: int
    won: int
    documents: int


def worse(changes: Sequence[DomainChange]) -> list[DomainChange]:
    """The domains that got worse."""
    return [each for each in changes if _is_worse(each, SIGNIFICANCE / len(changes))]


def _is_worse(change: DomainChange, level: float) -> bool:
    from scipy.special import bdtrc  # the binomial distribution, without the second that scipy.stats takes to import

    if change.lost - change.won < max(1, LEAST_LOSS * change.documents):
        return False
    return bool(bdtrc(change.lost - 1, change.lost + change.won, 0.5) < level)
