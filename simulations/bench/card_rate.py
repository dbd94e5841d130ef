"""Sums over windows whose ids lie on the card already: what the card itself does, without the way to it.

Knows the accumulators of a card. Knows nothing of threads or of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from common.encoder import Encoder
from common.settings import Sampling
from common.windows import window_starts
from simulations.bench.device import Device
from simulations.bench.drawn import Batch

if TYPE_CHECKING:
    from client.gpu.planes import Windows

JOINED: Final = 2
"""So many batches are sent to the card as one: a slot of an accumulator holds about as many."""
WARM: Final = 2


class OnCard:
    """Ours, from ids and bounds on the card to the sums in the machine's memory."""

    def __init__(self, encoder: Encoder, sampling: Sampling, device: Device) -> None:
        from client.gpu.sums import CardTable

        self._table = CardTable(encoder.table, device.name)
        self._sampling = sampling
        self._device = device

    def tokens_a_second(self, parts: Sequence[Batch]) -> float:
        there = [self._sent(_joined(parts[start : start + JOINED])) for start in range(0, len(parts), JOINED)]
        self._sum(there[:WARM])
        return sum(len(ids) for ids, _ in parts) / self._device.seconds(lambda: self._sum(there))

    def _sent(self, part: Batch) -> Windows:
        import torch

        from client.gpu.planes import Windows

        ids, lengths = part
        bounds = np.append(window_starts(lengths, self._sampling.window), len(ids)).astype(np.int32)
        row, edges = (torch.from_numpy(array).to(self._device.name) for array in (ids, bounds))
        return Windows(row, edges)

    def _sum(self, there: Sequence[Windows]) -> None:
        from client.gpu.sums import CardWindows

        accumulator = CardWindows(self._table, self._sampling)
        for windows in there:
            accumulator.take(windows)
        self._device.wait()  # the accumulator reads its sums on a stream of its own
        accumulator.state()


def _joined(parts: Sequence[Batch]) -> Batch:
    ids, lengths = zip(*parts, strict=True)
    return np.concatenate(ids), np.concatenate(lengths)
