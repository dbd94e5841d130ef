"""Statistics → weights: W = (A + λI)⁻¹B by Cholesky in float64, pure.

Knows linear algebra. Knows nothing of files, encoders' sources or releases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.lapack import dpocon
from threadpoolctl import threadpool_limits

from common.errors import UnsolvableTotal
from common.settings import Ridge
from common.statistics import Statistics

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solution:
    """weights: F×C in the embedding's own units, the last row belonging to the constant feature.

    ridge:     the λ that was added to the diagonal, as an absolute number.
    condition: an estimate of the condition number of A + λI (1-norm).
    residual:  ‖(A + λI)W − B‖ / ‖B‖.
    """

    weights: Matrix
    ridge: float
    condition: float
    residual: float


def solve(total: Statistics, scale: float, ridge: Ridge) -> Solution:
    """Solve for the router's weights. Columns are independent: those of other domains do not change a domain's own.

    The same bits whatever the number of threads: LAPACK is held to one.
    """
    units = np.full(total.shape[0], scale)
    units[-1] = 1.0
    gram = total.gram.astype(np.float64) * units[:, None] * units[None, :]
    cross = total.cross.astype(np.float64) * units[:, None]
    added = ridge.value * float(gram.diagonal().mean()) if ridge.relative else ridge.value
    gram[np.diag_indices_from(gram)] += added
    with threadpool_limits(1):
        weights, condition = _cholesky(gram, cross, total.mass, added)
        residual = float(np.linalg.norm(gram @ weights - cross) / np.linalg.norm(cross))
    return Solution(weights, added, condition, residual)


def _cholesky(gram: Matrix, cross: Matrix, mass: int, added: float) -> tuple[Matrix, float]:
    try:
        factor = cho_factor(gram, lower=True)
    except LinAlgError as error:
        raise UnsolvableTotal(
            f"the total over {mass:_} samples is not positive definite at λ={added:g}; the text may be too little for "
            "so small a λ, or a mask did not cancel: raise the ridge or run the round again, and keep the ledger"
        ) from error
    reciprocal, _ = dpocon(factor[0], np.abs(gram).sum(axis=0).max(), uplo="L")
    return cho_solve(factor, cross), float(1 / reciprocal) if reciprocal else float("inf")
