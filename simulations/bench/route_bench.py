"""Routing beside bare tokenisation, and the whole command from start to answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from ridgeway.client.sums.prepare import PrepareJob, prepare
from ridgeway.common.base.identity import create_identity, load_identity
from ridgeway.common.base.settings import DEFAULT, Confidence
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.routing.router import Router
from ridgeway.coordinator.solving.publish import RouterChoices, publish
from ridgeway.simulations.bench.bench_text import BenchText
from ridgeway.simulations.bench.measuring import Result, at_least, at_most, seconds_in_turns

MAX_PROMPTS = 2000


def make_release(encoder: TableEncoder, text: BenchText, work: Path) -> Path:
    """A release with all defaults over the benchmark's domains."""
    folder = work / "release"
    parts = []
    for domain in text.domains:
        job = PrepareJob((text.train(domain),), domain, DEFAULT.sampling, DEFAULT.holdout, ("text",), 2)
        parts.append(prepare(job, encoder, work / "release-cache").prepared)
    key = work / "bench.key"
    identity = load_identity(key) if key.exists() else create_identity(key)
    choices = RouterChoices(DEFAULT.weighting, DEFAULT.ridge, DEFAULT.normalise_columns, DEFAULT.selector, Confidence())
    publish(parts, encoder, choices, identity, folder)
    return folder


def bench_route(release: Path, text: BenchText) -> list[Result]:
    router = Router.load(release)
    bare = Tokenizer.from_file(str(release / "tokenizer.json"))
    prompts = text.prompts[:: max(1, len(text.prompts) // MAX_PROMPTS)]
    single, encode, many, batch = seconds_in_turns(
        lambda: _each(router.route, prompts),
        lambda: _each(lambda prompt: bare.encode(prompt, add_special_tokens=False), prompts),
        lambda: router.route_many(prompts),
        lambda: bare.encode_batch_fast(prompts, add_special_tokens=False),
    )
    tokens = sum(len(router.tokenizer.encode(prompt)) for prompt in prompts) / len(prompts)
    micro = 1e6 / len(prompts)
    about = f"for {len(prompts):,} prompts of {tokens:.0f} tokens"
    ours, theirs = f"{single * micro:.0f} µs a prompt", f"{encode * micro:.0f} µs {about}"
    ours_many, theirs_many = f"{many * micro:.0f} µs a prompt", f"{batch * micro:.0f} µs {about}"
    return [
        at_most("route, to tokenising the prompt", single / encode, 1.5, ours, theirs),
        at_least("route_many, to tokenising the batch", batch / many, 0.9, ours_many, theirs_many),
    ]


def _each(work: Callable[[str], object], prompts: list[str]) -> None:
    for prompt in prompts:
        work(prompt)


def bench_command(release: Path) -> list[Result]:
    """`ridgeway route` as a process: start, verify, load, answer."""
    command = [str(Path(sys.executable).with_name("ridgeway")), "route", str(release), "How many eggs are left?"]
    (seconds,) = seconds_in_turns(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5)
    size = sum(path.stat().st_size for path in release.iterdir()) / 1e6
    return [
        at_most("the command `ridgeway route`, seconds", seconds, 1.0, f"{seconds:.2f} s", "from start to answer"),
        at_most("a release, MB", size, 10.0, f"{size:.1f} MB", "all three files"),
    ]
