"""Servers in processes of their own on free ports of loopback: ready inside a `with`, gone after.

Knows processes and sockets. Knows nothing of what they serve.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from common.errors import ProcessError
from common.processes import free_port, script

START_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def resident_mb(self) -> float:
        """The memory that the process holds now."""
        words = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()
        return int(words[1]) * 4096 / 1e6


@contextlib.contextmanager
def module(name: str) -> Iterator[Server]:
    """`python -m NAME PORT`."""
    port = free_port()
    with _running([sys.executable, "-m", name, str(port)], port) as server:
        yield server


@contextlib.contextmanager
def ridgeway_serve(release: Path, *options: str) -> Iterator[Server]:
    port = free_port()
    with _running([script("ridgeway"), "serve", str(release), "--port", str(port), *options], port) as server:
        yield server


@contextlib.contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[Server]:
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
        try:
            _wait(process, port, said)
            yield Server(port, process.pid)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, said: IO[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    raise ProcessError(f"a server to be measured did not start: {lines[-1] if lines else 'it said nothing'}")
