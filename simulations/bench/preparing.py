"""The whole of `client prepare`, from files, beside the bare tokenizer on the same text and all cores.

Knows `prepare` and the tokenizers library. Knows nothing of how text is found.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from client.prepare import BATCH_CHARACTERS, Job, prepare
from common.encoder import Encoder
from common.settings import Sampling
from common.threads import serial_tokenizers
from simulations.bench.device import Device
from simulations.bench.measuring import Result, Tick, Work, at_least, seconds_in_turns
from simulations.bench.text import BenchText

CPU_AIMS: Final = {1: 0.85, 64: 0.65}
CARD_AIMS: Final = {1: 0.85, 64: 0.85}
ROUNDS: Final = 3
LONG_MB: Final = 300
"""Of so much text one round is long enough to be steady."""


def rounds(text: BenchText) -> int:
    return 1 if sum(path.stat().st_size for path in text.files) >= LONG_MB * 1e6 else ROUNDS


def ticks(text: BenchText) -> int:
    """How often `bench_prepare` ticks: two windows and two tokenizers, each once more to warm up."""
    return 4 * (rounds(text) + 1)


def bench_prepare(
    encoder: Encoder, text: BenchText, work: Path, device: Device, threads: int, tick: Tick
) -> list[Result]:
    """Reading, tokenising and summing against tokenising alone, in the faster of two ways, on the same documents."""
    aims = CARD_AIMS if device.is_card else CPU_AIMS
    documents = text.documents
    sized = sum(len(document.encode()) for document in documents) / 1e6

    def ways(some: BenchText, texts: list[str]) -> list[Work]:
        own = [partial(_prepare, encoder, some, window, work / "cache", device, threads) for window in aims]
        return [*own, *_bare(encoder, _batches(texts), threads)]

    first = replace(text, files=text.files[:1])
    for warm in ways(first, first.documents):
        warm()
        tick()
    *own, one, other = seconds_in_turns(*ways(text, documents), rounds=rounds(text), tick=tick, warm=False)
    fastest = min(one, other)
    words = f"tokenizer alone {sized / fastest:.2f} MB/s, {threads} threads"
    return [
        at_least(
            f"prepare, w={window}, to the bare tokenizer", fastest / taken, aim, f"{sized / taken:.2f} MB/s", words
        )
        for (window, aim), taken in zip(aims.items(), own, strict=True)
    ]


def _prepare(encoder: Encoder, text: BenchText, window: int, cache: Path, device: Device, threads: int) -> None:
    shutil.rmtree(cache, ignore_errors=True)
    job = Job(text.files, "bench", Sampling(window=window), 0.0, ("text",), threads, device.cards)
    prepare(job, encoder, cache)


def _bare(encoder: Encoder, batches: list[list[str]], threads: int) -> tuple[Work, Work]:
    """Tokenising alone: on threads of our own, and on the library's."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(encoder.definition.decode())

    def tokenise(batch: list[str]) -> None:
        backend.encode_batch_fast(batch, add_special_tokens=False)

    def own_threads() -> None:
        with serial_tokenizers(), ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(tokenise, batches):
                pass

    def library_threads() -> None:
        for batch in batches:
            tokenise(batch)

    return own_threads, library_threads


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
