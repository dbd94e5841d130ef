"""The service as a process: uvicorn, one worker, bound to an address, with or without a
certificate.

No access log is kept: it would hold addresses and paths of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import stamp_if_there
from ridgeway.common.base.operating_system import most_open_files
from ridgeway.common.web.guard import RequestGuard
from ridgeway.common.web.http_protocol import HttpConnection
from ridgeway.common.web.workers import RETIRE

log = logging.getLogger("ridgeway.http")

WATCH_S = 1.0
"""How often the files of a running server are checked: keys, certificates, releases."""
DRAIN_S = 10.0
_KEEP_ALIVE_S = 5.0
QUIET_S = 0.5
"""While it drains, a service that was asked nothing for this long, and answers nothing, may end."""
CUT_S = 0.5
"""What is cut off after that has this long to say so."""
BACKLOG = 2048
THREAD_SWITCH_S = 0.0005
"""The longest that a thread that has routed waits for its turn; Python's own 5 ms is too long."""
SPARE_FILES = 256
"""Open files that are kept for other things than clients and experts."""
_MAX_CONNECTIONS = 8192


Look = Callable[[], None]


@contextlib.asynccontextmanager
async def watching(
    looks: Iterable[Look], every_s: float = WATCH_S
) -> AsyncIterator[None]:
    """Call each again and again, in threads; a slow one does not delay another. Never if `every_s`
    is 0.
    """
    tasks = [asyncio.create_task(_watch(look, every_s)) for look in looks if every_s]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(look: Look, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(look)
        except Exception as error:  # the server goes on with what it has
            log.error("a file could not be checked: %s", type(error).__name__)


class Certificate:
    """A pair of files, checked when this is made; `context` is what connections are made with."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._pair = (certificate, key)
        self._stamp = self._stamps()
        self.context = _context(certificate, key)

    def watch(self) -> None:
        """Take the pair as it is now, if it has changed and is good."""
        stamp = self._stamps()
        if stamp == self._stamp or None in stamp:
            return
        self._stamp = stamp
        try:
            _context(*self._pair)
            self.context.load_cert_chain(*self._pair, password=_no_password)
        except OSError:
            self._stamp = []
            log.error(
                "the new certificate cannot be read; keeping the old one and trying again"
            )
        except (InputError, ValueError):
            log.error(
                "the new certificate and key do not match or are invalid; keeping the"
                " old ones"
            )
        else:
            log.warning("the new certificate is in use")

    def _stamps(self) -> list[object]:
        return [stamp_if_there(path) for path in self._pair]


def find_certificate(certificate: Path | None, key: Path | None) -> Certificate | None:
    """The certificate of --tls-cert and --tls-key: both or none."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--tls-cert and --tls-key go together; give both or neither")
    return Certificate(certificate, key)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise InputError(
                f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
            ) from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InputError(_certificate_reason(certificate, key, error)) from None
    return context


def _no_password() -> str:
    raise ValueError("encrypted")  # else OpenSSL would ask at the terminal


def _certificate_reason(certificate: Path, key: Path, error: Exception) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return (
            f"the key {key} does not match the certificate {certificate}; give a "
            "matching pair"
        )
    if str(error) == "encrypted":
        return (
            f"the key {key} is encrypted with a password; use one without, readable "
            "only by the service"
        )
    return f"{certificate} and {key} are not a certificate and its private key in PEM"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the service listens, and the certificate that it shows."""

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Certificate | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}/"


def bind_sockets(address: Address) -> list[socket.socket]:
    """Listening sockets: one, or for a name of several addresses, several."""
    try:
        addresses = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError):
        raise InputError(
            f"--host {address.host} is not an address or a name of this machine"
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, name in dict.fromkeys(addresses):
            sockets.append(socket.create_server(name, family=family, backlog=BACKLOG))
    except OSError as error:
        for listener in sockets:
            listener.close()
        raise InputError(_bind_reason(address, error)) from None
    return sockets


def _bind_reason(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {address.port} is in use on {address.host}; stop the process that "
            "listens there, or choose another --port"
        )
    if error.errno == errno.EACCES:
        return f"this user may not use port {address.port}; choose a --port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {address.host} is not an address of this machine"
    words = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot listen on {address.host}, port {address.port}: {words.lower()}"


class DrainingServer(uvicorn.Server):
    """uvicorn, which on SIGTERM goes on serving while it says that it is not ready any more.

    It ends when it has had nothing to do for a moment, or when `drain_s` seconds are over: then
    what is left is cut. Ctrl-C, or a second SIGTERM, lets it take no new connections.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_s: float,
        on_started: Callable[[], None] | None,
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._on_started = on_started
        self._end: float | None = None
        self._busy = (0.0, -1)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if (
            sig == signal.SIGTERM
            and self._end is None
            and not self.should_exit
            and self._drain_s > 0
        ):
            self._drain(is_ready=False)
        else:
            super().handle_exit(sig, frame)

    def retire(self) -> None:
        """Take no more connections, since another process does; and end when those that are open
        are closed.
        """
        if self._end is None and not self.should_exit:
            for server in self.servers:
                server.close()
            self._drain(is_ready=True)

    def _drain(self, is_ready: bool) -> None:
        self._end = time.monotonic() + self._drain_s
        self.config.timeout_graceful_shutdown = CUT_S  # type: ignore[assignment]
        if isinstance(self.config.app, RequestGuard):
            self.config.app.drain(is_ready)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_started is not None:
            self._on_started()

    async def on_tick(self, counter: int) -> bool:
        if self._end is not None and self._is_drained(time.monotonic(), self._end):
            self.should_exit = True
        return await super().on_tick(counter)

    def _is_drained(self, now: float, end: float) -> bool:
        """A client may still send on a connection that is open, and gets its answer; so they are
        waited for.
        """
        state = self.server_state
        if state.tasks or state.connections or state.total_requests != self._busy[1]:
            self._busy = (now, state.total_requests)
        return now >= end or now - self._busy[0] >= QUIET_S


def run(server: DrainingServer, sockets: list[socket.socket]) -> None:
    """Serve until told to stop; what is being answered then has a while to be finished."""
    # each client may need a connection to an expert besides
    spare = (most_open_files() - SPARE_FILES) // 2
    HttpConnection.max_open = max(1, min(_MAX_CONNECTIONS, spare))
    sys.setswitchinterval(THREAD_SWITCH_S)
    gc.collect()
    # what is loaded now stays; looking through it again and again would hold requests up by 40 ms
    gc.freeze()
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops in good order, then raises the signal once more
        signal.signal(number, lambda *_: None)
    signal.signal(RETIRE, lambda *_: server.retire())
    server.run(sockets)


def make_server(
    app: Any,
    certificate: Certificate | None = None,
    drain_s: float = DRAIN_S,
    keep_alive_s: float = _KEEP_ALIVE_S,
    on_started: Callable[[], None] | None = None,
) -> DrainingServer:
    """uvicorn as it is used here: it logs errors alone, and does not tell clients what it is."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=HttpConnection,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=ceil(drain_s),
        timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]
        backlog=BACKLOG,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="error",
    )
    config.load()
    config.ssl = certificate.context if certificate else None
    return DrainingServer(config, drain_s, on_started)
