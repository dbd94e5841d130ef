"""What sums on a device are made of, in two ways: Triton's kernels where they work, else torch."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ridgeway.client.sums.gpu import torch_operations
from ridgeway.client.sums.gpu.digit_planes import (
    COLUMNS,
    ROWS,
    WINDOWS,
    DeviceSpelling,
    Windows,
)
from ridgeway.common.base.devices import is_out_of_memory
from ridgeway.common.base.errors import DeviceError
from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.encoding.word_sketch import Spelling, WordSketch

TRIED_ROWS = 64
TRIED_TOKENS = 1000
TRIED_WINDOW = 7


class Operations(Protocol):
    """One way to sum. Planes are 2R × K, K a multiple of COLUMNS."""

    def write_means(
        self, table: Tensor, windows: Windows, planes: Tensor, first: int
    ) -> None:
        """Put the rounded mean embeddings of windows into the planes, from column `first` on, a
        multiple of WINDOWS. Columns up to the next multiple of WINDOWS may become zero.
        """

    def add_products(self, planes: Tensor, total: Tensor, times: int) -> None:
        """total += times · planes · planesᵀ in 64-bit integers; its upper triangle counts."""

    def word_counts(
        self, spelling: DeviceSpelling, ids: Tensor, lengths: Tensor
    ) -> Tensor:
        """The signed counts of every bucket in each window, windows × width int64."""


class _Trial(NamedTuple):
    planes: Tensor
    total: Tensor
    counts: Tensor


@lru_cache(maxsize=16)
def operations(device: torch.device) -> Operations:
    """Triton's kernels, if they give what torch gives over a few random windows; else torch.

    Raises DeviceError if torch cannot multiply integers here.
    """
    try:
        expected = _tried(torch_operations, device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[-1]
        raise DeviceError(
            f"{device} cannot multiply integers ({reason}); use --device cpu"
        ) from error
    digits = expected.planes.double()
    if not torch.equal(expected.total.triu(), (digits @ digits.T).long().triu()):
        raise DeviceError(f"sums are not exact on {device}; use --device cpu")
    if not has_triton(device):
        return torch_operations
    try:
        from ridgeway.client.sums.gpu import kernels

        found = _tried(kernels, device)
    except Exception:  # no compiler, or the GPU is too old
        return torch_operations
    same = (
        torch.equal(found.planes, expected.planes)
        and torch.equal(found.total.triu(), expected.total.triu())
        and torch.equal(found.counts, expected.counts)
    )
    return kernels if same else torch_operations


def has_triton(device: torch.device) -> bool:
    """Whether Triton is here, and is for this device."""
    if find_spec("triton") is None:
        return False
    import triton

    interpreted: bool = triton.knobs.runtime.interpret
    return device.type == "cuda" or interpreted


def _tried(way: Operations, device: torch.device) -> _Trial:
    """What one way gives over random windows of random tokens."""
    rolls = np.random.default_rng(1)
    width = 2 * ROWS - 29
    limits = (-FEATURE_LIMIT, FEATURE_LIMIT + 1)
    table = rolls.integers(*limits, (TRIED_ROWS, width)).astype(np.int16)
    ids = rolls.integers(0, TRIED_ROWS, TRIED_TOKENS).astype(np.int32)
    bounds = np.append(np.arange(0, TRIED_TOKENS, TRIED_WINDOW), TRIED_TOKENS)
    windows = Windows(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(bounds.astype(np.int32)).to(device),
    )
    planes = torch.zeros(4 * ROWS, 2 * COLUMNS, dtype=torch.int8, device=device)
    way.write_means(torch.from_numpy(table).to(device), windows, planes, WINDOWS)
    total = torch.zeros(4 * ROWS, 4 * ROWS, dtype=torch.int64, device=device)
    way.add_products(planes, total, 1)
    # Tokens of up to four bytes: letters, other bytes, and none.
    starts = np.append(0, np.cumsum(rolls.integers(0, 5, TRIED_ROWS)))
    letters = rolls.choice(np.frombuffer(b" ab9\xc3", np.uint8), starts[-1])
    sketch = WordSketch(WordFeatures(width=ROWS), Spelling(letters, starts))
    spelling = DeviceSpelling.of(sketch, device)
    counts = way.word_counts(spelling, windows.ids, torch.diff(windows.bounds).long())
    return _Trial(planes, total, counts)
