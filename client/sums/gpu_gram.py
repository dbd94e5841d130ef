"""Products of whole numbers on a GPU: digits of samples, their blocks, and torch's operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeway.common.base.errors import DeviceError
from ridgeway.common.base.machine import halving, is_out_of_memory
from ridgeway.common.statistics import Integers, upper_triangle
from ridgeway.common.text.word_sketch import (
    MULTIPLIERS,
    WORD_BEGIN,
    WORD_BYTES,
    WORD_END,
    WordSketch,
)

# Integer samples as two int8 planes, as int8 tensor cores want them: how they are laid out, filled
# and read.
#
# Sample k lies in column k: rows 0 … R−1 hold high digits, rows R … 2R−1 low digits, x = 64·high +
# low. A column of zeros is no sample, and adds nothing to a product.


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


# What sums on a device are made of, by torch: number by number those of the CPU.


GATHERED_BYTES = 256 << 20
_BAND = 1024
_LOW_HALF = (1 << 32) - 1


@lru_cache(maxsize=16)
def check_products(device: torch.device) -> None:
    """Raises DeviceError unless products of random digits are exact on a device."""
    rolls = torch.Generator().manual_seed(1)
    shape = (2 * ROWS, 2 * COLUMNS)
    digits = torch.randint(-DIGIT, DIGIT + 1, shape, generator=rolls).to(device)
    total = torch.zeros(2 * ROWS, 2 * ROWS, dtype=torch.int64, device=device)
    try:
        add_products(digits.to(torch.int8), total, 1)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[-1]
        raise DeviceError(
            f"{device} cannot multiply integers ({reason}); use --device cpu"
        ) from error
    exact = (digits.double() @ digits.double().T).long()
    if not torch.equal(total.triu(), exact.triu()):
        raise DeviceError(f"sums are not exact on {device}; use --device cpu")


def write_means(table: Tensor, windows: Windows, planes: Tensor, first: int) -> None:
    """Put the rounded mean embeddings of windows into the planes, from column `first` on."""
    # a gathered number takes two bytes as int16 and four as int32
    most = max(1, GATHERED_BYTES // (6 * table.shape[1]))
    for start, ids, lengths in windows.pieces(most):
        write_samples(_means(table, ids.long(), lengths), planes, first + start)


def _means(table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    sums = torch.zeros(
        len(lengths), table.shape[1], dtype=torch.int32, device=ids.device
    )
    sums.index_add_(0, _owners(lengths, len(ids)), table[ids].int())
    counts = lengths.int()[:, None]
    return torch.div(2 * sums + counts, 2 * counts, rounding_mode="floor")


def add_products(planes: Tensor, total: Tensor, times: int) -> None:
    """total += times · planes · planesᵀ in 64-bit integers; its upper triangle counts.

    Band by band, each of which fits in int32 before it is added.
    """
    for top in range(0, len(total), _BAND):
        part = torch._int_mm(planes[top : top + _BAND], planes[top:].T)
        total[top : top + _BAND, top:].add_(part, alpha=times)


def _owners(lengths: Tensor, size: int | None = None) -> Tensor:
    """The number of the window that each token stands in.

    size: how many tokens there are; without it, this thread waits for the device.
    """
    windows = torch.arange(len(lengths), device=lengths.device)
    return torch.repeat_interleave(windows, lengths, output_size=size)


def word_counts(spelling: DeviceSpelling, ids: Tensor, lengths: Tensor) -> Tensor:
    """The signed counts of every bucket in each window, windows × width int64."""
    ids = ids.long()
    first = spelling.starts[ids]
    sizes = spelling.starts[ids + 1] - first
    tokens = _owners(sizes)
    begins = torch.cumsum(sizes, 0) - sizes
    within = torch.arange(len(tokens), device=ids.device) - begins[tokens]
    letters = spelling.letters[first[tokens] + within]
    inside = spelling.word_bytes[letters.int()].nonzero().flatten()
    counts = torch.zeros(
        len(lengths) * spelling.width, dtype=torch.int64, device=ids.device
    )
    if len(inside):
        windows = _owners(lengths, len(ids))[tokens[inside]]
        _add_words(spelling, letters[inside].long(), inside, windows, counts)
    return counts.view(-1, spelling.width)


def _add_words(
    spelling: DeviceSpelling,
    letters: Tensor,
    places: Tensor,
    windows: Tensor,
    counts: Tensor,
) -> None:
    """Count the runs of letters in words with their borders. places: where each letter stands
    in the row of ids.
    """
    apart = (torch.diff(places) > 1) | (torch.diff(windows) > 0)
    begins_word = torch.cat((apart.new_ones(1), apart))
    firsts = begins_word.nonzero().flatten()
    word = torch.cumsum(begins_word, 0) - 1
    at = torch.arange(len(letters), device=letters.device) + 2 * word + 1
    begins = at[firsts] - 1
    stops = torch.cat((begins[1:], at[-1:] + 2)) - 1
    framed = letters.new_full((len(letters) + 2 * len(firsts),), WORD_BEGIN)
    framed[at] = letters
    framed[stops] = WORD_END
    of_word = _owners(stops - begins + 1, len(framed))
    since = torch.arange(len(framed), device=letters.device) - begins[of_word]
    window = windows[firsts][of_word]
    for size in spelling.sizes:
        ends = (since >= size - 1).nonzero().flatten()
        packed = torch.zeros_like(ends)
        for back in range(size - 1, -1, -1):
            packed = packed << 8 | framed[ends - back]
        for multiplier in spelling.multipliers:
            packed = packed * multiplier
            packed = packed ^ (packed >> 32 & _LOW_HALF)
        buckets = (packed >> 32 & _LOW_HALF) * spelling.width >> 32
        signs = 2 * (packed & 1) - 1
        counts.index_add_(0, window[ends] * spelling.width + buckets, signs)


# The exact sum of products over samples that arrive piece by piece: collected in a block,
# multiplied when it is full.


MAX_COLUMNS = 1 << 17
"""A block of this many columns stays within int32, each product being at most 64 · 64."""
MIN_COLUMNS = 1024
_BLOCK_BYTES = 256 << 20
FREE_MEMORY_DIVISOR = 8
"""A block takes at most this share of the free memory: the sums need room too."""


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
