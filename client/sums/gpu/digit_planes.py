"""Integer samples as two int8 planes, as int8 tensor cores want them: how they are laid out, filled
and read.

Sample k lies in column k: rows 0 … R−1 hold high digits, rows R … 2R−1 low digits, x = 64·high +
low. A column of zeros is no sample, and adds nothing to a product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeway.common.encoding.word_sketch import MULTIPLIERS, WORD_BYTES, WordSketch

DIGIT = 64
ROWS = 128
COLUMNS = 128
"""Planes are padded to multiples of these."""


def rounded(number: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-number // step) * step


def split(samples: Tensor) -> tuple[Tensor, Tensor]:
    """The high and low digits of integers: 64·high + low, −32 ≤ low < 32."""
    high = (samples + DIGIT // 2) >> 6
    return high, samples - (high << 6)


def write_samples(samples: Tensor, planes: Tensor, first: int, row: int = 0) -> None:
    """Put N × h integer samples into the planes, from column `first` and feature `row` on."""
    rows, (count, width) = planes.shape[0] // 2, samples.shape
    columns = slice(first, first + count)
    for top, digits in zip((row, rows + row), split(samples), strict=True):
        planes[top : top + width, columns] = digits.to(torch.int8).T


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Windows:
    """Windows of tokens on a device: `ids` in one row, window k from bounds[k] to bounds[k + 1].

    known: the same bounds in this machine's memory, where they are there; to fetch them is to wait
           for the device.
    """

    ids: Tensor
    bounds: Tensor
    known: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, some: slice) -> Windows:
        start, stop, _ = some.indices(len(self))
        known = self.known if self.known is None else self.known[start : stop + 1]
        return Windows(self.ids, self.bounds[start : stop + 1], known)

    def pieces(self, most: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Some windows at a time, of at most so many tokens or one: the first one's number, their
        ids and lengths.
        """
        bounds = self.bounds.cpu().numpy() if self.known is None else self.known
        lengths = torch.diff(self.bounds).long()
        start = 0
        while start < len(self):
            stop = max(
                start + 1,
                int(np.searchsorted(bounds, bounds[start] + most, side="right")) - 1,
            )
            yield start, self.ids[bounds[start] : bounds[stop]], lengths[start:stop]
            start = stop


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceSpelling:
    """A sketch of words whose spelling lies on a device."""

    width: int
    amplitude: int
    sizes: range
    letters: Tensor
    starts: Tensor
    word_bytes: Tensor
    multipliers: tuple[int, int]

    @classmethod
    def of(cls, words: WordSketch, device: torch.device) -> DeviceSpelling:
        # torch has signed numbers alone, which wrap alike
        first, second = (int(multiplier) - (1 << 64) for multiplier in MULTIPLIERS)
        return cls(
            words.width,
            words.options.amplitude,
            words.options.sizes,
            torch.from_numpy(words.spelling.letters.copy()).to(device),
            torch.from_numpy(words.spelling.starts.copy()).to(device),
            torch.from_numpy(WORD_BYTES.copy()).to(device),
            (first, second),
        )
