"""How sure a router of sums under noise may be of its choice, told from what is public after the
round.

A domain's text scores higher there than elsewhere by a mean advantage, and scores vary around it.
If both are normal, odds grow by advantage/variance with each unit between two scores: that is one
over the temperature. Three guesses at it, which err to different sides on different text, are
combined:

    accuracy    tells how large the advantage is in standard deviations, as far as noise lets it be
    known
    weights     tell how much scores vary, if text varies as the prior's does but for a constant
    factor
    separation  of the domains' means: temperatures fall with its square root

Their constants were fitted on held-out training text of three sets (books, questions and answers,
one-line requests), all domains of them or three to five, 300 to 5,600 documents a domain, ε = 1 and
3, on wholes and on beginnings of 4 to 128 tokens; docs/reference/privacy.md has what is left on a
set when they are fitted on the other two. Nothing is asked of holders.
"""

from __future__ import annotations

import math
from statistics import NormalDist, fmean, pstdev

import numpy as np

from ridgeway.common.privacy.document_bound import PrivacyMode
from ridgeway.common.privacy.noisy_solve import (
    Matrix,
    Sums,
    means_apart,
    noisy_means,
    split,
)
from ridgeway.common.privacy.public_prior import Integers, PublicPrior

HALF = 16.0
TAIL = 1 / 8
"""The curve of `Confidence` under which such text is likeliest, of those that a calibration tries.
"""
BY_ACCURACY = 0.802
SIGNAL_VARIES: dict[PrivacyMode, float] = {"columns": 7.22, "full": 5.02}
NOISE_VARIES = 1.8
"""By how much more text varies than the prior says: along what weights have learnt, and along
noise.
"""
BY_SEPARATION = 0.0389
ACCURACY_ERROR = 0.18
PUBLIC_ERROR: dict[PrivacyMode, float] = {"columns": 0.2, "full": 0.3}
"""What the logarithms of temperatures are off by: those by accuracy, were it known, and the others'
mean.
"""

HIGHEST_ACCURACY = 0.98
LEAST_SEPARATION = 0.02
MOST_NOISE = 0.9
"""Of what separates means."""

NORMAL = NormalDist()
_STEPS = 400
REACH = 8.0
"""Of the integral over a score: how many steps, and how many standard deviations to either side."""
MAX_ADVANTAGE = 8.0


def private_temperature(
    mode: PrivacyMode,
    columns: Sums,
    counts: Integers,
    sigma_squared: float,
    weights: Matrix,
    prior: PublicPrior,
    scale: float,
    accuracy: tuple[float, float],
) -> float:
    """The temperature of a router of these sums, for HALF and TAIL.

    columns, counts, sigma_squared, scale: as they were solved. weights: the solution, (h+1)×C.
    accuracy: between which percentages it lies.
    """
    estimated = noisy_means(mode, columns, counts, sigma_squared)
    domains, width = estimated.means.shape
    observed = np.square(estimated.means - estimated.means.mean(axis=0)).sum() / (
        domains - 1
    )
    explained = estimated.variances.mean() * width
    noise = float(min(explained / observed, MOST_NOISE)) if observed else MOST_NOISE
    separation = max(float(observed - explained), LEAST_SEPARATION)
    directions = _directions(weights, prior, scale)
    scores = means_apart(estimated) @ directions
    advantage = max(float(np.trace(scores)) * domains - float(scores.sum()), 0.0) / (
        domains * (domains - 1)
    )
    if not advantage:
        return 1.0
    variance = float(np.square(directions).sum()) / (domains - 1) / width
    varies = SIGNAL_VARIES[mode] * (1 - noise) + NOISE_VARIES * noise
    by_weights = math.log(varies * variance / advantage)
    by_separation = math.log(BY_SEPARATION / math.sqrt(separation))
    low, high = (
        min(max(end / 100, 1 / domains + 0.03), HIGHEST_ACCURACY) for end in accuracy
    )
    deviations = [
        advantage_for(low + (high - low) * step / 8, domains) for step in range(9)
    ]
    by_accuracy = [math.log(BY_ACCURACY * advantage / moved**2) for moved in deviations]
    public_square = PUBLIC_ERROR[mode] ** 2
    trust = public_square / (
        public_square + ACCURACY_ERROR**2 + pstdev(by_accuracy) ** 2
    )
    return math.exp(
        trust * fmean(by_accuracy) + (1 - trust) * (by_weights + by_separation) / 2
    )


def _directions(weights: Matrix, prior: PublicPrior, scale: float) -> Matrix:
    """The weights in the prior's space, where its text varies alike in all directions; domains'
    mean is 0.
    """
    from scipy.linalg import solve

    directions = np.vstack(
        [
            solve(share * block.scaled.T, rows * scale)
            for share, block, rows in split(weights[:-1], prior)
        ]
    )
    return np.asarray(directions - directions.mean(axis=1, keepdims=True))


def rightly_chosen(advantage: float, domains: int) -> float:
    """How often one normal number that is moved by `advantage` is the largest of so many."""
    step = 2 * REACH / _STEPS
    points = (-REACH + step * (number + 0.5) for number in range(_STEPS))
    return (
        sum(
            NORMAL.pdf(point) * NORMAL.cdf(point + advantage) ** (domains - 1)
            for point in points
        )
        * step
    )


def advantage_for(accuracy: float, domains: int) -> float:
    """The inverse of `rightly_chosen`, between 0.01 and MAX_ADVANTAGE."""
    low = 0.01
    high = MAX_ADVANTAGE
    while high - low > 1e-3:
        middle = (low + high) / 2
        if rightly_chosen(middle, domains) < accuracy:
            low = middle
        else:
            high = middle
    return high
