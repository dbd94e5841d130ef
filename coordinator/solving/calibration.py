"""Confidence of a router, fitted to what holders counted on their held-out documents.

Pure: counts in, a temperature and a curve out.

And what a release of a private round says of itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, pstdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.base.settings import Confidence, Scope, Selector
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import UNIT, PrivacyMode
from ridgeway.common.privacy.noisy_solve import (
    MIN_DOCUMENTS,
    Matrix,
    Sums,
    means_apart,
    noise_variance,
    noisy_means,
    over_prior,
    split,
)
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.routing.decision import fit_scope, separation
from ridgeway.common.routing.evaluation import (
    CONFIDENCE_EDGES,
    CURVES,
    Reliability,
    reliability_of,
    split_calibration,
)
from ridgeway.common.statistics import Integers, Statistics
from ridgeway.common.text.table_encoder import TableEncoder

TEMPERATURE_STEPS = range(-27, 7)


@one_blas_thread()
def temperatures(
    total: Statistics, weights: NDArray[np.float64], scale: float, rule: Selector
) -> tuple[float, ...]:
    """Temperatures to try: around the spread of the router's scores over the text it was built
    from, or of votes.
    """
    unit = 1.0
    if rule.name == "average":
        scaled = weights.copy()
        scaled[:-1] *= scale
        squares = np.einsum("fc,fc->c", scaled, total.gram.astype(np.float64) @ scaled)
        unit = float(np.sqrt(max(squares.mean(), 1e-300) / total.mass))
    return tuple(unit * 2.0 ** (step / 3) for step in TEMPERATURE_STEPS)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The temperature and curve under which confidence was truest, and the gap to accuracy left, in
    percent.

    scope:      what text belongs to any domain, if that could be learnt.
    separation: how well text of a domain that was left out is told from text of the others: 0.5 is
                chance.
    reliability: of held-out documents and their beginnings.
    """

    temperature: float
    half: float
    tail: float
    gap: float
    scope: Scope | None = None
    separation: float | None = None
    reliability: Reliability = ()

    def confidence(self, plain: Confidence) -> Confidence:
        """plain: says when the router abstains."""
        return replace(
            plain,
            temperature=self.temperature,
            calibrated=True,
            scope=self.scope,
            half=self.half,
            tail=self.tail,
        )


def fit(
    tried: Sequence[float], counts: NDArray[np.int64], domains: int
) -> Fitted | None:
    """Choose temperature and curve by how surprising the counts are; None if there are none.

    counts: what holders counted to calibrate, all together.
    """
    reliability, scope_counts = split_calibration(counts, len(tried))
    # every document falls into one bin at each curve and temperature
    documents = reliability[0, 0, :, 0].sum()
    if not documents:
        return None
    met = reliability / documents
    fallen = met[..., 0]
    right = met[..., 1]
    middles = bin_middles(domains)
    # the cross-entropy of the outcomes under each bin's confidence
    surprises = right * np.log(middles) + (fallen - right) * np.log1p(-middles)
    lowest = [lowest_between(tried, row) for row in -surprises.sum(axis=-1)]
    curve = min(range(len(CURVES)), key=lambda index: round(lowest[index].surprise, 12))
    best = lowest[curve]
    chosen = met[curve, best.nearest]
    gap = np.abs(chosen[:, 1] - chosen[:, 0] * middles).sum() * 100
    scope = fit_scope([scope_counts])
    return Fitted(
        best.temperature,
        CURVES[curve].half,
        CURVES[curve].tail,
        float(gap),
        scope,
        separation([scope_counts]) if scope else None,
        reliability_of(chosen),
    )


def bin_middles(domains: int) -> NDArray[np.float64]:
    """The confidence that stands for each bin: no confidence is below one in so many domains."""
    edges = np.maximum((*CONFIDENCE_EDGES, 1.0), 1 / domains)
    middles: NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2
    return middles


class Lowest(NamedTuple):
    """nearest: the index of the temperature among those that were tried."""

    surprise: float
    temperature: float
    nearest: int


def lowest_between(tried: Sequence[float], surprise: NDArray[np.float64]) -> Lowest:
    """The bottom of the parabola through the best temperature tried and its neighbours; at an edge,
    the edge.
    """
    best = int(np.argmin(surprise.round(12)))
    least = float(surprise[best])
    if not 0 < best < len(tried) - 1:
        return Lowest(least, tried[best], best)
    before = surprise[best - 1]
    after = surprise[best + 1]
    bend = before - 2 * least + after
    shift = (before - after) / (2 * bend) if bend > 0 else 0.0
    temperature = float(tried[best] * (tried[best + 1] / tried[best]) ** shift)
    return Lowest(float(least - shift * (before - after) / 4), temperature, best)


# How sure a router of sums under noise may be of its choice, told from what is public after the
# round.
#
# A domain's text scores higher there than elsewhere by a mean advantage, and scores vary around it.
# If both are normal, odds grow by advantage/variance with each unit between two scores: that is one
# over the temperature. Three guesses at it, which err to different sides on different text, are
# combined:
#
#     accuracy    tells how large the advantage is in standard deviations, as far as noise lets it
#                 be known
#     weights     tell how much scores vary, if text varies as the prior's does but for a factor
#     separation  of the domains' means: temperatures fall with its square root
#
# Their constants were fitted on held-out training text of three sets (books, questions and answers,
# one-line requests), all domains of them or three to five, 300 to 5,600 documents a domain, ε = 1
# and 3, on wholes and on beginnings of 4 to 128 tokens; docs/reference/privacy.md has what is left
# on a set when they are fitted on the other two. Nothing is asked of holders.


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

    columns, counts, sigma_squared, scale: as they were solved. weights: the solution, (h+1)×C, over
             the prior's letters and sentences.
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


# What a release of a private round says of itself: its accuracy under noise, how sure it may be,
# its promise.


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
        over_prior(weights[:, : total.cross.shape[1]], prior, encoder),
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
