"""What can be computed from sums of documents under noise: their tokens, and whether a known
document is among them.

    a column of documents' vectors    → the tokens that point its way
    (`tokens_by_column`)
    the sum of documents' products    → the tokens that point where it is large
    (`tokens_by_products`)
    either, and a known document      → a score of its being among them
    (`membership_scores`)

An attack is given what a coordinator sees: the encoder's table, the prior, the noisy sums. What
differential privacy allows any attack stands beside (`auc_allowed`).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.privacy.accountant import rho_for
from ridgeway.common.privacy.document_bound import DocumentSums, count_unit, row_unit
from ridgeway.common.privacy.public_prior import MEAN_BITS, PublicPrior

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

NAMED_SHARE = 0.05
"""An attack names the tokens that it believes in most, as many as this share of the table."""

ROW_BLOCK = 8192


def token_directions(prior: PublicPrior, table: NDArray[np.int16]) -> Floats:
    """Each token as the prior sees it: the direction of a document of this token alone."""
    rows = (
        table.astype(np.float64) - np.ldexp(prior.mean, -MEAN_BITS)
    ) @ prior.whitening.T.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths, lengths, 1))


def tokens_by_column(directions: Floats, column: Integers) -> Integers:
    """1 for each token that points the way of a sum of vectors, 0 for the rest."""
    return _named(directions @ column.astype(np.float64))


def tokens_by_products(directions: Floats, products: Integers) -> Integers:
    """1 for each token in whose direction documents vary most, 0 for the rest."""
    return _named(_forms(directions, products.astype(np.float64)))


def membership_scores(rows: Integers, sums: DocumentSums) -> Floats:
    """How much sums under noise look as if they held each of these documents: its own contribution
    against them.

    If all else in the sums is known and taken away, no score tells more (Neyman and Pearson): noise
    on a product of two features has half the variance, and the product stands in the matrix twice.
    """
    own = rows.astype(np.float64)
    linear = row_unit(sums.mode) * (own @ sums.column[:-1].astype(np.float64))
    linear += count_unit(sums.mode) * float(sums.column[-1])
    return np.asarray(
        linear + _forms(own, sums.products.astype(np.float64))
        if sums.products.size
        else linear
    )


def auc(members: Floats, others: Floats) -> float:
    """How often a member scores higher than another: 0.5 is guessing, 1 is certain."""
    ranked = np.sort(others)
    below = np.searchsorted(ranked, members, "left")
    upto = np.searchsorted(ranked, members, "right")
    return float((below + upto).mean() / 2 / len(others))


def auc_allowed(epsilon: float, delta: float) -> float:
    """The largest AUC of any attack on one document that (ε, δ)-differential privacy allows,
    whatever else is known.
    """
    return min(1.0, 1 / (1 + math.exp(-epsilon)) + delta)


def auc_of_noise(epsilon: float, delta: float) -> float:
    """The same for the noise that is added here, which is Gaussian and tells less than ε allows."""
    return NormalDist().cdf(math.sqrt(rho_for(epsilon, delta)))


def _forms(rows: Floats, matrix: Floats) -> Floats:
    """φᵀXφ for every row."""
    blocks = [
        rows[start : start + ROW_BLOCK] for start in range(0, len(rows), ROW_BLOCK)
    ]
    return np.concatenate(
        [np.einsum("ij,ij->i", each @ matrix, each) for each in blocks]
    )


def _named(scores: Floats) -> Integers:
    count = max(1, round(NAMED_SHARE * len(scores)))
    named = np.zeros(len(scores), dtype=np.int64)
    named[np.argpartition(-scores, count - 1)[:count]] = 1
    return named
