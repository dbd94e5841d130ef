"""Documents as vectors of bounded length, and the noise of private sums."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import BoundExceeded, ShapeMismatch
from ridgeway.common.base.files import sha256
from ridgeway.common.privacy.public_prior import (
    Integers,
    PublicPrior,
    letter_sums,
)
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokens import Tokens

# Documents → one integer vector each, of bounded length, the same on every machine and for any
# number of threads.
#
#     runs of letters → their mean m → z = P(m − μ) → u = z/‖z‖ ──┐
#     those of the first 32 tokens → … ─────────────────────→ u′ ─┤
#                    v = ⌊2¹⁶ · 0.97 · (u + u′)/‖u + u′‖⌋, towards zero ◀┘
#
# A beginning is as long as a prompt is: half of what a document adds is how it begins, and half
# what all of it tells. m is also the mean of the sentence vectors of a document's pieces, and v is
# the two parts behind each other, brought to the same length. Truncation never lengthens a vector,
# and ‖z‖ is rounded up, so ‖v‖ ≤ 0.97 · 2¹⁶ holds in integers: what a document can add to a sum
# does not rest on an argument about floats.


VECTOR_LENGTH = (97 << 16) // 100
"""No document's vector is longer: 0.97 · 2¹⁶, rounded down. The rest of 2¹⁶ is for its count."""

MAX_SQUARE_BITS = 62
"""z is cut to so many bits that its squares add up to no more than this."""

_BEGINNING_TOKENS = 32
"""Chosen on held-out training text: 16 to 128 tokens differ little; without a beginning, prompts
are routed worse.
"""

LETTERS_SHARE = 3
SENTENCES_SHARE = 5
"""How long the two parts of a document's vector are, relative to each other. Chosen on held-out
training text of six sets at ε = 1: longer letters gain up to a point on code and mathematics, and
lose as much or more on short questions.
"""

BLOCK_DOCUMENTS = 1024


def document_vectors(
    prior: PublicPrior, tokens: Tokens, encoder: TableEncoder
) -> Integers:
    """One row of integers for each document.

    A document without tokens, or one that the prior sees nothing of, is a row of zeros.
    """
    prior.must_fit(encoder)
    rows = np.empty((len(tokens.lengths), prior.width), dtype=np.int64)
    for start in range(0, len(rows), BLOCK_DOCUMENTS):
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[start : start + BLOCK_DOCUMENTS] = True
        documents = tokens.of_texts(chosen) if len(rows) > BLOCK_DOCUMENTS else tokens
        parts = _whitened(prior, documents, encoder)
        begun = [part.copy() for part in parts]
        # a short document is its own beginning
        long = documents.lengths > _BEGINNING_TOKENS
        if long.any():
            first = documents.of_texts(long).first(_BEGINNING_TOKENS)
            for part, of_first in zip(
                begun, _whitened(prior, first, encoder), strict=True
            ):
                part[long] = of_first
        letters, sentences = (
            unit_rows(whole + beginning)
            for whole, beginning in zip(parts, begun, strict=True)
        )
        rows[chosen] = unit_rows(
            np.hstack([LETTERS_SHARE * letters, SENTENCES_SHARE * sentences])
        )
    return rows


def _whitened(
    prior: PublicPrior, tokens: Tokens, encoder: TableEncoder
) -> list[Integers]:
    """What each document says by its letters, and by its sentences, as vectors of one length."""
    if encoder.sentences is None or prior.sentences is None:
        raise ShapeMismatch("private rounds need an encoder that reads sentences")
    read = encoder.sentences.vector_sums(tokens)
    letters = letter_sums(encoder, tokens), tokens.lengths
    return [
        unit_rows(prior.letters.whitened(*letters)),
        unit_rows(prior.sentences.whitened(*read)),
    ]


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


# The noise of private sums, and the bound of one document that it is measured by.


# How far one document can move what a holder sends: its part is bounded, in integers, whatever its
# text says.
#
# A document is one row of integers whose square is at most `ROW_SQUARE`, which is checked here and
# nowhere taken on trust. Beside its row it adds a constant, which counts it. So adding or removing
# a document moves the sums by at most √`moved_square`, and no float is part of the argument.


PrivacyMode = Literal["columns", "full"]

UNIT = 1 << 16
"""One, in fixed point."""
ROW_SQUARE = VECTOR_LENGTH**2
COLUMN_COUNT = 243 * UNIT // 1000
"""What a document adds to its domain's count where columns alone are sent: with the row, no more
than UNIT in all.
"""
FULL_ROW = 77 * VECTOR_LENGTH // 60
FULL_COUNT = ROW_SQUARE // 3
"""Where the products of a row are sent too: by what its row is multiplied, and what it adds to the
count, so that the weights of products, row and count are as 0.6, 0.77 and 0.2. Products are summed
over all domains, a column over one: it needs the larger share where documents are few (chosen on
held-out training text).
"""
EXACT_BOUND = 1 << 61
"""No number of a total over all members is as large before noise. With noise of σ up to 2⁴⁸ from
each of 10,000 members it stays below 2⁶² but for a probability of e^−3,000, so no total leaves 64
bits.
"""
EXACT_ROWS = 1 << 20
"""So many rows have sums of products below 2⁵³, which float64 holds exactly."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DocumentSums:
    """The sums over a holder's documents, before any noise: they never leave as they are.

    products: h×h, the sum of vvᵀ over rows v; 0×0 where columns alone are sent.
    column:   h + 1, the sum of v in the mode's own unit, and the documents' count in its.
    """

    mode: PrivacyMode
    products: Integers
    column: Integers

    @property
    def content(self) -> str:
        """Stands for the sums."""
        return sha256(
            self.mode.encode(), self.products.tobytes(), self.column.tobytes()
        )

    @property
    def documents(self) -> int:
        return int(self.column[-1]) // count_unit(self.mode)

    def __add__(self, other: DocumentSums) -> DocumentSums:
        check_documents(self.mode, self.documents + other.documents)
        return DocumentSums(
            self.mode, self.products + other.products, self.column + other.column
        )

    def __repr__(self) -> str:
        return f"<DocumentSums {self.mode} width={len(self.column) - 1}>"


def count_unit(mode: PrivacyMode) -> int:
    """What one document adds to the count."""
    return COLUMN_COUNT if mode == "columns" else FULL_COUNT


def row_unit(mode: PrivacyMode) -> int:
    """By what a row is multiplied in its column."""
    return 1 if mode == "columns" else FULL_ROW


def moved_square(mode: PrivacyMode) -> int:
    """The most by which one document more, or less, moves the sums: the square of the length, twice
    each product.
    """
    column = row_unit(mode) ** 2 * ROW_SQUARE + count_unit(mode) ** 2
    return column + (ROW_SQUARE**2 if mode == "full" else 0)


def max_documents(mode: PrivacyMode, members: int = 1) -> int:
    """The most documents of each of so many members for which no number of their total wraps
    around.

    In `full`, 444 million in all: 4.4 million each for 100 members, 44,463 each for 10,000. In
    `columns`, 36 million million in all.
    """
    products = ROW_SQUARE if mode == "full" else 0
    largest = max(row_unit(mode) * VECTOR_LENGTH, count_unit(mode), products)
    return (EXACT_BOUND - 1) // largest // members


def check_documents(mode: PrivacyMode, documents: int, members: int = 1) -> None:
    """Raise BoundExceeded if one of so many members has more documents than it may."""
    most = max_documents(mode, members)
    if documents > most:
        raise BoundExceeded(
            f"{documents:,} documents are too many: in a private round of {members:,} "
            f"holders, each may sum {most:,} without overflowing 64 bits; sum fewer"
        )


def empty_sums(mode: PrivacyMode, width: int) -> DocumentSums:
    return bounded_sums(mode, np.zeros((0, width), np.int64))


def bounded_sums(mode: PrivacyMode, rows: Integers) -> DocumentSums:
    """The sums over documents, a row of integers each. Raises BoundExceeded if one is longer than
    it may be.

    Law: the sums of two corpora, added, are the sums of both together.
    """
    check_rows(rows)
    check_documents(mode, len(rows))
    count, width = rows.shape
    column = np.append(row_unit(mode) * rows.sum(axis=0), count * count_unit(mode))
    products = np.zeros((width, width) if mode == "full" else (0, 0), np.int64)
    for start in range(0, count if mode == "full" else 0, EXACT_ROWS):
        block = rows[start : start + EXACT_ROWS].astype(np.float64)
        products += (block.T @ block).astype(np.int64)
    return DocumentSums(mode, products, column)


def check_rows(rows: Integers) -> None:
    """Raise BoundExceeded unless these are documents' rows, none longer than VECTOR_LENGTH."""
    if rows.dtype != np.int64 or rows.ndim != 2:
        raise BoundExceeded(
            f"documents must be rows of 64-bit integers, not {rows.dtype} of shape "
            f"{rows.shape}"
        )
    if not rows.size:
        return
    # before anything is squared, so that nothing can wrap around
    largest = int(max(rows.max(), -int(rows.min())))
    if (
        largest > VECTOR_LENGTH
        or int(np.einsum("nh,nh->n", rows, rows).max()) > ROW_SQUARE
    ):
        raise BoundExceeded(
            "a document's row is longer than its bound, so noise would not hide it"
        )


# Discrete Gaussian noise, sampled exactly: integers x with a probability in proportion to
# exp(−x²/2σ²).
#
# After Canonne, Kamath and Steinke (2020), many numbers at a time. Every coin is a uniform integer
# compared with another integer, so no number is ever rounded, and nothing here is a float. σ is a
# whole number: noise is added to sums in fixed point, whose unit is so small that rounding σ up
# costs nothing. Randomness is an argument.


Flags = NDArray[np.bool_]
Randomness = Callable[[int], bytes]
"""Gives so many random bytes."""

MAX_SIGMA = 1 << 48
"""Up to this σ a number leaves 64 bits with a probability below e^−16,000."""


def discrete_gaussian(
    sigma: int, count: int, draw: Randomness = secrets.token_bytes
) -> Integers:
    """So many independent numbers of a discrete Gaussian whose parameter σ is `sigma`."""
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"σ must be between 1 and 2^48, not {sigma}")
    drawn_parts = [np.empty(0, np.int64)]
    left = count
    while left > 0:
        drawn = _laplace(sigma, 8 * left // 5 + 16, draw)
        kept = drawn[_is_kept(drawn, sigma, draw)][:left]
        drawn_parts.append(kept)
        left -= len(kept)
    return np.concatenate(drawn_parts)


def _laplace(scale: int, count: int, draw: Randomness) -> Integers:
    """About `count` numbers with a probability in proportion to exp(−|x|/scale)."""
    rest = _below(scale, 8 * count // 5 + 16, draw)
    rest = rest[_exponential(draw, len(rest), (rest, scale))]
    size = rest + scale * _successes(len(rest), draw)
    minus = _below(2, len(size), draw) == 1
    # else zero would come twice as often
    once: Integers = np.where(minus, -size, size)[~(minus & (size == 0))]
    return once


def _is_kept(drawn: Integers, sigma: int, draw: Randomness) -> Flags:
    """Heads with probability exp(−(|y| − σ)²/2σ²), which makes Gaussian numbers of those of
    Laplace.

    With |y| − σ = ±(qσ + r) the exponent is q²/2 + q·r/σ + (r/σ)·(r/2σ): coins of each part, all of
    which must fall.
    """
    whole, rest = np.divmod(np.abs(np.abs(drawn) - sigma), sigma)
    alive = np.arange(len(drawn))
    alive = alive[_exponential(draw, len(alive), (rest, sigma), (rest, 2 * sigma))]
    for times, part, by in (
        (whole**2, np.ones_like(rest), 2),
        (whole, rest, sigma),
    ):
        tossed = 0
        while (indices := np.flatnonzero(times[alive] > tossed)).size:
            tossing = alive[indices]
            fell = _exponential(draw, len(tossing), (part[tossing], by))
            alive = np.delete(alive, indices[~fell])
            tossed += 1
    kept = np.zeros(len(drawn), bool)
    kept[alive] = True
    return kept


def _successes(count: int, draw: Randomness) -> Integers:
    """How often a coin of exp(−1) falls on heads before the first tails."""
    times = np.zeros(count, np.int64)
    alive = np.arange(count)
    while alive.size:
        alive = alive[_exponential(draw, len(alive))]
        times[alive] += 1
    return times


def _exponential(draw: Randomness, count: int, *parts: tuple[Integers, int]) -> Flags:
    """Heads with probability exp(−γ); γ ≤ 1 is the product of the parts, numbers and what they are
    divided by.

    γ, γ/2, γ/3, … are the chances of coins; that the first which falls on tails has an odd number
    has just that one.
    """
    heads = np.zeros(count, bool)
    alive = np.arange(count)
    number = 1
    while alive.size:
        fell = _below(number, len(alive), draw) == 0
        for numbers, by in parts:
            fell[fell] = _below(by, int(fell.sum()), draw) < numbers[alive[fell]]
        heads[alive[~fell]] = number % 2 == 1
        alive, number = alive[fell], number + 1
    return heads


def _below(bound: int, count: int, draw: Randomness) -> Integers:
    """Uniform integers from 0 to bound − 1: bits that make a larger number are drawn again."""
    bits = (bound - 1).bit_length()
    if not bits:
        return np.zeros(count, np.int64)
    kind = np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if bits <= 8 * size)}")
    drawn_parts = [np.empty(0, np.int64)]
    left = count
    while left > 0:
        words = np.frombuffer(draw(left * kind.itemsize), kind) & kind.type(
            (1 << bits) - 1
        )
        fitting = words[words < bound].astype(np.int64)
        drawn_parts.append(fitting)
        left -= len(fitting)
    return np.concatenate(drawn_parts)
