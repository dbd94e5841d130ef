"""A stream on its way from an expert to a client, each piece sent the moment it is there.

The next piece is read when the last one was taken, so a slow client slows its expert down and nothing heaps up. If the
client goes, or takes nothing for a minute, the expert's connection is closed; if the expert fails, the client gets an
error as its last event.

Knows ASGI. Knows nothing of routing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import Response
from prometheus_client import Gauge
from starlette.types import Receive, Scope, Send

from coordinator.serve.departure import unless_gone
from coordinator.serve.events import BadStream
from coordinator.serve.failures import Gone
from coordinator.serve.upstream import Begun

PATIENCE_S = 60.0
"""A client that takes nothing for so long is as good as gone: it must not hold a place at the expert."""


class Relay(Response):
    """The answer to a request for a stream."""

    def __init__(self, begun: Begun, headers: Mapping[str, str], streams: Gauge) -> None:
        super().__init__(None, 200, {**headers, "x-accel-buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
        self._begun = begun
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.inc()
        try:
            await unless_gone(receive, self._pass_on(send))
        except (Gone, TimeoutError):
            pass
        finally:
            self._streams.dec()
            self._begun.close()

    async def _pass_on(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._pass_events(send)
        except BadStream as error:
            failure = self._begun.attempt.fail(error.kind)
            await _send(send, b"data: " + failure.problem({}).body() + b"\n\n")
        else:
            self._begun.attempt.succeed()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_events(self, send: Send) -> None:
        events = self._begun.first
        while events:
            await _send(send, events)
            events = await self._begun.events.next()


async def _send(send: Send, body: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await send({"type": "http.response.body", "body": body, "more_body": True})
