"""Sums over documents under noise → the weights of an ordinary router, over the encoder's own
features.

    columns, counts → mean directions → apart from their centre, shrunk by what noise explains →
    (C·Σ + Σ m mᵀ)V = M

Every step but the sums themselves is public, so that it costs no privacy, and can be done again.
Documents were summed at length 1, and a table cannot bring a prompt to that length: TYPICAL_LENGTH
stands for all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import (
    LETTERS_SHARE,
    SENTENCES_SHARE,
    VECTOR_LENGTH,
    PrivacyMode,
    count_unit,
    row_unit,
)
from ridgeway.common.privacy.public_prior import Integers, PublicPrior, Whitening
from ridgeway.common.statistics import Statistics
from ridgeway.common.text.table_encoder import TableEncoder, stacked

Matrix = NDArray[np.float64]
Sums = Integers | Matrix

MIN_DOCUMENTS = 10.0
"""A domain is taken to have so many documents at least, whatever noise says."""

EDGE_SHARE = 0.6
"""Eigenvalues move towards their mean by this share of the largest that noise alone would have."""

LEAST_EIGENVALUE = 0.7
"""Relative to their mean: what noise has made small or negative is raised to it."""

TYPICAL_LENGTH = 1.0
"""What a prompt's vector is divided by in place of its own length, in units of the prior.

These three were chosen on held-out training text of four sets, prompts and other sources of it
among them, for 500 documents a domain and all, at ε = 1 and 3; values a third larger are less than
a point worse in the mean.
"""

LEAST_KEPT = 0.1
LEAST_SPREAD = 0.1
"""Vectors of length 1 vary by at most 1 in all; around their domains' means they are taken to vary
by this at least.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NoisyMeans:
    """Mean directions of domains, with documents of length 1.

    means:     C×h, as far as noise lets them be told.
    documents: C, how many there are, about.
    variances: C, of the noise on each coordinate of a mean.
    """

    means: Matrix
    documents: Matrix
    variances: Matrix


@one_blas_thread()
def solve_noisy(
    columns: Sums,
    counts: Integers,
    sigma_squared: float,
    prior: PublicPrior,
    scale: float,
    products: Sums | None = None,
    shares: float = 1.0,
) -> Matrix:
    """Weights (h+1)×C of sums as they were opened.

    columns, counts: h×C and C; sigma_squared: the variance of the noise on each of their numbers.
    scale:    the encoder's.
    products: h×h, the sum of all documents' products vvᵀ, from which comes how they vary. Without
              it they vary within a domain as the prior says, alike everywhere.
    shares:   by what the variance of the noise on products, which members draw together, is above
              `sigma_squared`.
    """
    if products is None:
        noisy = noisy_means("columns", columns, counts, sigma_squared)
        return _weights(noisy, np.eye(prior.width) / prior.width, prior, scale)
    noisy = noisy_means("full", columns, counts, sigma_squared)
    noise = math.sqrt(sigma_squared * shares) / VECTOR_LENGTH**2
    within = _within(products / VECTOR_LENGTH**2, noisy, noise)
    return _weights(noisy, within, prior, scale)


def noisy_means(
    mode: PrivacyMode, columns: Sums, counts: Integers, sigma_squared: float
) -> NoisyMeans:
    """What columns and counts say of each domain."""
    documents = np.maximum(counts / count_unit(mode), MIN_DOCUMENTS)
    unit = float(row_unit(mode) * VECTOR_LENGTH)
    return NoisyMeans(
        (columns / unit / documents).T,
        documents,
        float(sigma_squared) / (unit * documents) ** 2,
    )


def means_apart(noisy: NoisyMeans) -> Matrix:
    """Means relative to their centre, drawn to it by what noise explains of their differences
    (James and Stein).

    Something always remains: directions that are mostly noise still say more than none.
    """
    apart = noisy.means - noisy.means.mean(axis=0)
    noise = noisy.variances.mean() * (len(apart) - 1) * apart.shape[1]
    return _shrunk(apart, noise, LEAST_KEPT)


def _centre(noisy: NoisyMeans) -> Matrix:
    """The domains' common mean, drawn to the prior's by what noise explains of it."""
    centre = noisy.means.mean(axis=0)
    noise = len(centre) * noisy.variances.mean() / len(noisy.means)
    return _shrunk(centre, noise, 0.0)


def _shrunk(values: Matrix, noise: float, least: float) -> Matrix:
    """Values without the share of their squares' sum that noise has; `least` of them remains."""
    seen = max(np.square(values).sum(), np.finfo(np.float64).tiny)
    return np.asarray(values * max(least, 1 - noise / seen))


def _within(products: Matrix, noisy: NoisyMeans, noise: float) -> Matrix:
    """How documents vary around their domain's mean: symmetric, positive definite, and plain where
    noise is large.
    """
    total = noisy.documents.sum()
    shares = noisy.documents / total
    width = len(products)
    spread = products / total - (noisy.means * shares[:, None]).T @ noisy.means
    # what the noise of the means has taken away
    spread[np.diag_indices(width)] += (shares * noisy.variances).sum()
    values, vectors = np.linalg.eigh((spread + spread.T) / 2)
    level = float(np.clip(values.mean(), LEAST_SPREAD / width, 1 / width))
    # the largest eigenvalue of noise alone: Wigner's semicircle
    edge = noise * np.sqrt(2 * width) / total
    above = values - level
    kept = level + np.sign(above) * np.maximum(np.abs(above) - EDGE_SHARE * edge, 0)
    return np.asarray(
        (vectors * np.maximum(kept, LEAST_EIGENVALUE * level)) @ vectors.T
    )


def _weights(
    noisy: NoisyMeans, within: Matrix, prior: PublicPrior, scale: float
) -> Matrix:
    """Least squares to one-hot targets, for domains of equal weight with these means and this
    variation.

    The λ on the diagonal is the noise of a mean: what is known less surely counts less. Whitening
    and centring are folded in, so that the router is a table as ever.
    """
    from scipy.linalg import solve

    apart = means_apart(noisy)
    domains = len(noisy.means)
    varied = within + np.eye(len(within)) * noisy.variances.mean()
    directions = solve(domains * varied + apart.T @ apart, apart.T, assume_a="pos")
    # at the centre all domains are alike
    bias = 1 / domains - _centre(noisy) @ directions
    weights = []
    for share, block, rows in split(directions, prior):
        folded = share * block.scaled.T @ rows / TYPICAL_LENGTH
        bias = bias - block.centre @ folded
        weights.append(folded / scale)
    return np.vstack([*weights, bias])


def split(
    rows: Matrix, prior: PublicPrior
) -> Iterator[tuple[float, Whitening, Matrix]]:
    """The rows of letters and of sentences, each with its whitening and with the length that it has
    in a document's vector of length 1.
    """
    shares = [LETTERS_SHARE, SENTENCES_SHARE][: len(prior.blocks)]
    length = math.hypot(*shares)
    start = 0
    for share, block in zip(shares, prior.blocks, strict=True):
        yield share / length, block, rows[start : start + block.width]
        start += block.width


# A total under noise → the weights of an ordinary router. Everything here is public: everybody gets
# the same.


def solve_private(
    total: Statistics,
    privacy: Privacy,
    members: Sequence[str],
    prior: PublicPrior,
    encoder: TableEncoder,
) -> Matrix:
    """The weights of the router of a total under noise, over the encoder's own features, and of its
    table, which come out of the rows of letters alone.

    members: the domain of each holder in it. Everything here is public, so everybody gets the same.
    """
    variance = noise_variance(privacy, members)
    shares = product_variance(privacy, members) / variance
    domains = total.cross.shape[1]

    def solved(prior: PublicPrior, length: float) -> Matrix:
        """Of the first rows, which have this length in a document's vector of length 1."""
        rows = slice(0, prior.width)
        columns = total.cross[rows] / length
        counts = total.cross[-1]
        known = columns, counts, variance / length**2, prior, encoder.scale
        if privacy.mode == "columns":
            return solve_noisy(*known)
        products = total.gram[rows, rows] / length**2
        return solve_noisy(*known, products, shares / length**2)

    whole = solved(prior, 1.0)
    alone = replace(prior, sentences=None)
    length, *_ = next(split(whole[:-1], prior))
    table = solved(alone, length)
    of_sentences = whole[prior.letters.width : -1]
    unread = np.zeros(
        (encoder.width - encoder.table_width - len(of_sentences), domains)
    )
    of_table = _over_tokens(whole[: prior.letters.width], encoder)
    return stacked(
        np.vstack([of_table, of_sentences, unread, whole[-1:]]),
        np.vstack([_over_tokens(table[:-1], encoder), table[-1:]]),
        encoder,
    )


def _over_tokens(of_letters: Matrix, encoder: TableEncoder) -> Matrix:
    """Weights of an encoder's features of tokens, which say nothing here, and of its runs of
    letters: several of its buckets are counted as one.
    """
    width = encoder.table_width - encoder.table.shape[1]
    of_tokens = np.zeros((encoder.table.shape[1], of_letters.shape[1]))
    spread = np.repeat(of_letters, width // len(of_letters), axis=0)
    return np.vstack([of_tokens, spread])


def over_prior(weights: Matrix, prior: PublicPrior, encoder: TableEncoder) -> Matrix:
    """Those of the weights of a router of `solve_private` that its sums were solved to: over the
    prior's letters and sentences, and the constant one.
    """
    tokens = encoder.table.shape[1]
    spread = (encoder.table_width - tokens) // prior.letters.width
    of_letters = weights[tokens : encoder.table_width : spread]
    sentences = prior.width - prior.letters.width
    of_sentences = weights[encoder.table_width :][:sentences]
    return np.vstack([of_letters, of_sentences, weights[-1:]])


def noise_variance(privacy: Privacy, members: Sequence[str]) -> int:
    """The variance of the noise on a number of a column: each holder of its domain has put all of
    it there.
    """
    return max(Counter(members).values()) * privacy.sigma**2


def product_variance(privacy: Privacy, members: Sequence[str]) -> int:
    """The variance of the noise on the square of a feature: every member has added a share of it.

    Honest members in a sum that opens have all of σ together, so all of them have up to three times
    σ²; where some fell away, it is a little more or less than what is said here.
    """
    return len(members) * privacy.shared(len(members))[0] ** 2
