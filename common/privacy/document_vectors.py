"""Documents → one integer vector each, of bounded length, the same on every machine and for any
number of threads.

    tokens → mean m → z = P(m − μ) → u = z/‖z‖ ──┐
    the first 32 → … ──────────────────────→ u′ ─┴▶ v = ⌊2¹⁶ · 0.97 · (u + u′)/‖u + u′‖⌋, towards
    zero

A beginning is as long as a prompt is: half of what a document adds is how it begins, and half what
all of it tells. Truncation never lengthens a vector, and ‖z‖ is rounded up, so ‖v‖ ≤ 0.97 · 2¹⁶
holds in integers: what a document can add to a sum does not rest on an argument about floats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import BoundExceeded, ShapeMismatch
from ridgeway.common.encoding.tokenizer import Ids, first_tokens
from ridgeway.common.privacy.public_prior import (
    MEAN_BITS,
    Floats,
    Integers,
    PublicPrior,
    token_sums,
)

VECTOR_LENGTH = (97 << 16) // 100
"""No document's vector is longer: 0.97 · 2¹⁶, rounded down. The rest of 2¹⁶ is for its count."""

MAX_SQUARE_BITS = 62
"""z is cut to so many bits that its squares add up to no more than this."""

_BEGINNING_TOKENS = 32
"""Chosen on held-out training text: 16 to 128 tokens differ little; without a beginning, prompts
are routed worse.
"""

BLOCK_DOCUMENTS = 1024


def document_vectors(
    prior: PublicPrior, ids: Ids, lengths: Integers, encoder_table: NDArray[np.int16]
) -> NDArray[np.int64]:
    """One row of h integers for each document, whose ids stand in one row, `lengths` of them each.

    A document without tokens, or one that the prior sees nothing of, is a row of zeros.
    """
    if encoder_table.shape[1] != prior.width:
        raise ShapeMismatch(
            f"a prior of width {prior.width} does not fit a table of width"
            f" {encoder_table.shape[1]}"
        )
    whitening = prior.whitening.T.astype(np.float64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.empty((len(lengths), prior.width), dtype=np.int64)
    for start in range(0, len(lengths), BLOCK_DOCUMENTS):
        block = slice(start, min(start + BLOCK_DOCUMENTS, len(lengths)))
        own = ids[starts[block.start] : starts[block.stop]], lengths[block]
        whole, begun = (
            unit_rows(_whitened(prior, whitening, *part, encoder_table))
            for part in (own, first_tokens(*own, _BEGINNING_TOKENS))
        )
        rows[block] = unit_rows(whole + begun)
    return rows


def _whitened(
    prior: PublicPrior,
    whitening: Floats,
    ids: Ids,
    counts: Integers,
    encoder_table: NDArray[np.int16],
) -> Integers:
    """P(m − μ) exactly: a float64 product of integers that stay below 2⁵³ (the prior's own
    bound).
    """
    divisor = np.maximum(counts, 1)[:, None]
    means = ((token_sums(ids, counts, encoder_table) << MEAN_BITS + 1) + divisor) // (
        2 * divisor
    )
    means[counts == 0] = prior.mean
    return np.asarray(
        ((means - prior.mean).astype(np.float64) @ whitening).astype(np.int64)
    )


def unit_rows(rows: Integers) -> Integers:
    """Each row brought to the length VECTOR_LENGTH or just below, in integers; zeros stay zeros."""
    short = (MAX_SQUARE_BITS - rows.shape[1].bit_length()) // 2
    largest = np.abs(rows).max(axis=1, initial=0)
    _, bits = np.frexp(largest.astype(np.float64))  # exact: these are below 2⁵³
    shift = bits.astype(np.int64)[:, None] - short
    sizes = (np.abs(rows) >> np.maximum(shift, 0)) << np.maximum(-shift, 0)
    norms = _roots_rounded_up(np.square(sizes).sum(axis=1))
    found = np.sign(rows) * (VECTOR_LENGTH * sizes // np.maximum(norms, 1)[:, None])
    if np.square(found).sum(axis=1).max(initial=0) > VECTOR_LENGTH**2:
        raise BoundExceeded(
            "a document's vector is longer than its bound; this cannot be, so nothing"
            " was summed"
        )
    return np.asarray(found)


def _roots_rounded_up(squares: Integers) -> Integers:
    """The least integers whose squares are at least these."""
    roots = np.sqrt(squares.astype(np.float64)).astype(np.int64)
    roots -= roots * roots >= squares
    roots += roots * roots < squares
    roots += roots * roots < squares
    return np.asarray(np.maximum(roots, 0))
