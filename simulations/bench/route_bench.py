"""The tokenizer and routing beside the library's bare tokenisation, and the whole command from
start to answer.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ridgeway.client.audit import text_batches
from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.identity import create_identity, load_identity
from ridgeway.common.base.settings import DEFAULT, Confidence, WordFeatures
from ridgeway.common.base.threads import serial_tokenizers
from ridgeway.common.encoding.table_encoder import TableEncoder, with_words
from ridgeway.common.routing.hidden_state_table import compile_router
from ridgeway.common.routing.router import Router
from ridgeway.coordinator.solving.publish import RouterChoices, publish
from ridgeway.simulations.bench.bench_text import BenchText
from ridgeway.simulations.bench.measuring import (
    Result,
    Work,
    at_least,
    at_most,
    seconds_in_turns,
)

MAX_PROMPTS = 2000
MAX_BATCHES = 12
PROMPT_TOKENS = (16, 160)
TIMES = 10
"""How often we tokenise what the library tokenises once: else the time is too short to be measured.
"""


def make_release(encoder: TableEncoder, text: BenchText, work: Path) -> Path:
    """A release with all defaults over the benchmark's domains."""
    folder = work / "release"
    parts = []
    for domain in text.domains:
        job = PrepareJob(
            (text.train(domain),),
            domain,
            DEFAULT.sampling,
            DEFAULT.holdout,
            ("text",),
            2,
        )
        parts.append(prepare(job, encoder, work / "release-cache").prepared)
    key = work / "bench.key"
    identity = load_identity(key) if key.exists() else create_identity(key)
    choices = RouterChoices(
        DEFAULT.weighting,
        DEFAULT.ridge,
        DEFAULT.normalise_columns,
        DEFAULT.selector,
        Confidence(),
    )
    publish(parts, encoder, choices, identity, folder)
    return folder


def bench_tokenizer(encoder: TableEncoder, text: BenchText) -> list[Result]:
    """Documents to ids: on one thread beside the library on one thread, and on two threads beside
    one.
    """
    ours = encoder.tokenizer
    theirs = Tokenizer.from_str(encoder.definition.decode())
    batches = list(itertools.islice(text_batches(text.documents), MAX_BATCHES))
    size = sum(len(document.encode()) for batch in batches for document in batch) / 1e6
    ours.make_fast()

    def on(
        threads: int, encode: Callable[[list[str]], object], times: int = TIMES
    ) -> Work:
        def work() -> None:
            with serial_tokenizers(), ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(encode, batches * times):
                    pass

        return work

    by_the_library = on(
        1, lambda batch: theirs.encode_batch_fast(batch, add_special_tokens=False), 1
    )
    one, two, library = seconds_in_turns(
        on(1, ours.encode_raw), on(2, ours.encode_raw), by_the_library, rounds=3
    )
    one, two = one / TIMES, two / TIMES
    alone = f"{size / one:.1f} MB/s"
    return [
        at_least(
            "tokenising, one thread, to the library's",
            library / one,
            20,
            alone,
            f"{size / library:.2f} MB/s",
        ),
        at_least(
            "tokenising, two threads to one",
            one / two,
            1.8,
            f"{size / two:.1f} MB/s",
            alone,
        ),
    ]


def bench_route(release: Path, text: BenchText) -> list[Result]:
    router = Router.load(release)
    bare = Tokenizer.from_file(str(release / "tokenizer.json"))
    router.make_fast()
    prompts = text.prompts[:: max(1, len(text.prompts) // MAX_PROMPTS)]
    single, encode, many, batch = seconds_in_turns(
        lambda: _each(router.route, prompts),
        lambda: _each(
            lambda prompt: bare.encode(prompt, add_special_tokens=False), prompts
        ),
        lambda: router.route_many(prompts),
        lambda: bare.encode_batch_fast(prompts, add_special_tokens=False),
    )
    tokens = sum(len(router.tokenizer.encode(prompt)) for prompt in prompts) / len(
        prompts
    )
    micro = 1e6 / len(prompts)
    about = f"for {len(prompts):,} prompts of {tokens:.0f} tokens"
    ours = f"{single * micro:.0f} µs a prompt"
    theirs = f"{encode * micro:.0f} µs {about}"
    ours_many = f"{many * micro:.0f} µs a prompt"
    theirs_many = f"{batch * micro:.0f} µs {about}"
    return [
        at_most("route, to tokenising the prompt", single / encode, 0.15, ours, theirs),
        at_least(
            "route_many, to tokenising the batch",
            batch / many,
            10,
            ours_many,
            theirs_many,
        ),
    ]


def bench_words(encoder: TableEncoder, text: BenchText) -> list[Result]:
    """`route` with words by their letters beside `route` without. Weights are random: they do not
    change the time.
    """
    bare = TableEncoder(encoder.name, encoder.definition, encoder.table, encoder.scale)
    plain, worded = (
        _random_router(each, text.domains)
        for each in (bare, with_words(bare, WordFeatures()))
    )
    found = []
    for size in PROMPT_TOKENS:
        cut = (_beginning(plain, prompt, size) for prompt in text.prompts)
        prompts = [prompt for prompt in cut if prompt][:MAX_PROMPTS]
        if not prompts:
            continue
        ours, theirs = seconds_in_turns(
            partial(_each, worded.route, prompts), partial(_each, plain.route, prompts)
        )
        micro = 1e6 / len(prompts)
        name = f"route with words, to without, {size} tokens"
        found.append(
            at_most(
                name,
                ours / theirs,
                1.5,
                f"{ours * micro:.1f} µs",
                f"{theirs * micro:.1f} µs a prompt",
            )
        )
    return found


def _beginning(router: Router, prompt: str, size: int) -> str:
    """The first words of a prompt that have `size` tokens together; nothing if it has fewer."""
    words = router.tokenizer.words(prompt)
    counts = list(itertools.accumulate(len(ids) for _, ids in words))
    last = bisect_left(counts, size)
    return "".join(piece for piece, _ in words[: last + 1]) if last < len(words) else ""


def _random_router(encoder: TableEncoder, domains: Sequence[str]) -> Router:
    weights = np.random.default_rng(0).standard_normal(
        (encoder.width + 1, len(domains))
    )
    router = Router(
        tuple(domains),
        compile_router(encoder, DEFAULT.sampling, weights),
        encoder.tokenizer,
        DEFAULT.selector,
    )
    router.make_fast()
    return router


def _each(work: Callable[[str], object], prompts: list[str]) -> None:
    for prompt in prompts:
        work(prompt)


def bench_command(release: Path) -> list[Result]:
    """`ridgeway route` as a process: start, verify, load, answer."""
    command = [
        str(Path(sys.executable).with_name("ridgeway")),
        "route",
        str(release),
        "How many eggs are left?",
    ]
    (seconds,) = seconds_in_turns(
        lambda: subprocess.run(command, check=True, capture_output=True), rounds=5
    )
    size = sum(path.stat().st_size for path in release.iterdir()) / 1e6
    return [
        at_most(
            "the command `ridgeway route`, seconds",
            seconds,
            0.56,
            f"{seconds:.2f} s",
            "from start to answer",
        ),
        at_most("a release, MB", size, 10.0, f"{size:.1f} MB", "all three files"),
    ]
