"""The whole of `client prepare`, from files: its speed beside the bare tokenizer's, and its memory
on a gigabyte.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ridgeway.client.audit import text_batches
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.settings import DEFAULT, Sampling, WordFeatures
from ridgeway.common.base.threads import serial_tokenizers
from ridgeway.common.cli.terminal import ticking
from ridgeway.common.encoding.table_encoder import (
    TableEncoder,
    of_tokens_alone,
    with_words,
)
from ridgeway.simulations.bench.bench_text import BenchText
from ridgeway.simulations.bench.device import Device
from ridgeway.simulations.bench.measuring import (
    Result,
    Work,
    at_least,
    at_most,
    peak_gb,
    seconds_in_turns,
)

PLAIN: Final = "default without words"
SAMPLINGS: Final = {
    "default": DEFAULT.sampling,
    PLAIN: DEFAULT.sampling,
    "w=64": Sampling(64),
    "w=1": Sampling(1),
}
"""What is summed; by default with the features of words, else without them."""
CPU_AIMS: Final = {"default": 2.5, PLAIN: 3.0, "w=64": 5.0, "w=1": 12.0}
CARD_AIMS: Final = {"default": 10.0, PLAIN: 10.0, "w=64": 10.0, "w=1": 10.0}
ROUNDS: Final = 3
STEADY_MB: Final = 300
"""Of so much text one round is long enough to be steady."""

LARGE_BYTES = 10**9
MAX_MEMORY_GB: Final = 1.5
POLL_S: Final = 0.02


def bench_prepare(
    encoder: TableEncoder, text: BenchText, work: Path, device: Device, threads: int
) -> list[Result]:
    """Reading, tokenising and summing against tokenising alone, in the faster of two ways, on the
    same documents.
    """
    aims = CARD_AIMS if device.is_card else CPU_AIMS
    documents = text.documents
    plain = of_tokens_alone(encoder)
    encoders = {
        name: with_words(encoder, WordFeatures()) if name == "default" else plain
        for name in aims
    }
    sized = sum(len(document.encode()) for document in documents) / 1e6

    def ways(some: BenchText, texts: list[str]) -> list[Work]:
        own = [
            partial(
                _prepare,
                encoders[name],
                some,
                SAMPLINGS[name],
                work / "cache",
                device,
                threads,
            )
            for name in aims
        ]
        return [*own, *_bare(encoder, list(text_batches(texts)), threads)]

    first = replace(text, files=text.files[:1])
    warming = ways(first, first.documents)
    timed = ways(text, documents)
    rounds = (
        1
        if sum(path.stat().st_size for path in text.files) >= STEADY_MB * 1e6
        else ROUNDS
    )
    with ticking("prepare", len(timed) * (rounds + 1)) as tick:
        for warm in warming:
            warm()
            tick()
        *own, one, other = seconds_in_turns(
            *timed, rounds=rounds, tick=tick, warm=False
        )
    fastest = min(one, other)
    words = f"tokenizer alone {sized / fastest:.2f} MB/s, {threads} threads"
    return [
        at_least(
            f"prepare, {name}, to the bare tokenizer",
            fastest / taken,
            aim,
            f"{sized / taken:.2f} MB/s",
            words,
        )
        for (name, aim), taken in zip(aims.items(), own, strict=True)
    ]


def _prepare(
    encoder: TableEncoder,
    text: BenchText,
    sampling: Sampling,
    cache: Path,
    device: Device,
    threads: int,
) -> None:
    shutil.rmtree(cache, ignore_errors=True)
    job = PrepareJob(
        text.files, "bench", sampling, 0.0, ("text",), threads, device.cards
    )
    prepare(job, encoder, cache)


def _bare(
    encoder: TableEncoder, batches: list[list[str]], threads: int
) -> tuple[Work, Work]:
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


def bench_memory(text: BenchText, work: Path) -> list[Result]:
    """The corpus is the benchmark's own text, over and over, until it is large enough."""
    corpus = work / "large.jsonl"
    lines = itertools.cycle(
        [
            json.dumps({"text": each}, ensure_ascii=False).encode() + b"\n"
            for each in text.documents
        ]
    )
    size = 0
    with corpus.open("wb") as file:
        while size < LARGE_BYTES:
            size += file.write(next(lines))
    words = [
        str(corpus),
        "--domain",
        "large",
        "--out",
        str(work / "large.stats"),
        "--fresh",
        "--json",
    ]
    done, peak = _measured(
        [str(Path(sys.executable).with_name("ridgeway")), "client", "prepare", *words]
    )
    corpus.unlink()
    about = f"{done['tokens'] / 1e6:.0f} M tokens in {done['seconds']:.0f} s"
    return [
        at_most(
            "prepare on 1 GB, memory in GB",
            peak,
            MAX_MEMORY_GB,
            f"{peak:.2f} GB",
            about,
        )
    ]


def _measured(command: list[str]) -> tuple[dict[str, Any], float]:
    """What a command prints, and its largest resident size in gigabytes, looked at until it
    ends.
    """
    largest = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            largest = max(largest, peak_gb(process.pid))
            time.sleep(POLL_S)
        printed = process.stdout.read() if process.stdout else b""
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(printed), largest
