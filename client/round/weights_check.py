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

Products with all of H are most of the work, and mostly not needed. Whatever L is, H ⪯ LLᵀ + ρI, if ρ is the Frobenius
norm of H − LLᵀ; so weights that pass with LLᵀ + ρI in place of H, for a narrow L, pass with H. The others are checked
with H.

Pure; knows nothing of messages or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.settings import FEATURE_LIMIT
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.transformer_encoder import AnyEncoder
from ridgeway.common.statistics.sums import MAX_SQUARE, SUM_BOUND, Statistics

Matrix = NDArray[np.float64]

BOUND_RANK = 64
"""The columns of L. With 64 of 961, ρ is half of what honest weights of 150 domains leave room for."""
LARGEST_WEIGHT = 1e100
"""The products of smaller ones are numbers that can be compared; no total has weights near it."""
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
    units = _units(features, encoder.scale)
    gram = own.gram.astype(np.float64)
    gram *= units[:, None] * (share / own.mass if share else 1.0)
    gram *= units
    most = mass or SUM_BOUND // MAX_SQUARE
    off = most * domains * max(UNEXPLAINED_SQUARE, features**2 * np.finfo(float).eps / min(ridges))
    for matrix in weights:
        if not (np.abs(matrix) < LARGEST_WEIGHT).all():
            raise _foreign("weights are not all numbers that can be squared")
    shared = _equations(tuple(matrix.tobytes() for matrix in weights), domains, tuple(ridges), encoder.scale)
    mean = gram.diagonal().mean()
    spare = [
        most + off + members * np.square(1 + spread) - ridge * mean * length
        for ridge, spread, length in zip(ridges, shared.spreads, shared.lengths, strict=True)
    ]
    rounding = members * len(shared.product) / 2 * np.square(shared.spread_apart)
    greatest = largest_square(encoder) * most * domains / features * shared.product
    greatest[np.diag_indices_from(greatest)] += off + rounding
    with one_blas_thread():
        factor, rest = bound_of(gram)
        images = np.split(factor.T @ shared.columns, len(weights), axis=1)
        pairs = zip(images, shared.lengths, strict=True)
        energies = [np.square(image).sum(axis=0) + rest * length for image, length in pairs]
        image = _apart(images, factor[-1:].T)
        if _excess(energies, spare, image.T @ image + rest * shared.alike, greatest):
            images = np.split(gram @ shared.columns, len(weights), axis=1)
            energies = [np.einsum("fc,fc->c", *pair) for pair in zip(weights, images, strict=True)]
            if reason := _excess(energies, spare, shared.apart.T @ _apart(images, gram[:, -1:]), greatest):
                raise _foreign(reason)
    if shared.uneven * mean > off + rounding.max():
        raise _foreign("weights under different λ are not of one total")


def _excess(energies: Sequence[Matrix], spare: Sequence[Matrix], squares: Matrix, greatest: Matrix) -> str:
    """What is too large, in words: an energy wᵀHw of a column, or DᵀHD. Empty if nothing is."""
    if any((energy > most).any() for energy, most in zip(energies, spare, strict=True)):
        return "a domain's predictions have more energy than its samples"
    try:
        np.linalg.cholesky(greatest - squares)
    except np.linalg.LinAlgError:
        return "columns do not belong together as those of one total do"
    return ""


def bound_of(gram: Matrix) -> tuple[Matrix, float]:
    """L and ρ for which gram ⪯ LLᵀ + ρI: a Cholesky factor, begun with the largest squares, and the rest's norm."""
    left = gram.diagonal().copy()
    factor = np.zeros((len(gram), min(BOUND_RANK, len(gram))))
    for place in range(factor.shape[1]):
        largest = int(left.argmax())
        if left[largest] <= 0:
            break
        column = (gram[largest] - factor[:, :place] @ factor[largest, :place]) / np.sqrt(left[largest])
        factor[:, place] = column
        left -= np.square(column)
        left[largest] = 0.0
    return factor, float(np.linalg.norm(gram - factor @ factor.T))


class _Equations(NamedTuple):
    """What of the checks depends on weights alone.

    columns: of all λ, side by side. lengths: |w|² of each column, for each λ, and spreads: see `_spread`.
    product: the symmetric part of DᵀE. uneven: by how much DᵀE is not symmetric. apart: D. alike: DᵀD.
    """

    columns: Matrix
    lengths: tuple[Matrix, ...]
    spreads: tuple[Matrix, ...]
    product: Matrix
    uneven: float
    apart: Matrix
    alike: Matrix
    spread_apart: Matrix


@lru_cache(maxsize=1)
def _equations(weights: tuple[bytes, ...], domains: int, ridges: tuple[float, ...], scale: float) -> _Equations:
    """Pure, so that where many holders run in one process it is computed once for all of them."""
    matrices = [np.frombuffer(matrix).reshape(-1, domains) for matrix in weights]
    units = _units(len(matrices[0]), scale)
    first, ridge = matrices[0], ridges[0]
    constant = np.zeros((len(first), 1))
    constant[-1] = 1.0
    apart = _apart(matrices, constant)
    others = zip(matrices[1:], ridges[1:], strict=True)
    drawn = [ridge * first.sum(axis=1, keepdims=True), *(other * matrix - ridge * first for matrix, other in others)]
    with one_blas_thread():
        product, alike = apart.T @ np.concatenate(drawn, axis=1), apart.T @ apart
    return _Equations(
        columns=np.concatenate(matrices, axis=1),
        lengths=tuple(np.square(matrix).sum(axis=0) for matrix in matrices),
        spreads=tuple(_spread(matrix, units) for matrix in matrices),
        product=(product + product.T) / 2,
        uneven=float(np.abs(product - product.T).max()),
        apart=apart,
        alike=alike,
        spread_apart=_spread(apart, units),
    )


def _units(features: int, scale: float) -> Matrix:
    units = np.full(features, scale)
    units[-1] = 1.0
    return units


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
