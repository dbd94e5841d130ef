"""What sums are measured on: an encoder with a random table, and token ids drawn anew for each
repetition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np

from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids, plain_definition
from ridgeway.common.statistics.sums import Integers

Kind = Literal["uniform", "Zipf"]
Batch = tuple[Ids, Integers]

DEFINITION: Final = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}
"""A tokenizer that is never asked."""

BATCH_TOKENS = 1 << 17
"""About what a batch of text that `prepare` hands on comes to; batches hold whole documents."""

MAX_BATCHES = 256
"""Of many tokens larger batches are made, so that handing them out is not what is measured."""

MIN_DOCUMENT_TOKENS = 1
MAX_DOCUMENT_TOKENS = 4096
"""Documents are of all lengths in between, as many from 8 to 16 tokens as from 1,024 to 2,048."""


def random_encoder(rows: int, width: int) -> TableEncoder:
    """An encoder whose table is random and whose tokenizer is of no use."""
    rng = np.random.default_rng()
    table = rng.integers(
        -FEATURE_LIMIT, FEATURE_LIMIT, (rows, width), dtype=np.int16, endpoint=True
    )
    return TableEncoder("random", json.dumps(DEFINITION).encode(), table, 2.0**-12)


def word_encoder(
    words: Iterable[str], split: Mapping[str, Any], width: int
) -> TableEncoder:
    """An encoder that knows these words, each of them a token with a random row, so that the
    protocol is what counts.

    split: how text is divided into words, as a tokenizer's definition says it.
    """
    vocabulary = {word: place for place, word in enumerate(["<unk>", *words])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    definition = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": split,
        "model": model,
    }
    plain = random_encoder(len(vocabulary), width)
    return TableEncoder(
        "random",
        plain_definition(json.dumps(definition).encode()),
        plain.table,
        plain.scale,
    )


def draw(kind: Kind, tokens: int, rows: int) -> tuple[Ids, list[Batch]]:
    """Ids in one row, and the same ids as batches of whole documents."""
    rng = np.random.default_rng()
    ids = (
        rng.integers(0, rows, tokens, dtype=np.int32)
        if kind == "uniform"
        else _zipf(rng, tokens, rows)
    )
    return ids, batches(ids, _lengths(rng, tokens))


def batches(ids: Ids, lengths: Integers) -> list[Batch]:
    ends = np.cumsum(lengths)
    size = max(BATCH_TOKENS, len(ids) // MAX_BATCHES)
    cuts = np.searchsorted(ends, np.arange(size, len(ids), size), side="left") + 1
    edges = np.unique([0, *cuts.tolist(), len(lengths)]).tolist()
    begins = ends - lengths
    return [
        (ids[begins[first] : ends[last - 1]], lengths[first:last])
        for first, last in pairwise(edges)
    ]


def _zipf(rng: np.random.Generator, tokens: int, rows: int) -> Ids:
    """The id of rank k comes with a probability near 1/(k·ln V); ranks are spread over the table at
    random.
    """
    ranks = np.exp(
        rng.random(tokens, dtype=np.float32) * np.float32(np.log(rows))
    ).astype(np.int32)
    spread = rng.permutation(rows).astype(np.int32)
    found: Ids = spread[np.minimum(ranks, rows) - 1]
    return found


def _lengths(rng: np.random.Generator, tokens: int) -> Integers:
    """Lengths of documents that add up to this number of tokens."""
    span = np.log(MAX_DOCUMENT_TOKENS / MIN_DOCUMENT_TOKENS)
    mean = (MAX_DOCUMENT_TOKENS - MIN_DOCUMENT_TOKENS) / span
    drawn = (
        MIN_DOCUMENT_TOKENS * np.exp(rng.random(int(2 * tokens / mean) + 64) * span)
    ).astype(np.int64)
    ends = np.minimum(np.cumsum(drawn), tokens)
    lengths: Integers = np.diff(ends, prepend=0)
    short = tokens - int(ends[-1])
    return np.append(lengths[lengths > 0], [short] if short else []).astype(np.int64)
