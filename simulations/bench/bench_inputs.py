"""What benchmarks work on: texts, and corpora of random tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from ridgeway.common.base.settings import FEATURE_LIMIT, PLAIN_ENCODER
from ridgeway.common.statistics import Integers
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Ids
from ridgeway.common.text.tokens import NO_RUNS, Tokens
from ridgeway.simulations import corpora
from ridgeway.simulations.bench.measuring import BenchOptions

# The text that benchmarks run on: a folder that was named, else the built-in corpora.


@dataclass(frozen=True, slots=True)
class BenchText:
    """training: the file of each domain. documents and prompts: its texts, and the test's."""

    training: dict[str, Path]
    documents: list[str]
    prompts: list[str]


def bench_text(options: BenchOptions) -> BenchText:
    folder = options.text
    if folder is None:
        folder = options.work / "built-in"
        corpora.write(corpora.builtin(), folder)
    read = corpora.read_corpora(folder)
    return BenchText(
        {corpus.name: folder / f"{corpus.name}{corpora.TRAIN}" for corpus in read},
        [text for corpus in read for text in corpus.train],
        [text for corpus in read for text in corpus.test],
    )


@lru_cache(maxsize=1)
def bare_tokenizer() -> Tokenizer:
    """What our reading of text is held against: SmolLM2's tokenizer, by the tokenizers library."""
    return Tokenizer.from_str(find_encoder(PLAIN_ENCODER).definition.decode())


# What sums are measured on: an encoder with a random table, and random token ids.


UNUSED_TOKENIZER = Tokenizer(WordLevel({"a": 0}, unk_token="a")).to_str().encode()
MIN_BATCH_TOKENS = 1 << 17
"""About what a batch of text that `prepare` hands on comes to."""
_MAX_BATCHES = 256
_MAX_DOCUMENT_TOKENS = 4096
"""Documents are of all lengths up to this, as many from 8 to 16 tokens as from 1,024 to 2,048."""


def random_encoder(
    rows: int, width: int, definition: bytes = UNUSED_TOKENIZER
) -> TableEncoder:
    table = np.random.default_rng().integers(
        -FEATURE_LIMIT, FEATURE_LIMIT, (rows, width), dtype=np.int16, endpoint=True
    )
    return TableEncoder("random", definition, table, 2.0**-12)


def plain_tokens(ids: Ids, lengths: Integers) -> Tokens:
    """Tokens that nothing stands beside."""
    return Tokens(ids, lengths, NO_RUNS, ids[:0], lengths[:0])


def draw(tokens: int, rows: int) -> tuple[Ids, list[Tokens]]:
    """Ids as uneven as words, and the same ids as batches of whole documents."""
    rng = np.random.default_rng()
    # Zipf's law: the id of rank k has a probability near 1 / (k · ln rows)
    ranks = np.exp(rng.random(tokens, dtype=np.float32) * np.float32(np.log(rows)))
    spread = rng.permutation(rows).astype(np.int32)
    ids: Ids = spread[np.minimum(ranks.astype(np.int32), rows) - 1]
    return ids, _batches(ids, _lengths(rng, tokens))


def _batches(ids: Ids, lengths: Integers) -> list[Tokens]:
    ends = np.cumsum(lengths)
    begins = ends - lengths
    size = max(MIN_BATCH_TOKENS, len(ids) // _MAX_BATCHES)
    cuts = np.searchsorted(ends, np.arange(size, len(ids), size), side="left") + 1
    edges = np.unique([0, *cuts.tolist(), len(lengths)]).tolist()
    return [
        plain_tokens(ids[begins[first] : ends[last - 1]], lengths[first:last])
        for first, last in pairwise(edges)
    ]


def _lengths(rng: np.random.Generator, tokens: int) -> Integers:
    """Lengths of documents that add up to this number of tokens."""
    span = np.log(_MAX_DOCUMENT_TOKENS)
    mean = (_MAX_DOCUMENT_TOKENS - 1) / span
    # twice as many as are needed on average, so that they suffice
    drawn = np.exp(rng.random(int(2 * tokens / mean) + 64) * span).astype(np.int64)
    ends = np.minimum(np.cumsum(drawn), tokens)
    ends[-1] = tokens
    lengths: Integers = np.diff(ends, prepend=0)
    return lengths[lengths > 0]
