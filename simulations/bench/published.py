"""The published way to sum: embed each token, append a one, add float32 XᵀX and XᵀY batch by batch, in torch.

It starts from ids and labels that already lie on the device, and takes the batch size that suits it best there.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.tokenizer import Ids
from simulations.bench.device import Device

DOMAINS = 4
CPU_BATCHES = (1024, 4096, 8192)
CARD_BATCHES = (1 << 13, 1 << 16, 1 << 18)


class Published:
    """Sums in float32 over one table."""

    def __init__(self, table: NDArray[np.int16], device: Device, threads: int) -> None:
        import torch

        if not device.is_card:
            torch.set_num_threads(threads)
        self._device = device
        self._embeddings = torch.from_numpy(table).to(device.name).float()
        features = table.shape[1] + 1
        self._gram = torch.zeros((features, features), device=device.name)
        self._cross = torch.zeros((features, DOMAINS), device=device.name)
        self._batch = 0

    def choose_batch(self, ids: Ids) -> int:
        """Try some batch sizes on these ids, and keep the fastest. Those that a small card cannot hold do not count."""
        import torch

        sizes = CARD_BATCHES if self._device.is_card else CPU_BATCHES
        rates = {}
        for size in sizes:
            with contextlib.suppress(torch.OutOfMemoryError):
                self._batch = size
                enough = ids[: max(size, len(ids) // len(sizes))]
                self.tokens_a_second(enough[:size])  # the first time is to warm up
                rates[size] = self.tokens_a_second(enough)
        self._batch = max(rates, key=lambda size: rates[size])
        return self._batch

    def tokens_a_second(self, ids: Ids) -> float:
        import torch

        tokens = torch.from_numpy(ids.astype(np.int64)).to(self._device.name)
        labels = torch.eye(DOMAINS, device=self._device.name)[tokens % DOMAINS]
        return len(ids) / self._device.seconds(lambda: self._add(tokens, labels))

    def _add(self, tokens: Any, labels: Any) -> None:
        import torch

        for start in range(0, len(tokens), self._batch):
            part = slice(start, start + self._batch)
            rows = self._embeddings[tokens[part]]
            samples = torch.cat([rows, torch.ones((len(rows), 1), device=rows.device)], dim=1)
            self._gram += samples.T @ samples
            self._cross += samples.T @ labels[part]
