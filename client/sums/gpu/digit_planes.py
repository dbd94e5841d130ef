"""Integer samples as two int8 planes, as int8 tensor cores want them: how they are laid out, filled
and read.

Sample k lies in column k: rows 0 … R−1 hold high digits, rows R … 2R−1 low digits, x = 64·high +
low. A column of zeros is no sample, and adds nothing to a product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeway.common.base.settings import FEATURE_LIMIT

DIGIT = 64
ROWS = 128
COLUMNS = 128
"""Planes are padded to multiples of these."""
SUMMED_ROWS = 2
"""Rows that one program of a kernel adds up."""

WINDOWS = 32
SLICE = 128
WARPS = 8
"""What a program of the kernel takes: windows, columns of the table, and warps."""

GATHERED_BYTES = 256 << 20


def rounded(number: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-number // step) * step


def split(samples: Tensor) -> tuple[Tensor, Tensor]:
    """The high and low digits of integers: 64·high + low, −32 ≤ low < 32."""
    high = (samples + DIGIT // 2) >> 6
    return high, samples - (high << 6)


def joined(planes: Tensor, kind: torch.dtype) -> Tensor:
    """The samples of planes, R × K, in another type."""
    rows = planes.shape[0] // 2
    return planes[:rows].to(kind) * DIGIT + planes[rows:]


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


def write_means(table: Tensor, windows: Windows, planes: Tensor, first: int) -> None:
    """Put the rounded mean embeddings of windows into the planes, from column `first` on, a
    multiple of WINDOWS.

    Columns up to the next multiple of WINDOWS become zero.
    """
    with_kernel = why_no_kernels(table.device) is None
    (_kernel_means if with_kernel else _plain_means)(table, windows, planes, first)


def _kernel_means(table: Tensor, windows: Windows, planes: Tensor, first: int) -> None:
    from ridgeway.client.sums.gpu.kernels import mean_planes

    rows = planes.shape[0] // 2
    stride = planes.stride(0)
    blocks = -(-len(windows) // WINDOWS)
    sizes = (len(windows), first, table.shape[1], rows, stride, blocks)
    grid = (blocks * (rows // SLICE),)
    mean_planes[grid](
        table,
        windows.ids,
        windows.bounds,
        planes,
        *sizes,
        WINDOWS=WINDOWS,
        COLUMNS=SLICE,
        num_warps=WARPS,
    )


def _plain_means(table: Tensor, windows: Windows, planes: Tensor, first: int) -> None:
    """The same in torch's own words, for devices without Triton; as many windows at once as memory
    bears.
    """
    planes[:, first : first + rounded(len(windows), WINDOWS)] = 0
    most = max(
        1, GATHERED_BYTES // (6 * table.shape[1])
    )  # int16 gathered, int32 summed
    for start, ids, lengths in windows.pieces(most):
        write_samples(_means(table, ids.long(), lengths), planes, first + start)


def _means(table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    owners = torch.repeat_interleave(
        torch.arange(len(lengths), device=ids.device), lengths
    )
    sums = torch.zeros(
        len(lengths), table.shape[1], dtype=torch.int32, device=ids.device
    )
    sums.index_add_(0, owners, table[ids].int())
    counts = lengths.int()[:, None]
    return torch.div(2 * sums + counts, 2 * counts, rounding_mode="floor")


@lru_cache(maxsize=16)
def why_no_kernels(device: torch.device) -> str | None:
    """Why Triton's kernels cannot be used on a device, in a few words; None where they can.

    They are tried on a few random windows and must give what torch gives.
    """
    try:
        import triton

        from ridgeway.client.sums.gpu import kernels  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    knobs: Any = triton.knobs
    if device.type != "cuda" and not knobs.runtime.interpret:
        return "Triton is for GPUs"
    made: list[Tensor] = []
    table, windows = _trial(device)
    for way in (_kernel_means, _plain_means):
        made.append(
            torch.full((4 * ROWS, COLUMNS), -1, dtype=torch.int8, device=device)
        )
        try:
            way(table, windows, made[-1], WINDOWS)
        except Exception as error:  # no compiler, or the GPU is too old: torch does it
            return f"Triton fails here ({last_line(error)})"
    if not torch.equal(*made):
        return "Triton's sums are not exact here"
    wide = made[0].repeat(1, 20)
    sums = torch.zeros(len(wide), dtype=torch.int64, device=device)
    kernel_row_sums(wide[:, :-COLUMNS], sums, 3)
    return (
        None
        if torch.equal(sums, 3 * wide[:, :-COLUMNS].sum(dim=1))
        else "Triton's row sums are not exact here"
    )


def kernel_row_sums(planes: Tensor, sums: Tensor, times: int) -> None:
    """sums += times · the sum of each row, by the kernel."""
    from ridgeway.client.sums.gpu.kernels import add_row_sums

    programs = (len(planes) // SUMMED_ROWS,)
    add_row_sums[programs](
        planes,
        sums,
        planes.shape[1],
        planes.stride(0),
        times,
        ROWS=SUMMED_ROWS,
        DEPTH=2048,
    )


def _trial(device: torch.device) -> tuple[Tensor, Windows]:
    rolls = torch.Generator().manual_seed(1)
    width = 2 * SLICE - 29
    table = torch.randint(
        -FEATURE_LIMIT,
        FEATURE_LIMIT + 1,
        (50, width),
        dtype=torch.int16,
        generator=rolls,
    )
    ids = torch.randint(0, 50, (300,), dtype=torch.int32, generator=rolls)
    bounds = torch.cat(
        [
            torch.arange(0, 300, 7, dtype=torch.int32),
            torch.tensor([300], dtype=torch.int32),
        ]
    )
    return table.to(device), Windows(ids.to(device), bounds.to(device))


def last_line(error: Exception) -> str:
    """Of a compiler's many lines, the one that says what is wrong."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
