"""The service as a process: uvicorn, one worker, bound to an address.

Knows sockets and logs. No access log is kept: addresses and paths of requests are nobody's business.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn

from common.errors import InputError
from coordinator.serve.protocol import Connection
from coordinator.serve.tls import Certificate

DRAIN_S = 10
BACKLOG = 2048
SWITCH_S = 0.0005
"""A thread that has routed waits for its turn so long at most; Python's own 5 ms is too long."""
SPARE_FILES = 256
"""So many open files are kept for other things than clients and experts."""


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


def bound(address: Address) -> list[socket.socket]:
    """Sockets that nobody else can have now: one, or for a name of several addresses, several."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise InputError(f"--host {address.host} is not an address or a name of this machine") from None
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, place in dict.fromkeys(found):
            sockets.append(_listener(family, place))
    except OSError as error:
        for each in sockets:
            each.close()
        raise InputError(_reason(address, error)) from None
    return sockets


def _listener(family: int, place: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _reason(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} is in use on {address.host}; stop what listens there, or choose another --port"
    if error.errno == errno.EACCES:
        return f"port {address.port} is not open to this user; choose a --port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {address.host} is not an address of this machine"
    return f"cannot listen on {address.host}, port {address.port}: {(error.strerror or str(error)).lower()}"


def run(app: Any, address: Address, sockets: Sequence[socket.socket] | None = None) -> None:
    """Serve until told to stop; what is being answered then has ten seconds to be finished."""
    listeners = list(sockets) if sockets is not None else bound(address)
    logging.basicConfig(level=logging.WARNING, handlers=[plain_handler()])
    Connection.most = room_for_connections()
    server = make_server(app, address.certificate)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what is loaded now stays; looking through it again and again would hold requests up by 40 ms
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn stops in good order, then raises the signal once more
    server.run(listeners)


def make_server(app: Any, certificate: Certificate | None = None) -> uvicorn.Server:
    """uvicorn as it is used here: it logs errors alone, and tells nobody what it is."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=Connection,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=DRAIN_S,
        backlog=BACKLOG,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="error",
    )
    config.load()
    config.ssl = certificate.context if certificate else None
    return uvicorn.Server(config)


def room_for_connections() -> int:
    """How many clients can be held: each may need a connection to an expert besides. Asks for all that may be had."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = most if most != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    return max(1, min(8192, (files - SPARE_FILES) // 2))


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a request was cut off because the service stops, which uvicorn tells at length."""
    cut = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cut and not record.getMessage().startswith("Traceback")


class Plain(logging.Formatter):
    """One line for each thing that happened: no traceback, which could show what was asked or where files are."""

    def format(self, record: logging.LogRecord) -> str:
        words = record.getMessage().partition("\n")[0]
        kind = record.exc_info[0] if record.exc_info else None
        return f"{self.formatTime(record)} {words}{f': {kind.__name__}' if kind else ''}"


def plain_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(Plain())
    handler.addFilter(_is_news)
    return handler
