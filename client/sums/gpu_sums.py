"""Accumulators on a device: token ids in, the same exact sums out as on the CPU, bit for bit.

Ids are collected in pinned memory and copied while the device still works on what came before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache, partial
from itertools import cycle, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeway.client.sums.accumulate import (
    Accumulator,
    State,
    TokenCounts,
    bounded,
    exact_blocks,
    only_counts,
)
from ridgeway.client.sums.gpu_gram import (
    BlockGram,
    DeviceSpelling,
    Windows,
    word_counts,
    write_means,
    write_samples,
)
from ridgeway.common.base.errors import DeviceError
from ridgeway.common.base.machine import halving, is_out_of_memory
from ridgeway.common.base.settings import (
    FEATURE_LIMIT,
    MAX_JOINED_WINDOW_TOKENS,
    Sampling,
)
from ridgeway.common.statistics import Integers, Statistics, single_domain
from ridgeway.common.text.sentence_encoder import (
    RANDOM_SHIFT,
    SentenceFeatures,
    pieces_of,
    random_signs,
)
from ridgeway.common.text.tokenizer import Ids
from ridgeway.common.text.windows import Layer
from ridgeway.common.text.word_sketch import WordSketch

_TOKENS_AT_ONCE = 1 << 20
"""Of windows whose words are sketched together."""
_SENTENCES_AT_ONCE = 1 << 12
"""Windows whose sentences are read together."""
WEIGHTED_ROWS = 1 << 15
MIN_WEIGHTED_ROWS = 64
COUNTERS = 4
"""Accumulators that only count: more than one, since each takes in one batch at a time. Of those
that have the GPU work, a second one would only wait for the interpreter's lock.
"""

_SLOTS = 3
SLOT_TOKENS = 1 << 21
"""How many ids one slot holds."""
KINDS_AT_ONCE = 2
"""Where windows count differently, every kind has slots of its own, which are smaller."""

_COLUMN_BLOCKS = 8
"""The blocks of columns in which a weighted product is taken; they skip most of the lower half."""

Take = Callable[[Windows], None]
"""What is done on the device with windows that have arrived there."""


class GpuTable:
    """The table and its words, put on a device when first asked for and shared by all that sum
    there.
    """

    def __init__(
        self,
        table: NDArray[np.int16],
        device: str,
        words: WordSketch | None = None,
        sentences: SentenceFeatures | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.shape: tuple[int, int] = (table.shape[0], table.shape[1])
        self.table_width = self.shape[1] + (words.width if words else 0)
        self.width = self.table_width + (sentences.width if sentences else 0)
        self.host_sentences = sentences
        self.host = table
        self._host_words = words

    @cached_property
    def values(self) -> Tensor:
        try:
            return torch.from_numpy(np.ascontiguousarray(self.host)).to(self.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            size = self.host.nbytes / 1e9
            raise DeviceError(
                f"the encoder's table needs {size:.1f} GB on {self.device}, more than "
                "is free; free some GPU memory, or use --device cpu"
            ) from error

    @cached_property
    def words(self) -> DeviceSpelling | None:
        if self._host_words is None:
            return None
        return DeviceSpelling.of(self._host_words, self.device)

    @cached_property
    def sentences(self) -> GpuSentences | None:
        if self.host_sentences is None:
            return None
        return GpuSentences(self.host_sentences, self.device)

    def word_features(self, windows: Windows) -> Iterator[tuple[int, Tensor]]:
        """Pieces of N × width features, each with the number of its first window."""
        if self.words is None:
            return
        for start, ids, lengths in windows.pieces(_TOKENS_AT_ONCE):
            tokens = lengths[:, None]
            counts = word_counts(self.words, ids, lengths)
            # the mean, rounded half up
            means = torch.div(
                2 * self.words.amplitude * counts + tokens,
                2 * tokens,
                rounding_mode="floor",
            )
            yield start, means.clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)


class GpuSentences:
    """The features of sentences, which a device computes: the numbers of the CPU, with USE."""

    def __init__(self, features: SentenceFeatures, device: torch.device) -> None:
        self._features = features
        self._vectors = features.encoder.on_device(str(device))
        signs = random_signs(features.encoder.width)
        self._signs = torch.from_numpy(signs).to(device, torch.float64)

    def window_features(self, ids: Ids, bounds: Integers) -> Tensor:
        """Of windows in a row of ids, N×width."""
        pieces = pieces_of(bounds)
        made = self._vectors(*self._features.read(ids, pieces))
        vectors = torch.as_tensor(made, device=self._signs.device)
        sums = (vectors.double() @ self._signs).long()
        random = sums.clamp_(min=0) >> RANDOM_SHIFT
        features = torch.cat([vectors.long(), random], dim=1)
        # the mean over the pieces of a window, rounded half up
        counts = torch.from_numpy(pieces.counts).to(features.device)
        windows = torch.repeat_interleave(counts)
        added = features.new_zeros(len(counts), features.shape[1])
        added.index_add_(0, windows, features)
        return torch.div(
            2 * added + counts[:, None], 2 * counts[:, None], rounding_mode="floor"
        )


class Lane:
    """A device, the stream that works there, and slots that ids travel through in turn.

    Law: whatever is put in is taken once, in whole windows.
    """

    def __init__(self, device: torch.device, slot_tokens: int) -> None:
        self._device = device
        self._slot_tokens = slot_tokens
        self._slots: Iterator[Slot] | None = None
        self._slot: Slot | None = None

    def working(self) -> AbstractContextManager[object]:
        """Within this block, torch works on the lane's device and stream."""
        gpu = self._device.type == "cuda"
        return torch.cuda.stream(_streams(self._device)[0]) if gpu else nullcontext()

    def put(self, ids: Ids, bounds: Integers, take: Take) -> None:
        """Collect windows, and have them taken when a slot is full.

        The k-th has the ids from bounds[k] to bounds[k + 1]; none is longer than
        MAX_JOINED_WINDOW_TOKENS.
        """
        first = 0
        while first < len(bounds) - 1:
            slot = self._open()
            most = int(bounds[first]) + slot.size - slot.tokens
            last = int(np.searchsorted(bounds, most, side="right")) - 1
            if last > first:
                slot.append(
                    ids[bounds[first] : bounds[last]],
                    bounds[first + 1 : last + 1] - bounds[first],
                )
                first = last
            else:
                self.flush(take)

    def flush(self, take: Take) -> None:
        """Have what was collected taken."""
        slot, self._slot = self._slot, None
        if slot is None or not slot.tokens:
            return
        with self.working():
            take(slot.sent())
            slot.done()

    def _open(self) -> Slot:
        if self._slots is None:
            self._slots = cycle(
                halving(self._new_slots, self._slot_tokens, MAX_JOINED_WINDOW_TOKENS)
            )
        if self._slot is None:
            self._slot = next(self._slots)
            self._slot.begin()
        return self._slot

    def _new_slots(self, tokens: int) -> list[Slot]:
        with self.working():
            return [Slot(self._device, tokens) for _ in range(_SLOTS)]


class Slot:
    """Ids and bounds on their way: pinned memory, as much on the device, and the moment when both
    are free again.
    """

    def __init__(self, device: torch.device, tokens: int) -> None:
        gpu = device.type == "cuda"
        self.size = tokens
        self._host = [
            torch.empty(tokens + 1, dtype=torch.int32, pin_memory=gpu) for _ in range(2)
        ]
        self._ids, self._bounds = (buffer.numpy() for buffer in self._host)
        self._there = (
            [torch.empty_like(buffer, device=device) for buffer in self._host]
            if gpu
            else self._host
        )
        self._stream = _streams(device)[1] if gpu else None
        self._copied = torch.cuda.Event() if gpu else None
        self._free = torch.cuda.Event() if gpu else None
        self.begin()

    def begin(self) -> None:
        """Wait until the device has read what lay here, and start empty."""
        if self._free is not None:
            self._free.synchronize()
        self.tokens = self._windows = 0
        self._bounds[0] = 0

    def append(self, ids: Ids, ends: NDArray[np.int64]) -> None:
        """ends: where each window ends, counted from the first of these ids."""
        self._ids[self.tokens : self.tokens + len(ids)] = ids
        self._bounds[self._windows + 1 : self._windows + 1 + len(ends)] = (
            ends + self.tokens
        )
        self.tokens += len(ids)
        self._windows += len(ends)

    def sent(self) -> Windows:
        """What was collected, on the device; the current stream waits for it, this thread does
        not.
        """
        sizes = (self.tokens, self._windows + 1)
        ids, bounds = (
            there[:size] for there, size in zip(self._there, sizes, strict=True)
        )
        if self._stream is not None and self._copied is not None:
            with torch.cuda.stream(self._stream):
                for target, source in zip((ids, bounds), self._host, strict=True):
                    target.copy_(source[: len(target)], non_blocking=True)
                self._copied.record()
            torch.cuda.current_stream(ids.device).wait_event(self._copied)
        return Windows(ids, bounds, self._bounds[: self._windows + 1])

    def done(self) -> None:
        """Mark the moment after which nothing on the device reads this slot."""
        if self._free is not None:
            self._free.record()


@lru_cache(maxsize=64)
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Where a device works and where it copies: always the same, since torch keeps freed memory
    stream by stream.
    """
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


class GpuWindows(Accumulator):
    """Sums over windows, on a device: those that count alike travel together, and all add up in one
    place.
    """

    def __init__(self, table: GpuTable, sampling: Sampling) -> None:
        self._table = table
        self._sampling = sampling
        slot_tokens = SLOT_TOKENS if sampling.is_plain else SLOT_TOKENS // KINDS_AT_ONCE
        self._lanes = defaultdict[int, Lane](partial(Lane, table.device, slot_tokens))
        self._gram = BlockGram(table.device, table.width)

    def add_layers(self, samples: Sequence[Layer]) -> None:
        for layer in samples:
            if self._table.sentences:
                self._add_sentences(layer, self._table.sentences)
                continue
            take = self._taking(layer.times)
            self._lanes[layer.times].put(layer.ids, layer.bounds, take)

    def _taking(self, times: int) -> Take:
        return lambda windows: self.take(windows, times)

    def _add_sentences(self, layer: Layer, sentences: GpuSentences) -> None:
        """Sum windows whose texts are read on the CPU, some of them at a time."""
        most = min(self._gram.capacity, _SENTENCES_AT_ONCE)
        with self._lanes[1].working():
            for start in range(0, len(layer.bounds) - 1, most):
                bounds = layer.bounds[start : start + most + 1]
                ids = layer.ids[bounds[0] : bounds[-1]]
                bounds = bounds - bounds[0]
                features = sentences.window_features(ids, bounds)
                self.take(self._sent(ids, bounds), layer.times, features)

    def _sent(self, ids: Ids, bounds: Integers) -> Windows:
        device = self._table.device
        narrow = bounds.astype(np.int32)
        there = torch.from_numpy(np.ascontiguousarray(ids)).to(device)
        return Windows(there, torch.from_numpy(narrow).to(device), narrow)

    def take(
        self, windows: Windows, times: int = 1, sentences: Tensor | None = None
    ) -> None:
        """Sum windows that lie on the device already, each of them as often as is said.

        sentences: the features of their sentences, where there are any.
        """
        table = self._table
        most = self._gram.capacity
        for start in range(0, len(windows), most):
            piece = windows[start : start + most]
            planes, first = self._gram.room(len(piece), times)
            write_means(table.values, piece, planes, first)
            for offset, features in table.word_features(piece):
                write_samples(features, planes, first + offset, row=table.shape[1])
            if sentences is not None:
                rows = sentences[start : start + most]
                write_samples(rows, planes, first, row=table.table_width)

    def state(self) -> State:
        for times, lane in self._lanes.items():
            lane.flush(self._taking(times))
        with self._lanes[1].working():
            return {"gram": bounded(self._gram.triangle())}


class GpuCounts(TokenCounts):
    """For w = 1: count here, and take one weighted product on the device at the end."""

    def __init__(self, table: GpuTable, sampling: Sampling) -> None:
        super().__init__(table.host, sampling)
        self._gpu_table = table

    def statistics(self, state: State, threads: int = 1) -> Statistics:
        return single_domain(weighted_gram(self._gpu_table.values, state["counts"]))


def weighted_gram(table: Tensor, counts: Integers) -> Integers:
    """Σ n φφᵀ over tokens with counts n, exactly, on the table's device."""
    return halving(
        lambda most: _weighted(table, counts, most), WEIGHTED_ROWS, MIN_WEIGHTED_ROWS
    )


def _weighted(table: Tensor, counts: Integers, most: int) -> Integers:
    width = table.shape[1]
    edges = np.linspace(0, width, _COLUMN_BLOCKS + 1).astype(int).tolist()
    gram = torch.zeros(width + 1, width + 1, dtype=torch.int64, device=table.device)
    for block in exact_blocks(counts, most):
        tokens, times = (
            torch.from_numpy(array).to(table.device)
            for array in (block.tokens, block.counts)
        )
        samples = table[tokens].double()
        scaled = samples * times[:, None]
        for left, right in pairwise(edges):
            gram[:right, left:right] += (
                block.weight * (scaled[:, :right].T @ samples[:, left:right]).long()
            )
        gram[:width, width] += block.weight * scaled.sum(dim=0).long()
    gram[width, width] = int(counts.sum())
    # a GPU writes to it much faster
    pinned = torch.empty(gram.shape, dtype=gram.dtype, pin_memory=gram.is_cuda)
    there: Integers = pinned.copy_(gram.triu() + gram.triu(1).T).numpy()
    return there


def gpu_accumulators(
    table: NDArray[np.int16],
    sampling: Sampling,
    device: str,
    words: WordSketch | None = None,
    sentences: SentenceFeatures | None = None,
) -> list[Callable[[], Accumulator]]:
    """Makers of accumulators that share one table on one device and work beside each other
    there.
    """
    shared = GpuTable(table, device, words, sentences)
    if only_counts(sampling, words or sentences):
        return [partial(GpuCounts, shared, sampling)] * COUNTERS
    return [partial(GpuWindows, shared, sampling)]
