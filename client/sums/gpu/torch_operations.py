"""What sums on a device are made of, by torch: number by number those of the CPU."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ridgeway.client.sums.gpu.digit_planes import (
    COLUMNS,
    DIGIT,
    ROWS,
    DeviceSpelling,
    Windows,
    write_samples,
)
from ridgeway.common.base.devices import is_out_of_memory
from ridgeway.common.base.errors import DeviceError
from ridgeway.common.encoding.word_sketch import WORD_BEGIN, WORD_END

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
