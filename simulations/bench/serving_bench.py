"""`ridgeway serve` under load on loopback: routing beside a bare echo and beside bare tokenisation,
the gateway beside the expert itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.routing.router import Router
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.common.text.table_encoder import WORDS
from ridgeway.simulations.bench.bench_inputs import bare_tokenizer, bench_text
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    cpu_seconds,
    running,
    seconds_in_turns,
    spread_of,
)
from ridgeway.simulations.bench.stand_ins import CHAT
from ridgeway.simulations.bench.sums_bench import make_release

ROUTE = "/v1/route"
TOKENS = 160
_SIZES = (16, TOKENS, 1600)
BODIES = 64
CONNECTIONS = 8
_ROUNDS = 3
SECONDS = 3.0
CPU_TURNS = 40
CPU_TURN_S = 0.2
MIXED_CONNECTIONS = 4
MIXED_CHARACTERS = 160
"""Of prompts of this length the table is sure of some."""
FIRST_PIECES = 150
STREAMS = 500
STREAMS_S = 45.0
PIECES = 20
PACE_S = 0.5


def serving_rows(options: BenchOptions) -> Iterator[Row]:
    text = bench_text(options)
    release = make_release(options.find_encoder(WORDS), text, options.work)
    yield from release_rows(release, "\n".join(text.documents), options.work)
    reading = options.find_encoder(WORDS + SENTENCE)
    folder = options.work / "reading"
    folder.mkdir()
    with_sentences = make_release(reading, text, folder)
    yield from mixed_rows(with_sentences, text.prompts, options.work)


def mixed_rows(release: Path, prompts: Sequence[str], work: Path) -> Iterator[Row]:
    """What the table decides, alone and beside prompts whose sentences are read."""
    router = Router.load(release)
    short = [prompt[:MIXED_CHARACTERS] for prompt in prompts]
    reads = router.reads_sentences(short)
    by_table, by_sentences = (
        [
            {"prompt": text}
            for text, read in zip(short, reads, strict=True)
            if read is kind
        ]
        for kind in (False, True)
    )
    if not by_table or not by_sentences:
        raise ProcessError("there are no prompts of both kinds to measure with")
    with ridgeway_serve(work, str(release)) as ours:
        few = MIXED_CONNECTIONS
        alone = _middle(loads_in_turns([(ours, ROUTE)], by_table, few)[0])
        beside, reading = uvloop.run(_both(ours, by_table, by_sentences))
    yield Row(
        "99th percentile of prompts by the table, beside others that are read, to alone",
        beside.words,
        alone.words,
        beside.p99_ms / alone.p99_ms,
    )
    yield Row(
        "99th percentile of prompts whose sentences are read, milliseconds",
        reading.words,
        f"{len(by_sentences)} of {len(short)} prompts are read",
        reading.p99_ms,
    )


async def _both(ours: Server, table: Sequence[Any], sentences: Sequence[Any]) -> Any:
    """The loads of two kinds of prompts at a time."""
    loads = (
        put_load(ours, ROUTE, prompts, MIXED_CONNECTIONS)
        for prompts in (table, sentences)
    )
    return await asyncio.gather(*loads)


def release_rows(release: Path, text: str, work: Path) -> Iterator[Row]:
    with gateway(release, work) as (ours, expert):
        for size in _SIZES:
            prompts = prompts_of(text, size)
            yield from _route_rows(size, prompts, ours, expert)
        usual = prompts_of(text, TOKENS)
        yield _batch_row(usual, ours)
        yield from _chat_rows(usual, ours, expert)
        yield uvloop.run(_first_piece_row(usual, ours, expert))
        yield uvloop.run(many_streams_row(usual, ours))


def prompts_of(text: str, size: int) -> list[str]:
    """Stretches of the text of this many of SmolLM2's tokens."""
    # no token of ordinary text has more than ten characters on average
    start = text[: 10 * size * BODIES]
    offsets = bare_tokenizer().encode(start, add_special_tokens=False).offsets
    return [
        start[offsets[first][0] : offsets[first + size - 1][1]]
        for first in range(0, len(offsets) - size + 1, size)
    ][:BODIES]


# Servers


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def stand_in(work: Path) -> Iterator[Server]:
    """An echo that is an expert, too."""
    port = free_port()
    module = "ridgeway.simulations.bench.stand_ins"
    command = [sys.executable, "-m", module, str(port)]
    with running(command, "Uvicorn running", work / f"{port}.log") as pid:
        yield Server(port, pid)


@contextmanager
def ridgeway_serve(work: Path, *words: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "ridgeway", "serve", *words, "--port", str(port)]
    with running(command, "serving", work / f"{port}.log") as pid:
        yield Server(port, pid)


@contextmanager
def gateway(release: Path, work: Path) -> Iterator[tuple[Server, Server]]:
    """`ridgeway serve` before one expert for all domains, and that expert."""
    with stand_in(work) as expert:
        experts = work / "experts.toml"
        experts.write_text(
            "\n".join(
                f'[experts."{domain}"]\nbase_url = "{expert.url}/v1"\n'
                f'model = "steady"\nmax_concurrent = {2 * STREAMS}\n'
                for domain in Router.load(release).domains
            )
        )
        with ridgeway_serve(work, str(release), "--experts", str(experts)) as ours:
            yield ours, expert


# Short requests


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second, milliseconds of a request; cpu_ms: of the server."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float

    @property
    def words(self) -> str:
        return f"{self.p99_ms:.2f} ms (median {self.p50_ms:.2f})"


def loads_in_turns(
    targets: Sequence[tuple[Server, str]],
    bodies: Sequence[Any],
    connections: int = CONNECTIONS,
) -> list[list[Load]]:
    """The loads of each server's path, over several turns."""
    turns = [
        [uvloop.run(put_load(*target, bodies, connections)) for target in targets]
        for _ in range(_ROUNDS + 1)
    ][1:]  # the first one warms up
    return [list(loads) for loads in zip(*turns, strict=True)]


def _middle(loads: Sequence[Load]) -> Load:
    """The one with the median rate."""
    return sorted(loads, key=lambda load: load.rate)[len(loads) // 2]


async def put_load(
    server: Server,
    path: str,
    bodies: Sequence[Any],
    connections: int,
    seconds: float = SECONDS,
) -> Load:
    """Each connection sends its next request when it has its answer, and one at least."""
    requests = [_request(server, path, body) for body in bodies]
    started = time.monotonic()
    ran = cpu_seconds(server.pid)
    end = started + seconds
    asked = [
        _keep_asking(server, requests[index % len(requests) :] + requests, end)
        for index in range(connections)
    ]
    times = sorted(itertools.chain(*await asyncio.gather(*asked)))
    rate = len(times) / (time.monotonic() - started)
    cpu_ms = (cpu_seconds(server.pid) - ran) / len(times) * 1e3
    middle, near_end = (times[len(times) * share // 100] for share in (50, 99))
    return Load(rate, middle * 1e3, near_end * 1e3, cpu_ms)


def _cpu_ratios(
    ours: tuple[Server, str], other: tuple[Server, str], bodies: Sequence[Any]
) -> tuple[list[float], float, float]:
    """Processor time a request to that of another server, in many short turns, so that a busy
    moment of the machine meets both; then the medians of both, in milliseconds.
    """
    turns = [
        [uvloop.run(put_load(*target, bodies, 1, CPU_TURN_S)).cpu_ms for target in pair]
        for pair in [(ours, other)] * (CPU_TURNS + 1)
    ][1:]  # the first one warms up
    own, others = (statistics.median(column) for column in zip(*turns, strict=True))
    return [mine / yours for mine, yours in turns], own, others


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    several = values if len(values) > 1 else [*values, *values]
    quarter, _, three_quarters = statistics.quantiles(several, method="inclusive")
    return quarter, three_quarters


def _ratios(values: Sequence[float]) -> str:
    return "ratios {:.2f} to {:.2f}".format(*_middle_half(values))


def _request(server: Server, path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def _keep_asking(
    server: Server, requests: Sequence[bytes], end: float
) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    times = list[float]()
    with closing(writer):
        for request in itertools.cycle(requests):
            asked = time.monotonic()
            if asked > end and times:
                break
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if not head.startswith(b"HTTP/1.1 200") or not length:
                raise ProcessError(f"a request failed: {head.decode(errors='replace')}")
            await reader.readexactly(int(length[1]))
            times.append(time.monotonic() - asked)
    return times


def _route_rows(
    size: int, prompts: Sequence[str], ours: Server, echo: Server
) -> Iterator[Row]:
    bodies = [{"prompt": prompt} for prompt in prompts]
    targets = [(ours, ROUTE), (echo, "/echo")]
    our_loads, echo_loads = loads_in_turns(targets, bodies)
    routed, echoed = _middle(our_loads), _middle(echo_loads)
    name = f"POST {ROUTE}, {size} tokens"
    yield Row(
        f"{name}, requests a second to an echo's",
        f"{routed.rate:,.0f} a second",
        f"{echoed.rate:,.0f} a second",
        routed.rate / echoed.rate,
        "≥ 0.8",
        spread_of(
            [load.rate for load in our_loads], [load.rate for load in echo_loads]
        ),
    )
    yield Row(
        f"{name}, 99th percentile to an echo's",
        routed.words,
        echoed.words,
        routed.p99_ms / echoed.p99_ms,
        "≤ 1.5",
        spread_of(
            [load.p99_ms for load in our_loads], [load.p99_ms for load in echo_loads]
        ),
    )
    if size == TOKENS:
        ratios, own, others = _cpu_ratios((ours, ROUTE), (echo, "/echo"), bodies)
        yield Row(
            f"{name}, processor time to an echo's",
            f"{own:.3f} ms (middle half of {_ratios(ratios)})",
            f"{others:.3f} ms",
            statistics.median(ratios),
            "≤ 1.15",
        )


def _batch_row(prompts: list[str], ours: Server) -> Row:
    (loads,) = loads_in_turns([(ours, ROUTE)], [{"prompts": prompts}])
    bare = bare_tokenizer()
    (seconds,) = seconds_in_turns(
        lambda: bare.encode_batch_fast(prompts, add_special_tokens=False)
    )
    rates = [load.rate * len(prompts) for load in loads]
    routed = statistics.median(rates)
    tokenised = len(prompts) / seconds
    return Row(
        f"POST {ROUTE} with {len(prompts)} prompts, to tokenising them by SmolLM2's",
        f"{routed:,.0f} prompts a second",
        f"{tokenised:,.0f} a second",
        routed / tokenised,
        "≥ 0.8",
        (min(rates) / tokenised, max(rates) / tokenised),
    )


# The gateway


def chat(prompt: str) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": prompt}]}


def _chat_rows(prompts: Sequence[str], ours: Server, expert: Server) -> Iterator[Row]:
    bodies = [chat(prompt) for prompt in prompts]
    loads = loads_in_turns([(ours, CHAT), (expert, CHAT)], bodies, connections=1)
    own_ms, expert_ms = ([load.p50_ms for load in runs] for runs in loads)
    yield _added("a chat completion", own_ms, expert_ms, "≤ 1")
    ratios, own, others = _cpu_ratios((ours, CHAT), (expert, CHAT), bodies)
    yield Row(
        "a chat completion through the gateway, milliseconds of its processor",
        f"{own:.2f} ms",
        f"{others:.2f} ms at the expert ({_ratios(ratios)})",
        own,
        "≤ 1",
    )


async def _first_piece_row(prompts: Sequence[str], *servers: Server) -> Row:
    """One stream after another, by turns."""
    firsts: list[list[float]] = [[] for _ in servers]
    async with open_session() as session:
        for number in range(FIRST_PIECES):
            for taken, server in zip(firsts, servers, strict=True):
                prompt = prompts[number % len(prompts)]
                taken.append(await stream(session, server, prompt, 3, 0.002))
    ours, expert = ([1e3 * seconds for seconds in taken] for taken in firsts)
    return _added("a stream's first piece", ours, expert, "≤ 3")


def _added(what: str, ours: Sequence[float], expert: Sequence[float], aim: str) -> Row:
    """Milliseconds of runs that took turns; the spread is that of the middle half of them."""
    ours_ms = statistics.median(ours)
    expert_ms = statistics.median(expert)
    added = [mine - bare for mine, bare in zip(ours, expert, strict=True)]
    return Row(
        f"{what} through the gateway, milliseconds added",
        f"{ours_ms:.2f} ms",
        f"{expert_ms:.2f} ms without",
        ours_ms - expert_ms,
        aim,
        _middle_half(added),
    )


def open_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=timeout)


async def stream(
    session: aiohttp.ClientSession,
    server: Server,
    prompt: str,
    pieces: int,
    pace: float,
) -> float:
    """The seconds to the first piece of a stream, which is read to its end."""
    body = chat(prompt) | {"stream": True, "max_tokens": pieces, "pace": pace}
    started = time.perf_counter()
    first = 0.0
    last = b""
    async with session.post(server.url + CHAT, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: "):
                first = first or time.perf_counter() - started
                last = line
    if b"[DONE]" not in last:
        raise ProcessError("a stream was cut short")
    return first


async def many_streams_row(prompts: Sequence[str], ours: Server) -> Row:
    """Many streams at once; each client asks again when it has its last piece."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + STREAMS_S

    async def keep_asking(number: int) -> None:
        await asyncio.sleep(number / STREAMS)  # not all at the same moment
        while time.monotonic() < end:
            prompt = prompts[number % len(prompts)]
            try:
                await stream(session, ours, prompt, PIECES, PACE_S)
                counts["whole"] += 1
            except (aiohttp.ClientError, TimeoutError, ProcessError):
                counts["failed"] += 1

    async with open_session() as session:
        await asyncio.gather(*map(keep_asking, range(STREAMS)))
    return Row(
        f"{STREAMS} streams at once, streams that failed",
        f"{counts['failed']} failed",
        f"{counts['whole']:,} whole",
        counts["failed"],
        "≤ 0",
    )
