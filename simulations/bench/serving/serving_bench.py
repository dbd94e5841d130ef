"""The routing API beside a bare echo of the same body, and a batch beside bare tokenisation of its prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from tokenizers import Tokenizer

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.terminal import ticking
from ridgeway.simulations.bench.measuring import Result, Tick, at_least, at_most, figure, medians, seconds_in_turns
from ridgeway.simulations.bench.serving.load import Load, ridgeway_serve, run_wrk, stand_in, write_script

TOKENS = 100
BODIES = 256
BATCH = 64
CONNECTIONS = 8
BATCH_CONNECTIONS = 8
SECONDS = 4
ROUNDS = 5
PAUSE_S = 0.3


def prompts_of(release: Path, texts: Sequence[str], tokens: int = TOKENS, limit: int = BODIES) -> list[str]:
    """The first tokens of texts that are long enough, as texts."""
    tokenizer = _tokenizer(release)
    found: list[str] = []
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) >= tokens:
            found.append(text[: encoding.offsets[tokens - 1][1]])
        if len(found) == limit:
            break
    if len(found) < BATCH:
        raise InputError(f"only {len(found)} texts have {tokens} tokens; serving is measured on {BATCH} or more")
    return found


def _tokenizer(release: Path) -> Tokenizer:
    return Tokenizer.from_file(str(release / "tokenizer.json"))


def bench_routes(release: Path, prompts: Sequence[str], work: Path) -> list[Result]:
    tokenizer = _tokenizer(release)
    single = write_script(work / "single.lua", [{"prompt": prompt} for prompt in prompts])
    batches = [list(prompts[start : start + BATCH]) for start in range(0, len(prompts) - BATCH + 1, BATCH)]
    many = write_script(work / "many.lua", [{"prompts": batch} for batch in batches])
    with ticking("routes", 3 * (ROUNDS + 1)) as tick:
        with ridgeway_serve(release) as ours, stand_in("echo") as echo:
            targets = [(f"{ours.url}/v1/route", single), (f"{echo.url}/echo", single)]
            routed, echoed = _in_turns(targets, CONNECTIONS, tick)
        with ridgeway_serve(release) as ours:
            (batched,) = _in_turns([(f"{ours.url}/v1/route", many)], BATCH_CONNECTIONS, tick)
    times = seconds_in_turns(
        lambda: [tokenizer.encode_batch(batch, add_special_tokens=False) for batch in batches],
        lambda: [tokenizer.encode_batch_fast(batch, add_special_tokens=False) for batch in batches],
        rounds=ROUNDS * 4,
    )
    bare, fast = (len(batches) * BATCH / seconds for seconds in times)
    return [*_beside_echo(routed, echoed), *_beside_tokenising(batched.rate * BATCH, bare, fast)]


def _in_turns(targets: Sequence[tuple[str, Path]], connections: int, tick: Tick) -> list[Load]:
    """Each target's median over several turns, the first one for warming up."""
    loads: list[list[Load]] = [[] for _ in targets]
    for turn in range(ROUNDS + 1):
        for found, (url, script) in zip(loads, targets, strict=True):
            measured = run_wrk(url, script, connections=connections, seconds=SECONDS if turn else 1)
            time.sleep(PAUSE_S)  # what was asked last is still being answered when the load has ended
            if turn:
                found.append(measured)
            tick()
    return [Load(*medians([astuple(each) for each in found])) for found in loads]


def _beside_echo(routed: Load, echoed: Load) -> list[Result]:
    about = f"{CONNECTIONS} connections, prompts of {TOKENS} tokens"
    rates = f"{routed.rate:,.0f} a second", f"{echoed.rate:,.0f} a second, {about}"
    ours, theirs = (f"{each.p99_ms:.2f} ms (median {each.p50_ms:.2f})" for each in (routed, echoed))
    slowest = routed.p99_ms / echoed.p99_ms
    return [
        at_least("POST /v1/route, requests a second to an echo's", routed.rate / echoed.rate, 0.8, *rates),
        at_most("POST /v1/route, 99th percentile to an echo's", slowest, 1.5, ours, f"{theirs}, {about}"),
    ]


def _beside_tokenising(ours: float, bare: float, fast: float) -> list[Result]:
    """Beside the library's quickest call, which leaves places in the text out as routing does, and its plain one."""
    name, done = f"POST /v1/route with {BATCH} prompts, prompts a second", f"{ours:,.0f} a second"
    about = f"in one process; {BATCH_CONNECTIONS} connections here"
    return [
        at_least(f"{name} to encode_batch_fast", ours / fast, 0.8, done, f"{fast:,.0f} a second, {about}"),
        figure(f"{name} to encode_batch", ours / bare, done, f"{bare:,.0f} a second, {about}"),
    ]
