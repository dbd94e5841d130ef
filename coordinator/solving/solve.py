"""Statistics → weights: W = (A + λI)⁻¹B by Cholesky in float64, on the CPU, or on a GPU where A is
large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base import devices
from ridgeway.common.base.errors import UnsolvableTotal
from ridgeway.common.base.settings import Ridge
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.encoding.table_encoder import TableEncoder, of_table_rows, stacked
from ridgeway.common.statistics.sums import Statistics

_Matrix = NDArray[np.float64]

MIN_GPU_FEATURES = 4096
"""From this many features on a GPU is used where there is one; below it, the CPU is done before a
GPU is set up.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solution:
    """weights: F×C in the embedding's own units, the last row belonging to the constant feature.

    ridge:     the λ that was added to the diagonal, as an absolute number.
    condition: an estimate of the condition number of A + λI (1-norm).
    residual:  ‖(A + λI)W − B‖ / ‖B‖.
    device:    `cpu` or `cuda`; the last bits of the weights may differ between them.
    note:      why the CPU has solved what a GPU was meant for, in words for the operator; mostly
               empty.
    """

    weights: _Matrix
    ridge: float
    condition: float
    residual: float
    device: str = "cpu"
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Equation:
    """(A + λI)W = B in the embedding's own units: `gram` holds the λ, `added`, already."""

    gram: _Matrix
    cross: _Matrix
    added: float
    mass: int


def solve(total: Statistics, scale: float, ridge: Ridge) -> Solution:
    """Solve for the router's weights. Columns are independent: those of other domains do not change
    a domain's own.
    """
    posed = equation(total, scale, ridge)
    if len(posed.gram) < MIN_GPU_FEATURES:
        return on_cpu(posed)
    gpus = devices.gpus()
    if gpus:
        try:
            return on_gpu(posed, gpus[0])
        except MemoryError as error:
            return replace(on_cpu(posed), note=f"{error}; using the CPU")
    reason = devices.missed()
    return replace(on_cpu(posed), note=f"{reason}; using the CPU" if reason else "")


def solve_router(total: Statistics, encoder: TableEncoder, ridge: Ridge) -> Solution:
    """The weights of an encoder's router. Where it reads sentences, the columns of its table
    follow, which come out of a block of the same total.
    """
    whole = solve(total, encoder.scale, ridge)
    if not encoder.sentences:
        return whole
    rows = of_table_rows(encoder)
    block = Statistics(total.gram[np.ix_(rows, rows)], total.cross[rows])
    table = solve(block, encoder.scale, ridge)
    weights = stacked(whole.weights, table.weights, encoder)
    return replace(whole, weights=weights)


def equation(total: Statistics, scale: float, ridge: Ridge) -> Equation:
    """What is to be solved."""
    units = np.full(total.shape[0], scale)
    units[-1] = 1.0
    gram = total.gram.astype(np.float64) * units[:, None] * units[None, :]
    cross = total.cross.astype(np.float64) * units[:, None]
    added = (
        ridge.value * float(gram.diagonal().mean()) if ridge.relative else ridge.value
    )
    gram[np.diag_indices_from(gram)] += added
    return Equation(gram, cross, added, total.mass)


def on_cpu(posed: Equation) -> Solution:
    """The same bits whatever the number of threads: LAPACK is held to one. Raises
    UnsolvableTotal.
    """
    from scipy.linalg import cho_factor, cho_solve

    with one_blas_thread():
        try:
            factor = cho_factor(posed.gram, lower=True)
        except np.linalg.LinAlgError as error:
            raise _unsolvable(posed) from error
        condition = estimated_condition(posed.gram, factor[0])
        weights = cho_solve(factor, posed.cross)
        rest = np.linalg.norm(posed.gram @ weights - posed.cross)
        residual = float(rest / np.linalg.norm(posed.cross))
    return Solution(weights, posed.added, condition, residual)


def estimated_condition(gram: _Matrix, factor: _Matrix) -> float:
    """LAPACK's estimate of a matrix's condition number in the 1-norm, from its Cholesky factor."""
    from scipy.linalg.lapack import dpocon

    norm = np.abs(gram).sum(axis=0).max()
    reciprocal, _ = dpocon(factor, norm, uplo="L")
    return float(1 / reciprocal) if reciprocal else float("inf")


def on_gpu(posed: Equation, device: str) -> Solution:
    """Raises UnsolvableTotal, and MemoryError if the GPU cannot hold the work."""
    try:
        weights, condition, residual = solved(posed.gram, posed.cross, device)
    except np.linalg.LinAlgError as error:
        raise _unsolvable(posed) from error
    except RuntimeError as error:
        if devices.is_out_of_memory(error):
            raise MemoryError(
                f"not enough memory on {device} to solve {len(posed.gram):,} features"
            ) from error
        raise
    return Solution(weights, posed.added, condition, residual, device.partition(":")[0])


def _unsolvable(posed: Equation) -> UnsolvableTotal:
    return UnsolvableTotal(
        f"the total over {posed.mass:_} samples is not positive definite at"
        f" λ={posed.added:g}; there may be too little text for this λ, or a mask did"
        " not cancel: raise the ridge or run the round again, and keep the ledger"
    )


def solved(gram: _Matrix, cross: _Matrix, device: str) -> tuple[_Matrix, float, float]:
    """Weights, estimated condition number and residual of `gram @ weights = cross`, by torch.

    Raises LinAlgError if the matrix is not positive definite.
    """
    import torch

    matrix = torch.from_numpy(np.ascontiguousarray(gram)).to(device)
    right = torch.from_numpy(np.ascontiguousarray(cross)).to(device)
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        raise np.linalg.LinAlgError(
            f"the leading minor of order {int(info)} is not positive"
        )
    weights = torch.cholesky_solve(right, factor)
    residual = float(
        torch.linalg.norm(matrix @ weights - right) / torch.linalg.norm(right)
    )
    condition = estimated_condition(gram, factor.cpu().numpy())
    return np.ascontiguousarray(weights.cpu().numpy()), condition, residual
