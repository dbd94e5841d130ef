"""The ways to sum that are held against each other, on the same ids: ours, the definition, and the
published method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import Accumulator, add_states
from ridgeway.client.sums.prepare import Maker
from ridgeway.common.base.settings import FEATURE_LIMIT, Sampling
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.statistics.sums import Integers, Statistics
from ridgeway.simulations.bench.device import Device
from ridgeway.simulations.bench.random_corpus import Batch

DOMAINS = 4
CPU_BATCHES = (1024, 4096, 8192)
GPU_BATCHES = (1 << 13, 1 << 16, 1 << 18)


class OurSums:
    """From batches of ids in the machine's memory to checked statistics, with new accumulators each
    time.

    Threads take turns at as many accumulators as there may be, as in `prepare`.
    """

    def __init__(self, makers: Sequence[Maker], threads: int) -> None:
        self._makers = makers
        self._threads = threads

    def statistics(self, parts: Sequence[Batch]) -> Statistics:
        accumulators = [make() for make in self._makers]
        idle: SimpleQueue[Accumulator] = SimpleQueue()
        for accumulator in accumulators:
            idle.put(accumulator)

        def add(part: Batch) -> None:
            accumulator = idle.get()
            try:
                accumulator.add(*part)
            finally:
                idle.put(accumulator)

        with one_blas_thread(), ThreadPoolExecutor(self._threads, "feed") as pool:
            for _ in pool.map(add, parts):
                pass
        states = (each.state() for each in accumulators)
        return accumulators[0].statistics(reduce(add_states, states), self._threads)


@dataclass(frozen=True, slots=True, eq=False)
class DefinedSums:
    """The sums straight from their definition: what every other way must equal, bit for bit."""

    table: NDArray[np.int16]
    sampling: Sampling

    def gram(self, parts: list[Batch]) -> Integers:
        """Σ φφᵀ. Its float64 products are of integers and stay below 2⁵³, so they are exact in any
        order.
        """
        samples = np.concatenate(
            [self._samples(ids, lengths) for ids, lengths in parts]
        )
        if len(samples) * FEATURE_LIMIT**2 >= 1 << 53:
            raise ValueError(
                f"{len(samples):,} samples are too many to be summed exactly in float64"
            )
        features = np.ones((len(samples), samples.shape[1] + 1))
        features[:, :-1] = samples
        exact: Integers = (features.T @ features).astype(np.int64)
        return exact

    def _samples(self, ids: Ids, lengths: Integers) -> Integers:
        """The rounded means of windows, document by document, a rest below half a window with its
        neighbour.
        """
        window = self.sampling.window
        start = 0
        found = []
        for length in lengths.tolist():
            rows = self.table[ids[start : start + length]].astype(np.int64)
            start += length
            count = max(1, length // window + (2 * (length % window) >= window))
            cuts = [place * window for place in range(1, count)]
            found += [
                (2 * part.sum(axis=0) + len(part)) // (2 * len(part))
                for part in np.split(rows, cuts)
            ]
        return np.stack(found)


class PublishedSums:
    """The published way: embed each token, append a one, add float32 XᵀX and XᵀY batch by batch, in
    torch.

    It starts from ids and labels that already lie on the device, and takes the batch size that
    suits it best there.
    """

    def __init__(self, table: NDArray[np.int16], device: Device, threads: int) -> None:
        import torch

        if not device.is_gpu:
            torch.set_num_threads(threads)
        self._device = device
        self._embeddings = torch.from_numpy(table).to(device.name).float()
        features = table.shape[1] + 1
        self._gram = torch.zeros((features, features), device=device.name)
        self._cross = torch.zeros((features, DOMAINS), device=device.name)
        self._batch = 0

    def choose_batch(self, ids: Ids) -> int:
        """Try some batch sizes on these ids, and keep the fastest. Those that a small GPU cannot
        hold do not count.
        """
        import torch

        sizes = GPU_BATCHES if self._device.is_gpu else CPU_BATCHES
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
            samples = torch.cat(
                [rows, torch.ones((len(rows), 1), device=rows.device)], dim=1
            )
            self._gram += samples.T @ samples
            self._cross += samples.T @ labels[part]
