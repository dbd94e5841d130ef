"""The routing API beside a bare echo of the same body: with prompts of several lengths, under a
second load on the same cores, and with many idle connections; and a batch beside bare tokenisation
of its prompts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from http.client import HTTPConnection
from pathlib import Path
from socket import socket

from tokenizers import Tokenizer

from ridgeway.common.base.errors import InputError, ProcessError
from ridgeway.common.base.threads import cores
from ridgeway.common.cli.terminal import ticking
from ridgeway.simulations.bench.measuring import (
    Result,
    Tick,
    at_least,
    at_most,
    figure,
    medians,
    resident_bytes,
    seconds_in_turns,
)
from ridgeway.simulations.bench.serving.load import (
    Load,
    Server,
    ridgeway_serve,
    run_wrk,
    stand_in,
    write_script,
)

TOKENS = 160
SIZES = (16, TOKENS, 1600)
TOKENS_PER_TEXT = 200
BODIES = 256
BATCH = 64
CONNECTIONS = 8
BATCH_CONNECTIONS = 8
IDLE = 2000
MAX_MEMORY_MB = 512
SECONDS = 3
ROUNDS = 3
PAUSE_S = 0.3
SPIN = "while True: pass"


def prompts_of(
    release: Path, texts: Sequence[str], tokens: int = TOKENS, limit: int = BODIES
) -> list[str]:
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
        raise InputError(
            f"only {len(found)} texts have {tokens} tokens; serving is measured on"
            f" {BATCH} or more"
        )
    return found


def prompts_by_size(release: Path, texts: Sequence[str]) -> dict[int, list[str]]:
    """Prompts of each of SIZES; long ones are made of several texts."""
    found = {}
    for size in SIZES:
        each = 1 + size // TOKENS_PER_TEXT
        joined = [
            "\n".join(texts[start : start + each])
            for start in range(0, len(texts), each)
        ]
        found[size] = prompts_of(release, joined, size)
    return found


def _tokenizer(release: Path) -> Tokenizer:
    return Tokenizer.from_file(str(release / "tokenizer.json"))


def bench_routes(
    release: Path, prompts: dict[int, list[str]], work: Path
) -> list[Result]:
    """prompts: by their number of tokens; those of TOKENS are also sent in batches, and under other
    load.
    """
    scripts = {
        size: write_script(
            work / f"single-{size}.lua", [{"prompt": prompt} for prompt in own]
        )
        for size, own in prompts.items()
    }
    usual = prompts[TOKENS]
    batches = [
        usual[start : start + BATCH]
        for start in range(0, len(usual) - BATCH + 1, BATCH)
    ]
    many = write_script(work / "many.lua", [{"prompts": batch} for batch in batches])
    config = work / "serve.toml"
    config.write_text("keep_alive = 60\n")
    found: list[Result] = []
    with ticking("routes", (2 * len(scripts) + 5) * (ROUNDS + 1)) as tick:
        with (
            ridgeway_serve(release, "--config", str(config)) as ours,
            stand_in("echo") as echo,
        ):
            for size, script in scripts.items():
                about = f"{CONNECTIONS} connections, prompts of {size} tokens"
                found += _beside_echo(
                    f", {size} tokens", _both(ours, echo, script, tick), about
                )
            with _spinning(cores()):
                about = f"{cores()} processes beside them that never rest"
                found += _beside_echo(
                    " under other load", _both(ours, echo, scripts[TOKENS], tick), about
                )
            found += _with_idle_connections(ours, echo, scripts[TOKENS], tick)
        with ridgeway_serve(release) as ours:
            (batched,) = _in_turns(
                [(f"{ours.url}/v1/route", many)], BATCH_CONNECTIONS, tick
            )
    tokenizer = _tokenizer(release)
    times = seconds_in_turns(
        lambda: [
            tokenizer.encode_batch(batch, add_special_tokens=False) for batch in batches
        ],
        lambda: [
            tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            for batch in batches
        ],
        rounds=ROUNDS * 4,
    )
    bare, fast = (len(batches) * BATCH / seconds for seconds in times)
    return [*found, *_beside_tokenising(batched.rate * BATCH, bare, fast)]


def _both(ours: Server, echo: Server, script: Path, tick: Tick) -> list[Load]:
    return _in_turns(
        [(f"{ours.url}/v1/route", script), (f"{echo.url}/echo", script)],
        CONNECTIONS,
        tick,
    )


@contextmanager
def _spinning(count: int) -> Iterator[None]:
    """Processes that take what they can get of the cores."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _asked_once(connection: HTTPConnection) -> socket | None:
    """The socket over which a connection asks; it is another one if the first was closed."""
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    return connection.sock


def _with_idle_connections(
    ours: Server, echo: Server, script: Path, tick: Tick
) -> list[Result]:
    """Connections that have asked once and are kept open, at ours alone; then the same load as
    before.
    """
    before = resident_bytes("VmRSS", ours.pid)
    with ExitStack() as stack:
        idle = [HTTPConnection("127.0.0.1", ours.port, timeout=30) for _ in range(IDLE)]
        for each in idle:
            stack.callback(each.close)
        opened = [_asked_once(each) for each in idle]
        loads = _both(ours, echo, script, tick)
        if [_asked_once(each) for each in idle] != opened:
            raise ProcessError("connections that were idle were not kept open")
        grown = (resident_bytes("VmRSS", ours.pid) - before) / 1e3 / IDLE
        most = resident_bytes("VmHWM", ours.pid) / 1e6
    words = f"{grown:.1f} kB for each idle connection"
    name = f"memory after all this, with {IDLE:,} idle connections, MB"
    results = _beside_echo(
        f" with {IDLE:,} idle connections", loads, "none of them at the echo"
    )
    return [
        *results,
        at_most(name, most, MAX_MEMORY_MB, f"{most:.0f} MB at most", words),
    ]


def _in_turns(
    targets: Sequence[tuple[str, Path]], connections: int, tick: Tick
) -> list[Load]:
    """Each target's median over several turns, the first one for warming up."""
    loads: list[list[Load]] = [[] for _ in targets]
    for turn in range(ROUNDS + 1):
        for found, (url, script) in zip(loads, targets, strict=True):
            measured = run_wrk(
                url, script, connections=connections, seconds=SECONDS if turn else 1
            )
            # what was asked last is still being answered when the load has ended
            time.sleep(PAUSE_S)
            if turn:
                found.append(measured)
            tick()
    return [Load(*medians([astuple(each) for each in found])) for found in loads]


def _beside_echo(what: str, loads: Sequence[Load], about: str) -> list[Result]:
    routed, echoed = loads
    rates = f"{routed.rate:,.0f} a second", f"{echoed.rate:,.0f} a second, {about}"
    times = (f"{each.p99_ms:.2f} ms (median {each.p50_ms:.2f})" for each in loads)
    name = f"POST /v1/route{what}"
    slowest = routed.p99_ms / echoed.p99_ms
    return [
        at_least(
            f"{name}, requests a second to an echo's",
            routed.rate / echoed.rate,
            0.8,
            *rates,
        ),
        at_most(f"{name}, 99th percentile to an echo's", slowest, 1.5, *times),
    ]


def _beside_tokenising(ours: float, bare: float, fast: float) -> list[Result]:
    """Beside the library's quickest call, which leaves places in the text out as routing does, and
    its plain one.
    """
    name = f"POST /v1/route with {BATCH} prompts, prompts a second"
    done = f"{ours:,.0f} a second"
    about = f"in one process; {BATCH_CONNECTIONS} connections here"
    return [
        at_least(
            f"{name} to encode_batch_fast",
            ours / fast,
            0.8,
            done,
            f"{fast:,.0f} a second, {about}",
        ),
        figure(
            f"{name} to encode_batch",
            ours / bare,
            done,
            f"{bare:,.0f} a second, {about}",
        ),
    ]
