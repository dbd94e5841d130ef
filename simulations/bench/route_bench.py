"""Tokenising and routing beside the library's bare tokenisation, and the whole command."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tokenizers import Tokenizer

from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.machine import serial_tokenizers
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.routing.router import Router
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.solving.solve import RouterChoices, draft, sign
from ridgeway.simulations.audit import text_batches
from ridgeway.simulations.bench.bench_inputs import BenchText, bench_text
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    runs_in_turns,
    spread_of,
)

_MAX_PROMPTS = 2000
_MAX_BATCHES = 12
_REPEATS = 10
"""We tokenise so often what the library tokenises once: else the time is too short."""
DEFAULT_CHOICES = RouterChoices.of_preset(DEFAULT)


def rows(options: BenchOptions) -> Iterator[Row]:
    text = bench_text(options)
    encoder = options.find_encoder()
    release = make_release(encoder, text, options.work)
    yield _tokenising(encoder, text)
    yield from _routing(release, text)
    yield from _command(release)


def make_release(encoder: TableEncoder, text: BenchText, work: Path) -> Path:
    """A release with all defaults over the domains of the text."""
    parts = []
    for domain, path in text.training.items():
        job = PrepareJob(
            (path,), domain, DEFAULT.sampling, DEFAULT.holdout, ("text",), cores()
        )
        parts.append(prepare(job, encoder, work / "release-cache").prepared)
    release = work / "release"
    identity = Identity.generate()
    sign(draft(parts, encoder, DEFAULT_CHOICES), identity, release)
    return release


def _tokenising(encoder: TableEncoder, text: BenchText) -> Row:
    """Documents to ids, both on one thread."""
    ours = encoder.tokenizer
    ours.make_fast()
    theirs = Tokenizer.from_str(encoder.definition.decode())
    bare = partial(theirs.encode_batch_fast, add_special_tokens=False)
    batches = list(itertools.islice(text_batches(text.documents), _MAX_BATCHES))
    megabytes = sum(len(text.encode()) for batch in batches for text in batch) / 1e6
    with serial_tokenizers():
        repeated, library = runs_in_turns(
            lambda: _each(ours.encode_many, batches * _REPEATS),
            lambda: _each(bare, batches),
            rounds=3,
        )
    seconds = median(repeated) / _REPEATS
    return Row(
        "tokenising, one thread, to the library's",
        f"{megabytes / seconds:.1f} MB/s",
        f"{megabytes / median(library):.2f} MB/s",
        median(library) / seconds,
        "≥ 20",
        spread_of(library, repeated, _REPEATS),
    )


def _routing(release: Path, text: BenchText) -> Iterator[Row]:
    router = Router.load(release)
    router.make_fast()
    bare = Tokenizer.from_file(str(release / "tokenizer.json"))
    prompts = text.prompts[:: max(1, len(text.prompts) // _MAX_PROMPTS)]
    single, encode, many, batch = runs_in_turns(
        lambda: _each(router.route, prompts),
        lambda: _each(partial(bare.encode, add_special_tokens=False), prompts),
        lambda: router.route_many(prompts),
        lambda: bare.encode_batch_fast(prompts, add_special_tokens=False),
    )
    micro = 1e6 / len(prompts)
    yield Row(
        "route, to tokenising the prompt",
        f"{median(single) * micro:.1f} µs a prompt",
        f"{median(encode) * micro:.1f} µs, {len(prompts):,} prompts",
        median(single) / median(encode),
        "≤ 0.15",
        spread_of(single, encode),
    )
    yield Row(
        "route_many, times as fast as tokenising the batch",
        f"{median(many) * micro:.1f} µs a prompt",
        f"{median(batch) * micro:.1f} µs",
        median(batch) / median(many),
        "≥ 10",
        spread_of(batch, many),
    )


def _command(release: Path) -> Iterator[Row]:
    """`ridgeway route` as a process: start, verify, load, answer."""
    prompt = "How many eggs are left?"
    command = [sys.executable, "-m", "ridgeway", "route", str(release), prompt]
    (runs,) = runs_in_turns(
        lambda: subprocess.run(command, check=True, capture_output=True)
    )
    megabytes = sum(path.stat().st_size for path in release.iterdir()) / 1e6
    yield Row(
        "the command `ridgeway route`, seconds",
        f"{median(runs):.2f} s",
        "",
        median(runs),
        "≤ 0.56",
        (min(runs), max(runs)),
    )
    size = f"{megabytes:.1f} MB"
    yield Row("a release, MB", size, "", megabytes, "≤ 10", timed=False)


def _each(work: Callable[[Any], object], items: Sequence[Any]) -> None:
    for item in items:
        work(item)
