"""What sums are measured on: an encoder with a random table, and token ids drawn anew for each repetition.

Knows numpy. Knows nothing of timing or devices.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from common.encoder import Encoder
from common.settings import FEATURE_LIMIT, Sampling
from common.statistics import Integers
from common.tokenizer import Ids

Kind = Literal["uniform", "Zipf"]
Batch = tuple[Ids, Integers]

DEFINITION: Final = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
"""A tokenizer that is never asked."""

BATCH_TOKENS = 1 << 17
"""About what a batch of text that `prepare` hands on comes to; batches hold whole documents."""

MOST_BATCHES = 256
"""Of many tokens larger batches are made, so that handing them out is not what is measured."""

SHORTEST, LONGEST = 1, 4096
"""Documents are of all lengths in between, as many from 8 to 16 tokens as from 1,024 to 2,048."""


def random_encoder(rows: int, width: int) -> Encoder:
    """An encoder whose table is random and whose tokenizer is of no use."""
    rng = np.random.default_rng()
    table = rng.integers(-FEATURE_LIMIT, FEATURE_LIMIT, (rows, width), dtype=np.int16, endpoint=True)
    return Encoder("random", json.dumps(DEFINITION).encode(), table, 2.0**-12)


def draw(kind: Kind, tokens: int, rows: int) -> tuple[Ids, list[Batch]]:
    """So many ids in one row, and the same ids as batches of whole documents."""
    rng = np.random.default_rng()
    ids = _uniform(rng, tokens, rows) if kind == "uniform" else _zipf(rng, tokens, rows)
    return ids, batches(ids, _lengths(rng, tokens))


def batches(ids: Ids, lengths: Integers) -> list[Batch]:
    ends, size = np.cumsum(lengths), max(BATCH_TOKENS, len(ids) // MOST_BATCHES)
    cuts = np.searchsorted(ends, np.arange(size, len(ids), size), side="left") + 1
    edges = np.unique([0, *cuts.tolist(), len(lengths)]).tolist()
    begins = ends - lengths
    return [(ids[begins[first] : ends[last - 1]], lengths[first:last]) for first, last in pairwise(edges)]


def _uniform(rng: np.random.Generator, tokens: int, rows: int) -> Ids:
    return rng.integers(0, rows, tokens, dtype=np.int32)


def _zipf(rng: np.random.Generator, tokens: int, rows: int) -> Ids:
    """The id of rank k comes with a probability near 1/(k·ln V); ranks are spread over the table at random."""
    ranks = np.exp(rng.random(tokens, dtype=np.float32) * np.float32(np.log(rows))).astype(np.int32)
    spread = rng.permutation(rows).astype(np.int32)
    found: Ids = spread[np.minimum(ranks, rows) - 1]
    return found


def _lengths(rng: np.random.Generator, tokens: int) -> Integers:
    """Lengths of documents that add up to so many tokens."""
    span = np.log(LONGEST / SHORTEST)
    mean = (LONGEST - SHORTEST) / span
    drawn = (SHORTEST * np.exp(rng.random(int(2 * tokens / mean) + 64) * span)).astype(np.int64)
    ends = np.minimum(np.cumsum(drawn), tokens)
    lengths: Integers = np.diff(ends, prepend=0)
    short = tokens - int(ends[-1])
    return np.append(lengths[lengths > 0], [short] if short else []).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """The sums straight from their definition: what every other way must equal, bit for bit."""

    table: NDArray[np.int16]
    sampling: Sampling

    def gram(self, parts: list[Batch]) -> Integers:
        """Σ φφᵀ. Its float64 products are of integers and stay below 2⁵³, so they are exact in any order."""
        samples = np.concatenate([self._samples(ids, lengths) for ids, lengths in parts])
        if len(samples) * FEATURE_LIMIT**2 >= 1 << 53:
            raise ValueError(f"{len(samples):,} samples are too many to be summed exactly in float64")
        features = np.ones((len(samples), samples.shape[1] + 1))
        features[:, :-1] = samples
        exact: Integers = (features.T @ features).astype(np.int64)
        return exact

    def _samples(self, ids: Ids, lengths: Integers) -> Integers:
        """The rounded means of windows, document by document, a rest below half a window with its neighbour."""
        window, start = self.sampling.window, 0
        found = []
        for length in lengths.tolist():
            rows = self.table[ids[start : start + length]].astype(np.int64)
            start += length
            count = max(1, length // window + (2 * (length % window) >= window))
            cuts = [place * window for place in range(1, count)]
            found += [_rounded_mean(part) for part in np.split(rows, cuts)]
        return np.stack(found)


def _rounded_mean(rows: Integers) -> Integers:
    mean: Integers = (2 * rows.sum(axis=0) + len(rows)) // (2 * len(rows))
    return mean
