"""The exact sum of products over samples that arrive piece by piece: collected in a block,
multiplied when it is full.

There are three ways to multiply: float64, int8 by torch, int8 by Triton. The fastest that works is
taken. Each adds n·X·Xᵀ over the columns of planes to a sum in 64-bit integers. All memory is taken
when a method is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ridgeway.client.sums.gpu.digit_planes import (
    COLUMNS,
    DIGIT,
    ROWS,
    WINDOWS,
    joined,
    kernel_row_sums,
    last_line,
    rounded,
    why_no_kernels,
    write_samples,
)
from ridgeway.common.base.devices import halving, is_out_of_memory
from ridgeway.common.base.errors import DeviceError
from ridgeway.common.statistics.sums import Integers, upper_triangle

MAX_COLUMNS = 1 << 17
"""A block of this many columns stays within int32, each product being at most 64 · 64."""

FLOAT_COLUMNS = 1 << 13
BAND = 1024
TILE = 128
DEPTH = 128
WARPS = 4
STAGES = 3
GROUP = 8
TRIAL_COLUMNS = 1 << 13
COMPARED_COLUMNS = 9 * COLUMNS
TRIALS = 3

BLOCK_BYTES = 256 << 20
FREE_MEMORY_DIVISOR = 8
"""A block takes at most so small a share of the free memory: others need room too, the sums among
them.
"""
MIN_COLUMNS = 1024

_making = Lock()


class ProductMethod(Protocol):
    """A sum of products. Law: gram()'s upper triangle is Σ n x xᵀ over all columns added n times,
    in integers.
    """

    def add(self, planes: Tensor, times: int = 1) -> None:
        """Add planes of 2R × K, K a multiple of COLUMNS and at most MAX_COLUMNS, as often as is
        said.
        """

    def gram(self) -> Tensor:
        """R × R int64 in the machine's memory, of which the upper triangle counts. Waits for the
        device.
        """


class Float64:
    """One float64 product a piece: exact below 2⁵³, quick on the GPUs that data centres have."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self._total = torch.zeros(rows, rows, dtype=torch.int64, device=device)
        self._part = torch.empty(rows, rows, dtype=torch.float64, device=device)
        self._samples = torch.empty(
            rows, FLOAT_COLUMNS, dtype=torch.float64, device=device
        )

    def add(self, planes: Tensor, times: int = 1) -> None:
        rows = len(self._total)
        for start in range(0, planes.shape[1], FLOAT_COLUMNS):
            piece = planes[:, start : start + FLOAT_COLUMNS]
            samples = self._samples[:, : piece.shape[1]]
            samples.copy_(piece[:rows]).mul_(DIGIT).add_(piece[rows:])
            self._total.add_(
                torch.mm(samples, samples.T, out=self._part).long(), alpha=times
            )

    def gram(self) -> Tensor:
        return self._total.cpu()


class Int8:
    """int8 products by torch, band by band of the upper triangle; each band fits in int32 before it
    is added.
    """

    def __init__(self, device: torch.device, rows: int) -> None:
        self._total = torch.zeros(2 * rows, 2 * rows, dtype=torch.int64, device=device)
        self._band = torch.empty(
            min(BAND, 2 * rows) * 2 * rows, dtype=torch.int32, device=device
        )

    def add(self, planes: Tensor, times: int = 1) -> None:
        size = len(self._total)
        for top in range(0, size, BAND):
            height = min(BAND, size - top)
            part = self._band[: height * (size - top)].view(height, size - top)
            torch._int_mm(planes[top : top + height], planes[top:].T, out=part)
            self._total[top : top + height, top:].add_(part, alpha=times)

    def gram(self) -> Tensor:
        return _combined(self._total)


class Kernel:
    """int8 products by Triton, over the tiles of the upper triangle alone."""

    def __init__(self, device: torch.device, rows: int) -> None:
        reason = why_no_kernels(device)
        if reason:
            raise DeviceError(reason)
        self._total = torch.zeros(2 * rows, 2 * rows, dtype=torch.int64, device=device)
        tiles = range(2 * rows // TILE)
        pairs = [(down, across) for down in tiles for across in tiles if down <= across]
        # neighbours share what lies in the cache
        pairs.sort(key=lambda pair: (pair[0] // GROUP, pair[1], pair[0]))
        self._tiles = torch.tensor(pairs, dtype=torch.int32, device=device)

    def add(self, planes: Tensor, times: int = 1) -> None:
        from ridgeway.client.sums.gpu.kernels import add_products

        sizes = (planes.shape[1], planes.stride(0), len(self._total), times)
        shape = {
            "DOWN": TILE,
            "ACROSS": TILE,
            "DEPTH": DEPTH,
            "num_warps": WARPS,
            "num_stages": STAGES,
        }
        add_products[(len(self._tiles),)](
            planes, self._total, self._tiles, *sizes, **shape
        )

    def gram(self) -> Tensor:
        return _combined(self._total)


def _combined(total: Tensor) -> Tensor:
    """(64·high + low)(64·high + low)ᵀ out of the products of digits, of which the upper triangle is
    there.

    Band by band, in the machine's memory: the device may have none left.
    """
    rows = len(total) // 2
    whole = torch.empty(rows, rows, dtype=torch.int64)
    high = total[:rows, :rows]
    mixed = total[:rows, rows:]
    low = total[rows:, rows:]
    for top in range(0, rows, BAND):
        band = slice(top, top + BAND)
        part = high[band] * DIGIT
        part += mixed[band]
        part += mixed[:, band].T
        whole[band] = part.mul_(DIGIT).add_(low[band]).cpu()
    return whole


def add_row_sums(planes: Tensor, sums: Tensor, times: int) -> None:
    """sums += times · the sum of each row, in 64-bit integers."""
    if why_no_kernels(planes.device):
        sums.add_(planes.sum(dim=1, dtype=torch.int64), alpha=times)
    else:
        kernel_row_sums(planes, sums, times)


METHODS: dict[str, Callable[[torch.device, int], ProductMethod]] = {
    "float64": Float64,
    "int8": Int8,
    "triton": Kernel,
}


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """The method to use on a device, what each one took for a block in seconds, and why others were
    passed over.
    """

    name: str
    seconds: dict[str, float]
    passed_over: dict[str, str]


@lru_cache(maxsize=64)
def fastest(device: torch.device, rows: int) -> MethodChoice:
    """Try all methods on a random block: those that fail, or do not give what float64 gives, are
    passed over.
    """
    rolls = torch.Generator(device).manual_seed(1)
    size = (2 * rows, TRIAL_COLUMNS if device.type == "cuda" else COMPARED_COLUMNS)
    planes = torch.randint(
        -DIGIT, DIGIT + 1, size, dtype=torch.int8, device=device, generator=rolls
    )
    samples = joined(planes[:, :COMPARED_COLUMNS], torch.float64)
    exact = torch.triu(samples @ samples.T).long().cpu()
    seconds: dict[str, float] = {}
    passed_over: dict[str, str] = {}
    for name in METHODS:
        try:
            seconds[name] = _tried(name, device, planes, exact)
        except Exception as error:  # another way to multiply may work on this GPU
            passed_over[name] = last_line(error)
            failed = error.with_traceback(None)  # which would hold the caller's sums
            if is_out_of_memory(error):
                torch.cuda.empty_cache()
    if not seconds:
        if is_out_of_memory(failed):
            raise failed
        raise DeviceError(
            f"{device} cannot multiply integers: {'; '.join(passed_over.values())}"
        )
    return MethodChoice(
        min(seconds, key=lambda name: seconds[name]), seconds, passed_over
    )


def _tried(name: str, device: torch.device, planes: Tensor, exact: Tensor) -> float:
    method = METHODS[name](device, len(planes) // 2)
    method.add(planes[:, :COMPARED_COLUMNS])
    if not torch.equal(torch.triu(method.gram()), exact):
        raise DeviceError("its sums are not exact here")
    times = []
    for _ in range(TRIALS):
        started = _now(device)
        method.add(planes)
        times.append(_now(device) - started)
    return min(times)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def free_bytes(device: torch.device) -> int | None:
    """How much memory of a GPU nobody uses; of the machine's own memory, nothing is said."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


class BlockGram:
    """Σ n φφᵀ over integer samples that count n times, with a constant one behind each, on a
    device.

    Memory: a block of at most BLOCK_BYTES, and 64-bit sums of at most (2·width)² numbers, whatever
    is added.
    """

    def __init__(self, device: torch.device, width: int) -> None:
        self._device = device
        self._width = width
        self._rows = rounded(width, ROWS)
        self._block: Block | None = None
        self._count = 0

    @property
    def capacity(self) -> int:
        """How many samples a block holds."""
        return self._begun().planes.shape[1]

    def room(self, samples: int, times: int = 1) -> tuple[Tensor, int]:
        """Planes with room for a number of samples, at most the capacity, and the column where they
        are to begin.

        times: how often each counts. A block holds samples that count alike.
        """
        block = self._begun()
        if block.used + samples > block.planes.shape[1] or block.times != times:
            block.multiply()
        first = block.used
        block.times = times
        block.used = min(first + rounded(samples, WINDOWS), block.planes.shape[1])
        self._count += samples * times
        return block.planes, first

    def add(self, samples: Tensor) -> None:
        """Take in N × h integers, none of them beyond FEATURE_LIMIT."""
        for piece in samples.split(self.capacity):
            planes, first = self.room(len(piece))
            planes[:, first : first + rounded(len(piece), WINDOWS)] = 0
            write_samples(piece, planes, first)

    def triangle(self) -> Integers:
        """The upper triangle of the sum so far, row by row. Waits for the device."""
        width = self._width
        gram = np.zeros((width + 1, width + 1), dtype=np.int64)
        gram[-1, -1] = self._count
        if self._block is not None:
            self._block.multiply()
            gram[:width, :width] = self._block.method.gram()[:width, :width].numpy()
            high, low = self._block.sums.view(2, self._rows)[:, :width]
            gram[:width, -1] = (high * DIGIT + low).cpu().numpy()
        return gram[upper_triangle(width + 1)]

    def _begun(self) -> Block:
        if self._block is None:
            free = free_bytes(self._device)
            size = (
                BLOCK_BYTES
                if free is None
                else min(BLOCK_BYTES, free // FREE_MEMORY_DIVISOR)
            )
            most = max(
                MIN_COLUMNS,
                min(MAX_COLUMNS, size // (2 * self._rows) // COLUMNS * COLUMNS),
            )
            with _making:  # the choice of a method is measured, one at a time
                self._block = halving(
                    lambda columns: Block(self._device, self._rows, columns),
                    most,
                    MIN_COLUMNS,
                )
        return self._block


class Block:
    """Planes that fill up, and the sums that they are added to when they are full."""

    def __init__(self, device: torch.device, rows: int, columns: int) -> None:
        self.method: ProductMethod = METHODS[fastest(device, rows).name](device, rows)
        self.planes = torch.zeros(
            2 * rows, rounded(columns, COLUMNS), dtype=torch.int8, device=device
        )
        self.used = 0
        self.times = 1
        self.sums = torch.zeros(2 * rows, dtype=torch.int64, device=device)

    def multiply(self) -> None:
        """Add what lies in the planes, and begin anew."""
        if not self.used:
            return
        end = rounded(self.used, COLUMNS)
        self.planes[:, self.used : end] = 0
        self.method.add(self.planes[:, :end], self.times)
        add_row_sums(self.planes[:, :end], self.sums, self.times)
        self.used = 0
