"""What is measured: this machine's processor, or one of its graphics cards; and what it allows.

Its ceilings, how fast it moves memory and multiplies matrices, are measured on the spot, on random numbers. Knows torch
once a card or its ceilings are asked for. Knows nothing of what runs there.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ridgeway.common.base.devices import chosen, missed
from ridgeway.common.cli.terminal import step
from ridgeway.simulations.bench.measuring import Result, Work, figure, once

CEILING_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class Device:
    """name: `cpu`, or one card such as `cuda:0`."""

    name: str = "cpu"

    @property
    def is_card(self) -> bool:
        return self.name != "cpu"

    @property
    def cards(self) -> tuple[str, ...]:
        """As accumulators want it: no card is the CPU."""
        return (self.name,) if self.is_card else ()

    def wait(self) -> None:
        """Until everything that was asked of the card is done."""
        if self.is_card:
            import torch

            torch.cuda.synchronize(self.name)

    def seconds(self, work: Work) -> float:
        """How long some work takes, to its very end."""

        def to_the_end() -> None:
            work()
            self.wait()

        self.wait()
        return once(to_the_end)

    def peak_bytes(self, work: Work) -> int:
        """The most memory of the card that torch held at once during some work."""
        import torch

        self.wait()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.name)
        work()
        self.wait()
        return int(torch.cuda.max_memory_allocated(self.name))

    def facts(self) -> dict[str, Any]:
        """What there is to know about the machine, and the card if one is measured."""
        known = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        if not self.is_card:
            return {"device": self.name, **known}
        import torch

        card = torch.cuda.get_device_properties(self.name)
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        return {"device": self.name, "card": card.name, "card_bytes": card.total_memory, **versions, **known}


def find_device(word: str) -> Device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means. Of several cards, one is measured: the first."""
    cards = chosen(word)
    reason = missed() if word == "auto" and not cards else None
    if reason is not None:
        step("note", f"{reason}; the CPU is measured")
    return Device(cards[0]) if cards else Device()


# What it allows


@dataclass(frozen=True, slots=True)
class CeilingSizes:
    """How much is measured.

    matrices: sizes of square matrices, the fastest of which counts. gathered: rows at a time.
    in_a_row: how often work is asked for before its end is waited for.
    """

    copied_bytes: int
    matrices: tuple[int, ...]
    kinds: tuple[str, ...]
    gathered: int
    in_a_row: int


CPU_SIZES = CeilingSizes(256 << 20, (1024, 2048), ("float64", "float32"), 1 << 16, 1)
CARD_SIZES = CeilingSizes(1 << 30, (4096, 8192), ("float64", "float32", "bfloat16", "int8"), 1 << 18, 4)


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
        rates = {
            "copying memory, GB/s": self.copy / 1e9,
            f"gathering random rows of {2 * width:,} bytes, GB/s": self.gather / 1e9,
        }
        rates |= {f"{kind} matrix products, 10¹² operations/s": rate / 1e12 for kind, rate in self.products.items()}
        return [figure(what, rate, "", device.name) for what, rate in rates.items()]


def measure_ceilings(device: Device, rows: int, width: int) -> Ceilings:
    """rows and width: the table that rows are gathered from."""
    import torch

    place, sizes = device.name, CARD_SIZES if device.is_card else CPU_SIZES
    table = torch.randint(-99, 99, (rows, width), dtype=torch.int16, device=place)

    def copy() -> Work:
        source = torch.randint(-99, 99, (sizes.copied_bytes // 8,), dtype=torch.int64, device=place)
        target = torch.ones_like(source)
        return lambda: target.copy_(source)

    def gather() -> Work:
        ids = torch.randint(0, rows, (sizes.gathered,), device=place)
        target = torch.ones((sizes.gathered, width), dtype=torch.int16, device=place)
        return lambda: torch.index_select(table, 0, ids, out=target)

    def product(size: int, kind: str) -> Work:
        if kind == "int8":
            one, other = torch.randint(-128, 128, (2, size, size), dtype=torch.int8, device=place)
            return lambda: torch._int_mm(one, other.T)
        one, other = torch.randn((2, size, size), device=place).to(getattr(torch, kind))
        return lambda: one @ other

    def rate(amount: float, make: Callable[[], Work]) -> float:
        """Amounts a second: the median over rounds, each with an input of its own."""

        def repeated(work: Work) -> None:
            for _ in range(sizes.in_a_row):
                work()

        make()()
        times = [device.seconds(partial(repeated, make())) for _ in range(CEILING_ROUNDS)]
        return amount * sizes.in_a_row / statistics.median(times)

    products = {
        kind: max(rate(2.0 * size**3, partial(product, size, kind)) for size in sizes.matrices) for kind in sizes.kinds
    }
    return Ceilings(rate(2.0 * sizes.copied_bytes, copy), rate(4.0 * sizes.gathered * width, gather), products)
