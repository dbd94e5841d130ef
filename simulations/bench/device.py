"""What is measured: this machine's processor, or one of its GPUs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Any

from ridgeway.common.base.devices import chosen, missed
from ridgeway.common.cli.terminal import step
from ridgeway.simulations.bench.measuring import Work, once


@dataclass(frozen=True, slots=True)
class Device:
    """name: `cpu`, or one GPU such as `cuda:0`."""

    name: str = "cpu"

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    @property
    def gpus(self) -> tuple[str, ...]:
        """As accumulators want it: no GPU is the CPU."""
        return (self.name,) if self.is_gpu else ()

    def wait(self) -> None:
        """Until everything that was asked of the GPU is done."""
        if self.is_gpu:
            import torch

            torch.cuda.synchronize(self.name)

    def seconds(self, work: Work) -> float:
        """How long some work takes, to its very end."""

        def to_the_end() -> None:
            work()
            self.wait()

        self.wait()
        return once(to_the_end)

    def peak_bytes(self, work: Work) -> int:
        """The most memory of the GPU that torch held at once during some work."""
        import torch

        self.wait()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.name)
        work()
        self.wait()
        return int(torch.cuda.max_memory_allocated(self.name))

    def facts(self) -> dict[str, Any]:
        """What there is to know about the machine, and the GPU if one is measured."""
        known = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        }
        if not self.is_gpu:
            return {"device": self.name, **known}
        import torch

        gpu = torch.cuda.get_device_properties(self.name)
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        return {
            "device": self.name,
            "gpu": gpu.name,
            "gpu_bytes": gpu.total_memory,
            **versions,
            **known,
        }


def find_device(word: str) -> Device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means. Of several GPUs, one is measured:
    the first.
    """
    gpus = chosen(word)
    reason = missed() if word == "auto" and not gpus else None
    if reason is not None:
        step("note", f"{reason}; the CPU is measured")
    return Device(gpus[0]) if gpus else Device()
