"""Memory that runs out: sizes are halved until things fit.

Knows torch. Knows nothing of what is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from common.devices import ran_out
from common.errors import DeviceError

Made = TypeVar("Made")


def free_bytes(device: torch.device) -> int | None:
    """How much memory of a card nobody uses; of the machine's own memory, nothing is said."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def halving(make: Callable[[int], Made], size: int, least: int) -> Made:
    """What `make` makes of a size; each time memory runs out, of half the size. Raises DeviceError below the least."""
    while True:
        try:
            return make(size)
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            if size // 2 < least:
                raise DeviceError(
                    "the graphics card has too little free memory for these sums; free some, or use --device cpu"
                ) from error
        size //= 2
        torch.cuda.empty_cache()
