"""An expert in use: its addresses, the places that requests take there, and how each is doing.

An address that fails again and again is left alone for a while, then tried once at a time:

    up ──5 failures in a row──▶ down ──after 10 s, the next request──▶ trying ──success──▶ up
                                  ▲────────────────failure────────────────┘

So is one that does not pass its health checks, until it passes one. A request goes to the address
with the fewest requests, one whose trial is due first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import ceil
from typing import Literal, get_args
from urllib.parse import quote

import aiohttp
from opentelemetry.trace import INVALID_SPAN, Span, StatusCode
from yarl import URL

from ridgeway.common.routing.experts_file import Api, Expert, FallbackReason
from ridgeway.common.web.http_errors import Problem
from ridgeway.serving.telemetry import Metrics

# What can go wrong between the gateway and an expert, and what the client is told if no other can
# answer.
#
# Sentences hold no address, no key and nothing that the expert said.


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A way to fail.

    outcome: how it is counted.
    status:  what the client gets if there is no fallback, or it fails too.
    words:   what is said after the expert's name.
    reason:  why another expert may be asked instead; for a refusal only where the file says so: it
             hides a mistake.
    good:    what the breaker is told: whether the expert is there and well; None if that is not
             known.
    """

    outcome: str
    status: int
    words: str
    reason: FallbackReason
    good: bool | None = False


FULL = FailureKind(
    "full",
    429,
    "has as many requests as it may have at a time; try again soon",
    "busy",
    None,
)
BUSY = FailureKind("busy", 429, "has too many requests; try again later", "busy", True)
UNAVAILABLE = FailureKind(
    "unavailable", 503, "is not available now; try again later", "busy"
)
DOWN = FailureKind(
    "down",
    503,
    "has failed several times and is left alone for some seconds; try again then",
    "down",
    None,
)
UNREACHABLE = FailureKind(
    "unreachable", 503, "cannot be reached now; try again later", "down"
)
TIMEOUT = FailureKind(
    "timeout", 504, "did not answer in time; try again, or ask for less", "down"
)
FAILED = FailureKind("failed", 502, "failed; try again later", "down")
GARBAGE = FailureKind(
    "garbage",
    502,
    "gave an answer that cannot be understood; its operator must look at it",
    "down",
)
BROKEN_OFF = FailureKind(
    "broken_off", 502, "broke off in the middle of its answer; try again", "down"
)
SILENT = FailureKind(
    "silent", 504, "fell silent in the middle of its answer; try again", "down"
)
NO_ROOM = FailureKind(
    "no_room",
    503,
    "gave an answer that there is no memory for now; try again soon",
    "down",
    None,
)
REFUSED = FailureKind(
    "refused",
    502,
    "does not accept the gateway's requests; its operator must check its address, model"
    " and key",
    "refused",
    True,
)


@dataclass(frozen=True, slots=True)
class FailedExpert:
    """How an expert failed. It is kept while others are asked, and holds nothing of the request."""

    kind: FailureKind
    expert: str
    retry_after: str | None = None

    @property
    def sentence(self) -> str:
        return f"the expert {self.expert!r} {self.kind.words}"

    def problem(
        self, headers: Mapping[str, str], before: Sequence[FailedExpert] = ()
    ) -> Problem:
        """The error that a client gets; `before`: how the experts failed in whose place this one
        was asked.
        """
        failures = (*before, self)
        waits = [wait for failed in failures if (wait := failed.retry_after)]
        last_wait = {"retry-after": waits[-1]} if waits else {}
        words = "; and in its place ".join(failed.sentence for failed in failures)
        return Problem(
            self.kind.status,
            words,
            code=f"expert_{self.kind.outcome}",
            headers={**headers, **last_wait},
        )


class ExpertFailure(Exception):
    """An expert did not answer as it should. Keep `failed` and not the exception, whose traceback
    holds the request.
    """

    def __init__(self, failed: FailedExpert) -> None:
        super().__init__(failed.kind.outcome)
        self.failed = failed


MAX_FAILURES = 5
PAUSE_S = 10.0
MAX_FAILED_CHECKS = 2
"""So many health checks in a row, and an address is left alone until it passes one."""
EVENT_STREAM = "text/event-stream"
JSON = "application/json"
ANTHROPIC_VERSION = "2023-06-01"

Endpoint = Literal[
    "/chat/completions", "/completions", "/embeddings", "/responses", "/messages"
]
_State = Literal["up", "down", "trying"]
ShownState = _State | Literal["refusing", "degraded"]
OnTurn = Callable[[_State, _State], None]
"""Told the state before and the state after, whenever it changes."""

log = logging.getLogger("ridgeway.serve")


def api_of(endpoint: Endpoint) -> Api:
    """Whose API has this endpoint."""
    return "anthropic" if endpoint == "/messages" else "openai"


class CircuitBreaker:
    """Whether an expert may be asked now: it hands out tickets and is told how each went.

    Laws: while it is down no request is let through before the pause is over, and then one at a
    time. What is reported of a ticket from before the state last changed is passed over: it says
    nothing about now.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_turn: OnTurn | None = None
    ) -> None:
        self._clock = clock
        self._on_turn = on_turn
        self.state: _State = "up"
        self._failures = 0
        self._since = 0.0
        self._era = 0

    def enter(self) -> int | None:
        """A ticket for one request, or None if it must not be made. Each ticket is to be
        settled.
        """
        if self.is_due():
            self._turn("trying")
            return self._era
        return self._era if self.state == "up" else None

    def is_due(self) -> bool:
        """Whether the next request would be a trial."""
        return self.state == "down" and self.wait_s() <= 0

    def force(self) -> int:
        """A ticket although it is down, for a request that nobody else can answer: its success ends
        the pause.
        """
        return self._era

    def wait_s(self) -> float:
        """How long it will surely let no request through."""
        if self.state != "down":
            return 0.0
        return max(0.0, self._since + PAUSE_S - self._clock())

    def answer_began(self, ticket: int) -> None:
        """An answer has begun: enough to end a trial, though not yet to forget earlier failures."""
        if ticket == self._era and self.state != "up":
            self._turn("up")

    def settle(self, ticket: int, good: bool | None) -> None:
        """How a request went; None: not known, since the client has gone."""
        if ticket != self._era:
            return
        if good:
            self.answer_began(ticket)
            self._failures = 0
        elif good is not None:
            self._failures += 1
            if self.state == "trying" or self._failures >= MAX_FAILURES:
                self._since = self._clock()
                self._turn("down")
        elif self.state == "trying":
            self._turn("down")  # the pause is over already: the next one may try

    def _turn(self, state: _State) -> None:
        before, self.state = self.state, state
        self._failures = 0
        self._era += 1
        if self._on_turn is not None:
            self._on_turn(before, state)


@lru_cache(1024)
def in_a_header(text: str) -> str:
    """A name as a header can carry it: percent-encoded where it is not plain ASCII."""
    return quote(text, safe=" !#$&'()*+,/:;=?@[]")


class AddressLink:
    """One address of an expert.

    shown:  how the log calls it, without the address itself.
    number: its place among the expert's addresses, from 1 on.
    """

    def __init__(
        self,
        shown: str,
        number: int,
        url: str,
        expert: Expert,
        clock: Callable[[], float],
    ) -> None:
        self.shown = shown
        self.number = number
        self.urls = {
            endpoint: URL(url + endpoint).with_query(expert.query)
            for endpoint in get_args(Endpoint)
        }
        self.health_url = (
            URL(url).with_path(expert.health) if expert.health is not None else None
        )
        self.breaker = CircuitBreaker(clock, self._turned)
        self.running = 0
        self.refusing = False
        self.is_healthy = True
        self._failed_checks = 0
        self._expert = expert

    @property
    def state(self) -> ShownState:
        if not self.is_healthy:
            return "down"
        if self.refusing and self.breaker.state == "up":
            return "refusing"
        return self.breaker.state

    def is_full(self) -> bool:
        return self.running >= self._expert.max_concurrent

    def is_open(self) -> bool:
        """Whether it may be sent a request now, if it has a place for it."""
        return self.is_healthy and (self.breaker.state == "up" or self.breaker.is_due())

    def rank(self) -> tuple[bool, int]:
        """The least is asked next: one whose trial is due first, then the fewest requests."""
        return not self.breaker.is_due(), self.running

    def note_check(self, passed: bool) -> None:
        """What a health check found."""
        self._failed_checks = 0 if passed else self._failed_checks + 1
        if self.is_healthy and self._failed_checks >= MAX_FAILED_CHECKS:
            self.is_healthy = False
            log.error(
                "expert %s fails its health checks, and is left alone until it"
                " passes one",
                self.shown,
            )
        elif passed and not self.is_healthy:
            self.is_healthy = True
            log.warning("expert %s passes its health checks again", self.shown)

    def _turned(self, before: _State, after: _State) -> None:
        if after == "down" and before == "up":
            log.error(
                "expert %s failed %d times in a row, and is left alone for a while",
                self.shown,
                MAX_FAILURES,
            )
        elif after == "up":
            log.warning("expert %s is up again", self.shown)


class ExpertLink:
    """An expert in use. Requests take a place at one of its addresses by `begin`."""

    def __init__(
        self,
        name: str,
        expert: Expert,
        key: str | None,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.shown = in_a_header(name)
        self.expert = expert
        self.timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=expert.connect_timeout
        )
        has_several = len(expert.places) > 1
        self.addresses = tuple(
            AddressLink(
                f"{self.shown} at address {number}" if has_several else self.shown,
                number,
                url,
                expert,
                clock,
            )
            for number, url in enumerate(expert.places, 1)
        )
        self.seconds = metrics.expert_seconds.labels(name)
        self.first_token_seconds = metrics.first_token_seconds.labels(name)
        self._requests = lru_cache(partial(metrics.expert_requests.labels, name))
        self._key = key

    @property
    def state(self) -> ShownState:
        states = {address.state for address in self.addresses}
        if len(states) == 1:
            return states.pop()
        return "degraded" if states & {"up", "trying"} else "down"

    def is_well(self) -> float:
        """For Prometheus: 0 while it is left alone, or refuses whatever it is asked."""
        return float(self.addresses_up() > 0)

    def in_flight(self) -> int:
        return sum(address.running for address in self.addresses)

    def addresses_up(self) -> int:
        return sum(address.state in ("up", "trying") for address in self.addresses)

    def headers(self, api: Api, streamed: bool) -> dict[str, str]:
        accepted = EVENT_STREAM if streamed else JSON
        headers = {**self.expert.headers, "content-type": JSON, "accept": accepted}
        if api == "anthropic":
            headers.setdefault("anthropic-version", ANTHROPIC_VERSION)
        if self._key is not None and api == "anthropic":
            headers["x-api-key"] = self._key
        elif self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        return headers

    def is_for(self, expert: Expert, key: str | None) -> bool:
        return self.expert == expert and self._key == key

    def begin(
        self,
        tried: Collection[AddressLink] = (),
        only: int | None = None,
        is_last: bool = False,
    ) -> Attempt:
        """A place for one request, or an ExpertFailure if there is none.

        tried:   the addresses that have failed at this request.
        only:    the number of the one address that can answer it.
        is_last: no other expert can answer it: of several addresses that are all left alone, the
                 one that has been so for the longest is asked all the same. It may be back, and the
                 request would be lost.
        """
        left = [
            address
            for address in self.addresses
            if address not in tried and only in (None, address.number)
        ]
        ready = [address for address in left if address.is_open()]
        free = [address for address in ready if not address.is_full()]
        if free:
            address = min(free, key=AddressLink.rank)
            return self._attempt(address, address.breaker.enter())
        if ready:
            self.count(FULL.outcome)
            raise ExpertFailure(FailedExpert(FULL, self.name, "1"))
        resting = [
            address
            for address in left
            if address.is_healthy
            and not address.is_full()
            and address.breaker.state == "down"
        ]
        if is_last and resting and len(self.addresses) > 1:
            address = min(resting, key=lambda address: address.breaker.wait_s())
            return self._attempt(address, address.breaker.force())
        self.count(DOWN.outcome)
        wait_s = min((address.breaker.wait_s() for address in left), default=0.0)
        wait = str(max(1, ceil(wait_s)))
        raise ExpertFailure(FailedExpert(DOWN, self.name, wait))

    def _attempt(self, address: AddressLink, ticket: int | None) -> Attempt:
        assert ticket is not None, "it was open a moment ago"
        address.running += 1
        return Attempt(self, address, ticket)

    def count(self, outcome: str) -> None:
        self._requests(outcome).inc()

    def __repr__(self) -> str:
        return f"<ExpertLink {self.name} {self.state}>"


@dataclass(slots=True, eq=False)
class Attempt:
    """One request to an address, from the place it takes to the place it leaves, once, however it
    ends.

    span:  ends with it. facts: what the span says of the answer, asked for when it ends.
    """

    link: ExpertLink
    address: AddressLink
    _ticket: int
    span: Span = INVALID_SPAN
    facts: Callable[[], Mapping[str, str | int]] = dict
    _began: float = field(default_factory=time.perf_counter)
    _ended: bool = False

    def answer_began(self) -> None:
        """The head of a good answer has come."""
        self.link.seconds.observe(time.perf_counter() - self._began)
        self.address.refusing = False
        self.address.breaker.answer_began(self._ticket)

    def first_event(self) -> None:
        """A stream has begun."""
        self.link.first_token_seconds.observe(time.perf_counter() - self._began)

    def fail(self, kind: FailureKind, retry_after: str | None = None) -> ExpertFailure:
        """Ends the attempt; to be raised."""
        # a wrong address, model or key; said once
        if kind is REFUSED and not self.address.refusing:
            self.address.refusing = True
            log.error(
                "expert %s refuses requests; check its address, model and key",
                self.address.shown,
            )
        self.end(kind.outcome, kind.good)
        return ExpertFailure(FailedExpert(kind, self.link.name, retry_after))

    def end(self, outcome: str, good: bool | None) -> None:
        """Counts how it went and tells the breaker; nothing happens if the attempt has ended
        already.
        """
        if self._ended:
            return
        self._ended = True
        self.address.running -= 1
        self.address.breaker.settle(self._ticket, good)
        self.link.count(outcome)
        if self.span.is_recording():
            self.span.set_attributes({"ridgeway.outcome": outcome, **self.facts()})
            if outcome != "ok":
                self.span.set_attribute("error.type", outcome)
                self.span.set_status(StatusCode.ERROR)
            self.span.end()
