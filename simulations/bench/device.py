"""What is measured: this machine's processor, or one of its graphics cards."""

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
    """name: `cpu`, or one card such as `cuda:0`."""

    name: str = "cpu"

    @property
    def is_card(self) -> bool:
        return self.name != "cpu"

    @property
    def cards(self) -> tuple[str, ...]:
        """As accumulators want it: no card is the CPU."""
        return (self.name,) if self.is_card else ()

    def wait(self) -> None:
        """Until everything that was asked of the card is done."""
        if self.is_card:
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
        """The most memory of the card that torch held at once during some work."""
        import torch

        self.wait()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.name)
        work()
        self.wait()
        return int(torch.cuda.max_memory_allocated(self.name))

    def facts(self) -> dict[str, Any]:
        """What there is to know about the machine, and the card if one is measured."""
        known = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        }
        if not self.is_card:
            return {"device": self.name, **known}
        import torch

        card = torch.cuda.get_device_properties(self.name)
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        return {
            "device": self.name,
            "card": card.name,
            "card_bytes": card.total_memory,
            **versions,
            **known,
        }


def find_device(word: str) -> Device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means. Of several cards, one is measured:
    the first.
    """
    cards = chosen(word)
    reason = missed() if word == "auto" and not cards else None
    if reason is not None:
        step("note", f"{reason}; the CPU is measured")
    return Device(cards[0]) if cards else Device()
