"""Documents → one integer vector each, of bounded length, the same on every machine and for any
number of threads.

    tokens → mean m → z = P(m − μ) → u = z/‖z‖ ──┐
    the first 32 → … ──────────────────────→ u′ ─┴▶ v = ⌊2¹⁶ · 0.97 · (u + u′)/‖u + u′‖⌋, towards
    zero

A beginning is as long as a prompt is: half of what a document adds is how it begins, and half what
all of it tells. Where the encoder reads sentences, m is also the mean of the sentence vectors of a
document's pieces, and v is the two parts behind each other, brought to the same length. Truncation
never lengthens a vector, and ‖z‖ is rounded up, so ‖v‖ ≤ 0.97 · 2¹⁶ holds in integers: what a
document can add to a sum does not rest on an argument about floats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import BoundExceeded, ShapeMismatch
from ridgeway.common.privacy.public_prior import (
    Integers,
    PublicPrior,
    Whitening,
    token_sums,
)
from ridgeway.common.text.sentence_encoder import SentenceFeatures
from ridgeway.common.text.tokenizer import Ids, first_tokens

VECTOR_LENGTH = (97 << 16) // 100
"""No document's vector is longer: 0.97 · 2¹⁶, rounded down. The rest of 2¹⁶ is for its count."""

MAX_SQUARE_BITS = 62
"""z is cut to so many bits that its squares add up to no more than this."""

_BEGINNING_TOKENS = 32
"""Chosen on held-out training text: 16 to 128 tokens differ little; without a beginning, prompts
are routed worse.
"""

TOKENS_SHARE = 4
SENTENCES_SHARE = 5
"""How long the two parts of a document's vector are, relative to each other. Chosen on held-out
training text of four sets, at ε = 1 and 3, as a compromise: longer sentences gain up to three
points on one-line requests, and lose as many on questions and answers.
"""

BLOCK_DOCUMENTS = 1024


def document_vectors(
    prior: PublicPrior,
    ids: Ids,
    lengths: Integers,
    encoder_table: NDArray[np.int16],
    sentences: SentenceFeatures | None = None,
) -> Integers:
    """One row of integers for each document, whose ids stand in one row, `lengths` of them each.

    A document without tokens, or one that the prior sees nothing of, is a row of zeros.
    """
    widths = encoder_table.shape[1], sentences.encoder.width if sentences else 0
    if widths != (prior.tokens.width, prior.width - prior.tokens.width):
        raise ShapeMismatch(
            f"a prior of width {prior.width} does not match a table of width "
            f"{widths[0]} and sentences of width {widths[1]}"
        )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.empty((len(lengths), prior.width), dtype=np.int64)
    for start in range(0, len(lengths), BLOCK_DOCUMENTS):
        block = slice(start, min(start + BLOCK_DOCUMENTS, len(lengths)))
        documents = ids[starts[block.start] : starts[block.stop]], lengths[block]
        vectors = _of_tokens(prior.tokens, *documents, encoder_table)
        if sentences and prior.sentences:
            read = _of_sentences(prior.sentences, *documents, sentences)
            both = [TOKENS_SHARE * vectors, SENTENCES_SHARE * read]
            vectors = unit_rows(np.hstack(both))
        rows[block] = vectors
    return rows


def _of_tokens(
    whitening: Whitening, ids: Ids, lengths: Integers, table: NDArray[np.int16]
) -> Integers:
    first, counts = first_tokens(ids, lengths, _BEGINNING_TOKENS)
    whole = whitening.whitened(token_sums(ids, lengths, table), lengths)
    begun = whitening.whitened(token_sums(first, counts, table), counts)
    return unit_rows(unit_rows(whole) + unit_rows(begun))


def _of_sentences(
    whitening: Whitening, ids: Ids, lengths: Integers, sentences: SentenceFeatures
) -> Integers:
    whole = unit_rows(whitening.whitened(*sentences.vector_sums(ids, lengths)))
    begun = whole.copy()
    # a short document is its own beginning
    long = lengths > _BEGINNING_TOKENS
    if long.any():
        first = first_tokens(
            ids[np.repeat(long, lengths)], lengths[long], _BEGINNING_TOKENS
        )
        begun[long] = unit_rows(whitening.whitened(*sentences.vector_sums(*first)))
    return unit_rows(whole + begun)


def unit_rows(rows: Integers) -> Integers:
    """Each row brought to the length VECTOR_LENGTH or just below, in integers; zeros stay zeros."""
    short = (MAX_SQUARE_BITS - rows.shape[1].bit_length()) // 2
    largest = np.abs(rows).max(axis=1, initial=0)
    _, bits = np.frexp(largest.astype(np.float64))  # exact: these are below 2⁵³
    shift = bits.astype(np.int64)[:, None] - short
    sizes = (np.abs(rows) >> np.maximum(shift, 0)) << np.maximum(-shift, 0)
    norms = _roots_rounded_up(np.square(sizes).sum(axis=1))
    vectors = np.sign(rows) * (VECTOR_LENGTH * sizes // np.maximum(norms, 1)[:, None])
    if np.square(vectors).sum(axis=1).max(initial=0) > VECTOR_LENGTH**2:
        raise BoundExceeded(
            "a document's vector is longer than its bound; nothing was summed. Report "
            "this bug"
        )
    return np.asarray(vectors)


def _roots_rounded_up(squares: Integers) -> Integers:
    """The least integers whose squares are at least these."""
    roots = np.sqrt(squares.astype(np.float64)).astype(np.int64)
    roots -= roots * roots >= squares
    roots += roots * roots < squares
    roots += roots * roots < squares
    return np.asarray(np.maximum(roots, 0))
