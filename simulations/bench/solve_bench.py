"""Solving for a router on the CPU and on a GPU, beside the bare Cholesky factor of the same
matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Final

import numpy as np

from ridgeway.common.base.settings import FEATURE_LIMIT, Ridge
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.cli.terminal import ticking
from ridgeway.common.statistics.sums import Statistics
from ridgeway.coordinator.solving.solve import (
    MIN_GPU_FEATURES,
    Equation,
    Matrix,
    Solution,
    equation,
    on_cpu,
    on_gpu,
)
from ridgeway.simulations.bench.device import Device
from ridgeway.simulations.bench.measuring import (
    Result,
    Tick,
    Work,
    at_least,
    at_most,
    figure,
    medians,
)

CPU_WIDTHS = (576, 2048, 4096)
GPU_WIDTHS = (*CPU_WIDTHS, 8192)
SAMPLES: Final = 512
"""Fewer than there are features: λ alone holds the rest, as with a holder who has little text."""

DOMAINS: Final = 4
SCALE: Final = 2.0**-12
ROUNDS: Final = 3
MAX_WEIGHT_DIFFERENCE: Final = 1e-9

Solver = Callable[[Equation], Solution]


def bench_solve(device: Device) -> list[Result]:
    widths = GPU_WIDTHS if device.is_gpu else CPU_WIDTHS
    with ticking("solve", ROUNDS * len(widths)) as tick:
        return [
            result for width in widths for result in _bench_width(width, device, tick)
        ]


def random_total(width: int) -> Statistics:
    """The sums over random samples of several domains; their float64 products are integers below
    2⁵³, so exact.
    """
    rng = np.random.default_rng()
    samples = np.ones((SAMPLES, width + 1))
    samples[:, :-1] = rng.integers(
        -FEATURE_LIMIT, FEATURE_LIMIT, (SAMPLES, width), endpoint=True
    )
    answers = np.eye(DOMAINS)[rng.integers(0, DOMAINS, SAMPLES)]
    return Statistics(
        (samples.T @ samples).astype(np.int64), (samples.T @ answers).astype(np.int64)
    )


def _bench_width(width: int, device: Device, tick: Tick) -> list[Result]:
    rounds = []
    differences = []
    for _ in range(ROUNDS):
        seconds, difference = _round(random_total(width), device)
        rounds.append(seconds)
        differences.append(difference)
        tick()
    cpu, cpu_bare, gpu, gpu_bare = medians(rounds)
    name = f"solve, h={width}"
    cpu_words = "CPU" if _cpu_ways()[0] is on_cpu else "torch on the CPU"
    results = [
        figure(
            f"{name}, bare Cholesky to ours, {cpu_words}",
            cpu_bare / cpu,
            _ms(cpu),
            _ms(cpu_bare),
        )
    ]
    if device.is_gpu:
        far = max(differences)
        words = ("largest difference", "largest weight")
        faster = f"{name}, the CPU to the GPU, in seconds"
        held: Callable[..., Result] = (
            partial(at_least, aim=1.0) if width >= MIN_GPU_FEATURES else figure
        )
        results += [
            held(faster, cpu / gpu, ours=_ms(gpu), theirs=_ms(cpu)),
            figure(
                f"{name}, bare Cholesky to ours, GPU",
                gpu_bare / gpu,
                _ms(gpu),
                _ms(gpu_bare),
            ),
            at_most(
                f"{name}, weights of the GPU, to the CPU's",
                far,
                MAX_WEIGHT_DIFFERENCE,
                *words,
            ),
        ]
    return results


def _round(
    total: Statistics, device: Device
) -> tuple[tuple[float, float, float, float], float]:
    """The seconds of ours and of the bare factor, on the CPU and on the GPU, and how far the
    weights are apart.
    """
    cpu_solver, cpu_factor = _cpu_ways()
    found: list[Solution] = []

    def whole(solver: Solver) -> None:
        found.append(solver(equation(total, SCALE, Ridge())))

    posed = equation(total, SCALE, Ridge())
    cpu = Device()
    own = cpu.seconds(partial(whole, cpu_solver))
    bare = cpu.seconds(partial(cpu_factor, posed.gram))
    if not device.is_gpu:
        return (own, bare, 0.0, 0.0), 0.0
    on_this = partial(on_gpu, device=device.name)
    on_this(posed)  # the first solve sets the GPU's libraries up
    there = device.seconds(partial(whole, on_this))
    one, other = (solution.weights for solution in found)
    difference = float(np.abs(other - one).max() / np.abs(one).max())
    return (
        own,
        bare,
        there,
        device.seconds(_gpu_factor(posed.gram, device)),
    ), difference


def _cpu_ways() -> tuple[Solver, Callable[[Matrix], object]]:
    """How the CPU solves, and its bare factor: LAPACK on one thread; where scipy is not here, torch
    on all.
    """
    if find_spec("scipy") is not None and find_spec("threadpoolctl") is not None:
        return on_cpu, _lapack_factor
    return partial(on_gpu, device="cpu"), lambda gram: _gpu_factor(gram, Device())()


def _lapack_factor(gram: Matrix) -> object:
    from scipy.linalg import cho_factor

    with one_blas_thread():
        return cho_factor(gram, lower=True)


def _gpu_factor(gram: Matrix, device: Device) -> Work:
    import torch

    matrix = torch.from_numpy(gram).to(device.name)
    return lambda: torch.linalg.cholesky(matrix)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
