"""Servers in processes of their own on free ports of loopback: ready inside a `with`, gone after.

Knows processes and sockets. Knows nothing of what they serve.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _wait(process, port)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    import socket

    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    process.kill()
    said = process.communicate()[1].decode(errors="replace").strip().splitlines()
    raise ProcessError(f"a server to be measured did not start: {said[-1] if said else 'it said nothing'}")
