"""Sums on a device by Triton: windows → integer means as two int8 planes, exact products of planes,
and the words of windows.

A feature x, |x| ≤ 2¹², is 64·high + low with |high| ≤ 64 and −32 ≤ low < 32, so both fit in int8.
Planes lie feature by feature, windows side by side, as int8 tensor cores want their operands.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeway.client.sums.gpu.digit_planes import WINDOWS, DeviceSpelling, Windows
from ridgeway.client.sums.gpu.torch_operations import owners
from ridgeway.common.encoding.word_sketch import WORD_BEGIN, WORD_END

SLICE = 128
MEAN_WARPS = 8
"""What a program of `mean_planes` takes: columns of the table, and warps."""

TILE = 128
DEPTH = 128
PRODUCT_WARPS = 4
_STAGES = 3
GROUP = 8
"""What a program of `add_tiles` takes, and how many rows of tiles run one after another."""

COUNTED_TOKENS = 128
"""What a program of `count_words` takes."""

LIMIT = tl.constexpr(1 << 12)
_LOW_HALF = tl.constexpr((1 << 32) - 1)
BORDERS = tl.constexpr((WORD_BEGIN, WORD_END))


@triton.jit
def mean_planes(
    table: tl.tensor,  # V×width int16
    ids: tl.tensor,  # int32
    bounds: tl.tensor,  # windows + 1 of them: where each begins in ids, int32
    planes: tl.tensor,  # 2·rows × stride int8
    windows: tl.tensor,
    first: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    stride: tl.tensor,
    blocks: tl.tensor,
    WINDOWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Gather, sum, round and split. Each program takes some windows and a slice of the columns.

    Programs run slice after slice: a slice of the table stays in the cache while all windows read
    it.
    """
    place = tl.program_id(0)
    window = (place % blocks) * WINDOWS + tl.arange(0, WINDOWS)
    column = (place // blocks) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.load(bounds + window, mask=window < windows, other=0)
    stop = tl.load(bounds + window + 1, mask=window < windows, other=0)
    length = stop - start
    inside = column < width
    longest = tl.max(length, axis=0)
    sums = tl.zeros((WINDOWS, COLUMNS), dtype=tl.int32)
    token = tl.load(ids + start, mask=length > 0, other=0)
    for step in range(0, longest):
        row = token.to(tl.int64) * width
        token = tl.load(ids + start + step + 1, mask=step + 1 < length, other=0)
        taken = (step < length)[:, None] & inside[None, :]
        sums += tl.load(table + row[:, None] + column[None, :], mask=taken, other=0).to(
            tl.int32
        )
    count = tl.maximum(length, 1)[:, None]
    # ⌊(2·sum + n) / 2n⌋ of numbers that are not negative, since here division rounds towards zero.
    lifted = (2 * (sums + LIMIT * count) + count) // (2 * count)
    high = (lifted + 32) >> 6
    low = lifted - (high << 6)
    target = planes + column.to(tl.int64)[:, None] * stride + (first + window)[None, :]
    stored = inside[:, None] & (window < blocks * WINDOWS)[None, :]
    tl.store(target, tl.trans((high - (LIMIT >> 6)).to(tl.int8)), mask=stored)
    tl.store(
        target + tl.cast(rows, tl.int64) * stride,
        tl.trans(low.to(tl.int8)),
        mask=stored,
    )


@triton.jit
def add_tiles(
    planes: tl.tensor,  # R × stride int8
    total: tl.tensor,  # R × R int64
    tiles: tl.tensor,  # pairs of tile numbers, int32
    used: tl.tensor,
    stride: tl.tensor,
    size: tl.tensor,
    times: tl.tensor,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """total += times · planes · planesᵀ over the tiles that are asked for; int32 holds what one
    call adds.
    """
    place = tl.program_id(0)
    down = tl.load(tiles + 2 * place) * DOWN + tl.arange(0, DOWN)
    across = tl.load(tiles + 2 * place + 1) * ACROSS + tl.arange(0, ACROSS)
    depth = tl.arange(0, DEPTH)
    left = planes + down.to(tl.int64)[:, None] * stride + depth[None, :]
    right = planes + across.to(tl.int64)[None, :] * stride + depth[:, None]
    part = tl.zeros((DOWN, ACROSS), dtype=tl.int32)
    for _ in range(0, used, DEPTH):
        part = tl.dot(tl.load(left), tl.load(right), part, out_dtype=tl.int32)
        left += DEPTH
        right += DEPTH
    target = total + down.to(tl.int64)[:, None] * size + across[None, :]
    tl.store(target, tl.load(target) + part.to(tl.int64) * times)


@triton.jit
def is_word_byte(byte: tl.tensor) -> tl.tensor:
    """ASCII's letters and digits, and all bytes of other characters."""
    folded = byte | 32
    return (
        (byte >= 128) | ((byte >= 48) & (byte < 58)) | ((folded >= 97) & (folded < 123))
    )


@triton.jit
def count_grams(
    counts: tl.tensor,
    row: tl.tensor,
    packed: tl.tensor,
    length: tl.tensor,
    chosen: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    width: tl.tensor,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
) -> None:
    """Count the runs of letters that end in the last of `length` bytes, which are packed, the last
    the lowest.
    """
    for size in tl.static_range(SHORTEST, LONGEST + 1):
        product = (packed & ((1 << 8 * size) - 1)) * first
        product = (product ^ (product >> 32 & _LOW_HALF)) * second
        product = product ^ (product >> 32 & _LOW_HALF)
        bucket = (product >> 32 & _LOW_HALF) * width >> 32
        tl.atomic_add(
            counts + row + bucket,
            (2 * (product & 1) - 1).to(tl.int32),
            mask=chosen & (length >= size),
        )


@triton.jit
def count_words(
    letters: tl.tensor,  # uint8
    starts: tl.tensor,  # where each token's letters begin, int64
    ids: tl.tensor,  # int32
    owners: tl.tensor,  # the window that each id stands in, int64
    counts: tl.tensor,  # windows × width int32
    tokens: tl.tensor,
    width: tl.tensor,
    first: tl.tensor,  # multipliers, int64
    second: tl.tensor,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """Count the runs of letters of windows' words. Each program takes some tokens and looks back
    for what is before.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    owner = tl.load(owners + token, mask=here, other=-1)
    number = tl.load(ids + token, mask=here, other=0)
    start = tl.load(starts + number, mask=here, other=0)
    stop = tl.load(starts + number + 1, mask=here, other=0)
    row = owner * width
    # The letters before, the last the lowest, up to one fewer than the longest run has, and the
    # border before them.
    packed = tl.zeros((TOKENS,), tl.int64)
    length = tl.zeros((TOKENS,), tl.int64)
    before = token
    at = start
    begin = start
    looking = here
    while tl.max(looking.to(tl.int32), axis=0) > 0:
        back = looking & (at <= begin)
        before = tl.where(back, before - 1, before)
        looking &= ~back | (
            (before >= 0)
            & (tl.load(owners + before, mask=back & (before >= 0), other=-1) == owner)
        )
        other = tl.load(ids + before, mask=back & looking, other=0)
        begin = tl.where(
            back, tl.load(starts + other, mask=back & looking, other=0), begin
        )
        at = tl.where(
            back, tl.load(starts + other + 1, mask=back & looking, other=0), at
        )
        ready = looking & (at > begin)
        byte = tl.load(letters + at - 1, mask=ready, other=0).to(tl.int64)
        looking &= ~ready | is_word_byte(byte)
        ready &= looking
        packed = tl.where(ready, packed | (byte << 8 * length), packed)
        length += ready.to(tl.int64)
        at -= ready.to(tl.int64)
        looking &= length < LONGEST - 1
    begins = (length > 0) & (length < LONGEST - 1)
    packed = tl.where(
        begins,
        packed | (tl.full((TOKENS,), BORDERS[0], tl.int64) << 8 * length),
        packed,
    )
    length += (length > 0).to(tl.int64)
    for place in range(0, tl.max(stop - start, axis=0)):
        inside = start + place < stop
        byte = tl.load(letters + start + place, mask=inside, other=0).to(tl.int64)
        in_word = inside & is_word_byte(byte)
        begins = in_word & (length == 0)
        packed = tl.where(begins, BORDERS[0], packed)
        length += begins.to(tl.int64)
        ends = inside & ~in_word & (length > 0)
        packed = tl.where(
            in_word | ends, packed << 8 | tl.where(in_word, byte, BORDERS[1]), packed
        )
        length += (in_word | ends).to(tl.int64)
        count_grams(
            counts,
            row,
            packed,
            length,
            in_word | ends,
            first,
            second,
            width,
            SHORTEST,
            LONGEST,
        )
        length = tl.where(ends, 0, length)
    last = tl.load(owners + token + 1, mask=token + 1 < tokens, other=-1) != owner
    chosen = here & last & (length > 0)
    count_grams(
        counts,
        row,
        packed << 8 | BORDERS[1],
        length + 1,
        chosen,
        first,
        second,
        width,
        SHORTEST,
        LONGEST,
    )


def write_means(table: Tensor, windows: Windows, planes: Tensor, first: int) -> None:
    width = table.shape[1]
    blocks = triton.cdiv(len(windows), WINDOWS)
    mean_planes[(blocks * triton.cdiv(width, SLICE),)](
        table,
        windows.ids,
        windows.bounds,
        planes,
        len(windows),
        first,
        width,
        len(planes) // 2,
        planes.stride(0),
        blocks,
        WINDOWS=WINDOWS,
        COLUMNS=SLICE,
        num_warps=MEAN_WARPS,
    )


def add_products(planes: Tensor, total: Tensor, times: int) -> None:
    tiles = _tiles(len(total) // TILE, total.device)
    add_tiles[(len(tiles),)](
        planes,
        total,
        tiles,
        planes.shape[1],
        planes.stride(0),
        len(total),
        times,
        DOWN=TILE,
        ACROSS=TILE,
        DEPTH=DEPTH,
        num_warps=PRODUCT_WARPS,
        num_stages=_STAGES,
    )


@lru_cache(maxsize=16)
def _tiles(count: int, device: torch.device) -> Tensor:
    """The tiles of the upper triangle; neighbours share what lies in the cache."""
    pairs = [(down, across) for down in range(count) for across in range(down, count)]
    pairs.sort(key=lambda pair: (pair[0] // GROUP, pair[1], pair[0]))
    return torch.tensor(pairs, dtype=torch.int32, device=device)


def word_counts(spelling: DeviceSpelling, ids: Tensor, lengths: Tensor) -> Tensor:
    found = torch.zeros(
        len(lengths), spelling.width, dtype=torch.int32, device=ids.device
    )
    count_words[(triton.cdiv(len(ids), COUNTED_TOKENS),)](
        spelling.letters,
        spelling.starts,
        ids,
        owners(lengths, len(ids)),
        found,
        len(ids),
        spelling.width,
        *spelling.multipliers,
        SHORTEST=spelling.sizes[0],
        LONGEST=spelling.sizes[-1],
        TOKENS=COUNTED_TOKENS,
    )
    return found.long()
