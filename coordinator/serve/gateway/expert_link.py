"""An expert in use: where it is reached, the places that requests take there, and how it is doing.

An expert that fails again and again is left alone for a while, then tried once at a time:

    up ──5 failures in a row──▶ down ──after 10 s, the next request──▶ trying ──success──▶ up
                                  ▲────────────────failure────────────────┘

Knows a clock, and holds the experts' keys and shows them to no one. Knows nothing of connections, routing and clients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import Literal, get_args
from urllib.parse import quote

import aiohttp
from yarl import URL

from ridgeway.common.experts.experts_file import Expert
from ridgeway.coordinator.serve.gateway import failures
from ridgeway.coordinator.serve.gateway.failures import ExpertFailure, FailureKind
from ridgeway.coordinator.serve.telemetry import Metrics

MAX_FAILURES = 5
PAUSE_S = 10.0
EVENT_STREAM = "text/event-stream"
JSON = "application/json"

Endpoint = Literal["/chat/completions", "/completions", "/embeddings"]
State = Literal["up", "down", "trying"]
OnTurn = Callable[[State, State], None]
"""Told the state before and the state after, whenever it changes."""

log = logging.getLogger("ridgeway.serve")


class CircuitBreaker:
    """Whether an expert may be asked now: it hands out tickets and is told how each went.

    Laws: while it is down no request is let through before the pause is over, and then one at a time. What is reported
    of a ticket from before the state last changed is passed over: it says nothing about now.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, on_turn: OnTurn | None = None) -> None:
        self._clock = clock
        self._on_turn = on_turn
        self.state: State = "up"
        self._failures = 0
        self._since = 0.0
        self._era = 0

    def enter(self) -> int | None:
        """A ticket for one request, or None if it must not be made. Each ticket is to be settled."""
        if self.state == "down" and self.wait_s() <= 0:
            self._turn("trying")
            return self._era
        return self._era if self.state == "up" else None

    def wait_s(self) -> float:
        """How long it will surely let no request through."""
        return max(0.0, self._since + PAUSE_S - self._clock()) if self.state == "down" else 0.0

    def heard(self, ticket: int) -> None:
        """An answer has begun: enough to end a trial, though not yet to forget earlier failures."""
        if ticket == self._era and self.state == "trying":
            self._turn("up")

    def settle(self, ticket: int, good: bool | None) -> None:
        """How a request went; None: not known, since the client has gone."""
        if ticket != self._era:
            return
        if good:
            self.heard(ticket)
            self._failures = 0
        elif good is not None:
            self._failures += 1
            if self.state == "trying" or self._failures >= MAX_FAILURES:
                self._since = self._clock()
                self._turn("down")
        elif self.state == "trying":
            self._turn("down")  # the pause is over already: the next one may try

    def _turn(self, state: State) -> None:
        before, self.state = self.state, state
        self._failures = 0
        self._era += 1
        if self._on_turn is not None:
            self._on_turn(before, state)


@lru_cache(1024)
def in_a_header(text: str) -> str:
    """A name as a header can carry it: percent-encoded where it is not plain ASCII."""
    return quote(text, safe=" !#$&'()*+,/:;=?@[]")


class ExpertLink:
    """An expert in use. Requests take a place by `begin`."""

    def __init__(
        self, name: str, expert: Expert, key: str | None, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.shown = in_a_header(name)
        self.expert = expert
        self.urls = {endpoint: URL(expert.base_url + endpoint) for endpoint in get_args(Endpoint)}
        self.timeout = aiohttp.ClientTimeout(total=None, sock_connect=expert.connect_timeout)
        self.breaker = CircuitBreaker(clock, self._log_turn)
        self.running = 0
        self.seconds = metrics.expert_seconds.labels(name)
        self._requests = metrics.expert_requests
        self._key = key
        self.refusing = False

    @property
    def state(self) -> State | Literal["refusing"]:
        return "refusing" if self.refusing and self.breaker.state == "up" else self.breaker.state

    def is_well(self) -> float:
        """For Prometheus: 0 while it is left alone, or refuses whatever it is asked."""
        return float(self.state in ("up", "trying"))

    def _log_turn(self, before: State, after: State) -> None:
        if after == "down" and before == "up":
            log.error("expert %s failed %d times in a row, and is left alone for a while", self.shown, MAX_FAILURES)
        elif after == "up":
            log.warning("expert %s is up again", self.shown)

    def headers(self, streamed: bool) -> dict[str, str]:
        headers = {"content-type": JSON, "accept": EVENT_STREAM if streamed else JSON}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        return headers

    def is_for(self, expert: Expert, key: str | None) -> bool:
        return self.expert == expert and self._key == key

    def begin(self) -> Attempt:
        """A place for one request, or an ExpertFailure if there is none."""
        if self.running >= self.expert.max_concurrent:
            self.count(failures.FULL.outcome)
            raise ExpertFailure(failures.FULL, self.name, "1")
        ticket = self.breaker.enter()
        if ticket is None:
            self.count(failures.DOWN.outcome)
            raise ExpertFailure(failures.DOWN, self.name, str(max(1, ceil(self.breaker.wait_s()))))
        self.running += 1
        return Attempt(self, ticket)

    def count(self, outcome: str) -> None:
        self._requests.labels(self.name, outcome).inc()

    def __repr__(self) -> str:
        return f"<ExpertLink {self.name} {self.state}>"


class Attempt:
    """One request to an expert, from the place it takes to the place it leaves, once, however it ends."""

    __slots__ = ("_began", "_ended", "_ticket", "link")

    def __init__(self, link: ExpertLink, ticket: int) -> None:
        self.link = link
        self._ticket = ticket
        self._began = time.perf_counter()
        self._ended = False

    def heard(self) -> None:
        """The head of a good answer has come."""
        self.link.seconds.observe(time.perf_counter() - self._began)
        self.link.refusing = False
        self.link.breaker.heard(self._ticket)

    def fail(self, kind: FailureKind, retry_after: str | None = None) -> ExpertFailure:
        """Ends the attempt; to be raised."""
        if kind is failures.REFUSED and not self.link.refusing:  # a wrong address, model or key; said once
            self.link.refusing = True
            log.error("expert %s refuses requests; check its base_url, model and api_key_env", self.link.shown)
        self.end(kind.outcome, kind.good)
        return ExpertFailure(kind, self.link.name, retry_after)

    def end(self, outcome: str, good: bool | None) -> None:
        """Counts how it went and tells the breaker; nothing happens if the attempt has ended already."""
        if self._ended:
            return
        self._ended = True
        self.link.running -= 1
        self.link.breaker.settle(self._ticket, good)
        self.link.count(outcome)
