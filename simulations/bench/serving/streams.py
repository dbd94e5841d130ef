"""Streams as a client sees them: when the first piece came, how long pieces were on the way, what went wrong.

Knows aiohttp and server-sent events. Knows nothing of gateways.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

LAST = b"[DONE]"


@dataclass(slots=True)
class Seen:
    """One stream: seconds to its first piece, its pieces, the longest that one was on the way, and whether it ended."""

    first: float = 0.0
    pieces: int = 0
    longest_way: float = 0.0
    whole: bool = False


@dataclass(slots=True)
class Crowd:
    """Many streams: how many were whole, how many pieces came, and what went wrong, by kind."""

    whole: int = 0
    pieces: int = 0
    longest_way: float = 0.0
    wrong: dict[str, int] = field(default_factory=dict)

    def note(self, seen: Seen) -> None:
        self.whole += seen.whole
        self.pieces += seen.pieces
        self.longest_way = max(self.longest_way, seen.longest_way)
        if not seen.whole:
            self.fail("cut short")

    def fail(self, kind: str) -> None:
        self.wrong[kind] = self.wrong.get(kind, 0) + 1


def asked(model: str, prompt: str, pieces: int, pace: float) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": model, "messages": [message], "stream": True, "max_tokens": pieces, "pace": pace}


async def one_stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Seen:
    began = time.perf_counter()
    seen = Seen()
    async with session.post(url, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            if LAST in line:
                seen.whole = True
                continue
            if not seen.pieces:
                seen.first = time.perf_counter() - began
            seen.pieces += 1
            seen.longest_way = max(seen.longest_way, time.time() - json.loads(line[6:])["sent"])
    return seen


def open_session(most: int = 0) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=most)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_read=60))


async def crowd(
    url: str, body: Callable[[int], dict[str, Any]], *, streams: int, seconds: float, each_second: Callable[[], None]
) -> Crowd:
    """So many streams at once for a while: whoever has its last piece asks again."""
    found = Crowd()
    end = time.monotonic() + seconds

    async def keep_asking(number: int) -> None:
        await asyncio.sleep(number / streams)  # not all in the same moment
        while time.monotonic() < end:
            try:
                found.note(await one_stream(session, url, body(number)))
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                found.fail(type(error).__name__)

    async def watch() -> None:
        while True:
            await asyncio.sleep(1)
            each_second()

    async with open_session() as session:
        watching = asyncio.create_task(watch())
        await asyncio.gather(*(keep_asking(number) for number in range(streams)))
        watching.cancel()
    return found
