"""Solving for a router on the CPU and on a card, beside the bare Cholesky factor of the same matrix.

Knows solving. Knows nothing of where totals come from: these are the sums of random samples, new in each round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Final

import numpy as np

from common.settings import FEATURE_LIMIT, Ridge
from common.statistics import Statistics
from coordinator.solve import CARD_FEATURES, Equation, Matrix, Solution, equation, on_card, on_cpu
from simulations.bench.device import Device
from simulations.bench.measuring import Result, Tick, Work, at_least, at_most, figure

CPU_WIDTHS = (576, 2048, 4096)
CARD_WIDTHS = (*CPU_WIDTHS, 8192)
SAMPLES: Final = 512
"""Fewer than there are features: λ alone holds the rest, as with a holder who has little text."""

DOMAINS: Final = 4
SCALE: Final = 2.0**-12
ROUNDS: Final = 3
CLOSE: Final = 1e-9

Solver = Callable[[Equation], Solution]


@dataclass(frozen=True, slots=True)
class Lap:
    """One round's seconds: ours and the bare factor, on the CPU and on the card."""

    cpu: float
    cpu_bare: float
    card: float = 0.0
    card_bare: float = 0.0
    difference: float = 0.0


def widths(device: Device) -> tuple[int, ...]:
    return CARD_WIDTHS if device.is_card else CPU_WIDTHS


def bench_solve(device: Device, tick: Tick) -> list[Result]:
    return [result for width in widths(device) for result in _bench_width(width, device, tick)]


def ticks(device: Device) -> int:
    """How often `bench_solve` will tick."""
    return ROUNDS * len(widths(device))


def random_total(width: int) -> Statistics:
    """The sums over random samples of several domains; their float64 products are integers below 2⁵³, so exact."""
    rng = np.random.default_rng()
    samples = np.ones((SAMPLES, width + 1))
    samples[:, :-1] = rng.integers(-FEATURE_LIMIT, FEATURE_LIMIT, (SAMPLES, width), endpoint=True)
    answers = np.eye(DOMAINS)[rng.integers(0, DOMAINS, SAMPLES)]
    return Statistics((samples.T @ samples).astype(np.int64), (samples.T @ answers).astype(np.int64))


def _bench_width(width: int, device: Device, tick: Tick) -> list[Result]:
    laps = []
    for _ in range(ROUNDS):
        laps.append(_lap(random_total(width), device))
        tick()
    cpu, cpu_bare, card, card_bare = (
        statistics.median(column)
        for column in zip(*((lap.cpu, lap.cpu_bare, lap.card, lap.card_bare) for lap in laps), strict=True)
    )
    name = f"solve, h={width}"
    results = [figure(f"{name}, bare Cholesky to ours, {_cpu_words()}", cpu_bare / cpu, _ms(cpu), _ms(cpu_bare))]
    if device.is_card:
        far = max(lap.difference for lap in laps)
        faster = f"{name}, the CPU to the card, in seconds"
        compared = at_least(faster, cpu / card, 1.0, _ms(card), _ms(cpu)) if width >= CARD_FEATURES else None
        results += [
            compared or figure(faster, cpu / card, _ms(card), _ms(cpu)),
            figure(f"{name}, bare Cholesky to ours, card", card_bare / card, _ms(card), _ms(card_bare)),
            at_most(f"{name}, weights of the card, to the CPU's", far, CLOSE, "largest difference", "largest weight"),
        ]
    return results


def _lap(total: Statistics, device: Device) -> Lap:
    cpu_solver, cpu_factor = _cpu_ways()
    found: list[Solution] = []

    def whole(solver: Solver) -> None:
        found.append(solver(equation(total, SCALE, Ridge())))

    posed = equation(total, SCALE, Ridge())
    cpu = Device()
    own, bare = cpu.seconds(partial(whole, cpu_solver)), cpu.seconds(partial(cpu_factor, posed.gram))
    if not device.is_card:
        return Lap(own, bare)
    on_this = partial(on_card, device=device.name)
    on_this(posed)  # the first solve sets the card's libraries up
    there = device.seconds(partial(whole, on_this))
    one, other = (solution.weights for solution in found)
    return Lap(own, bare, there, device.seconds(_card_factor(posed.gram, device)), far(other, one))


def far(one: Matrix, other: Matrix) -> float:
    """The largest difference of two weights, in parts of the largest weight."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def _cpu_ways() -> tuple[Solver, Callable[[Matrix], object]]:
    """How the CPU solves, and its bare factor: LAPACK on one thread; where scipy is not here, torch on all."""
    if find_spec("scipy") is not None and find_spec("threadpoolctl") is not None:
        return on_cpu, _lapack_factor
    return partial(on_card, device="cpu"), _torch_factor


def _cpu_words() -> str:
    return "CPU" if _cpu_ways()[0] is on_cpu else "torch on the CPU"


def _lapack_factor(gram: Matrix) -> object:
    from scipy.linalg import cho_factor
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return cho_factor(gram, lower=True)


def _torch_factor(gram: Matrix) -> object:
    import torch

    return torch.linalg.cholesky(torch.from_numpy(gram))


def _card_factor(gram: Matrix, device: Device) -> Work:
    import torch

    matrix = torch.from_numpy(gram).to(device.name)
    return lambda: torch.linalg.cholesky(matrix)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
