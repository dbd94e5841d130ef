"""Connections that cannot be held for nothing: requests are soon there, their heads are short, and
answers are read.

uvicorn bounds neither how long a head may be nor how long a request may take to come, nor for how
long a client may leave its answer unread. This adds the bounds to its protocol, and lets refusals
at this depth look like all the others.

How long bodies may be is bounded elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ridgeway.common.web.guard import (
    BODY_IS_SLOW,
    MAX_PIECE_BYTES,
    SECURITY_HEADERS,
    with_security_headers,
)
from ridgeway.common.web.http_errors import Problem, RefusedRequest
from ridgeway.common.web.request_context import HeldBytes, Holding

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
