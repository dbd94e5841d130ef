"""How token ids reach a device: collected in pinned memory, copied while the device still works on what came before.

Knows torch's streams and events. Knows nothing of what is done with the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.gpu.memory import halving
from common.settings import LARGEST_WINDOW
from common.statistics import Integers
from common.tokenizer import Ids

SLOTS = 3
TOKENS = 1 << 21
"""How many ids one slot holds."""

Take = Callable[[Tensor, Tensor], None]
"""What is done on the device with ids that stand in one row, and with the bounds of their windows."""


class Lane:
    """A device, the stream that works there, and slots that ids travel through in turn.

    Law: whatever is put in is taken once, in whole windows.
    """

    def __init__(self, device: torch.device, number: int) -> None:
        self._device, self._number = device, number
        self._slots: Iterator[Slot] | None = None
        self._slot: Slot | None = None

    def working(self) -> AbstractContextManager[object]:
        """Within this block, torch works on the lane's device and stream."""
        return torch.cuda.stream(_streams(self._device, self._number)[0]) if _is_card(self._device) else nullcontext()

    def put(self, ids: Ids, bounds: Integers, take: Take) -> None:
        """Collect windows, and have them taken when a slot is full.

        The k-th has the ids from bounds[k] to bounds[k + 1]; none is longer than LARGEST_WINDOW.
        """
        first = 0
        while first < len(bounds) - 1:
            slot = self._open()
            most = int(bounds[first]) + slot.room
            last = int(np.searchsorted(bounds, most, side="right")) - 1
            if last > first:
                slot.append(ids[bounds[first] : bounds[last]], bounds[first + 1 : last + 1] - bounds[first])
                first = last
            else:
                self.flush(take)

    def flush(self, take: Take) -> None:
        """Have what was collected taken."""
        slot, self._slot = self._slot, None
        if slot is None or not slot.tokens:
            return
        with self.working():
            take(*slot.sent())
            slot.done()

    def _open(self) -> Slot:
        if self._slots is None:
            self._slots = cycle(halving(self._new_slots, TOKENS, LARGEST_WINDOW))
        if self._slot is None:
            self._slot = next(self._slots)
            self._slot.begin()
        return self._slot

    def _new_slots(self, tokens: int) -> list[Slot]:
        with self.working():
            return [Slot(self._device, self._number, tokens) for _ in range(SLOTS)]


class Slot:
    """Ids and bounds on their way: pinned memory, as much on the device, and the moment when both are free again."""

    def __init__(self, device: torch.device, lane: int, tokens: int) -> None:
        card = _is_card(device)
        self._size = tokens
        self._host = [torch.empty(tokens + 1, dtype=torch.int32, pin_memory=card) for _ in range(2)]
        self._ids, self._bounds = (each.numpy() for each in self._host)
        self._there = [torch.empty_like(each, device=device) for each in self._host] if card else self._host
        self._stream = _streams(device, lane)[1] if card else None
        self._copied = torch.cuda.Event() if card else None
        self._free = torch.cuda.Event() if card else None
        self.begin()

    def begin(self) -> None:
        """Wait until the device has read what lay here, and start empty."""
        if self._free is not None:
            self._free.synchronize()
        self.tokens = self._windows = 0
        self._bounds[0] = 0

    @property
    def room(self) -> int:
        return self._size - self.tokens

    def append(self, ids: Ids, ends: NDArray[np.int64]) -> None:
        """ends: where each window ends, counted from the first of these ids."""
        self._ids[self.tokens : self.tokens + len(ids)] = ids
        self._bounds[self._windows + 1 : self._windows + 1 + len(ends)] = ends + self.tokens
        self.tokens += len(ids)
        self._windows += len(ends)

    def sent(self) -> tuple[Tensor, Tensor]:
        """Ids and bounds on the device; the current stream waits for them, this thread does not."""
        sizes = (self.tokens, self._windows + 1)
        ids, bounds = (there[:size] for there, size in zip(self._there, sizes, strict=True))
        if self._stream is not None and self._copied is not None:
            with torch.cuda.stream(self._stream):
                for target, source in zip((ids, bounds), self._host, strict=True):
                    target.copy_(source[: len(target)], non_blocking=True)
                self._copied.record()
            torch.cuda.current_stream(ids.device).wait_event(self._copied)
        return ids, bounds

    def done(self) -> None:
        """Mark the moment after which nothing on the device reads this slot."""
        if self._free is not None:
            self._free.record()


def _is_card(device: torch.device) -> bool:
    return device.type == "cuda"


@lru_cache(maxsize=64)
def _streams(device: torch.device, lane: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Where a lane works and where it copies: always the same, since torch keeps freed memory stream by stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)
