"""What a document adds under differential privacy: one vector, bounded in integers, the same
everywhere.
"""

from __future__ import annotations

from itertools import pairwise
from math import isqrt
from operator import mul, sub

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ridgeway.common.base.errors import EncoderMismatch, ShapeMismatch
from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.privacy import noise
from ridgeway.common.privacy.noise import (
    LETTERS_SHARE,
    SENTENCES_SHARE,
    VECTOR_LENGTH,
    bounded_sums,
    document_vectors,
    unit_rows,
)
from ridgeway.common.privacy.public_prior import (
    LETTER_BUCKETS,
    MAX_ROW_SUM,
    MEAN_BITS,
    Integers,
    PublicPrior,
    Whitening,
    letter_sums,
    private_width,
)
from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
from ridgeway.common.text.table_encoder import TableEncoder, with_sentences, with_words
from tests.support.native import without_native
from tests.support.seeds import few_examples
from tests.support.sentence_networks import encoder_of, random_network
from tests.support.sentence_texts import TEXTS
from tests.support.tiny import LETTERS, tiny_encoder

WIDTH = 5
LARGEST = MAX_ROW_SUM // WIDTH - 1
READER = encoder_of(random_network(0))
"""A sentence network of random numbers, whose tokenizer knows two pieces."""
ENCODERS = {
    width: with_sentences(with_words(tiny_encoder(), WordFeatures(width)), READER)
    for width in (LETTER_BUCKETS, 2 * LETTER_BUCKETS)
}
ENCODER = ENCODERS[2 * LETTER_BUCKETS]
HOSTILE = (
    "",
    "a",
    "é",
    "\U00013000" * 20_000,
    "<end>" * 3000 + "a",
    "<end>",
    "\n" * 999,
    "\0",
    "\ud800",
    "a" * 40_000,
    "ab" * 700 + " " * 4000,
    "\u0301" * 500,
)
"""Next to no letters, next to no tokens, and many letters in few tokens."""

rows = arrays(
    np.int64,
    st.tuples(st.integers(0, 6), st.integers(1, 9)),
    elements=st.integers(-(2**53) + 1, 2**53 - 1),
)
whitenings = arrays(np.int32, (WIDTH, WIDTH), elements=st.integers(-LARGEST, LARGEST))
centres = arrays(
    np.int64,
    WIDTH,
    elements=st.integers(-FEATURE_LIMIT << MEAN_BITS, FEATURE_LIMIT << MEAN_BITS),
)
texts = st.lists(
    st.text("abAé \n<", max_size=90)
    | st.text(max_size=20)
    | st.sampled_from([text[:60] for text in HOSTILE]),
    max_size=5,
)


def random_whitening(width: int, seed: int) -> Whitening:
    """The largest numbers that a prior may have."""
    rng = np.random.default_rng(seed)
    largest = MAX_ROW_SUM // width
    matrix = rng.integers(-largest + 1, largest, (width, width))
    limit = FEATURE_LIMIT << MEAN_BITS
    return Whitening(rng.integers(-limit, limit + 1, width), matrix.astype(np.int32), 7)


def random_prior(encoder: TableEncoder, seed: int = 0) -> PublicPrior:
    return PublicPrior(
        encoder.fingerprint,
        random_whitening(LETTER_BUCKETS, seed),
        random_whitening(SENTENCE_WIDTH, seed + 1),
    )


PRIOR = random_prior(ENCODER)


def vectors_of(given_texts: list[str], encoder: TableEncoder = ENCODER) -> Integers:
    prior = PRIOR if encoder is ENCODER else random_prior(encoder)
    return document_vectors(prior, encoder.read(given_texts), encoder)


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


@given(
    whitenings,
    centres,
    st.lists(
        st.tuples(
            st.lists(
                st.integers(-(1 << 44), 1 << 44) | st.integers(-9999, 9999),
                min_size=WIDTH,
                max_size=WIDTH,
            ),
            st.integers(0, 99),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_means_are_whitened_as_by_whole_number_arithmetic(
    matrix: NDArray[np.int32],
    centre: Integers,
    documents: list[tuple[list[int], int]],
) -> None:
    """The float64 product rounds nothing, at the largest priors and for any sums: Python's own
    integers give the same rows.
    """
    whitening = Whitening(centre, matrix, 0)
    limit = FEATURE_LIMIT << MEAN_BITS

    def seen(sums: list[int], count: int) -> list[int]:
        if not count:
            return [0] * WIDTH
        means = [
            min(max(((total << MEAN_BITS + 1) + count) // (2 * count), -limit), limit)
            for total in sums
        ]
        moved = list(map(sub, means, centre.tolist()))
        return [sum(map(mul, line, moved)) for line in matrix.tolist()]

    sums = np.array([row for row, _ in documents], np.int64)
    counts = np.array([count for _, count in documents], np.int64)
    expected = [seen(row, count) for row, count in documents]
    assert whitening.whitened(sums, counts).tolist() == expected


@given(texts, st.sampled_from(sorted(ENCODERS)))
def test_letters_are_counted_in_as_many_buckets_whatever_the_encoder_s(
    given_texts: list[str], width: int
) -> None:
    """Several of its buckets are one; each run counts its sign, times the amplitude."""
    encoder = ENCODERS[width]
    tokens = encoder.read(given_texts)
    assert private_width(encoder) == LETTER_BUCKETS + SENTENCE_WIDTH
    expected = np.zeros((len(given_texts), LETTER_BUCKETS), np.int64)
    assert encoder.options
    amplitude = encoder.options.amplitude
    stops = np.append(0, tokens.runs.stops)[np.append(0, np.cumsum(tokens.lengths))]
    for row, (start, stop) in zip(expected, pairwise(stops.tolist()), strict=True):
        for code in tokens.runs.codes[start:stop].tolist():
            row[code // 2 * LETTER_BUCKETS // width] += amplitude * (2 * (code % 2) - 1)
    assert np.array_equal(letter_sums(encoder, tokens), expected)


@few_examples
@given(texts)
def test_vectors_are_those_of_the_definition(given_texts: list[str]) -> None:
    """Half of what letters and sentences say is how a document begins, and half what all of it
    tells.
    """
    limit = 7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_BEGINNING_TOKENS", limit)
        vectors = vectors_of(given_texts)
    assert ENCODER.sentences and PRIOR.sentences
    tokens = ENCODER.read(given_texts)
    letters = np.zeros((len(given_texts), LETTER_BUCKETS), np.int64)
    sentences = np.zeros((len(given_texts), SENTENCE_WIDTH), np.int64)
    for part in (tokens, tokens.first(limit)):
        sums = letter_sums(ENCODER, part)
        letters += unit_rows(PRIOR.letters.whitened(sums, part.lengths))
        read = ENCODER.sentences.vector_sums(part)
        sentences += unit_rows(PRIOR.sentences.whitened(*read))
    both = [LETTERS_SHARE * unit_rows(letters), SENTENCES_SHARE * unit_rows(sentences)]
    assert np.array_equal(vectors, unit_rows(np.hstack(both)))


@few_examples
@given(texts)
def test_a_document_s_vector_is_its_own(given_texts: list[str]) -> None:
    """Whatever stands beside it, and by the compiled module or without."""
    together = vectors_of(given_texts)
    for text, row in zip(given_texts, together, strict=True):
        assert np.array_equal(vectors_of([text])[0], row)
    with without_native():
        assert np.array_equal(vectors_of(given_texts), together)


def test_hostile_documents_are_bounded() -> None:
    """Whatever they say, alone and together; without tokens they are rows of zeros."""
    together = vectors_of(list(HOSTILE))
    lengths = ENCODER.read(HOSTILE).lengths
    squares = np.square(together).sum(axis=1)
    assert (squares <= VECTOR_LENGTH**2).all()
    assert (squares[lengths > 0] > 0.99 * VECTOR_LENGTH**2).all()
    assert not squares[lengths == 0].any()
    for text, row in zip(HOSTILE, together, strict=True):
        assert np.array_equal(vectors_of([text])[0], row)
    for mode in ("columns", "full"):
        assert bounded_sums(mode, together).documents == len(HOSTILE)
    with without_native():
        few = [text[:500] for text in HOSTILE]
        assert np.array_equal(vectors_of(few)[[1, 2]], together[[1, 2]])


def test_many_unknown_letters_in_one_token_are_bounded(use: TableEncoder) -> None:
    """The default encoder's tokenizer makes one token of all of them."""
    encoder = with_sentences(with_words(use, WordFeatures()), READER)
    hostile = [*HOSTILE, "\U00013000" * 300_000, *TEXTS.values()]
    tokens = encoder.read(hostile)
    sums = letter_sums(encoder, tokens)
    assert np.abs(sums).max() > FEATURE_LIMIT * 50_000
    rows_of = document_vectors(random_prior(encoder), tokens, encoder)
    assert (np.square(rows_of).sum(axis=1) <= VECTOR_LENGTH**2).all()
    assert rows_of[len(HOSTILE)].any()
    bounded_sums("full", rows_of)


def test_threads_blocks_and_neighbours_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many threads multiply, and however many documents are looked at together."""
    rng = np.random.default_rng(3)
    letters = np.array([*LETTERS, "é"])
    documents = ["".join(rng.choice(letters, size)) for size in rng.integers(0, 50, 90)]
    monkeypatch.setattr(noise, "BLOCK_DOCUMENTS", 32)
    together = vectors_of(documents)
    monkeypatch.undo()
    with threadpool_limits(1):
        assert np.array_equal(vectors_of(documents), together)
        for index in (0, 31, 32, 89):
            assert np.array_equal(
                vectors_of(documents[index : index + 1])[0], together[index]
            )


def test_a_prior_of_another_encoder_is_refused() -> None:
    """It is not stretched to fit; nor is a prior of letters alone."""
    with pytest.raises(EncoderMismatch):
        document_vectors(
            random_prior(ENCODERS[LETTER_BUCKETS]), ENCODER.read(["a"]), ENCODER
        )
    alone = PublicPrior(ENCODER.fingerprint, PRIOR.letters)
    with pytest.raises(ShapeMismatch, match="reads sentences"):
        document_vectors(alone, ENCODER.read(["a"]), ENCODER)
