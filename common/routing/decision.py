"""From points to decisions: which domain is ahead, how sure that is, whether the text is in scope,
and when the router abstains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from html import escape
from operator import add
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import Confidence, Scope

# What text is in scope, told by its prominence: how far the best score stands out from the others.
#
# What is usual is learnt from held-out text: scored by all domains it belongs to one, and scored by
# all but its own it belongs to none, as text of a domain that nobody holds would. Counts of both
# are all that is needed, so holders can tell them under masks.


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
_Number = TypeVar("_Number", float, Floats)

_OUT_OF_SCOPE = "out_of_scope"
LOW_CONFIDENCE = "low_confidence"
TABLE = "table"
SENTENCES = "sentences"
DECIDERS = {TABLE: "the table", SENTENCES: "the sentence encoder"}
"""What decides, as people read it."""
REASONS = {
    _OUT_OF_SCOPE: "it seems out of scope",
    LOW_CONFIDENCE: "too unsure",
}
"""Why a router abstains, as people read it; of several reasons the first is told."""
SHOWN_DOMAINS = 5
LEAST_LOGIT = -700.0
"""Of a smaller one the chance is 0: e to that power cannot be had."""
FOR = "46, 125, 50"
"""The colour of what speaks for a domain."""


class Decision(NamedTuple):
    """Where a prompt should go.

    domain:     where it goes; where the router abstained, the fallback's name, or None without one.
    confidence: the probability that `best` is right; it means that only if the router is
                calibrated.
    scores:     every domain's probability.
    abstained:  whether there was a reason not to act on the decision.
    best:       the domain ahead of the others, abstention or not.
    tokens:     how many tokens the prompt has.
    scope:      the chance that it belongs to any domain; None if the router has not learnt that.
    reason:     why the router abstained, one of REASONS; None if it did not.
    router:     which router decided: that of tokens and words, `table`, or that of `sentences`.
    """

    domain: str | None
    confidence: float
    scores: dict[str, float]
    abstained: bool
    best: str
    tokens: int
    scope: float | None = None
    reason: str | None = None
    router: str = TABLE

    @property
    def belongs(self) -> bool:
        """Whether the chance that the prompt belongs to any domain is large enough."""
        return self.reason != _OUT_OF_SCOPE

    def to_json(self) -> dict[str, Any]:
        """The same on the command line and over HTTP."""
        return {**self._asdict(), "belongs": self.belongs}

    def __repr__(self) -> str:
        shown = ranked(self.scores)[:SHOWN_DOMAINS]
        scores = ", ".join(f"{domain} {100 * score:.1f} %" for domain, score in shown)
        hidden = len(self.scores) - len(shown)
        more = f" and {hidden} more" if hidden else ""
        state = "abstained" if self.abstained else f"{100 * self.confidence:.1f} %"
        where = self.domain or "no domain"
        return f"<Decision {where}, {state}; {scores}{more}; {self.tokens} tokens>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left">{escape(domain)}</td>'
            f'<td>{100 * score:.1f} %</td><td style="text-align:left">'
            f'<div style="background:rgb({FOR});height:0.7em;'
            f'width:{100 * score:.0f}px"></div></td></tr>'
            for domain, score in ranked(self.scores)
        )
        state = " (abstained)" if self.abstained else ""
        return (
            f"<div><b>{escape(self.domain or 'no domain')}</b>{state}, {self.tokens} tokens"
            f"<table>{rows}</table></div>"
        )


def ranked(scores: dict[str, float]) -> list[tuple[str, float]]:
    """The most probable first."""
    return sorted(scores.items(), key=lambda pair: -pair[1])


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """What the tokens of N prompts said.

    points: N×C, what decides: summed logits (`average`) or votes.
    sums:   N×C, the voters' summed logits, which decide between equals.
    voters: N, how many tokens took part.
    unit:   the value of one point of one voter.
    """

    points: NDArray[Any]
    sums: NDArray[Any]
    voters: NDArray[Any]
    unit: float

    @property
    def scores(self) -> Floats:
        """N×C: the mean over the voters."""
        scores: Floats = self.points * self.unit / np.maximum(self.voters, 1)[:, None]
        return scores


def winners(counted: Tally) -> Integers:
    """The domain ahead in each prompt: by points, then by the voters' summed logits, then by
    order.
    """
    if counted.points is counted.sums:
        first: Integers = counted.points.argmax(axis=1)
        return first
    tied = counted.points == counted.points.max(axis=1, keepdims=True)
    best: Integers = np.where(tied, counted.sums, np.iinfo(np.int64).min).argmax(axis=1)
    return best


def distances(law: Confidence, scores: Floats, voters: NDArray[Any]) -> Floats:
    """From the domain ahead, N×C, at temperature 1; of mean scores over so many voters."""
    size = np.maximum(voters, 1)
    sharpness = size / (size + law.half)
    if law.growth:
        sharpness *= size**law.growth
    behind = np.maximum.reduce(scores, axis=1, keepdims=True) - scores
    apart: Floats = behind * sharpness[:, None]
    return apart


def log_odds(law: Confidence, apart: Floats) -> Floats:
    """The logarithms of the odds to the domain ahead."""
    return -np.log1p(law.tail * apart) / law.tail if law.tail else -apart


def _odds(
    law: Confidence, apart: _Number, exp: Callable[[_Number], _Number]
) -> _Number:
    """Of each domain to the one ahead: (1 + tail · d) to the power −1/tail, or e to the −d.

    A tail of 1/2, 1/4, 1/8 … takes a third of the time of others: its powers are squares.
    """
    if not law.tail:
        return exp(-apart)
    base = 1 / (1 + law.tail * apart)
    power = 1 / law.tail
    while power % 2 == 0:
        base = base * base
        power /= 2
    return base if power == 1 else base**power


def confidences(law: Confidence, apart: Floats) -> Floats:
    """The chance of the domain ahead in each prompt."""
    chances: Floats = 1 / np.add.reduce(_odds(law, apart, np.exp), axis=1)
    return chances


def prominence(scores: Floats) -> Floats:
    """How far the largest of N×C scores stands out, between 0 and 1 by Samuelson's inequality.

    The smallest spread that counts is that of C equal scores with a sum of one, since scores are
    nearly shares.
    """
    domains = scores.shape[1]
    if domains < 2:
        return np.zeros(len(scores))
    spread = scores.var(axis=1) + 1 / domains**2
    above: Floats = (scores.max(axis=1) - scores.mean(axis=1)) / np.sqrt(
        (domains - 1) * spread
    )
    return above


def _chances(
    domains: Sequence[str],
    law: Confidence,
    points: Sequence[float],
    voters: float,
    unit: float,
) -> tuple[int, float, dict[str, float], float | None]:
    """Of one prompt: the position of the domain ahead in points, its chance, every domain's, and
    the chance that it belongs to any, if the law has a scope.
    """
    size = max(float(voters), 1.0)
    sharpness = size / (size + law.half)
    if law.growth:
        sharpness *= size**law.growth
    scores = [point * unit / size for point in points]
    ahead = max(scores)
    shares = [
        _odds(law, (ahead - score) * sharpness / law.temperature, math.exp)
        for score in scores
    ]
    sure = 1 / _added(shares)
    scope = None
    if law.scope:
        scope = _scope_chance(law.scope, scores, size) if voters > 0 else 0.0
    named = {
        domain: share * sure for domain, share in zip(domains, shares, strict=True)
    }
    return points.index(max(points)), sure, named, scope


def _added(values: Iterable[float]) -> float:
    """One after the other; what Python's `sum` adds up is of more bits."""
    return reduce(add, values, 0.0)


def _scope_chance(scope: Scope, scores: Sequence[float], size: float) -> float:
    """By how far the largest score stands out, as `prominence` has it, over so many voters."""
    domains = len(scores)
    mean = _added(scores) / domains
    spread = _added((score - mean) * (score - mean) for score in scores) / domains
    spread += 1 / domains**2
    above = 0.0
    if domains > 1:
        above = (max(scores) - mean) / math.sqrt((domains - 1) * spread)
    logit = scope.slope * above + scope.growth * math.log(size) + scope.offset
    return 1 / (1 + math.exp(-logit)) if logit > LEAST_LOGIT else 0.0


def decide(
    domains: Sequence[str],
    law: Confidence,
    counted: Tally,
    tokens: Sequence[int],
    readable: Sequence[bool],
    routers: Sequence[str],
) -> list[Decision]:
    """The decisions on N prompts, each the same whatever stands beside it.

    tokens:   how many each has.
    readable: whether each has a letter or a digit; without any it is out of scope, if a scope is
              known.
    routers:  which router each was decided by.
    """
    rows = [
        _chances(domains, law, points, voters, counted.unit)
        for points, voters in zip(
            counted.points.tolist(), counted.voters.tolist(), strict=True
        )
    ]
    positions = (
        [row[0] for row in rows]
        if counted.points is counted.sums
        else winners(counted).tolist()
    )
    decisions = []
    for position, (_, confidence, scores, scope), size, legible, router in zip(
        positions, rows, tokens, readable, routers, strict=True
    ):
        best = domains[position]
        scope = scope if legible or scope is None else 0.0
        reason = _reason(law, best, confidence, scope, legible)
        decisions.append(
            Decision(
                law.fallback if reason else best,
                confidence,
                scores,
                reason is not None,
                best,
                size,
                scope,
                reason,
                router,
            )
        )
    return decisions


def _reason(
    law: Confidence, best: str, confidence: float, scope: float | None, readable: bool
) -> str | None:
    """Why the router abstains; None if it does not."""
    if best in law.outside:
        return _OUT_OF_SCOPE
    least = law.scope.least if law.scope else 0.0
    if least > 0 and scope is not None and not (readable and scope >= least):
        return _OUT_OF_SCOPE
    if confidence < law.threshold:
        return LOW_CONFIDENCE
    return None


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


def scope_counts(scores: Floats, voters: Integers, column: int) -> Integers:
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


def fit_scope(counts: Iterable[Integers]) -> Scope | None:
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


def separation(counts: Iterable[Integers]) -> float:
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


def _logistic(features: Floats, inside: Floats, outside: Floats) -> Floats:
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
