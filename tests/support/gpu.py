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

    @contextmanager
    def entered(self) -> Iterator[torch.device]:
        from ridgeway.client.sums.gpu import digit_planes as planes
        from ridgeway.client.sums.gpu import gpu_words
        from ridgeway.client.sums.gpu import product_methods as methods

        device = torch.device(self.device)
        with pytest.MonkeyPatch.context() as patch:
            if self.device == "cpu":
                patch.setattr(methods, "TRIALS", 1)  # which method is the fastest here matters to nobody
                patch.setattr(methods, "COMPARED_COLUMNS", planes.COLUMNS)
            if not self.kernels:
                for module in (methods, planes, gpu_words):
                    patch.setattr(module, "why_no_kernels", lambda device: "not wanted here")
            else:
                assert planes.why_no_kernels(device) is None
                if self.device == "cpu":
                    patch.setattr(planes, "SUMMED_ROWS", planes.ROWS)  # the interpreter takes its time for each program
            patch.setattr(methods, "fastest", _choices.setdefault(self, lru_cache(methods.fastest.__wrapped__)))
            yield device


PLACES = [
    pytest.param(Place("cpu", kernels=False), id="torch"),
    pytest.param(Place("cpu", kernels=True), id="interpreter", marks=[pytest.mark.kernels, needs_no_gpu]),
    pytest.param(Place("cuda:0", kernels=False), id="gpu-torch", marks=needs_gpu),
    pytest.param(Place("cuda:0", kernels=True), id="gpu-kernels", marks=needs_gpu),
]
at_every_place = pytest.mark.parametrize("place", PLACES)
