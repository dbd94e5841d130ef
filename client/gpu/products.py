"""The exact sum of products over samples that arrive piece by piece: collected in a block, multiplied when it is full.

Knows torch, planes and methods. Knows nothing of windows, corpora or where samples come from.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import torch
from torch import Tensor

from client.gpu.memory import free_bytes, halving
from client.gpu.methods import MOST_COLUMNS, Method, add_row_sums, fastest
from client.gpu.planes import COLUMNS, DIGIT, ROWS, WINDOWS, rounded, write_samples
from common.statistics import Integers, upper_triangle

_making = Lock()

BLOCK_BYTES = 256 << 20
FREE_SHARE = 8
"""A block takes at most so small a share of the free memory: others need room too, the sums among them."""
FEWEST_COLUMNS = 1024


class BlockGram:
    """Σ φφᵀ over integer samples with a constant one behind each, on a device.

    Memory: a block of at most BLOCK_BYTES, and 64-bit sums of at most (2·width)² numbers, whatever is added.
    """

    def __init__(self, device: torch.device, width: int) -> None:
        self._device, self._width, self._rows = device, width, rounded(width, ROWS)
        self._block: Block | None = None
        self._count = 0

    @property
    def capacity(self) -> int:
        """How many samples a block holds."""
        return self._begun().planes.shape[1]

    def room(self, samples: int) -> tuple[Tensor, int]:
        """Planes with room for so many samples, at most the capacity, and the column where they are to begin."""
        block = self._begun()
        if block.used + samples > block.planes.shape[1]:
            block.multiply()
        first = block.used
        block.used = min(first + rounded(samples, WINDOWS), block.planes.shape[1])
        self._count += samples
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
            gram[:width, -1] = self._block.feature_sums()[:width].cpu().numpy()
        return gram[upper_triangle(width + 1)]

    def _begun(self) -> Block:
        if self._block is None:
            free = free_bytes(self._device)
            size = BLOCK_BYTES if free is None else min(BLOCK_BYTES, free // FREE_SHARE)
            most = max(FEWEST_COLUMNS, min(MOST_COLUMNS, size // (2 * self._rows) // COLUMNS * COLUMNS))
            with _making:  # the choice of a method is measured, one at a time
                self._block = halving(lambda columns: Block(self._device, self._rows, columns), most, FEWEST_COLUMNS)
        return self._block


class Block:
    """Planes that fill up, and the sums that they are added to when they are full."""

    def __init__(self, device: torch.device, rows: int, columns: int) -> None:
        self.method: Method = fastest(device, rows).make(device, rows)
        self.planes = torch.zeros(2 * rows, rounded(columns, COLUMNS), dtype=torch.int8, device=device)
        self.used = 0
        self._sums = torch.zeros(2 * rows, dtype=torch.int64, device=device)

    def multiply(self) -> None:
        """Add what lies in the planes, and begin anew."""
        if not self.used:
            return
        end = rounded(self.used, COLUMNS)
        self.planes[:, self.used : end] = 0
        self.method.add(self.planes[:, :end])
        add_row_sums(self.planes[:, :end], self._sums)
        self.used = 0

    def feature_sums(self) -> Tensor:
        rows = len(self._sums) // 2
        return self._sums[:rows] * DIGIT + self._sums[rows:]
