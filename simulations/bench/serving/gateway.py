"""What the gateway adds to an expert's own latency, to a stream's first piece, and 500 streams at once."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

from common.router import Router
from simulations.bench.measuring import Result, Tick, at_most, exactly, figure
from simulations.bench.serving.servers import Server, module, ridgeway_serve
from simulations.bench.serving.streams import Crowd, asked, crowd, one_stream, open_session
from simulations.bench.serving.wrk import load, write_script

CHAT = "/v1/chat/completions"
ROUNDS = 3
SECONDS = 3
FIRSTS = 150
STREAMS = 500
STREAMS_S = 120
PIECES, PACE_S = 20, 0.5
SETTLED_S = 40
"""By then every stream has been opened several times, so that buffers and pools have their size."""


def bench_gateway(release: Path, prompts: Sequence[str], work: Path, tick: Tick) -> list[Result]:
    with module("simulations.bench.serving.expert") as expert:
        experts = work / "experts.toml"
        experts.write_text(_experts(Router.load(release).domains, expert.url), encoding="utf-8")
        with ridgeway_serve(release, "--experts", str(experts)) as ours:
            return [
                *_latency(ours, expert, prompts, work, tick),
                *asyncio.run(_first_pieces(ours, expert, prompts, tick)),
                *_many_streams(ours, prompts, tick),
            ]


def _experts(domains: Sequence[str], url: str) -> str:
    return "\n".join(
        f'[experts."{domain}"]\nbase_url = "{url}/v1"\nmodel = "steady"\nmax_concurrent = {2 * STREAMS}\n'
        for domain in domains
    )


def ticks() -> int:
    return 2 * ROUNDS + 2 * FIRSTS + STREAMS_S


def _latency(ours: Server, expert: Server, prompts: Sequence[str], work: Path, tick: Tick) -> list[Result]:
    """One connection, whole answers, in turns."""
    bodies = [{"model": "auto", "messages": [{"role": "user", "content": prompt}]} for prompt in prompts]
    script = write_script(work / "chat.lua", bodies)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for taken, server in zip(times, (ours, expert), strict=True):
            taken.append(load(server.url + CHAT, script, connections=1, seconds=SECONDS).p50_ms)
            tick()
    through, direct = (statistics.median(taken) for taken in times)
    return [
        at_most(
            "a chat completion through the gateway, milliseconds added at the median",
            through - direct,
            3.0,
            f"{through:.2f} ms",
            f"{direct:.2f} ms asking the expert itself",
        )
    ]


async def _first_pieces(ours: Server, expert: Server, prompts: Sequence[str], tick: Tick) -> list[Result]:
    """One stream after another, by turns through the gateway and past it."""
    firsts: tuple[list[float], list[float]] = ([], [])
    async with open_session() as session:
        for number in range(FIRSTS):
            for taken, server in zip(firsts, (ours, expert), strict=True):
                body = asked("auto", prompts[number % len(prompts)], 3, 0.002)
                taken.append((await one_stream(session, server.url + CHAT, body)).first)
                tick()
    through, direct = (1000 * statistics.median(taken) for taken in firsts)
    return [
        at_most(
            "a stream's first piece through the gateway, milliseconds added at the median",
            through - direct,
            3.0,
            f"{through:.2f} ms",
            f"{direct:.2f} ms asking the expert itself",
        )
    ]


def _many_streams(ours: Server, prompts: Sequence[str], tick: Tick) -> list[Result]:
    memory: list[float] = []

    def each_second() -> None:
        memory.append(ours.resident_mb())
        tick()

    found = asyncio.run(
        crowd(
            ours.url + CHAT,
            lambda number: asked("auto", prompts[number % len(prompts)], PIECES, PACE_S),
            streams=STREAMS,
            seconds=STREAMS_S,
            each_second=each_second,
        )
    )
    return _crowd_results(found, memory)


def _crowd_results(found: Crowd, memory: Sequence[float]) -> list[Result]:
    settled, end = memory[min(SETTLED_S, len(memory) - 1)], memory[-1]
    what = f"{found.whole:,} whole streams, {found.pieces:,} pieces"
    wrong = ", ".join(f"{count} {kind}" for kind, count in found.wrong.items()) or "nothing went wrong"
    about = f"{STREAMS} streams at once for {STREAMS_S} s"
    return [
        exactly(f"{STREAMS} streams at once, streams that failed", sum(found.wrong.values()), 0, what, wrong),
        at_most(
            f"{STREAMS} streams at once, memory at the end to memory after {SETTLED_S} s",
            end / settled,
            1.05,
            f"{end:.0f} MB",
            f"{settled:.0f} MB, {about}",
        ),
        figure(
            f"{STREAMS} streams at once, the longest that a piece was on the way, ms",
            1000 * found.longest_way,
            f"{1000 * found.longest_way:.0f} ms",
            "from the expert to the client, all three on this machine",
        ),
    ]
