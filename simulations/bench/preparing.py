"""`client prepare` beside the bare tokenizer, on the same files and the same number of threads."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from client.prepare import BATCH_CHARACTERS, Job, prepare
from common.encoder import Encoder
from common.settings import Sampling
from common.threads import serial_tokenizers
from simulations.bench.measuring import Result, at_least, seconds_in_turns
from simulations.bench.text import BenchText

THREADS = 2


def bench_prepare(encoder: Encoder, text: BenchText, work: Path) -> list[Result]:
    """Reading, tokenising and summing against tokenising alone, in the faster of two ways, on the same documents."""
    backend = Tokenizer.from_str(encoder.definition.decode())
    batches = _batches(text.documents)
    sized = sum(len(document.encode()) for batch in batches for document in batch) / 1e6

    def tokenise(batch: list[str]) -> None:
        backend.encode_batch_fast(batch, add_special_tokens=False)

    def own_threads() -> None:
        with serial_tokenizers(), ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(tokenise, batches))

    def library_threads() -> None:
        for batch in batches:
            tokenise(batch)

    def ours(window: int) -> None:
        cache = work / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        job = Job(text.files, "bench", Sampling(window=window), 0.0, ("text",), THREADS)
        prepare(job, encoder, cache)

    one, many, *bare = seconds_in_turns(lambda: ours(1), lambda: ours(64), own_threads, library_threads, rounds=3)
    fastest = min(bare)
    words = f"tokenizer alone {sized / fastest:.2f} MB/s"
    return [
        at_least("prepare, w=1, to the bare tokenizer", fastest / one, 0.85, f"{sized / one:.2f} MB/s", words),
        at_least("prepare, w=64, to the bare tokenizer", fastest / many, 0.65, f"{sized / many:.2f} MB/s", words),
    ]


def _batches(documents: list[str]) -> list[list[str]]:
    batches: list[list[str]] = [[]]
    size = 0
    for document in documents:
        if size >= BATCH_CHARACTERS:
            batches.append([])
            size = 0
        batches[-1].append(document)
        size += len(document)
    return batches
