"""The service as a process: uvicorn, one worker, bound to an address, with a certificate or not;
and connections that cannot be held for nothing.
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
from http import HTTPStatus
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import stamp_if_there
from ridgeway.common.base.operating_system import most_open_files
from ridgeway.common.web.guard import (
    BODY_IS_SLOW,
    MAX_PIECE_BYTES,
    SECURITY_HEADERS,
    RequestGuard,
    with_security_headers,
)
from ridgeway.common.web.http_errors import Problem, RefusedRequest
from ridgeway.common.web.request_context import HeldBytes, Holding
from ridgeway.common.web.workers import RETIRE

# Connections that cannot be held for nothing: requests are soon there, their heads are short, and
# answers are read.
#
# uvicorn bounds neither how long a head may be nor how long a request may take to come, nor for how
# long a client may leave its answer unread. This adds the bounds to its protocol, and lets refusals
# at this depth look like all the others.
#
# How long bodies may be is bounded elsewhere.


MAX_HEAD_BYTES = 32 * 1024
"""The address and all headers of a request together, trailers as well."""
HEADER_COST_BYTES = 100
"""What a header takes in memory besides its letters; counted with them."""
MAX_UNPARSED_BYTES = 512 * 1024
"""The most bytes that may come of which nothing can be made yet; twice what is read at a time."""
MAX_HELD_IN_LINE_BYTES = 64 * 1024**2
"""Of all connections together: heads that are not whole, and requests behind one that is being
answered.
"""
_HEAD_TIMEOUT_S = 10.0
BODY_SILENCE_S = 30.0
"""A body of which nothing comes for this long is given up."""
_BODY_TIMEOUT_S = 120.0
"""And so is one that is not there by then."""
UNREAD_TIMEOUT_S = 60.0
"""An answer that a client does not read for this long is broken off."""

HEAD_TOO_LONG = Problem(
    431, "the request headers are too long", code="headers_too_long"
)
NOT_HTTP = Problem(400, "this is not an HTTP/1.1 request", code="invalid_http")
TimerName = Literal["head", "body", "unread"]


class HeadTooLong(Exception):
    pass


class HttpConnection(HttpToolsProtocol):
    """One connection. `max_open` of them may be open; heads that are not whole and requests in line
    are held.
    """

    max_open = 8192
    held = HeldBytes(MAX_HELD_IN_LINE_BYTES, lambda refused: None)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = 0
        self._head_held = 0
        self._unparsed = 0
        self._heard = 0.0
        self._timers: dict[TimerName, asyncio.TimerHandle] = {}
        self._holding = Holding(self.held)
        self._refusal: RefusedRequest | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(MAX_PIECE_BYTES)
        if len(self.connections) > self.max_open:
            self._end_with(
                Problem(503, "too many connections are open", code="overloaded")
            )
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for name in tuple(self._timers):
            self._stop(name)
        self._holding.let_go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._head > self._head_held:
            self._hold_head()
        self._unparsed += len(data)
        if self._unparsed > MAX_UNPARSED_BYTES:
            self._end_with(HEAD_TOO_LONG)
        elif self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()
        elif self.cycle.more_body:
            self._wait_for_body()
        else:
            self._stop("body")

    def on_message_begin(self) -> None:
        self._head = self._head_held = self._unparsed = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + HEADER_COST_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._stop("head")
        self._stop("body")
        if self.pipeline:
            self._hold(self._head - self._head_held)
        else:
            self._holding.let_go()
        self._head_held = self._head
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self.pipeline:
            self._hold(len(body))
        super().on_body(body)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("unread", UNREAD_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("unread")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for a request that is not HTTP, and for one of which too much is
        held.
        """
        self._end_with(
            HEAD_TOO_LONG if self._head > MAX_HEAD_BYTES else self._refusal or NOT_HTTP
        )

    def _unsupported_upgrade_warning(self) -> None:
        """A request to speak another protocol is answered as if it had not asked, and not worth a
        line in the log.
        """

    def _count(self, length: int) -> None:
        self._unparsed = 0
        self._head += length
        if self._head > MAX_HEAD_BYTES:
            raise HeadTooLong

    def _hold_head(self) -> None:
        """What has come of a head that is not whole, or of trailers; the connection ends if that is
        too much.
        """
        try:
            self._hold(self._head - self._head_held)
            self._head_held = self._head
        except RefusedRequest as refused:
            self._end_with(refused)

    def _hold(self, length: int) -> None:
        try:
            self._holding.add(length)
        except RefusedRequest as refused:
            self._refusal = refused
            raise

    def _wait_for_head(self) -> None:
        if "head" not in self._timers:
            self._start("head", _HEAD_TIMEOUT_S, self._give_up)

    def _wait_for_body(self) -> None:
        self._heard = self.loop.time()
        if "body" not in self._timers:
            self._start(
                "body",
                BODY_SILENCE_S,
                self._look_for_body,
                self._heard + _BODY_TIMEOUT_S,
            )

    def _look_for_body(self, end: float) -> None:
        """Wait on, if something came meanwhile or it is not the client's fault; else let the
        request be refused.
        """
        silent_at = self.loop.time() if self.flow.read_paused else self._heard
        left = min(silent_at + BODY_SILENCE_S, end) - self.loop.time()
        if left > 0:
            self._start("body", left, self._look_for_body, end)
            return
        self._stop("body")
        self.cycle.scope[BODY_IS_SLOW] = True  # type: ignore[literal-required]
        self.cycle.message_event.set()

    def _give_up(self) -> None:
        self._stop("head")
        self._end_with(
            Problem(408, "timeout while reading the request", code="slow_request")
        )

    def _end_with(self, problem: Problem) -> None:
        """Say what is wrong, unless something else is being said or a refused body goes by, and
        close.
        """
        if self.transport.is_closing():
            return
        if self.cycle is None or (
            self.cycle.response_complete and not self.cycle.more_body
        ):
            self.transport.write(wire_bytes(problem))
        self.transport.close()

    def _start(
        self,
        name: TimerName,
        seconds: float,
        then: Callable[..., None],
        *arguments: float,
    ) -> None:
        self._timers[name] = self.loop.call_later(seconds, then, *arguments)

    def _stop(self, name: TimerName) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()


def wire_bytes(problem: Problem) -> bytes:
    body = problem.body()
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    headers = map(b": ".join, with_security_headers(fields, SECURITY_HEADERS))
    phrase = HTTPStatus(problem.status).phrase.encode()
    line = b"HTTP/1.1 %d %s" % (problem.status, phrase)
    return b"\r\n".join([line, *headers, b"", body])


# The service as a process: uvicorn, one worker, bound to an address, with or without a certificate.
#
# No access log is kept: it would hold addresses and paths of requests.


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
