"""A holder's held-out documents under one router: counts, and nothing but counts.

Law: to which domain a document is routed depends on that document and on public things alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.base.settings import Selector
from ridgeway.common.routing.decision import (
    confidences,
    distances,
    scope_counts,
    winners,
)
from ridgeway.common.routing.evaluation import (
    CALIBRATED_COUNTS,
    CONFIDENCE_EDGES,
    CURVES,
    beginnings,
)
from ridgeway.common.routing.quality import (
    MAX_HOLDER_SCORES,
    DomainScore,
    QualityTable,
    quality_of,
    read_scores,
)
from ridgeway.common.routing.release import Release
from ridgeway.common.routing.sentence_table import compile_router, margin_for
from ridgeway.common.routing.token_table import RouterTable, tally_texts
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokens import Tokens

Weights = NDArray[np.float64]
_Counts = NDArray[np.int64]


def router_table(
    encoder: TableEncoder, weights: Weights, *, private: bool = False
) -> RouterTable:
    """The router of some weights, compiled over the whole public table, as its release is."""
    margin = margin_for(private=private)
    return _compiled(encoder, weights.tobytes(), weights.shape[1], margin)


def _compiled(
    encoder: TableEncoder, weights: bytes, domains: int, margin: float
) -> RouterTable:
    with one_blas_thread():
        exact = np.frombuffer(weights).reshape(-1, domains)
        return compile_router(encoder, exact, margin)


class Scorer:
    """Counts how a router does on held-out documents.

    domain: the index of the holder's own.
    """

    def __init__(
        self, table: RouterTable, rule: Selector, held_out: Tokens, domain: int
    ) -> None:
        self._held_out = held_out.of_texts(held_out.lengths > 0)
        self._table = table
        self._rule = rule
        self._domain = domain

    def routed(self) -> _Counts:
        """To which domain how many documents were routed."""
        return np.bincount(
            self._winners(self._table, self._rule), minlength=self._table.domains
        )

    def changes(self, last: Release, last_own: int) -> tuple[int, int]:
        """How many documents the last release routed rightly and this router does not; and the
        other way round.
        """
        now = self._winners(self._table, self._rule) == self._domain
        before = self._winners(last.compiled, last.selector) == last_own
        return int((before & ~now).sum()), int((now & ~before).sum())

    def _winners(self, table: RouterTable, rule: Selector) -> _Counts:
        if not len(self._held_out.lengths):
            return np.zeros(0, dtype=np.int64)
        return winners(tally_texts(table, rule, self._held_out))

    def calibration(self, temperatures: Sequence[float]) -> _Counts:
        """The reliability, and then what of these documents belongs to any domain, in one row.

        All are multiplied by one number, so that few documents weigh as much as many.
        """
        if len(self._held_out.lengths):
            scores, voters = beginnings(self._table, self._rule, self._held_out)
        else:
            scores = np.zeros((0, self._table.domains))
            voters = np.zeros(0, dtype=np.int64)
        counts = np.append(
            reliability(scores, voters, self._domain, temperatures),
            scope_counts(scores, voters, self._domain),
        )
        return counts * (CALIBRATED_COUNTS // max(len(scores), 1))


def reliability(
    scores: NDArray[np.float64],
    voters: _Counts,
    domain: int,
    temperatures: Sequence[float],
) -> _Counts:
    """How many texts fell into each bin of confidence, and how many of them rightly.

    Shape: curves × temperatures × bins × 2.
    """
    bins = len(CONFIDENCE_EDGES)
    counts = np.zeros((len(CURVES), len(temperatures), bins, 2), dtype=np.int64)
    if not len(scores):
        return counts
    right = scores.argmax(axis=1) == domain
    first = bins * np.arange(len(temperatures))[:, None]
    for row, curve in enumerate(CURVES):
        apart = distances(curve, scores, voters)
        sure = [confidences(curve, apart / temperature) for temperature in temperatures]
        places = first + np.searchsorted(CONFIDENCE_EDGES, sure, side="right") - 1
        for column, counted in enumerate((places, places[:, right])):
            binned = np.bincount(counted.ravel(), minlength=first.size * bins)
            counts[row, :, :, column] = binned.reshape(-1, bins)
    return counts


# A holder's scores of experts' answers to prompts of its domain: what it may tell of them is sums
# and numbers.


MIN_SCORES = 10
"""The fewest scores of an expert whose sum is told: fewer would show what single prompts were
worth.
"""


def own_scores(path: Path, domain: str) -> QualityTable:
    """What a file says of experts in this domain; lines of another domain are passed over."""
    scores = (
        DomainScore(domain, name, score)
        for line in read_scores(path)
        if line.domain in ("", domain)
        for name, score in line.scores.items()
    )
    table = quality_of(scores, (domain,))
    if table.counts.max() > MAX_HOLDER_SCORES:
        raise CorpusError(
            f"{path}: more than {MAX_HOLDER_SCORES:,} scores of one expert; remove some"
        )
    return table


def told_scores(
    table: QualityTable | None, experts: Sequence[str]
) -> NDArray[np.int64]:
    """The sums of these experts' scores in fixed point, then the numbers of scores: 0 for those
    with too few.
    """
    sums = np.zeros((2, len(experts)), dtype=np.int64)
    for column, name in enumerate(experts):
        if table and name in table.experts:
            column_here = table.experts.index(name)
            count = table.counts[0, column_here]
            if count >= MIN_SCORES:
                sums[:, column] = table.sums[0, column_here], count
    return sums.ravel()
