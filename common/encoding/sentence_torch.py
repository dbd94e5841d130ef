"""USE's network by torch, on a GPU or a CPU: the same bits as by numpy.

Products are taken in float64, which holds their sums exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.sentence_network import (
    SENTENCE_WIDTH,
    Integers,
    SentenceNetwork,
    SentenceWeights,
    framed,
)
from ridgeway.common.encoding.tokenizer import Ids

if TYPE_CHECKING:
    import torch

_BATCH_TOKENS = 1 << 17
"""How many tokens are taken at once."""


class TorchSentences:
    """The network on one device."""

    def __init__(self, numbers: SentenceWeights, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._network = SentenceNetwork(numbers, torch, self._tensor, self._sums)

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        import torch

        return torch.tensor(np.asarray(array), device=self._device)

    def _sums(self, rows: torch.Tensor, lengths: Integers) -> torch.Tensor:
        import torch

        return torch.segment_reduce(rows, "sum", lengths=self._tensor(lengths))

    def vectors(self, ids: Ids, lengths: Integers) -> torch.Tensor:
        """What `UseEncoder.vectors` gives, on the device."""
        import torch

        vectors = torch.zeros(
            (len(lengths), SENTENCE_WIDTH), dtype=torch.int16, device=self._device
        )
        filled = np.flatnonzero(lengths)
        ids, lengths = framed(ids, lengths)
        stops = np.cumsum(lengths)
        batches = (stops - 1) // _BATCH_TOKENS
        for batch in range(int(batches.max(initial=-1)) + 1):
            first, last = np.searchsorted(batches, [batch, batch + 1])
            if first == last:
                continue
            start = stops[first] - lengths[first]
            made = self._network.vectors(
                ids[start : stops[last - 1]], lengths[first:last]
            )
            vectors[self._tensor(filled[first:last])] = made.to(torch.int16)
        return vectors
