"""The sentence network beside numpy's float32 matrix product, by products a second on one core.

A text's products are all that the network's weights take part in: each layer's for each token, and
the dense layers' once. Embedding, normalising and rounding are in the time and are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.machine import (
    native,
    one_blas_thread,
    sentence_kernel,
    why_not,
)
from ridgeway.common.text.sentence_encoder import find_use
from ridgeway.common.text.sentence_network import (
    SENTENCE_WIDTH,
    SHAPES,
    SentenceWeights,
)
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    Work,
    runs_in_turns,
    spread_of,
)


@dataclass(frozen=True, slots=True)
class SentenceCase:
    """So many texts of so many tokens, begin and end among them, read `repeats` times in a turn.

    aims: by the way to multiply.
    """

    name: str
    texts: int
    tokens: int
    repeats: int
    aims: dict[str, str]


_CASES: Final = (
    SentenceCase(
        "64 texts of 128 tokens", 64, 128, 1, {"vnni": "≥ 0.9", "avx2": "≥ 0.6"}
    ),
    SentenceCase("a text of 30 tokens", 1, 30, 64, {"vnni": "≥ 0.5", "avx2": "≥ 0.5"}),
)
_ROUNDS: Final = 15
_MATRICES: Final = (192, 512, 768)
"""Rows, columns and columns of the two matrices that numpy multiplies."""
_REPEATS: Final = 32
"""How often numpy multiplies them in a turn."""
_SEED: Final = 1


def sentences_rows(options: BenchOptions) -> Iterator[Row]:
    if native is None:
        raise InputError(f"bench sentences needs the compiled module: {why_not}")
    numbers = find_use().numbers
    numpy_products = float(np.prod(_MATRICES)) * _REPEATS
    contenders = [_reading(case, numbers) for case in _CASES]
    with one_blas_thread():
        *taken, bare = runs_in_turns(*contenders, _multiplying(), rounds=_ROUNDS)
    for case, runs in zip(_CASES, taken, strict=True):
        counted = _products(case)
        rate = counted / median(runs)
        beside = numpy_products / median(bare)
        yield Row(
            f"sentences, {case.name}, to numpy's float32 products",
            f"{rate / 1e9:.1f} G products/s by {sentence_kernel()}",
            f"{beside / 1e9:.1f} G products/s",
            rate / beside,
            case.aims.get(sentence_kernel(), ""),
            spread_of(bare, runs, counted / numpy_products),
        )


def _products(case: SentenceCase) -> int:
    """Of one turn."""
    sizes = [height * width for height, width in SHAPES.values()]
    head = list(SHAPES).index("pool")
    a_token = sum(sizes[:head])
    a_text = sum(sizes[head:])
    return case.repeats * case.texts * (case.tokens * a_token + a_text)


def _reading(case: SentenceCase, numbers: SentenceWeights) -> Work:
    network = native.SentenceNetwork(**numbers.arrays(), variant=sentence_kernel())
    chance = np.random.default_rng(_SEED)
    count = case.texts * case.tokens
    ids = chance.integers(0, len(numbers.table), count).astype(np.int32)
    lengths = np.full(case.texts, case.tokens)
    vectors = np.empty((case.texts, SENTENCE_WIDTH), np.int16)

    def work() -> None:
        for _ in range(case.repeats):
            network.vectors(ids, lengths, vectors)

    return work


def _multiplying() -> Work:
    chance = np.random.default_rng(_SEED)
    height, between, width = _MATRICES
    left = chance.standard_normal((height, between)).astype(np.float32)
    right = chance.standard_normal((between, width)).astype(np.float32)

    def work() -> None:
        for _ in range(_REPEATS):
            np.matmul(left, right)

    return work
