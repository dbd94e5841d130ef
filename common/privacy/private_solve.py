"""A total under noise → the weights of an ordinary router, and what its manifest says of privacy.

Knows how sums under noise are laid out, and by which solver they are solved. Knows nothing of rounds or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.privacy.document_bound import UNIT
from ridgeway.common.privacy.noisy_solve import solve_columns, solve_full
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.statistics.sums import Integers, Statistics

PUBLIC_TEMPERATURE, PUBLIC_GROWTH = 1.0, 0.4
"""What confidence is told by: the likeliest on held-out training text of three public sets, on beginnings of 4 to 128
tokens and on wholes. In ten bins it differs there from how often it is right by 2 points in `columns`, 7 in `full`.

A histogram under noise would tell less: with 300 held-out documents a bin of 24 has 13 of them, and noise of ±17."""
COVERED = {
    "columns": "every number that left a holder but the names of its data: one column of its documents, and one row of "
    "counts of its held-out ones, each under noise of the holder's own",
    "full": "every number that was opened: a column of each holder's documents under noise of its own, the products of "
    "all documents under noise that holders drew in shares, of which a third may be missing, and one row of counts for "
    "each domain",
}
NOT_COVERED = (
    "that a holder took part, whether its corpus has changed since, copies of one document in several corpora, and "
    "what several rounds tell together, which each holder adds up and caps by itself"
)


def solve_private(
    total: Statistics, privacy: Privacy, members: Sequence[str], prior: PublicPrior, scale: float
) -> NDArray[np.float64]:
    """The weights of the router of a total under noise, over the encoder's own features.

    members: the domain of each holder in it. Everything here is public, so everybody gets the same.
    """
    variance = noise_variance(privacy, members)
    columns, counts = total.cross[:-1], total.cross[-1]
    if privacy.mode == "columns":
        return solve_columns(columns, counts, variance, prior, scale)
    shares = product_variance(privacy, members) / variance
    return solve_full(total.gram[:-1, :-1], columns, counts, variance, prior, scale, shares)


def noise_variance(privacy: Privacy, members: Sequence[str]) -> int:
    """The variance of the noise on a number of a column: each holder of its domain has put all of it there."""
    return max(map(members.count, members)) * privacy.sigma**2


def product_variance(privacy: Privacy, members: Sequence[str]) -> int:
    """The variance of the noise on the square of a feature: every member has added a share of it.

    Shares are of as many as were asked; those who fell away were a third at most.
    """
    return len(members) * privacy.shared(len(members))[0] ** 2


def likeliest_counts(row: Integers) -> Integers:
    """How many documents fell where, told from counts under noise: none below nought, and as many in all as they say.

    To cut off what is below nought alone would add documents where none are: the row is moved down until its sum, which
    noise leaves as it is in the mean, stays what it was.
    """
    values = row / UNIT
    total = max(0.0, float(values.sum()))
    falling = -np.sort(-values)
    excess = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    down = excess[np.flatnonzero(falling > excess).max(initial=0)]
    found: Integers = np.rint(np.maximum(0.0, values - down)).astype(np.int64)
    return found


def privacy_facts(privacy: Privacy) -> dict[str, Any]:
    """What a release's manifest says, with one plain sentence of it."""
    epsilon, delta = f"{privacy.epsilon:g}", f"{privacy.delta:g}"
    return privacy.facts() | {
        "sentence": f"Whoever sees all that left the holders in this round, this release included, learns of any one "
        f"document at most what (ε = {epsilon}, δ = {delta})-differential privacy allows: with it or without it, "
        "anything would have come out nearly as likely.",
        "covered": COVERED[privacy.mode],
        "not_covered": NOT_COVERED,
        "counts": "one row of held-out documents for each domain; each number has noise of "
        f"±{privacy.count_sigma / UNIT:.2g} documents for each holder of the domain",
        "calibration": "a temperature and a growth that were fitted on other public text; `ridgeway calibrate` fits "
        "them to public text of the domains",
    }
