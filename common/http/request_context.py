"""What is known of the request being served: its id and key, and how many bytes it holds.

Every body that is read, every text that waits and every answer that is put together is counted
until its request has ended. This bounds the memory of a server: where the limit is reached, the
request that would hold more is refused with 503, and the others go on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from ridgeway.common.http.http_errors import RefusedRequest
from ridgeway.common.http.key_budgets import KeyAccount

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
MAX_HELD_BYTES = 96 * 1024**2


@dataclass(slots=True)
class HeldBytes:
    """What all requests hold together. `refused` is told of each that would have held too much."""

    limit: int
    refused: Callable[[RefusedRequest], None]
    total: int = 0

    @property
    def is_scarce(self) -> bool:
        return 2 * self.total > self.limit


@dataclass(slots=True)
class Holding:
    """What one request or connection holds. Law: the total is the sum over all of them, and never
    above the limit.
    """

    held: HeldBytes
    size: int = 0

    def add(self, size: int) -> None:
        """Count bytes, or raise if they are too many beside those of the others."""
        if self.held.total + size > self.held.limit:
            refused = RefusedRequest(
                "load",
                503,
                "the memory limit for requests is reached; try again soon",
                code="overloaded",
                headers={"retry-after": "1"},
            )
            self.held.refused(refused)
            raise refused
        self.held.total += size
        self.size += size

    def let_go(self, size: int | None = None) -> None:
        """Count so many bytes as held no longer, or all."""
        gone = self.size if size is None else min(size, self.size)
        self.held.total -= gone
        self.size -= gone


@dataclass(slots=True)
class RequestContext:
    """id: the client's own, if it gave one that can stand in a header and a log; else one that was
    made here.

    key:   the name of the key that came with it; empty if there is none.
    is_only_key: whether no other key lets clients in.
    account: where is counted what the request spends, if its key has a budget.
    log_fields: what the log may say of the request: the expert that answered, and the like.
    holding: the bytes that it holds until it has ended.
    """

    id: str
    key: str = ""
    is_only_key: bool = True
    account: KeyAccount | None = None
    log_fields: dict[str, str | int | float] = field(default_factory=dict)
    holding: Holding | None = None


_current: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def begin_request(headers: Mapping[bytes, bytes]) -> RequestContext:
    """The context of the request that this task serves from now on."""
    given = headers.get(b"x-request-id")
    is_fit = given is not None and REQUEST_ID.fullmatch(given)
    made = RequestContext(given.decode() if given and is_fit else os.urandom(16).hex())
    _current.set(made)
    return made


def current_request() -> RequestContext:
    """That of the request being served; outside of any, an empty one."""
    return _current.get() or RequestContext("")


def hold(size: int) -> None:
    """Count bytes that are held until the request being served has ended; raises if they are too
    many.
    """
    holding = current_request().holding
    if holding is not None:
        holding.add(size)


def has_room(size: int) -> bool:
    """Whether the request being served may hold so many bytes more."""
    holding = current_request().holding
    return holding is None or holding.held.total + size <= holding.held.limit


def let_go(size: int) -> None:
    """Count bytes that the request being served holds no longer, before it has ended."""
    holding = current_request().holding
    if holding is not None:
        holding.let_go(size)
