"""A holder's held-out documents under candidate routers: counts, and nothing but counts.

Knows token ids and weights. Knows nothing of text, of files or of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.compiled import CompiledTable, compile_table, normalised_columns
from common.encoder import Encoder
from common.evaluation import EDGES, beginnings, softmax
from common.messages import Candidate
from common.selectors import tally, winners
from common.tokenizer import Ids

Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HeldOut:
    """Documents as token ids in one row, `lengths` of them each. Private: it never leaves the holder."""

    ids: Ids
    lengths: NDArray[np.int64]


class Scorer:
    """Scores candidates on held-out documents by the rows of the table that these documents use."""

    def __init__(self, encoder: Encoder, held_out: HeldOut) -> None:
        filled = held_out.lengths > 0
        self._lengths = held_out.lengths[filled]
        used, places = np.unique(held_out.ids, return_inverse=True)
        self._ids = places.astype(np.int32)
        self._rows, self._scale = encoder.table[used], encoder.scale

    def routed(self, weights: Sequence[Weights], candidates: Sequence[Candidate]) -> list[list[int]]:
        """For each candidate, to which domain how many documents were routed."""
        if not len(self._lengths):
            return [[0] * weights[0].shape[1] for _ in candidates]
        tables: dict[tuple[int, bool], CompiledTable] = {}
        counts = []
        for candidate in candidates:
            key = (candidate.ridge, candidate.normalise_columns)
            if key not in tables:
                tables[key] = self._compiled(weights[candidate.ridge], candidate)
            best = winners(tally(tables[key], candidate.rule, self._ids, self._lengths))
            counts.append(np.bincount(best, minlength=weights[0].shape[1]).tolist())
        return counts

    def reliability(
        self,
        weights: Weights,
        candidate: Candidate,
        own: int,
        temperatures: Sequence[float],
        growths: Sequence[float],
    ) -> NDArray[np.int64]:
        """How many beginnings of documents fell into each bin of confidence, and how many of them rightly.

        own: the place of the holder's domain. Shape: growths × temperatures × bins × 2.
        """
        counts = np.zeros((len(growths), len(temperatures), len(EDGES), 2), dtype=np.int64)
        if not len(self._lengths):
            return counts
        scores, voters = beginnings(self._compiled(weights, candidate), candidate.rule, self._ids, self._lengths)
        right = scores.argmax(axis=1) == own
        for row, growth in enumerate(growths):
            grown = scores * (voters**growth)[:, None]
            for column, temperature in enumerate(temperatures):
                confidence = softmax(grown / temperature).max(axis=1)
                bins = np.searchsorted(EDGES, confidence, side="right") - 1
                counts[row, column, :, 0] = np.bincount(bins, minlength=len(EDGES))
                counts[row, column, :, 1] = np.bincount(bins[right], minlength=len(EDGES))
        return counts

    def _compiled(self, weights: Weights, candidate: Candidate) -> CompiledTable:
        if candidate.normalise_columns:
            weights = normalised_columns(weights)
        return compile_table(self._rows, self._scale, weights)
