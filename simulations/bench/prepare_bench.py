"""The whole of `client prepare`, from files, beside the bare tokenizer on the same documents."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.machine import serial_tokenizers
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import DEFAULT, Sampling, WordFeatures
from ridgeway.common.text.table_encoder import (
    TableEncoder,
    of_tokens_alone,
    with_words,
)
from ridgeway.simulations.audit import text_batches
from ridgeway.simulations.bench.bench_inputs import bench_text
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    Work,
    runs_in_turns,
    spread_of,
)


@dataclass(frozen=True, slots=True)
class PrepareCase:
    """words: whether features of words stand beside those of tokens."""

    name: str
    sampling: Sampling
    words: bool
    cpu_aim: str


_CASES: Final = (
    PrepareCase("default", DEFAULT.sampling, True, "≥ 2.5"),
    PrepareCase("default without words", DEFAULT.sampling, False, "≥ 3"),
    PrepareCase("w=64", Sampling(64), False, "≥ 5"),
    PrepareCase("w=1", Sampling(1), False, "≥ 12"),
)
_ROUNDS: Final = 3


def rows(options: BenchOptions) -> Iterator[Row]:
    """Reading, tokenising and summing, to the faster of two ways to tokenise alone."""
    text = bench_text(options)
    plain = of_tokens_alone(options.find_encoder())
    files = list(text.training.values())
    megabytes = sum(len(document.encode()) for document in text.documents) / 1e6
    contenders = [_prepare(case, plain, files, options) for case in _CASES]
    contenders += _bare(plain, text.documents)
    *taken, one, other = runs_in_turns(*contenders, rounds=_ROUNDS)
    bare = min(one, other, key=median)
    fastest = median(bare)
    for case, runs in zip(_CASES, taken, strict=True):
        seconds = median(runs)
        yield Row(
            f"prepare, {case.name}, to the bare tokenizer",
            f"{megabytes / seconds:.2f} MB/s",
            f"{megabytes / fastest:.2f} MB/s, {cores()} threads",
            fastest / seconds,
            "≥ 10" if options.gpus else case.cpu_aim,
            spread_of(bare, runs),
        )


def _prepare(
    case: PrepareCase, plain: TableEncoder, files: Sequence[Path], options: BenchOptions
) -> Work:
    encoder = with_words(plain, WordFeatures()) if case.words else plain
    cache = options.work / "cache"
    job = PrepareJob(
        tuple(files), "bench", case.sampling, 0.0, ("text",), cores(), options.gpus
    )

    def work() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        prepare(job, encoder, cache)

    return work


def _bare(encoder: TableEncoder, documents: Sequence[str]) -> list[Work]:
    """Tokenising alone: on threads of our own, and on the library's."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(encoder.definition.decode())
    tokenise = partial(backend.encode_batch_fast, add_special_tokens=False)
    batches = list(text_batches(documents))

    def own_threads() -> None:
        with serial_tokenizers(), ThreadPoolExecutor(cores()) as pool:
            for _ in pool.map(tokenise, batches):
                pass

    def library_threads() -> None:
        for batch in batches:
            tokenise(batch)

    return [own_threads, library_threads]
