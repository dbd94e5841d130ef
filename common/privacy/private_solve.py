"""A total under noise → the weights of an ordinary router. Everything here is public: everybody
gets the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeway.common.encoding.table_encoder import TableEncoder, stacked
from ridgeway.common.privacy.noisy_solve import (
    Matrix,
    solve_columns,
    solve_full,
    split,
)
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.statistics.sums import Statistics


def solve_private(
    total: Statistics,
    privacy: Privacy,
    members: Sequence[str],
    prior: PublicPrior,
    encoder: TableEncoder,
) -> Matrix:
    """The weights of the router of a total under noise, over the encoder's own features. Where it
    reads sentences, the columns of its table follow, which come out of the rows of tokens alone.

    members: the domain of each holder in it. Everything here is public, so everybody gets the same.
    """
    variance = noise_variance(privacy, members)
    shares = product_variance(privacy, members) / variance

    def solved(prior: PublicPrior, length: float) -> Matrix:
        """Of the first rows, which have this length in a document's vector of length 1."""
        rows = slice(0, prior.width)
        columns = total.cross[rows] / length
        counts = total.cross[-1]
        known = columns, counts, variance / length**2, prior, encoder.scale
        if privacy.mode == "columns":
            return solve_columns(*known)
        products = total.gram[rows, rows] / length**2
        return solve_full(products, *known, shares / length**2)

    whole = solved(prior, 1.0)
    if not prior.sentences:
        return whole
    alone = replace(prior, sentences=None)
    length, *_ = next(split(whole[:-1], prior))
    padding = np.zeros((encoder.width - prior.width, whole.shape[1]))
    padded = np.vstack([whole[:-1], padding, whole[-1:]])
    return stacked(padded, solved(alone, length), encoder)


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
