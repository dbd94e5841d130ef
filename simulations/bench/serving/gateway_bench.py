"""What the gateway adds to an expert's own latency, to a stream's first piece, and 500 streams at
once.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

from ridgeway.common.cli.terminal import ticking
from ridgeway.common.routing.router import Router
from ridgeway.simulations.bench.measuring import (
    Result,
    Tick,
    at_most,
    exactly,
    figure,
    resident_bytes,
)
from ridgeway.simulations.bench.serving import load
from ridgeway.simulations.bench.serving.load import Server, StreamTotals, stream_request

CHAT = "/v1/chat/completions"
ROUNDS = 3
SECONDS = 3
FIRST_PIECES = 150
STREAMS = 500
STREAMS_S = 45
PIECES = 20
PACE_S = 0.5
MAX_ADDED_MS = 3.0
BUFFERS_FULL_S = 20
"""By then every stream has been opened twice or more, so that buffers and pools have their size."""


def bench_gateway(release: Path, prompts: Sequence[str], work: Path) -> list[Result]:
    with load.stand_in("expert") as expert:
        experts = work / "experts.toml"
        experts.write_text(
            _experts(Router.load(release).domains, expert.url), encoding="utf-8"
        )
        count = 2 * ROUNDS + 2 * FIRST_PIECES + STREAMS_S
        with (
            load.ridgeway_serve(release, "--experts", str(experts)) as ours,
            ticking("gateway", count) as tick,
        ):
            return [
                *_latency(ours, expert, prompts, work, tick),
                *asyncio.run(_first_pieces(ours, expert, prompts, tick)),
                *_many_streams(ours, prompts, tick),
            ]


def _experts(domains: Sequence[str], url: str) -> str:
    return "\n".join(
        f'[experts."{domain}"]\nbase_url = "{url}/v1"\nmodel = "steady"\nmax_concurrent'
        f" = {2 * STREAMS}\n"
        for domain in domains
    )


def _latency(
    ours: Server, expert: Server, prompts: Sequence[str], work: Path, tick: Tick
) -> list[Result]:
    """One connection, whole answers, in turns."""
    bodies = [
        {"model": "auto", "messages": [{"role": "user", "content": prompt}]}
        for prompt in prompts
    ]
    script = load.write_script(work / "chat.lua", bodies)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for taken, server in zip(times, (ours, expert), strict=True):
            taken.append(
                load.run_wrk(
                    server.url + CHAT, script, connections=1, seconds=SECONDS
                ).p50_ms
            )
            tick()
    return [
        _added(
            "a chat completion through the gateway",
            *(statistics.median(taken) for taken in times),
        )
    ]


async def _first_pieces(
    ours: Server, expert: Server, prompts: Sequence[str], tick: Tick
) -> list[Result]:
    """One stream after another, by turns through the gateway and past it."""
    firsts: tuple[list[float], list[float]] = ([], [])
    async with load.open_session() as session:
        for number in range(FIRST_PIECES):
            for taken, server in zip(firsts, (ours, expert), strict=True):
                body = stream_request("auto", prompts[number % len(prompts)], 3, 0.002)
                taken.append(
                    (await load.one_stream(session, server.url + CHAT, body)).first
                )
                tick()
    return [
        _added(
            "a stream's first piece through the gateway",
            *(1000 * statistics.median(each) for each in firsts),
        )
    ]


def _added(name: str, through_ms: float, direct_ms: float) -> Result:
    beside = f"{direct_ms:.2f} ms asking the expert itself"
    added = f"{name}, milliseconds added at the median"
    return at_most(
        added, through_ms - direct_ms, MAX_ADDED_MS, f"{through_ms:.2f} ms", beside
    )


def _many_streams(ours: Server, prompts: Sequence[str], tick: Tick) -> list[Result]:
    memory: list[float] = []

    def each_second() -> None:
        memory.append(resident_bytes("VmRSS", ours.pid) / 1e6)
        tick()

    found = asyncio.run(
        load.many_streams(
            ours.url + CHAT,
            lambda number: stream_request(
                "auto", prompts[number % len(prompts)], PIECES, PACE_S
            ),
            streams=STREAMS,
            seconds=STREAMS_S,
            each_second=each_second,
        )
    )
    return _stream_results(found, memory)


def _stream_results(found: StreamTotals, memory: Sequence[float]) -> list[Result]:
    settled = memory[min(BUFFERS_FULL_S, len(memory) - 1)]
    end = memory[-1]
    what = f"{found.whole:,} whole streams, {found.pieces:,} pieces"
    wrong = (
        ", ".join(f"{count} {kind}" for kind, count in found.wrong.items())
        or "nothing went wrong"
    )
    about = f"{STREAMS} streams at once"
    longest = 1000 * found.longest_way
    grown = f"{about}, memory at the end to memory after {BUFFERS_FULL_S} s"
    way = "from the expert to the client, all three on this machine"
    beside = f"{settled:.0f} MB, {about} for {STREAMS_S} s"
    return [
        exactly(
            f"{about}, streams that failed", sum(found.wrong.values()), 0, what, wrong
        ),
        at_most(grown, end / settled, 1.05, f"{end:.0f} MB", beside),
        figure(
            f"{about}, the longest that a piece was on the way, ms",
            longest,
            f"{longest:.0f} ms",
            way,
        ),
    ]
