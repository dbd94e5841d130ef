"""A request's body on its way in: counted, so that it cannot be too long, and given up if the connection says so.

Knows ASGI. Keeps nothing of the body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from coordinator.serve.problems import Problem

Event = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]

SLOW = "ridgeway.slow"
"""In the scope: the connection has given the body up, because it takes too long."""


class Refusal(Problem):
    """A request that is not let in; `reason` is a word for the metrics."""

    def __init__(self, reason: str, status: int, message: str, **more: Any) -> None:
        super().__init__(status, message, **more)
        self.reason = reason


def too_large(most: int) -> Refusal:
    return Refusal(
        "size", 413, f"the body is larger than {most / 1024**2:g} MiB, the most that is taken", code="body_too_large"
    )


def too_slow() -> Refusal:
    return Refusal("slow", 408, "the body did not come in time", code="slow_body", headers={"connection": "close"})


def check_length(announced: bytes | None, most: int) -> None:
    """Refuse a body that says itself that it is too long, before it is read."""
    if announced is None:
        return
    if not announced.isdigit():
        raise Refusal("size", 400, "the header Content-Length is not a number", code="invalid_length")
    if len(announced) > 18 or int(announced) > most:
        raise too_large(most)


class Intake:
    """`receive` of a request with a body; what is wrong with it is raised where it is read, and told to `refused`.

    The rest of a refused body is not kept: the connection lets it go by, and is closed if it goes on for long.
    """

    __slots__ = ("_ended", "_left", "_most", "_receive", "_refused", "_scope")

    def __init__(self, receive: Receive, scope: Scope, most: int, refused: Callable[[Refusal], None]) -> None:
        self._receive = receive
        self._scope = scope
        self._most = self._left = most
        self._refused = refused
        self._ended = False

    async def __call__(self) -> Event:
        event = await self._receive()
        if self._ended:
            return event
        if event["type"] == "http.disconnect":
            raise Problem(400, "the body ended too early", code="incomplete_body")
        self._left -= len(event.get("body", b""))
        if self._left < 0:
            raise self._refuse(too_large(self._most))
        self._ended = not event.get("more_body", False)
        if not self._ended and SLOW in self._scope:
            raise self._refuse(too_slow())
        return event

    def _refuse(self, refusal: Refusal) -> Refusal:
        self._refused(refusal)
        return refusal
