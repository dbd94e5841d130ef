"""A total under noise → the weights of an ordinary router. Everything here is public: everybody
gets the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.privacy.noisy_solve import solve_columns, solve_full
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.statistics.sums import Statistics


def solve_private(
    total: Statistics,
    privacy: Privacy,
    members: Sequence[str],
    prior: PublicPrior,
    scale: float,
) -> NDArray[np.float64]:
    """The weights of the router of a total under noise, over the encoder's own features.

    members: the domain of each holder in it. Everything here is public, so everybody gets the same.
    """
    variance = noise_variance(privacy, members)
    columns = total.cross[:-1]
    counts = total.cross[-1]
    if privacy.mode == "columns":
        return solve_columns(columns, counts, variance, prior, scale)
    shares = product_variance(privacy, members) / variance
    return solve_full(
        total.gram[:-1, :-1], columns, counts, variance, prior, scale, shares
    )


def noise_variance(privacy: Privacy, members: Sequence[str]) -> int:
    """The variance of the noise on a number of a column: each holder of its domain has put all of
    it there.
    """
    return max(map(members.count, members)) * privacy.sigma**2


def product_variance(privacy: Privacy, members: Sequence[str]) -> int:
    """The variance of the noise on the square of a feature: every member has added a share of it.

    Honest members in a sum that opens have all of σ together, so all of them have up to three times
    σ²; where some fell away, it is a little more or less than what is said here.
    """
    return len(members) * privacy.shared(len(members))[0] ** 2
