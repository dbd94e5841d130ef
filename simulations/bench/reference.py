"""Exact sums beside the published way: embed each token, float32 XᵀX, batch by batch, in torch.

Both start from the same token ids, so tokenisation is not counted.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from client.accumulate import Accumulator, accumulators, add_states
from common.encoder import Encoder
from common.settings import FEATURE_LIMIT, Sampling
from common.statistics import Integers
from common.tokenizer import Ids
from simulations.bench.measuring import Result, at_least, once
from simulations.bench.text import BenchText

THREADS = 2
BATCH = 8192
REFERENCE_SECONDS = 6.0


def bench_reference(encoder: Encoder, text: BenchText) -> list[Result]:
    ids, lengths = encoder.tokenizer.encode_many(text.documents)
    wide = np.random.default_rng(0).integers(-FEATURE_LIMIT, FEATURE_LIMIT, (encoder.rows, 2048)).astype(np.int16)
    cases = [
        ("sums, w=64, h=576, to the published way", encoder.table, 64, 10.0),
        ("sums, w=1, h=576, to the published way", encoder.table, 1, 50.0),
        ("sums, w=1, h=2048 (a made table), to the published way", wide, 1, 100.0),
    ]
    return [_case(name, table, window, aim, ids, lengths) for name, table, window, aim in cases]


def _case(name: str, table: NDArray[np.int16], window: int, aim: float, ids: Ids, lengths: Integers) -> Result:
    theirs = _reference_rate(table, ids)
    _ours(table, window, ids[:BATCH], np.array([BATCH]))  # warm
    ours = len(ids) / once(lambda: _ours(table, window, ids, lengths))
    return at_least(name, ours / theirs, aim, f"{ours / 1e6:.2f} M tokens/s", f"{theirs / 1e6:.4f} M tokens/s")


def _ours(table: NDArray[np.int16], window: int, ids: Ids, lengths: Integers) -> None:
    """All of it: from ids to checked statistics, on as many threads as the reference has."""
    new = accumulators(table, Sampling(window=window))
    workers = [new() for _ in range(THREADS)]
    with threadpool_limits(1), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(_sum, workers, *zip(*_shares(ids, lengths), strict=True)))
    workers[0].statistics(add_states(*(worker.state() for worker in workers)), THREADS)


def _sum(worker: Accumulator, share: list[tuple[Ids, Integers]]) -> None:
    for ids, lengths in share:
        worker.add(ids, lengths)


def _shares(ids: Ids, lengths: Integers) -> list[tuple[list[tuple[Ids, Integers]]]]:
    """Batches of whole documents, dealt to the threads in turn."""
    ends = np.cumsum(lengths)
    shares: list[list[tuple[Ids, Integers]]] = [[] for _ in range(THREADS)]
    first = 0
    while first < len(lengths):
        begin = int(ends[first] - lengths[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + (1 << 17), side="right")))
        batch = (ids[begin : int(ends[last - 1])], lengths[first:last])
        shares[min(range(THREADS), key=lambda place: sum(len(part[0]) for part in shares[place]))].append(batch)
        first = last
    return [(share,) for share in shares]


def _reference_rate(table: NDArray[np.int16], ids: Ids) -> float:
    """Tokens a second of the published way, over as many tokens as a few seconds allow."""
    torch.set_num_threads(THREADS)
    embeddings = torch.from_numpy(table.astype(np.float32))
    tokens = torch.from_numpy(ids.astype(np.int64))
    features = table.shape[1] + 1
    gram = torch.zeros(features, features)

    def run(count: int) -> None:
        for start in range(0, count, BATCH):
            rows = embeddings[tokens[start : start + BATCH]]
            samples = torch.cat([rows, torch.ones(len(rows), 1)], dim=1)
            gram.add_(samples.T @ samples)

    run(BATCH)
    count = min(len(ids), max(BATCH, int(REFERENCE_SECONDS * BATCH / once(lambda: run(BATCH)))))
    return count / once(lambda: run(count))
