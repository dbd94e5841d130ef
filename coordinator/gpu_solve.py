"""The ridge equation on a graphics card: Cholesky in float64, with the same figures as LAPACK gives.

Knows torch, which is imported when something is solved. Knows nothing of statistics, of scales or of what a failure
means to an operator. The code is the same for every device of torch, `cpu` among them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.devices import ran_out

Tensor = Any
"""torch.Tensor, which this module may not name before it is needed."""

Matrix = NDArray[np.float64]

STEPS = 5
"""How often the estimate of ‖A⁻¹‖ may climb; LAPACK's own limit."""


def solved(gram: Matrix, cross: Matrix, device: str) -> tuple[Matrix, float, float]:
    """Weights, condition number (an estimate in the 1-norm) and residual of `gram @ weights = cross`.

    Raises LinAlgError if the matrix is not positive definite, and MemoryError if the card cannot hold the work.
    """
    try:
        return _solved(gram, cross, device)
    except RuntimeError as error:
        if ran_out(error):
            raise MemoryError(f"{device} cannot hold a solve of {len(gram):,} features") from error
        raise


def _solved(gram: Matrix, cross: Matrix, device: str) -> tuple[Matrix, float, float]:
    import torch

    matrix, right = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (gram, cross))
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        raise np.linalg.LinAlgError(f"the leading minor of order {int(info)} is not positive")
    weights = torch.cholesky_solve(right, factor)
    residual = float(torch.linalg.norm(matrix @ weights - right) / torch.linalg.norm(right))
    condition = float(matrix.abs().sum(dim=0).max()) * inverse_norm(factor)
    return np.ascontiguousarray(weights.cpu().numpy()), condition, residual


def inverse_norm(factor: Tensor) -> float:
    """An estimate of ‖A⁻¹‖ in the 1-norm from A's Cholesky factor, by a few solves: Hager's climb as in LAPACK.

    Each step solves for the unit vector that promises most, until none promises more. The last guess, a vector of
    alternating signs, catches matrices on which the climb stands still.
    """
    import torch

    size = len(factor)

    def solve(vector: Tensor) -> Tensor:
        return torch.cholesky_solve(vector[:, None], factor)[:, 0]

    found = solve(torch.full_like(factor[0], 1 / size))
    best, seen = float(found.abs().sum()), -1
    for _ in range(STEPS):
        promising = int(solve(_signs(found)).abs().argmax())
        if promising == seen:
            break
        unit = torch.zeros_like(factor[0])
        unit[promising] = 1
        found, seen = solve(unit), promising
        if float(found.abs().sum()) <= best:
            break
        best = float(found.abs().sum())
    places = torch.arange(size, dtype=factor.dtype, device=factor.device)
    slanted = (1 - 2 * (places % 2)) * (1 + places / max(1, size - 1))
    return max(best, 2 * float(solve(slanted).abs().sum()) / (3 * size))


def _signs(vector: Tensor) -> Tensor:
    return (vector >= 0).to(vector.dtype) * 2 - 1
