"""Accumulators on a device: token ids in, the same exact sums out as on the CPU, bit for bit.

Knows torch and the table. Knows nothing of files or text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.accumulate import COLUMN_BLOCKS, State, exact_blocks, of_triangle, only_counts, weighed
from client.gpu.lanes import Lane
from client.gpu.memory import halving
from client.gpu.planes import Windows, write_means
from client.gpu.products import BlockGram
from common.devices import ran_out
from common.errors import DeviceError
from common.settings import Sampling
from common.statistics import Integers, Statistics, single_domain
from common.tokenizer import Ids, first_tokens
from common.windows import layers

WEIGHTED_ROWS = 1 << 15
FEWEST_ROWS = 64
LANES, COUNTING_LANES = 2, 4
"""While one lane collects ids, another has the card work; counting is so quick that collecting needs more hands."""
PIECE = 1 << 12
"""Ids that are only counted travel in pieces of so many."""


class CardTable:
    """The table, put on a device when it is first asked for and shared by all that sum there."""

    def __init__(self, table: NDArray[np.int16], device: str) -> None:
        self.device = torch.device(device)
        self.shape: tuple[int, int] = (table.shape[0], table.shape[1])
        self._host = table
        self._there: Tensor | None = None
        self._lock = Lock()

    @property
    def values(self) -> Tensor:
        with self._lock:
            if self._there is None:
                self._there = self._sent()
        return self._there

    def _sent(self) -> Tensor:
        try:
            return torch.from_numpy(np.ascontiguousarray(self._host)).to(self.device)
        except RuntimeError as error:
            if not ran_out(error):
                raise
            size = self._host.nbytes / 1e9
            raise DeviceError(
                f"the encoder's table needs {size:.1f} GB of memory on {self.device}, and there is less; "
                "free some, or use --device cpu"
            ) from error


class _Kind:
    """Windows that count alike: how they reach the device, and their sum there."""

    def __init__(self, table: CardTable, lane: int) -> None:
        self._table = table
        self._lane = Lane(table.device, lane)
        self._gram = BlockGram(table.device, table.shape[1])

    def put(self, ids: Ids, bounds: Integers) -> None:
        self._lane.put(ids, bounds, self._take)

    def _take(self, ids: Tensor, bounds: Tensor) -> None:
        self.take(Windows(ids, bounds))

    def take(self, windows: Windows) -> None:
        table, most = self._table.values, self._gram.capacity
        for start in range(0, len(windows), most):
            piece = windows[start : start + most]
            planes, first = self._gram.room(len(piece))
            write_means(table, piece, planes, first)

    def triangle(self) -> Integers:
        self._lane.flush(self._take)
        with self._lane.working():
            return self._gram.triangle()


class CardWindows:
    """Sums over windows, on a device."""

    def __init__(self, table: CardTable, sampling: Sampling, lane: int = 0) -> None:
        self._table, self._sampling, self._lane = table, sampling, lane
        self._kinds = {1: _Kind(table, lane)}

    def add(self, ids: Ids, lengths: Integers) -> None:
        for layer in layers(ids, lengths, self._sampling):
            if layer.times not in self._kinds:
                self._kinds[layer.times] = _Kind(self._table, self._lane)
            self._kinds[layer.times].put(layer.ids, layer.bounds)

    def take(self, windows: Windows) -> None:
        """Sum windows that lie on the device already, each of them once."""
        self._kinds[1].take(windows)

    def state(self) -> State:
        return {"gram": weighed({times: kind.triangle() for times, kind in self._kinds.items()})}

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        return of_triangle(state["gram"])


class CardCounts:
    """For w = 1: count on the device, and take one weighted product at the end."""

    def __init__(self, table: CardTable, sampling: Sampling, lane: int = 0) -> None:
        self._table, self._limit = table, sampling.max_tokens
        self._lane = Lane(table.device, lane)
        self._counts: Tensor | None = None

    def add(self, ids: Ids, lengths: Integers) -> None:
        ids, _ = first_tokens(ids, lengths, self._limit)
        self._lane.put(ids, np.append(np.arange(0, len(ids), PIECE), len(ids)), self._take)

    def _take(self, ids: Tensor, bounds: Tensor) -> None:
        self.take(ids)

    def take(self, ids: Tensor) -> None:
        """Count ids that lie on the device already."""
        found = torch.bincount(ids, minlength=self._table.shape[0])
        self._counts = found if self._counts is None else self._counts.add_(found)

    def state(self) -> State:
        self._lane.flush(self._take)
        if self._counts is None:
            return {"counts": np.zeros(self._table.shape[0], dtype=np.int64)}
        with self._lane.working():
            return {"counts": self._counts.cpu().numpy().copy()}

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        with self._lane.working():
            return single_domain(weighted_gram(self._table.values, state["counts"]))


def weighted_gram(table: Tensor, counts: Integers) -> Integers:
    """Σ n φφᵀ over tokens with counts n, exactly, on the table's device."""
    return halving(lambda most: _weighted(table, counts, most), WEIGHTED_ROWS, FEWEST_ROWS)


def _weighted(table: Tensor, counts: Integers, most: int) -> Integers:
    width = table.shape[1]
    edges = np.linspace(0, width, COLUMN_BLOCKS + 1).astype(int).tolist()
    gram = torch.zeros(width + 1, width + 1, dtype=torch.int64, device=table.device)
    for block in exact_blocks(counts, most):
        tokens, times = (torch.from_numpy(array).to(table.device) for array in (block.tokens, block.counts))
        samples = table[tokens].double()
        scaled = samples * times[:, None]
        for left, right in pairwise(edges):
            gram[:right, left:right] += block.weight * (scaled[:, :right].T @ samples[:, left:right]).long()
        gram[:width, width] += block.weight * scaled.sum(dim=0).long()
    gram[width, width] = int(counts.sum())
    return fetched(gram.triu() + gram.triu(1).T)


def fetched(sums: Tensor) -> Integers:
    """Sums in the machine's memory; pinned, which a card writes to several times as fast."""
    there: Integers = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=sums.is_cuda).copy_(sums).numpy()
    return there


def card_accumulators(
    table: NDArray[np.int16], sampling: Sampling, device: str
) -> list[Callable[[], CardWindows | CardCounts]]:
    """Makers of accumulators that share one table on one device and work beside each other there."""
    shared = CardTable(table, device)
    kind, lanes = (CardCounts, COUNTING_LANES) if only_counts(sampling) else (CardWindows, LANES)
    return [partial(kind, shared, sampling, lane) for lane in range(lanes)]
