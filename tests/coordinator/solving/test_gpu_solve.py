"""Solving with torch: the same weights and figures as LAPACK gives, and the same refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base import machine
from ridgeway.common.base.errors import UnsolvableTotal
from ridgeway.common.base.settings import Ridge
from ridgeway.common.statistics import Statistics, single_domain
from ridgeway.coordinator.solving import solve as solving
from ridgeway.coordinator.solving.solve import (
    Equation,
    _Matrix,
    equation,
    on_cpu,
    on_gpu,
    solve,
)
from tests.support.making import random_samples, statistics_of
from tests.support.seeds import few_examples

GPU = "cuda:0"
needs_a_gpu = pytest.mark.skipif(not machine.gpus(), reason="no CUDA device here")
DEVICES = ["cpu", pytest.param(GPU, marks=needs_a_gpu)]


def posed(seed: int, size: int, domains: int, condition: float) -> Equation:
    """A positive definite matrix whose eigenvalues run from 1 to `condition`, in directions drawn
    at random.
    """
    rng = np.random.default_rng(seed)
    turned, _ = np.linalg.qr(rng.standard_normal((size, size)))
    gram = (turned * np.geomspace(1, condition, size)) @ turned.T
    return Equation(
        (gram + gram.T) / 2, rng.standard_normal((size, domains)), 0.0, 1000
    )


def small_total(features: int = 12) -> Statistics:
    return statistics_of(random_samples(1, 300, features), [0, 1, 2] * 100, 3)


def far(one: _Matrix, other: _Matrix) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("device", DEVICES)
@few_examples
@given(
    seed=st.integers(0, 1 << 32),
    size=st.integers(1, 60),
    domains=st.integers(1, 6),
    condition=st.floats(1.0, 1e8),
)
def test_torch_gives_the_weights_that_lapack_gives(
    device: str, seed: int, size: int, domains: int, condition: float
) -> None:
    """Within what rounding allows at that condition number; the figures beside the weights agree
    too.
    """
    matrix = posed(seed, size, domains, condition)
    ours, theirs = on_gpu(matrix, device), on_cpu(matrix)
    assert far(ours.weights, theirs.weights) <= 1e-14 * size * condition
    assert ours.residual <= 1e-13 * size * condition
    assert ours.ridge == theirs.ridge
    true = float(np.linalg.cond(matrix.gram, 1))
    slack = 1e-13 * size * condition
    assert 0.1 * true * (1 - slack) <= ours.condition <= (1.001 + slack) * true


@pytest.mark.parametrize("device", DEVICES)
def test_a_total_that_is_not_positive_definite_is_refused_in_the_same_words(
    device: str,
) -> None:
    """Whoever solves, the operator reads one sentence."""
    indefinite = equation(
        single_domain(np.array([[100, 900, 0], [900, 100, 0], [0, 0, 1234]])),
        1.0,
        Ridge(0.5, relative=False),
    )
    with pytest.raises(UnsolvableTotal) as here:
        on_gpu(indefinite, device)
    with pytest.raises(UnsolvableTotal, match=re.escape(str(here.value))):
        on_cpu(indefinite)


@pytest.mark.parametrize("device", DEVICES)
def test_solving_twice_gives_the_same_bits(device: str) -> None:
    """On one device a release can be made again."""
    matrix = posed(1, 50, 4, 1e4)
    once, again = (on_gpu(matrix, device).weights.tobytes() for _ in range(2))
    assert once == again


@needs_a_gpu
def test_a_large_total_is_solved_on_the_gpu() -> None:
    """From 4,096 features on; the solution says where."""
    size = solving.MIN_GPU_FEATURES
    rng = np.random.default_rng(1)
    half = rng.integers(-9, 9, (size, size))
    total = single_domain(half @ half.T)
    ours = solve(total, 1.0, Ridge(0.1))
    assert ours.device == "cuda"
    assert far(ours.weights, on_cpu(equation(total, 1.0, Ridge(0.1))).weights) < 1e-10


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every total counts as large, and a GPU is there that is really the CPU."""
    monkeypatch.setattr(solving, "MIN_GPU_FEATURES", 1)
    monkeypatch.setattr(machine, "gpus", lambda: ["cpu:0"])


@pytest.mark.usefixtures("small_limit")
def test_a_gpu_is_used_from_a_limit_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the limit nobody looks for a GPU."""
    asked = []
    real = solving.solved

    def solved(
        gram: _Matrix, cross: _Matrix, device: str
    ) -> tuple[_Matrix, float, float]:
        asked.append(device)
        return real(gram, cross, device)

    monkeypatch.setattr(solving, "solved", solved)
    solve(small_total(), 1.0, Ridge())
    monkeypatch.setattr(solving, "MIN_GPU_FEATURES", 13)
    assert solve(small_total(), 1.0, Ridge()).device == "cpu"
    assert asked == ["cpu:0"]


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"),
    ],
)
def test_a_gpu_without_enough_memory_leaves_the_work_to_the_cpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    """The same words, however many λ are solved for, to be told once; the weights are those of the
    CPU.
    """

    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(solving, "solved", full)
    words = "not enough memory on cpu:0 to solve 12 features; using the CPU"
    for ridge in (Ridge(), Ridge(1.0)):
        solution = solve(small_total(), 1.0, ridge)
        expected = on_cpu(equation(small_total(), 1.0, ridge))
        assert solution.weights.tobytes() == expected.weights.tobytes()
        assert solution.note == words


@pytest.mark.usefixtures("small_limit")
def test_any_other_failure_of_a_gpu_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only memory that runs out is a reason to go on without the GPU."""

    def broken(*_: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(solving, "solved", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        solve(small_total(), 1.0, Ridge())


@pytest.mark.usefixtures("small_limit")
def test_a_gpu_that_cannot_be_used_is_mentioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver without torch is worth a word where a GPU would have been used."""
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(
        machine, "missed", lambda: "NVIDIA driver found, but torch is not installed"
    )
    assert solve(small_total(), 1.0, Ridge()).note.endswith(
        "torch is not installed; using the CPU"
    )
