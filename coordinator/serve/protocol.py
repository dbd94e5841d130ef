"""Connections that cannot be held for nothing: requests are soon there, their heads are short, and answers are read.

uvicorn bounds neither how long a head may be nor how long a request may take to come, nor for how long a client may
leave its answer unread. This adds the bounds to its protocol, and lets refusals at this depth look like all the others.

Knows uvicorn's protocol over httptools. How long bodies may be is bounded elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.serve.headers import SECURITY, dressed
from coordinator.serve.intake import SLOW
from coordinator.serve.problems import Problem

MAX_HEAD = 32 * 1024
"""The address and all headers of a request together, trailers as well."""
MAX_UNCLEAR = 512 * 1024
"""So many bytes may come of which nothing can be made yet; twice what is read at a time."""
HEAD_S = 10.0
SILENCE_S = 30.0
"""A body of which nothing comes for so long is given up."""
BODY_S = 120.0
"""And so is one that is not there by then."""
UNREAD_S = 60.0
"""An answer that a client does not read for so long is broken off."""


class HeadTooLong(Exception):
    pass


class Connection(HttpToolsProtocol):
    """One connection. `most` of them may be open."""

    most = 8192

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = 0
        self._unclear = 0
        self._heard = 0.0
        self._waiting: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._body: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._end_with(Problem(503, "too many connections are open", code="overloaded"))
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_unread()
        self._stop_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._unclear += len(data)
        if self._unclear > MAX_UNCLEAR:
            self._end_with(too_long())
        elif self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()
        elif self.cycle.more_body:
            self._wait_for_body()
        elif self._body is not None:
            self._stop_body()

    def on_message_begin(self) -> None:
        self._head = self._unclear = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unclear = 0
        self._stop_waiting()
        self._stop_body()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unclear = 0
        super().on_body(body)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for a request that is not HTTP, and for one whose head is too long."""
        not_http = Problem(400, "this is not a request of HTTP/1.1", code="invalid_http")
        self._end_with(too_long() if self._head > MAX_HEAD else not_http)

    def _unsupported_upgrade_warning(self) -> None:
        """A request to speak another protocol is answered as if it had not asked, and not worth a line in the log."""

    def _count(self, length: int) -> None:
        self._unclear = 0
        self._head += length
        if self._head > MAX_HEAD:
            raise HeadTooLong

    def _wait_for_head(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_S, self._give_up)

    def _wait_for_body(self) -> None:
        self._heard = self.loop.time()
        if self._body is None:
            self._body = self.loop.call_later(SILENCE_S, self._look_for_body, self._heard + BODY_S)

    def _look_for_body(self, end: float) -> None:
        """Wait on, if something came meanwhile or it is not the client's fault; else let the request be refused."""
        silent_at = self.loop.time() if self.flow.read_paused else self._heard
        left = min(silent_at + SILENCE_S, end) - self.loop.time()
        if left > 0:
            self._body = self.loop.call_later(left, self._look_for_body, end)
            return
        self._body = None
        self.cycle.scope[SLOW] = True  # type: ignore[literal-required]
        self.cycle.message_event.set()

    def _give_up(self) -> None:
        self._waiting = None
        self._end_with(Problem(408, "the request did not come in time", code="slow_request"))

    def _end_with(self, problem: Problem) -> None:
        """Say what is wrong, unless something else is being said or a refused body goes by, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body):
            self.transport.write(as_bytes(problem))
        self.transport.close()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_body(self) -> None:
        if self._body is not None:
            self._body.cancel()
            self._body = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def too_long() -> Problem:
    return Problem(431, "the headers of the request are too long", code="headers_too_long")


def as_bytes(problem: Problem) -> bytes:
    """An answer as it goes over the wire."""
    body = problem.body()
    ours = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    lines = [b"HTTP/1.1 %d Refused" % problem.status, *(b": ".join(each) for each in dressed(ours, list(SECURITY)))]
    return b"\r\n".join([*lines, b"", body])
