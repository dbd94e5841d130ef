"""What a device allows, measured on the spot: how fast it moves memory, and how fast it multiplies matrices.

Every input is random. Knows torch (a card) and numpy (the CPU). Knows nothing of sums.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from simulations.bench.device import Device
from simulations.bench.measuring import Result, Work, figure

CARD_COPY_BYTES = 1 << 30
CARD_SIZES = (4096, 8192)
CARD_GATHERED = 1 << 18
CPU_COPY_BYTES = 256 << 20
CPU_SIZES = (1024, 2048)
CPU_GATHERED = 1 << 16
ROUNDS: Final = 5
IN_A_ROW: Final = 4
"""Work on a card is asked for so often before its end is waited for."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """copy and gather: bytes a second, read and written ones together. products: operations a second by the kind of
    number, two of them to a multiply-add."""

    copy: float
    gather: float
    products: Mapping[str, float]

    def by_memory(self, width: int) -> float:
        """The tokens a second that a card's memory allows for exact sums over windows.

        Each token reads one row of the int16 table, 2h bytes, at the speed of a copy; the rest (its id, 4 bytes, and
        the window's feature, 2h/w bytes) is left out, and so is what a cache saves.
        """
        return self.copy / (2 * width)

    def by_products(self, width: int, window: int) -> float:
        """The tokens a second that a card's matrix products allow.

        A feature of 13 bits is two int8 digits, H and L, so a window's φφᵀ is HHᵀ, HLᵀ, LHᵀ and LLᵀ. Their sum is
        symmetric, and half of each is enough: 4 · h²/2 = 2h² multiply-adds, so 4h² operations a window.
        """
        return self.products["int8"] * window / (4 * width**2)

    def tokens(self, width: int, window: int) -> float:
        """The tokens a second that a card allows: the tighter of the two."""
        return min(self.by_memory(width), self.by_products(width, window))

    def results(self, device: Device, width: int) -> list[Result]:
        gigabytes = [("copying memory", self.copy), (f"gathering random rows of {2 * width:,} bytes", self.gather)]
        moved = [figure(f"{what}, GB/s", rate / 1e9, "", device.name) for what, rate in gigabytes]
        teras = [(f"{kind} matrix products, 10¹² operations/s", rate / 1e12) for kind, rate in self.products.items()]
        return [*moved, *(figure(what, rate, "", device.name) for what, rate in teras)]


def measure_ceilings(device: Device, rows: int, width: int) -> Ceilings:
    """rows and width: the table that rows are gathered from."""
    return _of_card(device, rows, width) if device.is_card else _of_cpu(device, rows, width)


def _rate(device: Device, amount: float, make: Callable[[], Work], in_a_row: int = 1) -> float:
    """Amounts a second: the median over rounds, each with an input of its own."""

    def repeated(work: Work) -> None:
        for _ in range(in_a_row):
            work()

    make()()
    times = [device.seconds(partial(repeated, make())) for _ in range(ROUNDS)]
    return amount * in_a_row / statistics.median(times)


def _of_cpu(device: Device, rows: int, width: int) -> Ceilings:
    rng = np.random.default_rng()
    table = rng.integers(-99, 99, (rows, width), dtype=np.int16)

    def copy() -> Work:
        source = rng.integers(-99, 99, CPU_COPY_BYTES // 8)
        target = np.ones_like(source)
        return lambda: np.copyto(target, source)

    def gather() -> Work:
        ids = rng.integers(0, rows, CPU_GATHERED)
        target = np.ones((CPU_GATHERED, width), dtype=np.int16)
        return lambda: np.take(table, ids, axis=0, out=target, mode="clip")

    def product(size: int, kind: str) -> Work:
        one, other = (rng.standard_normal((size, size)).astype(kind) for _ in range(2))
        return lambda: one @ other

    rates = {
        kind: max(_rate(device, 2.0 * size**3, partial(product, size, kind)) for size in CPU_SIZES)
        for kind in ("float64", "float32")
    }
    gathered = _rate(device, 2.0 * CPU_GATHERED * width * 2, gather)
    return Ceilings(_rate(device, 2.0 * CPU_COPY_BYTES, copy), gathered, rates)


def _of_card(device: Device, rows: int, width: int) -> Ceilings:
    import torch

    place = device.name
    table = torch.randint(-99, 99, (rows, width), dtype=torch.int16, device=place)

    def copy() -> Work:
        source = torch.randint(-99, 99, (CARD_COPY_BYTES // 8,), dtype=torch.int64, device=place)
        target = torch.ones_like(source)
        return lambda: target.copy_(source)

    def gather() -> Work:
        ids = torch.randint(0, rows, (CARD_GATHERED,), device=place)
        target = torch.ones((CARD_GATHERED, width), dtype=torch.int16, device=place)
        return lambda: torch.index_select(table, 0, ids, out=target)

    def product(size: int, kind: str) -> Work:
        one, other = (_random_matrix(size, kind, place) for _ in range(2))
        if kind == "int8":
            return lambda: torch._int_mm(one, other.T)
        return lambda: one @ other

    def best(kind: str) -> float:
        return max(_rate(device, 2.0 * size**3, partial(product, size, kind), IN_A_ROW) for size in CARD_SIZES)

    rates = {kind: best(kind) for kind in ("float64", "float32", "bfloat16", "int8")}
    gathered = _rate(device, 2.0 * CARD_GATHERED * width * 2, gather, IN_A_ROW)
    return Ceilings(_rate(device, 2.0 * CARD_COPY_BYTES, copy, IN_A_ROW), gathered, rates)


def _random_matrix(size: int, kind: str, place: str) -> Any:
    import torch

    if kind == "int8":
        return torch.randint(-128, 128, (size, size), dtype=torch.int8, device=place)
    return torch.randn((size, size), device=place).to(getattr(torch, kind))
