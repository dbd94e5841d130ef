"""Benchmarks of text to sums and to decisions: `sums`, `prepare` and `route`."""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import Accumulator, add_states
from ridgeway.client.sums.prepare import Maker, PrepareJob, makers, prepare
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.machine import one_blas_thread, serial_tokenizers
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import DEFAULT, Sampling, WordFeatures
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics import Integers, Statistics
from ridgeway.common.text.table_encoder import (
    WORDS,
    TableEncoder,
    of_tokens_alone,
    with_words,
)
from ridgeway.common.text.tokenizer import Ids
from ridgeway.common.text.tokens import Tokens
from ridgeway.common.text.windows import window_starts
from ridgeway.coordinator.solving.solve import RouterChoices, draft, sign
from ridgeway.simulations.audit import text_batches
from ridgeway.simulations.bench.bench_inputs import (
    BenchText,
    bare_tokenizer,
    bench_text,
    draw,
    plain_tokens,
    random_encoder,
)
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    Work,
    once,
    runs_in_turns,
    spread_of,
)

# Exact sums beside the published way, on the same ids; and whether they are exact.
#
# Ours is measured from ids in the machine's memory to checked statistics. The published way embeds
# each token, appends a one, and adds float32 XᵀX and XᵀY batch by batch, from the same ids.


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


SUMS_CASES = (
    SumsCase(64, 49_152, 576, 4_000_000, 200_000, 4096, 1 << 17, "≥ 10"),
    SumsCase(1, 49_152, 576, 9_000_000, 200_000, 4096, 1 << 12, "≥ 50"),
)


def sums_rows(options: BenchOptions) -> Iterator[Row]:
    for case in SUMS_CASES:
        yield from _case_rows(case, random_encoder(case.rows, case.width))


def _case_rows(case: SumsCase, encoder: TableEncoder) -> Iterator[Row]:
    import torch

    name = f"sums, w={case.window}, h={case.width}"
    embeddings = torch.from_numpy(encoder.table).float()
    published = partial(published_seconds, embeddings, batch=case.batch)
    made = makers(encoder, Sampling(case.window), (), cores())
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


def our_statistics(made: Sequence[Maker], parts: Sequence[Tokens]) -> Statistics:
    """Threads take turns at as many accumulators as there may be, as in `prepare`."""
    threads = cores()
    accumulators = [make() for make in made]
    idle: SimpleQueue[Accumulator] = SimpleQueue()
    for accumulator in accumulators:
        idle.put(accumulator)

    def add(part: Tokens) -> None:
        accumulator = idle.get()
        try:
            accumulator.add(part)
        finally:
            idle.put(accumulator)

    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        list(pool.map(add, parts))
    state = reduce(add_states, (accumulator.state() for accumulator in accumulators))
    return accumulators[0].statistics(state, threads)


def defined_gram(table: NDArray[np.int16], window: int, part: Tokens) -> Integers:
    """Σ φφᵀ straight from its definition: φ is a window's mean, rounded half up, and a one."""
    starts = window_starts(part.lengths, window)
    counts = np.diff(starts, append=len(part.ids))[:, None]
    sums = np.add.reduceat(table[part.ids].astype(np.int64), starts)
    means = (2 * sums + counts) // (2 * counts)
    # float64 is exact here: the sums of integers stay below 2⁵³
    features = np.hstack((means, np.ones_like(counts))).astype(np.float64)
    gram: Integers = (features.T @ features).astype(np.int64)
    return gram


def published_seconds(embeddings: Any, ids: Ids, batch: int) -> float:
    import torch

    features = embeddings.shape[1] + 1
    tokens = torch.from_numpy(ids.astype(np.int64))
    labels = torch.eye(_DOMAINS)[tokens % _DOMAINS]
    ones = torch.ones((batch, 1))
    gram = torch.zeros((features, features))
    cross = torch.zeros((features, _DOMAINS))
    started = time.perf_counter()
    for start in range(0, len(tokens), batch):
        part = slice(start, start + batch)
        rows = embeddings[tokens[part]]
        samples = torch.cat([rows, ones[: len(rows)]], dim=1)
        gram += samples.T @ samples
        cross += samples.T @ labels[part]
    return time.perf_counter() - started


def _first(part: Tokens, tokens: int) -> Tokens:
    """The first tokens of a batch, the last document cut."""
    ends = np.minimum(np.cumsum(part.lengths), tokens)
    kept = np.diff(ends, prepend=0)
    return plain_tokens(part.ids[: int(ends[-1])], kept[kept > 0])


# The whole of `client prepare`, from files, beside SmolLM2's tokenizer on the same documents.


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


def prepare_rows(options: BenchOptions) -> Iterator[Row]:
    """Reading, tokenising and summing, to the faster of two ways to tokenise alone."""
    text = bench_text(options)
    plain = of_tokens_alone(options.find_encoder())
    files = list(text.training.values())
    megabytes = sum(len(document.encode()) for document in text.documents) / 1e6
    contenders = [_prepare(case, plain, files, options) for case in _CASES]
    contenders += _bare(text.documents)
    *taken, one, other = runs_in_turns(*contenders, rounds=_ROUNDS)
    bare = min(one, other, key=median)
    fastest = median(bare)
    for case, runs in zip(_CASES, taken, strict=True):
        seconds = median(runs)
        yield Row(
            f"prepare, {case.name}, to SmolLM2's bare tokenizer",
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


def _bare(documents: Sequence[str]) -> list[Work]:
    """Tokenising alone: on threads of our own, and on the library's."""
    tokenise = partial(bare_tokenizer().encode_batch_fast, add_special_tokens=False)
    batches = list(text_batches(documents))

    def own_threads() -> None:
        with serial_tokenizers(), ThreadPoolExecutor(cores()) as pool:
            for _ in pool.map(tokenise, batches):
                pass

    def library_threads() -> None:
        for batch in batches:
            tokenise(batch)

    return [own_threads, library_threads]


# Tokenising and routing beside bare tokenisation by the tokenizers library with SmolLM2's
# definition, and the whole command.


_MAX_PROMPTS = 2000
_MAX_BATCHES = 12
_REPEATS = 10
"""We tokenise so often what the library tokenises once: else the time is too short."""
DEFAULT_CHOICES = RouterChoices.of_preset(DEFAULT)


def route_rows(options: BenchOptions) -> Iterator[Row]:
    text = bench_text(options)
    encoder = options.find_encoder(WORDS)
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
    bare = partial(bare_tokenizer().encode_batch_fast, add_special_tokens=False)
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
        "tokenising by pieces, one thread, to SmolLM2's bare tokenizer",
        f"{megabytes / seconds:.1f} MB/s",
        f"{megabytes / median(library):.2f} MB/s",
        median(library) / seconds,
        "≥ 20",
        spread_of(library, repeated, _REPEATS),
    )


def _routing(release: Path, text: BenchText) -> Iterator[Row]:
    router = Router.load(release)
    router.make_fast()
    bare = bare_tokenizer()
    prompts = text.prompts[:: max(1, len(text.prompts) // _MAX_PROMPTS)]
    single, encode, many, batch = runs_in_turns(
        lambda: _each(router.route, prompts),
        lambda: _each(partial(bare.encode, add_special_tokens=False), prompts),
        lambda: router.route_many(prompts),
        lambda: bare.encode_batch_fast(prompts, add_special_tokens=False),
    )
    micro = 1e6 / len(prompts)
    yield Row(
        "route, to tokenising the prompt by SmolLM2's",
        f"{median(single) * micro:.1f} µs a prompt",
        f"{median(encode) * micro:.1f} µs, {len(prompts):,} prompts",
        median(single) / median(encode),
        "≤ 0.15",
        spread_of(single, encode),
    )
    yield Row(
        "route_many, times as fast as tokenising the batch by SmolLM2's",
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
