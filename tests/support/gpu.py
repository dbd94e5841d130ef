"""Where sums on a device are tested: torch on the CPU with and without Triton's kernels, and a GPU where there is one.

Without a GPU, the kernels run in Triton's interpreter, which tests/conftest.py asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch

from ridgeway.common.base.devices import gpus

GPU = bool(gpus())

_choices: dict[Place, Any] = {}
"""Each place chooses for itself, once."""

needs_no_gpu = pytest.mark.skipif(GPU, reason="a GPU is here")
needs_gpu = pytest.mark.skipif(not GPU, reason="no CUDA device here")


@dataclass(frozen=True)
class Place:
    """A device, with or without kernels."""

    device: str
    kernels: bool

    def operations(self) -> Any:
        """What sums here."""
        from ridgeway.client.sums.gpu import gpu_operations

        chosen = _choices.setdefault(self, lru_cache(gpu_operations.operations.__wrapped__))
        return chosen(torch.device(self.device))

    @contextmanager
    def entered(self) -> Iterator[torch.device]:
        from ridgeway.client.sums.gpu import block_gram, gpu_operations, gpu_sums, torch_operations

        device = torch.device(self.device)
        with pytest.MonkeyPatch.context() as patch:
            if not self.kernels:
                patch.setattr(gpu_operations, "has_triton", lambda device: False)
            for module in (block_gram, gpu_sums):
                patch.setattr(module, "operations", lambda device: self.operations())
            assert (self.operations() is not torch_operations) is self.kernels
            yield device


PLACES = [
    pytest.param(Place("cpu", kernels=False), id="torch"),
    pytest.param(Place("cpu", kernels=True), id="interpreter", marks=[pytest.mark.kernels, needs_no_gpu]),
    pytest.param(Place("cuda:0", kernels=False), id="gpu-torch", marks=needs_gpu),
    pytest.param(Place("cuda:0", kernels=True), id="gpu-kernels", marks=needs_gpu),
]
at_every_place = pytest.mark.parametrize("place", PLACES)
