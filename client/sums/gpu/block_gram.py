"""The exact sum of products over samples that arrive piece by piece: collected in a block,
multiplied when it is full.
"""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from ridgeway.client.sums.gpu.digit_planes import (
    COLUMNS,
    DIGIT,
    ROWS,
    rounded,
    write_samples,
)
from ridgeway.client.sums.gpu.torch_operations import add_products, check_products
from ridgeway.common.base.devices import halving
from ridgeway.common.statistics.sums import Integers, upper_triangle

MAX_COLUMNS = 1 << 17
"""A block of this many columns stays within int32, each product being at most 64 · 64."""
MIN_COLUMNS = 1024
_BLOCK_BYTES = 256 << 20
FREE_MEMORY_DIVISOR = 8
"""A block takes at most this share of the free memory: the sums need room too."""
_BAND = 1024


class BlockGram:
    """Σ n φφᵀ over integer samples that count n times, with a constant one behind each, on a
    device.

    Memory: a block of at most BLOCK_BYTES, and 64-bit sums of (2·rows)² numbers, whatever is
    added.
    """

    def __init__(self, device: torch.device, width: int) -> None:
        self._device = device
        self._width = width
        self._rows = rounded(width + 1, ROWS)

    @cached_property
    def _block(self) -> Block:
        size = min(_BLOCK_BYTES, free_bytes(self._device) // FREE_MEMORY_DIVISOR)
        columns = size // (2 * self._rows) // COLUMNS * COLUMNS
        return halving(
            partial(Block, self._device, self._rows),
            max(MIN_COLUMNS, min(MAX_COLUMNS, columns)),
            MIN_COLUMNS,
        )

    @property
    def capacity(self) -> int:
        """How many samples a block holds."""
        return self._block.planes.shape[1]

    def room(self, samples: int, times: int = 1) -> tuple[Tensor, int]:
        """Planes with room for a number of samples, at most the capacity, and the column where they
        are to begin. Their constant stands there already.

        times: how often each counts. A block holds samples that count alike.
        """
        block = self._block
        if block.used + samples > self.capacity or block.times != times:
            block.multiply()
        first = block.used
        end = first + samples
        block.times = times
        block.used = end
        block.planes[:, end : rounded(end, COLUMNS)] = 0
        block.planes[self._rows + self._width, first:end] = 1
        return block.planes, first

    def add(self, samples: Tensor) -> None:
        """Take in N × h integers, none of them beyond FEATURE_LIMIT."""
        for piece in samples.split(self.capacity):
            planes, first = self.room(len(piece))
            write_samples(piece, planes, first)

    def triangle(self) -> Integers:
        """The upper triangle of the sum so far, row by row. Waits for the device."""
        self._block.multiply()
        size = self._width + 1
        gram: Integers = combined(self._block.total)[:size, :size].numpy()
        return gram[upper_triangle(size)]


class Block:
    """Planes that fill up, and the sums that they are added to when they are full."""

    def __init__(self, device: torch.device, rows: int, columns: int) -> None:
        self.used = 0
        self.times = 1
        self.planes = torch.zeros(
            2 * rows, rounded(columns, COLUMNS), dtype=torch.int8, device=device
        )
        self.total = torch.zeros(2 * rows, 2 * rows, dtype=torch.int64, device=device)
        check_products(device)
        # Products of zeros take the memory that all later ones need.
        add_products(self.planes[:, :COLUMNS], self.total, 1)

    def multiply(self) -> None:
        """Add what lies in the planes, and begin anew."""
        if self.used:
            used = self.planes[:, : rounded(self.used, COLUMNS)]
            add_products(used, self.total, self.times)
        self.used = 0


def combined(total: Tensor) -> Tensor:
    """(64·high + low)(64·high + low)ᵀ in the machine's memory, out of the products of digits.

    Only upper triangles count. Band by band: the device may have no memory left.
    """
    rows = len(total) // 2
    whole = torch.empty(rows, rows, dtype=torch.int64)
    high = total[:rows, :rows]
    mixed = total[:rows, rows:]
    low = total[rows:, rows:]
    for top in range(0, rows, _BAND):
        band = slice(top, top + _BAND)
        part = high[band] * DIGIT
        part += mixed[band]
        part += mixed[:, band].T
        whole[band] = part.mul_(DIGIT).add_(low[band]).cpu()
    return whole


def free_bytes(device: torch.device) -> int:
    """How much memory of a GPU nobody uses; the machine's own memory counts as enough."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _BLOCK_BYTES * FREE_MEMORY_DIVISOR
