"""One expert as the gateway reaches it: its addresses and headers, its places, its breaker, what is counted of it.

Knows no sockets. Holds the expert's key and shows it to nobody.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from math import ceil
from typing import Literal
from urllib.parse import quote

from aiohttp import ClientTimeout
from yarl import URL

from coordinator.serve.breaker import FAILURES, Breaker, Clock, State
from coordinator.serve.experts import Expert
from coordinator.serve.failures import DOWN, FULL, REFUSED, Failure, Kind
from coordinator.serve.metrics import Metrics

Path = Literal["/chat/completions", "/completions", "/embeddings"]
PATHS: tuple[Path, ...] = ("/chat/completions", "/completions", "/embeddings")
STREAM = "text/event-stream"
JSON = "application/json"

log = logging.getLogger("ridgeway.serve")


def in_a_header(text: str) -> str:
    """A name as a header can carry it: percent-encoded where it is not plain ASCII."""
    return quote(text, safe=" !#$&'()*+,/:;=?@[]")


class Link:
    """An expert in use. Requests take a place by `begin`."""

    def __init__(self, name: str, expert: Expert, key: str | None, metrics: Metrics, clock: Clock) -> None:
        self.name = name
        self.shown = in_a_header(name)
        self.expert = expert
        self.urls = {path: URL(expert.base_url + path) for path in PATHS}
        self.timeout = ClientTimeout(total=None, sock_connect=expert.connect_timeout)
        self.breaker = Breaker(clock)
        self.running = 0
        self.seconds = metrics.expert_seconds.labels(name)
        self._requests = metrics.expert_requests
        self._key = key
        self._refusing = False

    @property
    def state(self) -> State | Literal["refusing"]:
        return "refusing" if self._refusing and self.breaker.state == "up" else self.breaker.state

    def is_well(self) -> float:
        """For Prometheus: 0 while it is left alone, or refuses whatever it is asked."""
        return float(self.state in ("up", "trying"))

    def heard(self, ticket: int) -> None:
        """The head of a good answer has come."""
        self._refusing = False
        with self._telling():
            self.breaker.heard(ticket)

    def settle(self, ticket: int, good: bool | None) -> None:
        with self._telling():
            self.breaker.settle(ticket, good)

    def refuses(self) -> None:
        """It has answered as only a wrong address, model or key makes it answer; said once."""
        if not self._refusing:
            log.error("expert %s refuses requests; check its base_url, model and api_key_env", self.shown)
        self._refusing = True

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Let the log say when it goes down and when it is back."""
        before = self.breaker.state
        yield
        after = self.breaker.state
        if after == "down" and before == "up":
            log.error("expert %s failed %d times in a row, and is left alone for a while", self.shown, FAILURES)
        elif after == "up" and before != "up":
            log.warning("expert %s is up again", self.shown)

    def headers(self, streamed: bool) -> dict[str, str]:
        headers = {"content-type": JSON, "accept": STREAM if streamed else JSON}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        return headers

    def is_for(self, expert: Expert, key: str | None) -> bool:
        return self.expert == expert and self._key == key

    def begin(self) -> Attempt:
        """A place for one request, or a Failure if there is none."""
        if self.running >= self.expert.max_concurrent:
            self.count(FULL.outcome)
            raise Failure(FULL, self.name, "1")
        ticket = self.breaker.enter()
        if ticket is None:
            self.count(DOWN.outcome)
            raise Failure(DOWN, self.name, str(max(1, ceil(self.breaker.wait_s()))))
        self.running += 1
        return Attempt(self, ticket)

    def count(self, outcome: str) -> None:
        self._requests.labels(self.name, outcome).inc()

    def __repr__(self) -> str:
        return f"<Link {self.name} {self.state}>"


class Attempt:
    """One request to an expert, from the place it takes to the place it leaves, once, however it ends."""

    __slots__ = ("_began", "_ended", "_ticket", "link")

    def __init__(self, link: Link, ticket: int) -> None:
        self.link = link
        self._ticket = ticket
        self._began = time.perf_counter()
        self._ended = False

    def heard(self) -> None:
        """The head of a good answer has come."""
        self.link.seconds.observe(time.perf_counter() - self._began)
        self.link.heard(self._ticket)

    def fail(self, kind: Kind, retry_after: str | None = None) -> Failure:
        """Ends the attempt; to be raised."""
        if kind is REFUSED:
            self.link.refuses()
        self._end(kind.outcome, kind.good)
        return Failure(kind, self.link.name, retry_after)

    def succeed(self) -> None:
        self._end("ok", True)

    def mistaken(self) -> None:
        """The expert has found a mistake of the client's."""
        self._end("mistake", True)

    def abandon(self) -> None:
        """Whoever asked has gone; nothing happens if the attempt has ended already."""
        self._end("gone", None)

    def _end(self, outcome: str, good: bool | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.link.running -= 1
        self.link.settle(self._ticket, good)
        self.link.count(outcome)
