"""The exact sum of products on a GPU: the CPU makes the features, the sum has the CPU's bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import ExactGram
from ridgeway.common.base.errors import DeviceError
from ridgeway.common.base.machine import is_out_of_memory
from ridgeway.common.base.settings import FEATURE_LIMIT

GPU_BLOCK_SAMPLES = 1 << 13
"""The samples that are multiplied at once."""

_CHECKED_SHAPE = (257, 129)


class GpuGram(ExactGram):
    """What ExactGram sums, on a device.

    Products are taken in float64, which holds every partial sum below EXACT_LIMIT.
    """

    def __init__(self, width: int, device: str) -> None:
        super().__init__(width, GPU_BLOCK_SAMPLES)
        self._device = device
        check_products(device)
        with _device_errors(device):
            self._sum = torch.zeros(
                self._features, self._features, dtype=torch.float64, device=device
            )

    def _add_products(self, block: NDArray[np.int16], times: int) -> None:
        with _device_errors(self._device):
            samples = torch.ones(
                len(block), self._features, dtype=torch.float64, device=self._device
            )
            samples[:, :-1] = torch.from_numpy(block).to(self._device)
            self._sum.addmm_(samples.T, samples, alpha=times)

    def _take_sum(self) -> NDArray[np.float64]:
        taken: NDArray[np.float64] = self._sum.cpu().numpy().copy()
        self._sum.zero_()
        return taken


@lru_cache(maxsize=16)
def check_products(device: str) -> None:
    """Raises DeviceError unless products of random features are exact on a device."""
    rolls = np.random.default_rng(1)
    drawn = rolls.integers(-FEATURE_LIMIT, FEATURE_LIMIT + 1, _CHECKED_SHAPE)
    with _device_errors(device):
        samples = torch.from_numpy(drawn).to(device, torch.float64)
        made = (samples.T @ samples).cpu().numpy()
    if (made != drawn.T @ drawn).any():
        raise DeviceError(f"sums are not exact on {device}; use --device cpu")


@contextmanager
def _device_errors(device: str) -> Iterator[None]:
    """Within this block, what torch says of a device is one sentence."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise DeviceError(
                f"not enough free memory on {device} for these sums; free some, or use "
                "--device cpu"
            ) from error
        reason = str(error).strip().splitlines()[-1]
        raise DeviceError(f"{device} failed ({reason}); use --device cpu") from error
