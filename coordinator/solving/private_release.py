"""What a release of a private round says of itself: its accuracy under noise, how sure it may be,
its promise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import Confidence
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import UNIT
from ridgeway.common.privacy.noisy_solve import MIN_DOCUMENTS, noise_variance
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.statistics import Integers, Statistics
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.solving.calibration import (
    HALF,
    TAIL,
    private_temperature,
)

DEVIATIONS = 2.0
"""So many standard deviations to either side have 95 % of the normal distribution."""
COVERED = {
    "columns": (
        "every number that left a holder except the random names of its epochs: one"
        " column of its documents and one row of counts of its held-out documents,"
        " each with the holder's own noise"
    ),
    "full": (
        "every opened number: a column of each holder's documents with the holder's"
        " own noise; the products of all documents with noise that holders draw in"
        " shares, which suffices if fewer than a third of the holders drop out and"
        " fewer than a third collude; and one row of noisy counts per domain"
    ),
}
NOT_COVERED = (
    "that a holder took part, whether its corpus has changed since, copies of one"
    " document in several corpora, and the combination of several rounds, which each"
    " holder adds up and limits itself"
)


def confidence_under_noise(
    total: Statistics,
    privacy: Privacy,
    members: Sequence[str],
    prior: PublicPrior,
    encoder: TableEncoder,
    weights: NDArray[np.float64],
    accuracy: NoisyAccuracy,
    plain: Confidence,
) -> Confidence:
    """How sure the router of `solve_private` may be, by public numbers alone.

    plain: has the threshold and the fallback.
    A histogram under noise would tell less: with 300 held-out documents a bin of 24 has 13 of them,
    and noise of ±17.
    """
    temperature = private_temperature(
        privacy.mode,
        total.cross[:-1],
        total.cross[-1],
        noise_variance(privacy, members),
        weights[:, : total.cross.shape[1]],
        prior,
        encoder.scale,
        accuracy.interval,
    )
    return replace(plain, temperature=temperature, growth=0.0, half=HALF, tail=TAIL)


def likeliest_counts(row: Integers) -> Integers:
    """How many documents fell where, told from counts under noise: none below nought, and as many
    in all as they say.

    To cut off what is below nought alone would add documents where none are: the row is moved down
    until its sum, which noise leaves as it is in the mean, stays what it was.
    """
    values = row / UNIT
    total = max(0.0, float(values.sum()))
    falling = -np.sort(-values)
    excess = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    down = excess[np.flatnonzero(falling > excess).max(initial=0)]
    counts: Integers = np.rint(np.maximum(0.0, values - down)).astype(np.int64)
    return counts


@dataclass(frozen=True, slots=True)
class NoisyAccuracy:
    """How often held-out documents reach their domain, in percent, domains weighing alike.

    interval: contains the true accuracy with a probability of 95 %.
    """

    accuracy: float
    interval: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": round(self.accuracy, 2),
            "interval": [round(end, 2) for end in self.interval],
        }


def noisy_accuracy(
    rows: Mapping[str, Integers],
    sizes: Mapping[str, int],
    members: Sequence[str],
    privacy: Privacy,
) -> NoisyAccuracy:
    """The accuracy that rows of counts tell, with what noise and the number of documents leave
    uncertain.

    rows:    of each domain that counted, its documents by the domain they were routed to; all in
             one order of domains, which is that of `sizes`.
    sizes:   about how many documents each domain has summed, to which those it held out are in
             proportion.
    members: the domain of each holder that counted; each has put noise of its own on its domain's
             row.

    An accuracy p is in the interval if right − p · all, which is 0 in the mean, lies within two of
    its standard deviations (Fieller). So nothing is divided by a number that noise may have made
    small.
    """
    column_of = {domain: column for column, domain in enumerate(sizes)}
    # so that domains weigh alike
    weights = {domain: 1 / max(sizes[domain], MIN_DOCUMENTS) for domain in rows}
    right = sum(
        weights[domain] * int(row[column_of[domain]]) / UNIT
        for domain, row in rows.items()
    )
    total = sum(weights[domain] * int(row.sum()) / UNIT for domain, row in rows.items())
    variance = (privacy.count_sigma / UNIT) ** 2
    noise = sum(
        weights[domain] ** 2 * variance * members.count(domain) for domain in rows
    )
    sample = max(total, 0.0) * sum(weights.values()) / max(len(rows), 1)
    low, high = _fieller(right, total, noise, sample, len(sizes)) or (0.0, 1.0)
    middle = right / total if total > 0 else (low + high) / 2
    return NoisyAccuracy(100 * min(max(middle, low), high), (100 * low, 100 * high))


def _fieller(
    right: float, total: float, noise: float, sample: float, numbers: int
) -> tuple[float, float] | None:
    """The p in [0, 1] with (right − p · total)² ≤ DEVIATIONS² · variance(p); None if they have no
    bounds.

    variance(p) = noise · ((1 − p)² + (numbers − 1) · p²) + sample · p · (1 − p)
    """
    square = DEVIATIONS**2
    leading = total**2 - square * (noise * numbers - sample)
    middle = square * (noise - sample / 2) - right * total
    root = middle**2 - leading * (right**2 - square * noise)
    # noise says more right than there are in all: without the sample's part there is an interval
    if root < 0:
        return _fieller(right, total, noise, 0.0, numbers) if sample else None
    if total <= 0 or leading <= 0:
        return None
    low, high = ((-middle + sign * math.sqrt(root)) / leading for sign in (-1, 1))
    return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def privacy_facts(privacy: Privacy) -> dict[str, Any]:
    """What a release's manifest says, with one plain sentence of it."""
    epsilon = f"{privacy.epsilon:g}"
    delta = f"{privacy.delta:g}"
    return privacy.facts() | {
        "sentence": (
            "Anyone who sees everything that left the holders in this round,"
            " including this release, learns about any one document at most what (ε ="
            f" {epsilon}, δ = {delta})-differential privacy allows: every outcome"
            " would be nearly as likely without the document."
        ),
        "covered": COVERED[privacy.mode],
        "not_covered": NOT_COVERED,
        "counts": (
            "one row of held-out documents per domain; each number has noise of"
            f" ±{privacy.count_sigma / UNIT:.2g} documents per holder of the domain"
        ),
        "calibration": (
            "a temperature computed from the published numbers by a formula that was"
            " fitted on other public text; `ridgeway evaluate --propose --sign`"
            " fits it to public text of the domains"
        ),
    }
