"""Exact sums beside the published way, on the same ids and the same device; and whether they are
exact.

Ours is measured from ids in the machine's memory to checked statistics. The published way embeds
each token, appends a one, and adds float32 XᵀX and XᵀY batch by batch, from ids on the device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import Accumulator, add_states
from ridgeway.client.sums.prepare import Maker, makers
from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import Sampling
from ridgeway.common.statistics import Integers, Statistics
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Ids
from ridgeway.common.text.windows import window_starts
from ridgeway.simulations.bench.bench_inputs import Batch, draw, random_encoder
from ridgeway.simulations.bench.measuring import BenchOptions, Row, once, spread_of

_ROUNDS: Final = 3
_DOMAINS: Final = 4


@dataclass(frozen=True, slots=True)
class SumsCase:
    """One way of summing, how much of it is measured, and its aim.

    published: how many of the tokens the published way sums, in batches of `batch`.
    checked:   over how many tokens the sums are compared with their definition.
    """

    window: int
    rows: int
    width: int
    tokens: int
    published: int
    batch: int
    checked: int
    aim: str


CPU_CASES = (
    SumsCase(64, 49_152, 576, 4_000_000, 200_000, 4096, 1 << 17, "≥ 10"),
    SumsCase(1, 49_152, 576, 9_000_000, 200_000, 4096, 1 << 12, "≥ 50"),
)
GPU_CASES = (
    SumsCase(64, 128_256, 2048, 256_000_000, 4_000_000, 1 << 16, 1 << 17, "≥ 60"),
)


def rows(options: BenchOptions) -> Iterator[Row]:
    for case in GPU_CASES if options.gpus else CPU_CASES:
        encoder = random_encoder(case.rows, case.width)
        yield from _case_rows(case, encoder, options.gpus)


def _case_rows(
    case: SumsCase, encoder: TableEncoder, gpus: tuple[str, ...]
) -> Iterator[Row]:
    import torch

    name = f"sums, w={case.window}, h={case.width}"
    device = gpus[0] if gpus else "cpu"
    embeddings = torch.from_numpy(encoder.table).to(device).float()
    published = partial(published_seconds, embeddings, batch=case.batch)
    made = makers(encoder, Sampling(case.window), gpus, cores())
    ours = partial(our_statistics, made)
    warm_ids, warm_parts = draw(case.published, case.rows)
    published(warm_ids)
    ours(warm_parts)
    our_rates = []
    their_rates = []
    exact = []
    for _ in range(_ROUNDS):
        ids, parts = draw(case.tokens, case.rows)
        seconds = published(ids[: case.published])
        their_rates.append(case.published / seconds / 1e6)
        our_rates.append(case.tokens / once(partial(ours, parts)) / 1e6)
        part = _first(parts[0], case.checked)
        defined = defined_gram(encoder.table, case.window, part)
        exact.append(np.array_equal(ours([part]).gram, defined))
    our_rate = statistics.median(our_rates)
    their_rate = statistics.median(their_rates)
    yield Row(
        f"{name}, to the published way",
        f"{our_rate:.4g} M tokens/s",
        f"{their_rate:.4g} M tokens/s",
        our_rate / their_rate,
        case.aim,
        spread_of(our_rates, their_rates),
    )
    yield Row(
        f"{name}, share of runs equal to the definition bit for bit",
        f"{sum(exact)} of {_ROUNDS}",
        f"slices of {case.checked:,} tokens",
        sum(exact) / _ROUNDS,
        "≥ 1",
        timed=False,
    )


def our_statistics(made: Sequence[Maker], parts: Sequence[Batch]) -> Statistics:
    """Threads take turns at as many accumulators as there may be, as in `prepare`."""
    threads = cores()
    accumulators = [make() for make in made]
    idle: SimpleQueue[Accumulator] = SimpleQueue()
    for accumulator in accumulators:
        idle.put(accumulator)

    def add(part: Batch) -> None:
        accumulator = idle.get()
        try:
            accumulator.add(*part)
        finally:
            idle.put(accumulator)

    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        list(pool.map(add, parts))
    state = reduce(add_states, (accumulator.state() for accumulator in accumulators))
    return accumulators[0].statistics(state, threads)


def defined_gram(table: NDArray[np.int16], window: int, part: Batch) -> Integers:
    """Σ φφᵀ straight from its definition: φ is a window's mean, rounded half up, and a one."""
    ids, lengths = part
    starts = window_starts(lengths, window)
    counts = np.diff(starts, append=len(ids))[:, None]
    sums = np.add.reduceat(table[ids].astype(np.int64), starts)
    means = (2 * sums + counts) // (2 * counts)
    # float64 is exact here: the sums of integers stay below 2⁵³
    features = np.hstack((means, np.ones_like(counts))).astype(np.float64)
    gram: Integers = (features.T @ features).astype(np.int64)
    return gram


def published_seconds(embeddings: Any, ids: Ids, batch: int) -> float:
    import torch

    device = embeddings.device
    features = embeddings.shape[1] + 1
    tokens = torch.from_numpy(ids.astype(np.int64)).to(device)
    labels = torch.eye(_DOMAINS, device=device)[tokens % _DOMAINS]
    ones = torch.ones((batch, 1), device=device)
    gram = torch.zeros((features, features), device=device)
    cross = torch.zeros((features, _DOMAINS), device=device)
    cross.sum().item()  # waits until the device is idle
    started = time.perf_counter()
    for start in range(0, len(tokens), batch):
        part = slice(start, start + batch)
        rows = embeddings[tokens[part]]
        samples = torch.cat([rows, ones[: len(rows)]], dim=1)
        gram += samples.T @ samples
        cross += samples.T @ labels[part]
    cross.sum().item()
    return time.perf_counter() - started


def _first(part: Batch, tokens: int) -> Batch:
    """The first tokens of a batch, the last document cut."""
    ids, lengths = part
    ends = np.minimum(np.cumsum(lengths), tokens)
    kept = np.diff(ends, prepend=0)
    return ids[: int(ends[-1])], kept[kept > 0]
