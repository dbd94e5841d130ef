"""Servers in processes of their own on loopback, and load on them: short requests made by wrk, and
streams of events.

wrk is a program in C that takes little of the machine itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.deploy.processes import Child, free_port, last_words, script

SCRIPT = """
local bodies = {{
{bodies}
}}
local place = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  place = place % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[place])
end
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('{{"requests": %d, "us": %d, "p50": %f, "p99": %f, "failed": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""
LAST = b"[DONE]"
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready inside a `with`, and gone after."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def stand_in(kind: str) -> AbstractContextManager[Server]:
    """One of the stand-ins, `echo` or `expert`."""
    port = free_port()
    return _running(
        [
            sys.executable,
            "-m",
            "ridgeway.simulations.bench.serving.stand_ins",
            kind,
            str(port),
        ],
        port,
    )


def ridgeway_serve(release: Path, *options: str) -> AbstractContextManager[Server]:
    port = free_port()
    return _running(
        [script("ridgeway"), "serve", str(release), "--port", str(port), *options], port
    )


@contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        child = Child(
            "a server to be measured", command, os.environ, Path(folder) / "server.log"
        )
        child.start()
        try:
            yield Server(port, _pid_once_ready(child, port))
        finally:
            child.stop(END_TIMEOUT_S)


def _pid_once_ready(child: Child, port: int) -> int:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and child.process is not None and child.is_running():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return child.process.pid
        time.sleep(0.05)
    raise ProcessError(f"{child.name} did not start: {last_words(child.log)}")


# Short requests


@dataclass(frozen=True, slots=True)
class Load:
    """What a while of load gave: requests a second, and milliseconds at the middle and near the
    end.
    """

    rate: float
    p50_ms: float
    p99_ms: float


def wrk_is_installed() -> bool:
    return shutil.which("wrk") is not None


def write_script(path: Path, bodies: Sequence[Any]) -> Path:
    lines = ",\n".join(_quoted(json.dumps(body, ensure_ascii=False)) for body in bodies)
    path.write_text(SCRIPT.format(bodies=lines), encoding="utf-8")
    return path


def _quoted(text: str) -> str:
    """A string as Lua writes it: every byte but plain letters as its number."""
    plain = set(range(32, 127)) - {ord('"'), ord("\\")}
    return (
        '"'
        + "".join(
            chr(byte) if byte in plain else f"\\{byte:03}" for byte in text.encode()
        )
        + '"'
    )


def run_wrk(url: str, script: Path, *, connections: int, seconds: int) -> Load:
    """Load over some connections, each of which sends its next request when it has its answer."""
    command = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "--timeout",
        "30s",
        "-s",
        str(script),
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["failed"]:
        raise ProcessError(
            f"{found['failed']} of {found['requests']} requests of a measurement failed"
        )
    return Load(
        found["requests"] / found["us"] * 1e6, found["p50"] / 1000, found["p99"] / 1000
    )


# Streams


@dataclass(slots=True)
class StreamTimes:
    """One stream: seconds to its first piece, its pieces, the longest that one was on the way, and
    whether it ended.
    """

    first: float = 0.0
    pieces: int = 0
    longest_way: float = 0.0
    whole: bool = False


@dataclass(slots=True)
class StreamTotals:
    """Many streams: how many were whole, how many pieces came, and what went wrong, by kind."""

    whole: int = 0
    pieces: int = 0
    longest_way: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)

    def add(self, stream: StreamTimes) -> None:
        self.whole += stream.whole
        self.pieces += stream.pieces
        self.longest_way = max(self.longest_way, stream.longest_way)
        if not stream.whole:
            self.wrong["cut short"] += 1


def stream_request(model: str, prompt: str, pieces: int, pace: float) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {
        "model": model,
        "messages": [message],
        "stream": True,
        "max_tokens": pieces,
        "pace": pace,
    }


def open_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    )


async def one_stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> StreamTimes:
    began = time.perf_counter()
    stream = StreamTimes()
    async with session.post(url, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            if LAST in line:
                stream.whole = True
                continue
            if not stream.pieces:
                stream.first = time.perf_counter() - began
            stream.pieces += 1
            stream.longest_way = max(
                stream.longest_way, time.time() - json.loads(line[6:])["sent"]
            )
    return stream


async def many_streams(
    url: str,
    body: Callable[[int], dict[str, Any]],
    *,
    streams: int,
    seconds: float,
    each_second: Callable[[], None],
) -> StreamTotals:
    """Streams at once for a while; each client asks again when it has its last piece."""
    totals = StreamTotals()
    end = time.monotonic() + seconds

    async def keep_asking(number: int) -> None:
        await asyncio.sleep(number / streams)  # not all in the same moment
        while time.monotonic() < end:
            try:
                totals.add(await one_stream(session, url, body(number)))
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                totals.wrong[type(error).__name__] += 1

    async def watch() -> None:
        while True:
            await asyncio.sleep(1)
            each_second()

    async with open_session() as session:
        watching = asyncio.create_task(watch())
        await asyncio.gather(*(keep_asking(number) for number in range(streams)))
        watching.cancel()
    return totals
