"""Triton kernels: windows → integer means as two int8 planes, and exact products of planes.

A feature x, |x| ≤ 2¹², is 64·high + low with |high| ≤ 64 and −32 ≤ low < 32, so both fit in int8. Planes lie feature by
feature, windows side by side, as int8 tensor cores want their operands.
Knows Triton. Knows nothing of corpora, streams or memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

LIMIT = tl.constexpr(1 << 12)


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

    Programs run slice after slice: a slice of the table stays in the cache while all windows read it.
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
        sums += tl.load(table + row[:, None] + column[None, :], mask=taken, other=0).to(tl.int32)
    count = tl.maximum(length, 1)[:, None]
    # ⌊(2·sum + n) / 2n⌋ of numbers that are not negative, since here division rounds towards zero.
    lifted = (2 * (sums + LIMIT * count) + count) // (2 * count)
    high = (lifted + 32) >> 6
    low = lifted - (high << 6)
    target = planes + column.to(tl.int64)[:, None] * stride + (first + window)[None, :]
    stored = (column < rows)[:, None] & (window < blocks * WINDOWS)[None, :]
    tl.store(target, tl.trans((high - (LIMIT >> 6)).to(tl.int8)), mask=stored)
    tl.store(target + tl.cast(rows, tl.int64) * stride, tl.trans(low.to(tl.int8)), mask=stored)


@triton.jit
def add_products(
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
    """total += times · planes · planesᵀ over the tiles that are asked for; int32 holds what one call adds."""
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
def add_row_sums(
    planes: tl.tensor,
    sums: tl.tensor,
    used: tl.tensor,
    stride: tl.tensor,
    times: tl.tensor,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """sums += times · the sum of each row of the planes."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    part = tl.zeros((ROWS,), dtype=tl.int32)
    for start in range(0, used, DEPTH):
        place = planes + row.to(tl.int64)[:, None] * stride + (start + depth)[None, :]
        part += tl.sum(tl.load(place, mask=(start + depth < used)[None, :], other=0).to(tl.int32), axis=1)
    tl.store(sums + row, tl.load(sums + row) + part.to(tl.int64) * times)
