"""What can be computed from sums about the text behind them: the known attacks, and how well they
did.

    exact sums
      a holder's gram, in the clear or as a difference of totals → its histogram (`histogram`)
      a domain's column of cross → its histogram, far less surely (`column`)
      a total → the union's histogram, and whose each token is (`attribution`)
      weighted statistics → the raw ones (`unweighted`)
    sums of documents under noise
      a column → the buckets of runs of letters that documents have more of than public text
      (`buckets_by_column`)
      the sum of products → those in which they vary most (`buckets_by_products`)
      either, and a known document → a score of its being among them (`membership_scores`)

An attack is given what is public or what a coordinator sees: the encoder's table, the window or the
prior, the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import ShapeMismatch
from ridgeway.common.privacy.accountant import rho_for
from ridgeway.common.privacy.noise import DocumentSums, count_unit, row_unit
from ridgeway.common.privacy.public_prior import Whitening
from ridgeway.common.statistics import Integers, Statistics

_Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]

_MAX_ROUNDS = 16
FIRST_ROUND_STEPS = 8
"""In each round the unknowns that are free are chosen anew, and it takes two more steps than the
one before.
"""

EXACT_RESIDUAL = 1e-9
STALLED_RATIO = 0.97
MAX_IDLE_ROUNDS = 2
WARM_UP_ROUNDS = 4
"""Counts that leave at most this share of the sums unexplained explain them. A round is idle if it
does not bring the residual below this ratio of the least so far; after the rounds to warm up, this
number of idle ones ends the search.
"""

COLUMN_TOKENS = 1024
MIN_SLOPE = 1e-9
"""A column's tokens are looked for among so many more at a time: those that would lower the
residual most, while any would by more than this.
"""

RELATIVE_RIDGE = 1e-9
"""What is added to a diagonal before it is inverted, relative to its mean."""

ROW_BLOCK = 8192
_COLUMN_BLOCKS = 6

MAX_RARE_COUNT = 2
"""A token is rare in a corpus if it occurs at most this often in what was summed."""

CHECKED_ENTRIES = 200
MAX_SAMPLES = 1 << 24
"""A weighting is undone by looking at this number of sums, for corpora of at most this number of
samples.
"""


@dataclass(frozen=True, slots=True)
class Measures:
    """How much of a true histogram came back. Shares are between 0 and 1, or None where there is
    nothing to divide by.

    tokens:    distinct tokens in truth; rare: those of them that occur once or twice.
    found:     tokens that the attack believes to be there: its estimate rounds to at least 1.
    recovered: the share of the true tokens that were found; rare_recovered: the same for rare ones.
    exact:     the share of the true tokens whose count came out exactly.
    precision: the share of the found tokens that are true.
    chance:    the share of any tokens that would be hit by finding as many at random.
    """

    tokens: int
    rare: int
    found: int
    recovered: float | None
    rare_recovered: float | None
    exact: float | None
    precision: float | None
    chance: float


@dataclass(frozen=True, slots=True)
class NamedShares:
    """How many of the right buckets of runs of letters an attack named. Shares are between 0 and 1,
    or None where there is nothing to divide by.

    buckets:   those that are right.
    found:     those that were named.
    recovered: the share of the right ones that were named.
    precision: the share of the named ones that are right.
    chance:    the share of the right ones that would be hit by naming as many at random.
    """

    buckets: int
    found: int
    recovered: float | None
    precision: float | None
    chance: float


def named_shares(named: Flags, right: Flags) -> NamedShares:
    """Hold what an attack named against what is right, bucket by bucket."""
    return NamedShares(
        buckets=int(right.sum()),
        found=int(named.sum()),
        recovered=_share(named[right]),
        precision=_share(right[named]),
        chance=float(named.mean()),
    )


def measure(estimate: Integers, truth: Integers) -> Measures:
    """Hold an estimated histogram against the true one, token by token."""
    if estimate.shape != truth.shape:
        raise ShapeMismatch(
            f"an estimate of {estimate.size} tokens cannot be held against {truth.size}"
        )
    there = truth > 0
    believed = estimate > 0
    rare = there & (truth <= MAX_RARE_COUNT)
    return Measures(
        tokens=int(there.sum()),
        rare=int(rare.sum()),
        found=int(believed.sum()),
        recovered=_share(believed[there]),
        rare_recovered=_share(believed[rare]),
        exact=_share(estimate[there] == truth[there]),
        precision=_share(there[believed]),
        chance=float(believed.mean()),
    )


def _share(hits: Flags) -> float | None:
    return float(hits.mean()) if hits.size else None


# Histograms from second moments


def histogram(table: NDArray[np.int16], gram: Integers, window: int) -> Integers:
    """The counts n ≥ 0 whose Eᵀ diag(n) E comes nearest to what gram says, rounded.

    At w = 1 gram *is* Eᵀ diag(n) E, F(F+1)/2 equations that determine the counts whenever the
    encoder is wide enough; nearness is measured after the table has been made white, which lets
    conjugate gradients converge in tens of steps. Windows add the products of different tokens to
    gram: `_as_single_tokens` takes away what chance would add, and nearness is measured where the
    sums themselves vary least, as that noise demands.
    """
    features = _features(table)
    if gram.shape != (features.shape[1], features.shape[1]):
        raise ShapeMismatch(
            f"a gram of shape {gram.shape} was not made with a table of width"
            f" {table.shape[1]}"
        )
    sums: _Floats = gram.astype(np.float64)
    public = features.T @ features
    if window == 1:
        change = _whitening(*_scatter(public))
        target = sums
    else:
        change = _whitening(*_noise(sums, public, window))
        target = _as_single_tokens(sums, window)
    features = features @ change
    scale = np.einsum("ij,ij->i", features, features)
    features /= np.sqrt(scale)[
        :, None
    ]  # the unknowns are then n · scale, each of unit weight
    return _non_negative(features, change.T @ target @ change, scale)


def _features(table: NDArray[np.int16]) -> _Floats:
    features = np.ones((len(table), table.shape[1] + 1))
    features[:, :-1] = table
    return features


def _as_single_tokens(gram: _Floats, window: int) -> _Floats:
    """What single tokens would have summed to, if windows were w tokens drawn alike: w²·scatter +
    w·mass·mean·meanᵀ.
    """
    column = gram[:, -1]
    mass = gram[-1, -1]
    mean = np.outer(column, column) / mass
    expected: _Floats = window**2 * (gram - mean) + window * mean
    return expected


def _scatter(second: _Floats) -> tuple[_Floats, _Floats]:
    """The mean and the covariance that a second moment with a constant feature holds."""
    mean = second[:-1, -1] / second[-1, -1]
    return mean, second[:-1, :-1] / second[-1, -1] - np.outer(mean, mean)


def _noise(gram: _Floats, public: _Floats, window: int) -> tuple[_Floats, _Floats]:
    """How windows vary: their own covariance, drawn towards that of w random tokens the fewer
    windows there are.

    Fewer windows than features vary in some directions only; taken as they are, they would rule
    every token out.
    """
    mean, covariance = _scatter(gram)
    mass = gram[-1, -1]
    features = len(gram)
    return mean, (mass * covariance + features * _scatter(public)[1] / window) / (
        mass + features
    )


def _whitening(mean: _Floats, covariance: _Floats) -> _Floats:
    """The change of features that takes the mean away and makes a covariance the identity."""
    # no less than a unit of the table
    level = max(float(np.trace(covariance)) / len(covariance), 1.0)
    values, vectors = np.linalg.eigh(covariance)
    inner = vectors / np.sqrt(np.maximum(values, 0) + RELATIVE_RIDGE * level)
    change = np.zeros((len(mean) + 1, len(mean) + 1))
    change[:-1, :-1] = inner
    change[-1, :-1] = -mean @ inner
    change[-1, -1] = 1.0
    return change


def _non_negative(features: _Floats, target: _Floats, scale: _Floats) -> Integers:
    """Non-negative least squares by conjugate gradients on the unknowns that are free, which are
    few before long.

    An unknown that turns negative is held at zero, and is free again when the residual asks for
    more of it. Steps are taken in 32 bits, twice as fast, and the residual between rounds in 64,
    which takes their errors back. Ends when the rounded counts explain the target, or when rounds
    no longer improve what was found.
    """
    unknowns = np.zeros(len(features))
    counts = np.zeros(len(features))
    best = np.zeros(len(features))
    short = features.astype(np.float32)
    size = float(np.linalg.norm(target))
    least = np.inf
    idle = 0
    for turn in range(_MAX_ROUNDS):
        if (
            np.linalg.norm(target - _moment(features, counts * scale))
            <= EXACT_RESIDUAL * size
        ):
            return counts.astype(np.int64)
        residual = target - _moment(features, unknowns)
        left = float(np.linalg.norm(residual))
        # while unknowns are being let go, the residual may rise before it falls
        early = turn <= WARM_UP_ROUNDS
        idle = 0 if early or left < STALLED_RATIO * least else idle + 1
        if early or left < least:
            least = left
            best = counts
        if idle == MAX_IDLE_ROUNDS:
            break
        slope = _squares(features, residual)
        free = np.flatnonzero((unknowns > 0) | (slope > 0) | (turn == 0))
        # more and more, since the unknowns that are free change less and less
        steps = FIRST_ROUND_STEPS + 2 * turn
        moved = unknowns[free] + _conjugate_gradients(
            short[free], slope[free].astype(np.float32), steps
        )
        unknowns[:] = 0
        unknowns[free] = np.maximum(moved, 0)
        counts = np.rint(unknowns / scale)
    return best.astype(np.int64)


def _conjugate_gradients(features: _Floats, slope: _Floats, steps: int) -> _Floats:
    """Some steps towards the least squares solution, from the slope at zero."""
    from scipy.sparse.linalg import LinearOperator, cg

    def image(direction: _Floats) -> _Floats:
        return _squares(features, _moment(features, direction))

    shape = (slope.size, slope.size)
    squares = LinearOperator(shape, matvec=image, dtype=slope.dtype)
    solution, _ = cg(squares, slope, rtol=1e-12, maxiter=steps)
    return np.asarray(solution)


def _moment(features: _Floats, weights: _Floats) -> _Floats:
    """Σ w φφᵀ, over rows whose weight is not zero; only the blocks that touch the upper triangle
    are multiplied.
    """
    width = features.shape[1]
    moment = np.zeros((width, width), dtype=features.dtype)
    used = np.flatnonzero(weights)
    for start in range(0, len(used), ROW_BLOCK):
        chosen = used[start : start + ROW_BLOCK]
        rows = features[chosen]
        scaled = rows * weights[chosen, None]
        for left, right in _column_blocks(width):
            moment[:right, left:right] += scaled[:, :right].T @ rows[:, left:right]
    return np.triu(moment) + np.triu(moment, 1).T


def _squares(features: _Floats, form: _Floats) -> _Floats:
    """φᵀ X φ for every row, X symmetric; its upper triangle, doubled off the diagonal, says all."""
    upper = 2 * np.triu(form, 1) + np.diag(form.diagonal())
    squares = np.zeros(len(features), dtype=features.dtype)
    for start in range(0, len(features), ROW_BLOCK):
        rows = features[start : start + ROW_BLOCK]
        for left, right in _column_blocks(len(form)):
            product = rows[:, :right] @ upper[:right, left:right]
            squares[start : start + ROW_BLOCK] += np.einsum(
                "ij,ij->i", product, rows[:, left:right]
            )
    return squares


def _column_blocks(width: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, width, min(_COLUMN_BLOCKS, width) + 1).astype(int).tolist()
    return list(pairwise(edges))


# Histograms from a column, and whose a token is


def column(table: NDArray[np.int16], cross: Integers, window: int) -> Integers:
    """The sparsest-looking counts n ≥ 0 with Eᵀn = w · cross, rounded.

    F equations for V unknowns: right where a corpus has few distinct tokens (about F/10), a guess
    beyond. Lawson and Hanson's active sets (scipy's nnls) end at a vertex, which has at most F
    tokens; gradient methods would spread the counts over all tokens that are alike. All tokens at
    once would take forty times as long as a few at a time.
    """
    from scipy.optimize import nnls

    features = _features(table)
    change = _whitening(*_scatter(features.T @ features))
    features = features @ change
    scale = np.linalg.norm(features, axis=1)
    features /= scale[:, None]
    wanted = window * cross.astype(np.float64) @ change
    size = float(np.linalg.norm(wanted)) or 1.0
    wanted /= size
    solution = np.zeros(len(table))
    chosen = np.zeros(0, dtype=np.int64)
    for _ in range(_MAX_ROUNDS):
        slope = features @ (wanted - features.T @ solution)
        slope[chosen] = 0
        more = np.argsort(-slope)[:COLUMN_TOKENS]
        more = more[slope[more] > MIN_SLOPE]
        if not len(more):
            break
        chosen = np.union1d(np.flatnonzero(solution), more)
        few = np.ascontiguousarray(features[chosen].T)
        solution[:] = 0
        solution[chosen], _ = nnls(few, wanted, maxiter=10 * len(chosen))
    counts: Integers = np.rint(solution * size / scale).astype(np.int64)
    return counts


def attribution(table: NDArray[np.int16], total: Statistics) -> Integers:
    """For every token the domain that it most likely comes from, by a total alone.

    The expected share of domain d in a token's occurrences, given the columns, is φᵀ A⁻¹ b_d: what
    a router computes.
    """
    gram = total.gram.astype(np.float64)
    smooth = RELATIVE_RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    weights = np.linalg.solve(gram + smooth, total.cross.astype(np.float64))
    domains: Integers = np.argmax(_features(table) @ weights, axis=1)
    return domains


def unweighted(weighted: Statistics) -> Statistics | None:
    """The raw statistics behind one holder's weighted ones, or None if rounding has hidden them.

    If N samples were normalised to a mass M > 2N, every sum times N/M lies within N/2M of an
    integer. No other N so small passes that test on a few hundred sums, so the size of the corpus
    follows too.
    """
    mass = weighted.mass
    candidates = np.arange(1, min(mass // 2, MAX_SAMPLES) + 1)
    entries = np.unique(weighted.gram)
    for entry in entries[:: max(1, len(entries) // CHECKED_ENTRIES)]:
        rest = int(entry) % mass * candidates % mass
        candidates = candidates[2 * np.minimum(rest, mass - rest) <= candidates]
    return weighted.weighted(int(candidates[0])) if len(candidates) else None


# Sums of documents under noise


def buckets_by_column(letters: Whitening, column: Integers) -> Flags:
    """Which buckets of runs of letters a column has more of than public text.

    letters: the prior's. column: the part of letters of a sum of documents' vectors.
    """
    return np.asarray(_unwhitened(letters) @ column.astype(np.float64) > 0)


def buckets_by_products(letters: Whitening, products: Integers) -> Flags:
    """In which of them documents vary most, by the sum of products of the same vectors."""
    change = _unwhitened(letters)
    return varied_most(letters, _squares(change, products.astype(np.float64)))


def varied_most(letters: Whitening, squares: _Floats) -> Flags:
    """Where squares of what sets documents apart from public text are above the mean, relative to
    those of public text itself.
    """
    relative = squares / np.square(_unwhitened(letters)).sum(axis=1)
    return np.asarray(relative > relative.mean())


def _unwhitened(letters: Whitening) -> _Floats:
    """Back from a document's vector to buckets."""
    return np.asarray(np.linalg.inv(letters.scaled))


def membership_scores(rows: Integers, sums: DocumentSums) -> _Floats:
    """How much sums under noise look as if they held each of these documents: its own contribution
    against them.

    If all else in the sums is known and taken away, no score tells more (Neyman and Pearson): noise
    on a product of two features has half the variance, and the product stands in the matrix twice.
    """
    vectors = rows.astype(np.float64)
    linear = row_unit(sums.mode) * (vectors @ sums.column[:-1].astype(np.float64))
    linear += count_unit(sums.mode) * float(sums.column[-1])
    return np.asarray(
        linear + _squares(vectors, sums.products.astype(np.float64))
        if sums.products.size
        else linear
    )


def auc(members: _Floats, others: _Floats) -> float:
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
