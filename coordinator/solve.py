"""Statistics → weights: W = (A + λI)⁻¹B by Cholesky in float64, on the CPU, or on a graphics card where A is large.

Knows linear algebra, and scipy once something is solved. Knows nothing of files, encoders' sources or releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from common import devices
from common.errors import UnsolvableTotal
from common.settings import Ridge
from common.statistics import Statistics
from coordinator import gpu_solve

Matrix = NDArray[np.float64]

CARD_FEATURES = 4096
"""From so many features on a card is used where there is one; below it, the CPU is done before a card is set up."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solution:
    """weights: F×C in the embedding's own units, the last row belonging to the constant feature.

    ridge:     the λ that was added to the diagonal, as an absolute number.
    condition: an estimate of the condition number of A + λI (1-norm).
    residual:  ‖(A + λI)W − B‖ / ‖B‖.
    device:    `cpu` or `cuda`; the last bits of the weights may differ between them.
    """

    weights: Matrix
    ridge: float
    condition: float
    residual: float
    device: str = "cpu"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Equation:
    """(A + λI)W = B in the embedding's own units: `gram` holds the λ, `added`, already."""

    gram: Matrix
    cross: Matrix
    added: float
    mass: int


def solve(total: Statistics, scale: float, ridge: Ridge) -> Solution:
    """Solve for the router's weights. Columns are independent: those of other domains do not change a domain's own."""
    posed = equation(total, scale, ridge)
    if len(posed.gram) < CARD_FEATURES:
        return on_cpu(posed)
    cards = devices.cards()
    if cards:
        try:
            return on_card(posed, cards[0])
        except MemoryError as error:
            _say(f"{error}, so the CPU solves")
    elif reason := devices.missed():
        _say(f"{reason}; the CPU solves")
    return on_cpu(posed)


def equation(total: Statistics, scale: float, ridge: Ridge) -> Equation:
    """What is to be solved."""
    units = np.full(total.shape[0], scale)
    units[-1] = 1.0
    gram = total.gram.astype(np.float64) * units[:, None] * units[None, :]
    cross = total.cross.astype(np.float64) * units[:, None]
    added = ridge.value * float(gram.diagonal().mean()) if ridge.relative else ridge.value
    gram[np.diag_indices_from(gram)] += added
    return Equation(gram, cross, added, total.mass)


def on_cpu(posed: Equation) -> Solution:
    """The same bits whatever the number of threads: LAPACK is held to one. Raises UnsolvableTotal."""
    from scipy.linalg import cho_factor, cho_solve
    from scipy.linalg.lapack import dpocon
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        try:
            factor = cho_factor(posed.gram, lower=True)
        except np.linalg.LinAlgError as error:
            raise _unsolvable(posed) from error
        reciprocal, _ = dpocon(factor[0], np.abs(posed.gram).sum(axis=0).max(), uplo="L")
        weights = cho_solve(factor, posed.cross)
        residual = float(np.linalg.norm(posed.gram @ weights - posed.cross) / np.linalg.norm(posed.cross))
    condition = float(1 / reciprocal) if reciprocal else float("inf")
    return Solution(weights, posed.added, condition, residual)


def on_card(posed: Equation, device: str) -> Solution:
    """Raises UnsolvableTotal, and MemoryError if the card cannot hold the work."""
    try:
        weights, condition, residual = gpu_solve.solved(posed.gram, posed.cross, device)
    except np.linalg.LinAlgError as error:
        raise _unsolvable(posed) from error
    return Solution(weights, posed.added, condition, residual, device.partition(":")[0])


def _unsolvable(posed: Equation) -> UnsolvableTotal:
    return UnsolvableTotal(
        f"the total over {posed.mass:_} samples is not positive definite at λ={posed.added:g}; the text may be too "
        "little for so small a λ, or a mask did not cancel: raise the ridge or run the round again, and keep the ledger"
    )


@cache
def _say(words: str) -> None:
    """Once for each process: a round solves for many λ."""
    from common.terminal import step

    step("note", words)
