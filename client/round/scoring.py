"""A holder's held-out documents under candidate routers: counts, and nothing but counts.

Knows token ids and weights. Knows nothing of text, of files or of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.files import sha256
from ridgeway.common.base.settings import CONTEXTUAL_SAMPLING, Sampling, Selector
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.encoding.transformer_encoder import AnyEncoder, ContextualEncoder
from ridgeway.common.protocol.messages import Candidate
from ridgeway.common.routing.belonging import belonging_counts
from ridgeway.common.routing.cosine_table import TextCosines, compile_rows, text_cosines
from ridgeway.common.routing.evaluation import CALIBRATED_COUNTS, CONFIDENCE_EDGES, CURVES, beginnings
from ridgeway.common.routing.hidden_state_table import HiddenStateTable, States, model_states
from ridgeway.common.routing.token_table import (
    RouterTable,
    TokenTable,
    normalised_columns,
    tally,
    winners,
)

Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HeldOut:
    """Documents as token ids in one row, `lengths` of them each. Private: it never leaves the holder."""

    ids: Ids
    lengths: NDArray[np.int64]

    @property
    def content(self) -> str:
        return sha256(np.ascontiguousarray(self.lengths).data, np.ascontiguousarray(self.ids).data)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LastRouter:
    """The router of a release that was received: its weights as they are used, and where in it a domain stands."""

    weights: Weights
    rule: Selector
    own: int


Compile = Callable[[Weights], RouterTable]


class Scorer:
    """Scores candidates on held-out documents.

    With a static encoder, by the rows of the table that these documents use; with a contextual one, by the hidden
    states of their tokens, which are computed once and kept in memory as long as the scorer is there.
    """

    def __init__(
        self, encoder: AnyEncoder, held_out: HeldOut, sampling: Sampling = CONTEXTUAL_SAMPLING, device: str = "auto"
    ) -> None:
        filled = held_out.lengths > 0
        self._lengths = held_out.lengths[filled]
        self._ids, self._compile = (
            _by_rows(encoder, held_out.ids)
            if isinstance(encoder, TableEncoder)
            else _by_states(encoder, held_out.ids, sampling, device)
        )

    def routed(
        self, weights: Sequence[Weights], candidates: Sequence[Candidate], own: int, last: LastRouter | None = None
    ) -> list[list[int]]:
        """For each candidate, to which domain how many documents were routed; then how many it lost, and won.

        own: the place of the holder's domain. Lost is what the last router had right and the candidate has not.
        """
        if not len(self._lengths):
            return [[0] * (weights[0].shape[1] + 2) for _ in candidates]
        before = self._rightly(last) if last else None
        tables: dict[tuple[int, bool], tuple[TokenTable, Ids]] = {}
        counts = []
        for candidate in candidates:
            key = (candidate.ridge, candidate.normalise_columns)
            if key not in tables:
                tables[key] = self._compiled(weights[candidate.ridge], candidate).read(self._ids, self._lengths)
            table, places = tables[key]
            best = winners(tally(table, candidate.rule, places, self._lengths))
            right = best == own
            changed = [0, 0] if before is None else [int((before & ~right).sum()), int((right & ~before).sum())]
            counts.append([*np.bincount(best, minlength=weights[0].shape[1]).tolist(), *changed])
        return counts

    def _rightly(self, last: LastRouter) -> NDArray[np.bool_]:
        table, places = self._compile(last.weights).read(self._ids, self._lengths)
        right: NDArray[np.bool_] = winners(tally(table, last.rule, places, self._lengths)) == last.own
        return right

    def calibration(
        self, weights: Weights, candidate: Candidate, own: int, temperatures: Sequence[float]
    ) -> NDArray[np.int64]:
        """The reliability, and then what of these documents belongs to any domain, in one row.

        own: the place of the holder's domain. All are multiplied by one number, so that few documents weigh as many.
        """
        scores, voters = self._beginnings(weights, candidate)
        found = self._reliability(scores, voters, own, temperatures), belonging_counts(scores, voters, own)
        return np.concatenate([each.ravel() for each in found]) * (CALIBRATED_COUNTS // max(len(scores), 1))

    def reliability(
        self, weights: Weights, candidate: Candidate, own: int, temperatures: Sequence[float]
    ) -> NDArray[np.int64]:
        """How many beginnings of documents fell into each bin of confidence, and how many of them rightly.

        own: the place of the holder's domain. Shape: curves × temperatures × bins × 2.
        """
        return self._reliability(*self._beginnings(weights, candidate), own, temperatures)

    def _beginnings(self, weights: Weights, candidate: Candidate) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        if not len(self._lengths):
            return np.zeros((0, weights.shape[1])), np.zeros(0, dtype=np.int64)
        return beginnings(self._compiled(weights, candidate), candidate.rule, self._ids, self._lengths)

    def _reliability(
        self, scores: NDArray[np.float64], voters: NDArray[np.int64], own: int, temperatures: Sequence[float]
    ) -> NDArray[np.int64]:
        bins = len(CONFIDENCE_EDGES)
        counts = np.zeros((len(CURVES), len(temperatures), bins, 2), dtype=np.int64)
        if not len(scores):
            return counts
        right = scores.argmax(axis=1) == own
        first = bins * np.arange(len(temperatures))[:, None]
        for row, curve in enumerate(CURVES):
            distances = curve.distances(scores, voters)
            sure = [curve.confidence(distances / temperature) for temperature in temperatures]
            places = first + np.searchsorted(CONFIDENCE_EDGES, sure, side="right") - 1
            for column, counted in enumerate((places, places[:, right])):
                found = np.bincount(counted.ravel(), minlength=first.size * bins)
                counts[row, :, :, column] = found.reshape(-1, bins)
        return counts

    def _compiled(self, weights: Weights, candidate: Candidate) -> RouterTable:
        with one_blas_thread():  # these products are small
            return self._compile(normalised_columns(weights) if candidate.normalise_columns else weights)


def _by_rows(encoder: TableEncoder, ids: Ids) -> tuple[Ids, Compile]:
    """Ids among the rows of the table that are used, and how weights are compiled over these rows alone."""
    used, places = np.unique(ids, return_inverse=True)
    rows, words, cosines = encoder.table[used], encoder.words, encoder.cosines
    words = words.of_tokens(used) if words else None
    texts = remembered_cosines(text_cosines(rows, words, cosines)) if cosines else None
    return places.astype(np.int32), lambda weights: compile_rows(rows, encoder.scale, words, weights, cosines, texts)


def remembered_cosines(texts: TextCosines) -> TextCosines:
    """The same cosines, computed once for the same texts: candidates are tried on the same ones."""
    known: dict[tuple[bytes, bytes], NDArray[np.int16]] = {}

    def again(ids: Ids, lengths: NDArray[np.int64]) -> NDArray[np.int16]:
        key = ids.tobytes(), lengths.tobytes()
        if key not in known:
            known[key] = texts(ids, lengths)
        return known[key]

    return again


def _by_states(encoder: ContextualEncoder, ids: Ids, sampling: Sampling, device: str) -> tuple[Ids, Compile]:
    states = _remembered(model_states(encoder, sampling, device=device))
    return ids, lambda weights: HiddenStateTable(weights, encoder.scale, states)


def _remembered(states: States) -> States:
    """The same hidden states, computed once for each text."""
    known: dict[bytes, NDArray[np.int16]] = {}

    def again(ids: Ids) -> NDArray[np.int16]:
        key = ids.tobytes()
        if key not in known:
            known[key] = states(ids)
        return known[key]

    return again
