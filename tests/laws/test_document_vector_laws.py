"""What a document adds under differential privacy: one vector, bounded in integers, the same
everywhere.
"""

from __future__ import annotations

from itertools import chain
from math import isqrt
from operator import mul, sub

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ridgeway.common.base.errors import ShapeMismatch
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.privacy import noise
from ridgeway.common.privacy.noise import (
    VECTOR_LENGTH,
    document_vectors,
    unit_rows,
)
from ridgeway.common.privacy.public_prior import (
    MAX_ROW_SUM,
    MEAN_BITS,
    Integers,
    PublicPrior,
    Whitening,
    token_sums,
)
from ridgeway.common.text.tokenizer import Ids

WIDTH, ROWS = 5, 40
LARGEST = MAX_ROW_SUM // WIDTH - 1
rows = arrays(
    np.int64,
    st.tuples(st.integers(0, 6), st.integers(1, 9)),
    elements=st.integers(-(2**53) + 1, 2**53 - 1),
)
tables = arrays(
    np.int16, (ROWS, WIDTH), elements=st.integers(-FEATURE_LIMIT, FEATURE_LIMIT)
)
whitenings = arrays(np.int32, (WIDTH, WIDTH), elements=st.integers(-LARGEST, LARGEST))
centres = arrays(
    np.int64,
    WIDTH,
    elements=st.integers(-FEATURE_LIMIT << MEAN_BITS, FEATURE_LIMIT << MEAN_BITS),
)
documents = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=30), max_size=8)


def flat(texts: list[list[int]]) -> tuple[Ids, Integers]:
    ids = np.array([*chain(*texts)], dtype=np.int32)
    return ids, np.array([*map(len, texts)], dtype=np.int64)


@given(rows)
def test_no_row_is_longer_than_the_bound_and_none_much_shorter(
    given_rows: Integers,
) -> None:
    """The sensitivity is a fact about integers; it is also used up, so that noise is not wasted."""
    for row, unit in zip(
        given_rows.tolist(), unit_rows(given_rows).tolist(), strict=True
    ):
        square = sum(number * number for number in unit)
        assert square <= VECTOR_LENGTH**2
        assert not any(row) or isqrt(square) >= VECTOR_LENGTH - len(row) - 1
        assert all(one * other >= 0 for one, other in zip(row, unit, strict=True))


@given(tables, whitenings, centres, documents)
def test_vectors_are_those_of_whole_number_arithmetic(
    table: NDArray[np.int16],
    whitening: NDArray[np.int32],
    centre: Integers,
    texts: list[list[int]],
) -> None:
    """The float64 product rounds nothing, at the largest priors too: Python's own integers give the
    same rows.
    """
    prior = PublicPrior("e" * 64, Whitening(centre, whitening, 0))

    def seen(text: list[int]) -> list[int]:
        if not text:
            return [0] * WIDTH
        sums = [sum(column) for column in zip(*table[text].tolist(), strict=True)]
        means = [
            ((total << MEAN_BITS + 1) + len(text)) // (2 * len(text)) for total in sums
        ]
        moved = list(map(sub, means, centre.tolist()))
        return [sum(map(mul, line, moved)) for line in whitening.tolist()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_BEGINNING_TOKENS", 7)
        vectors = document_vectors(prior, *flat(texts), table)
    parts = [[seen(text) for text in texts], [seen(text[:7]) for text in texts]]
    whole, begun = (
        unit_rows(np.array(part, dtype=np.int64).reshape(-1, WIDTH)) for part in parts
    )
    assert np.array_equal(vectors, unit_rows(whole + begun))


@given(tables, documents, st.integers(1, 7))
def test_sums_over_tokens_do_not_depend_on_how_long_documents_are_cut(
    table: NDArray[np.int16],
    texts: list[list[int]],
    chunk: int,
) -> None:
    """A document of any length is one row: 32 bits are never exceeded on the way."""
    ids, lengths = flat(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeway.common.privacy.public_prior.MAX_CHUNK_TOKENS", chunk)
        sums = token_sums(ids, lengths, table)
    expected = [table[text].sum(axis=0, dtype=np.int64) for text in texts]
    assert np.array_equal(sums, np.array(expected, dtype=np.int64).reshape(-1, WIDTH))


def test_threads_blocks_and_neighbours_change_nothing() -> None:
    """A document's vector is its own: whatever stands beside it, and however many threads
    multiply.
    """
    rng = np.random.default_rng(3)
    table = rng.integers(-FEATURE_LIMIT, FEATURE_LIMIT + 1, (500, 96)).astype(np.int16)
    whitening = rng.integers(
        -(MAX_ROW_SUM // 96) + 1, MAX_ROW_SUM // 96, (96, 96)
    ).astype(np.int32)
    prior = PublicPrior(
        "e" * 64, Whitening(rng.integers(-1000, 1000, 96), whitening, 7)
    )
    lengths = rng.integers(0, 50, 2500)
    ids = rng.integers(0, 500, lengths.sum()).astype(np.int32)
    together = document_vectors(prior, ids, lengths, table)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    with threadpool_limits(1):
        for index in (0, 1023, 1024, 2499):
            document = ids[starts[index] : starts[index + 1]]
            alone = document_vectors(prior, document, lengths[[index]], table)
            assert np.array_equal(alone[0], together[index])


def test_a_table_of_another_width_is_refused() -> None:
    """A prior of another encoder is not stretched to fit."""
    prior = PublicPrior(
        "e" * 64, Whitening(np.zeros(3, np.int64), np.eye(3, dtype=np.int32), 0)
    )
    with pytest.raises(ShapeMismatch):
        document_vectors(prior, *flat([[0]]), np.zeros((4, 5), np.int16))
