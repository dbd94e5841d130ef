"""The routing API beside a bare echo of the same body, and a batch beside bare tokenisation of its prompts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from simulations.bench.measuring import Result, Tick, at_least, at_most, seconds_in_turns
from simulations.bench.serving.servers import module, ridgeway_serve
from simulations.bench.serving.wrk import Load, load, write_script

TOKENS = 100
BODIES = 256
BATCH = 64
CONNECTIONS = 8
BATCH_CONNECTIONS = 2
SECONDS = 4
ROUNDS = 5


def prompts_of(release: Path, texts: Sequence[str], tokens: int = TOKENS, most: int = BODIES) -> list[str]:
    """The first so many tokens of texts that are long enough, as texts."""
    tokenizer = _tokenizer(release)
    found: list[str] = []
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) >= tokens:
            found.append(text[: encoding.offsets[tokens - 1][1]])
        if len(found) == most:
            break
    return found


def _tokenizer(release: Path) -> Tokenizer:
    return Tokenizer.from_file(str(release / "tokenizer.json"))


def bench_routes(release: Path, prompts: Sequence[str], work: Path, tick: Tick) -> list[Result]:
    tokenizer = _tokenizer(release)
    single = write_script(work / "single.lua", [{"prompt": prompt} for prompt in prompts])
    batches = [list(prompts[start : start + BATCH]) for start in range(0, len(prompts) - BATCH + 1, BATCH)]
    many = write_script(work / "many.lua", [{"prompts": batch} for batch in batches])
    with ridgeway_serve(release) as ours, module("simulations.bench.serving.echo") as echo:
        routed, echoed, batched = _in_turns(
            [
                (f"{ours.url}/v1/route", single, CONNECTIONS),
                (f"{echo.url}/echo", single, CONNECTIONS),
                (f"{ours.url}/v1/route", many, BATCH_CONNECTIONS),
            ],
            tick,
        )
    (bare,) = seconds_in_turns(lambda: _tokenise(tokenizer, batches), rounds=ROUNDS * 4)
    tokenised = len(batches) * BATCH / bare
    return [*_beside_echo(routed, echoed), _beside_tokenising(batched.rate * BATCH, tokenised)]


def _tokenise(tokenizer: Tokenizer, batches: Sequence[list[str]]) -> None:
    for batch in batches:
        tokenizer.encode_batch_fast(batch, add_special_tokens=False)


def _in_turns(targets: Sequence[tuple[str, Path, int]], tick: Tick) -> list[Load]:
    """Each target's median over several turns, the first one for warming up."""
    loads: list[list[Load]] = [[] for _ in targets]
    for turn in range(ROUNDS + 1):
        for found, (url, script, connections) in zip(loads, targets, strict=True):
            measured = load(url, script, connections=connections, seconds=SECONDS if turn else 1)
            if turn:
                found.append(measured)
            tick()
    return [_median(found) for found in loads]


def _median(loads: Sequence[Load]) -> Load:
    rates, middles, ends = zip(*((each.rate, each.p50_ms, each.p99_ms) for each in loads), strict=True)
    return Load(statistics.median(rates), statistics.median(middles), statistics.median(ends))


def ticks() -> int:
    return 3 * (ROUNDS + 1)


def _beside_echo(routed: Load, echoed: Load) -> list[Result]:
    about = f"{CONNECTIONS} connections, prompts of {TOKENS} tokens"
    return [
        at_least(
            "POST /v1/route, requests a second to an echo's",
            routed.rate / echoed.rate,
            0.5,
            f"{routed.rate:,.0f} a second",
            f"{echoed.rate:,.0f} a second, {about}",
        ),
        at_most(
            "POST /v1/route, 99th percentile to an echo's",
            routed.p99_ms / echoed.p99_ms,
            2.0,
            f"{routed.p99_ms:.2f} ms (median {routed.p50_ms:.2f})",
            f"{echoed.p99_ms:.2f} ms (median {echoed.p50_ms:.2f}), {about}",
        ),
    ]


def _beside_tokenising(ours: float, bare: float) -> Result:
    return at_least(
        f"POST /v1/route with {BATCH} prompts, prompts a second to tokenising them",
        ours / bare,
        0.8,
        f"{ours:,.0f} prompts a second",
        f"{bare:,.0f} a second, in one process",
    )
