"""Whether weights could be what a total that holds this holder's own sums was solved to: as far as it can know alone.

With the total's gram G and cross B in the embedding's units, e the constant feature and t the mean diagonal of G, the
weights for a relative λ r solve (G + r·t·I)W = B; the domains' columns of B add up to Ge; and G is at least the
holder's own gram H: G − H is a sum of squares, too. Three things follow, and are checked:

1. A column's predictions have no more energy than its 0/1 targets: wᵀGw + r·t|w|² = bᵀ(G + r·t·I)⁻¹b ≤ the domain's
   mass, so wᵀHw + r·s|w|² ≤ mass, where s ≤ t is the mean diagonal of H.
2. GD = tE, for D = e − W1 with E = r·W1 (all columns of one λ together), and for D = W − W′ with E = r′W′ − rW (a
   column under two λ). So DᵀE is symmetric, for all such D side by side, and t·DᵀE = DᵀGD ⪰ DᵀHD.
3. t is at most T, the greatest square of a sample times the cohort's mass, over the features: T·DᵀE ⪰ DᵀHD ⪰ 0. (Of
   two columns alone this says that a larger λ never gives a longer w, nor one shorter than by the quotient of the two.)

Pure; knows nothing of messages or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.transformer_encoder import AnyEncoder
from ridgeway.common.statistics.sums import MAX_SQUARE, SUM_BOUND, Statistics

Matrix = NDArray[np.float64]

UNEXPLAINED_SQUARE = 1e-6
"""By how much of the cohort's mass energies may be off: errors of float64 in solving stay below it."""


def check_weights(
    weights: Sequence[Matrix],
    ridges: Sequence[float],
    own: Statistics,
    encoder: AnyEncoder,
    mass: int,
    members: int,
    share: int = 0,
) -> None:
    """Raise Refused unless the weights, one F×C matrix for each relative λ, could be solutions of one such total.

    own:   this holder's sums. mass: of each domain; 0 where it is not known.
    share: the mass to which they were weighted, if they were. Here they are not rounded as they were then: the
           tolerance for rounding counts every member's, its own too.
    """
    features, domains = weights[0].shape
    units = np.full(features, encoder.scale)
    units[-1] = 1.0
    gram = own.gram.astype(np.float64)
    gram *= units[:, None] * (share / own.mass if share else 1.0)
    gram *= units
    most = mass or SUM_BOUND // MAX_SQUARE
    off = most * domains * max(UNEXPLAINED_SQUARE, features**2 * np.finfo(float).eps / min(ridges))
    for matrix in weights:
        if not np.isfinite(matrix).all():
            raise _foreign("weights are not all numbers")
    with one_blas_thread():
        seen = np.split(gram @ np.concatenate(weights, axis=1), len(weights), axis=1)
    for ridge, matrix, image in zip(ridges, weights, seen, strict=True):
        energies = np.einsum("fc,fc->c", matrix, image) - members * np.square(1 + _spread(matrix, units))
        norms = ridge * gram.diagonal().mean() * np.square(matrix).sum(axis=0)
        if (energies + norms).max() > most + off:
            raise _foreign("a domain's predictions have more energy than its samples")
    apart, product = _equations(tuple(matrix.tobytes() for matrix in weights), domains, tuple(ridges))
    largest = largest_square(encoder) * most * domains / features
    rounding = members * len(product) / 2 * np.square(_spread(apart, units))
    with one_blas_thread():
        excess = largest * (product + product.T) / 2 - apart.T @ _apart(seen, gram[:, -1:])
        excess[np.diag_indices_from(excess)] += off + rounding
        try:
            np.linalg.cholesky(excess)
        except np.linalg.LinAlgError:
            raise _foreign("columns do not belong together as those of one total do") from None
    if np.abs(product - product.T).max() * gram.diagonal().mean() > off + rounding.max():
        raise _foreign("weights under different λ are not of one total")


@lru_cache(maxsize=1)
def _equations(weights: tuple[bytes, ...], domains: int, ridges: tuple[float, ...]) -> tuple[Matrix, Matrix]:
    """D and DᵀE. Pure, so that where many holders run in one process it is computed once for all of them."""
    matrices = [np.frombuffer(matrix).reshape(-1, domains) for matrix in weights]
    first, ridge = matrices[0], ridges[0]
    constant = np.zeros((len(first), 1))
    constant[-1] = 1.0
    apart = _apart(matrices, constant)
    others = zip(matrices[1:], ridges[1:], strict=True)
    drawn = [ridge * first.sum(axis=1, keepdims=True), *(other * matrix - ridge * first for matrix, other in others)]
    with one_blas_thread():
        return apart, apart.T @ np.concatenate(drawn, axis=1)


def _apart(matrices: Sequence[Matrix], constant: Matrix) -> Matrix:
    """D, or what a gram makes of D, of what it makes of the weights and of the constant feature."""
    first = matrices[0]
    together = first.sum(axis=1, keepdims=True)
    return np.concatenate([constant - together, *(first - matrix for matrix in matrices[1:])], axis=1)


def _spread(columns: Matrix, units: Matrix) -> Matrix:
    """Half its square is what an energy can be off, if every entry of a gram was rounded to a whole number."""
    spread: Matrix = np.abs(columns * units[:, None]).sum(axis=0)
    return spread


@lru_cache(maxsize=2)
def largest_square(encoder: AnyEncoder) -> float:
    """The greatest |φ|² that a sample can have: a mean of rows is no longer than the longest, but for its rounding.

    Of words nothing is known but the bound of every feature, and of cosines their amplitude.
    """
    if isinstance(encoder, TableEncoder):
        rows = np.einsum("vh,vh->v", encoder.table, encoder.table, dtype=np.int64)
        words = (encoder.options.width if encoder.options else 0) * MAX_SQUARE
        cosines = encoder.kernel.width * encoder.kernel.amplitude**2 if encoder.kernel else 0
        length = np.sqrt(float(rows.max()) + words + cosines) + np.sqrt(encoder.width) / 2
    else:
        length = np.sqrt(encoder.width) * FEATURE_LIMIT
    return float(np.square(length * encoder.scale)) + 1


def _foreign(what: str) -> Refused:
    return Refused("foreign_weights", f"these weights are no solution of a total that holds this holder's sums: {what}")
