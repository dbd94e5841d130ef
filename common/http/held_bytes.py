"""How many bytes of bodies and answers are held at once: what bounds the memory of a server,
however large each is.

Every body that is read, every text that waits and every answer that is put together is counted from
then until its request has ended. Where the limit is reached, the one who would hold more is told to
come again; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from ridgeway.common.http.http_errors import RefusedRequest

MAX_HELD_BYTES = 96 * 1024**2


class HeldBytes:
    """What all requests hold together. `refused` is told of each that would have held too much."""

    __slots__ = ("limit", "refused", "total")

    def __init__(self, limit: int, refused: Callable[[RefusedRequest], None]) -> None:
        self.limit = limit
        self.refused = refused
        self.total = 0


class Holding:
    """What one request or connection holds. Law: the total is the sum over all of them, and never
    above the limit.
    """

    __slots__ = ("_all", "size")

    def __init__(self, held: HeldBytes) -> None:
        self._all = held
        self.size = 0

    def add(self, size: int) -> None:
        """Count bytes, or raise if they are too many beside those of the others."""
        if self._all.total + size > self._all.limit:
            words = "the service holds as much as it may at once; ask again soon"
            refused = RefusedRequest(
                "load", 503, words, code="overloaded", headers={"retry-after": "1"}
            )
            self._all.refused(refused)
            raise refused
        self._all.total += size
        self.size += size

    def let_go(self) -> None:
        self._all.total -= self.size
        self.size = 0


_current: ContextVar[Holding | None] = ContextVar("holding", default=None)


def begin_holding(holding: Holding) -> None:
    """From now on, what this task and those that it starts hold is counted here."""
    _current.set(holding)


def hold(size: int) -> None:
    """Count bytes that are held until the request being served has ended; raises if they are too
    many.
    """
    holding = _current.get()
    if holding is not None:
        holding.add(size)


def let_go() -> None:
    """What the request being served has held so far is not held any more."""
    holding = _current.get()
    if holding is not None:
        holding.let_go()
