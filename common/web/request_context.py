"""What is known of a request while it is answered, logged and counted."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Any, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)
from pydantic_core import to_json

from ridgeway.common.web.http_errors import RefusedRequest
from ridgeway.common.web.key_budgets import KeyAccount

# What is known of the request being served: its id and key, and how many bytes it holds.
#
# Every body that is read, every text that waits and every answer that is put together is counted
# until its request has ended. This bounds the memory of a server: where the limit is reached, the
# request that would hold more is refused with 503, and the others go on.


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


# Lines of the log: one for each thing that happened, as text or as JSON, with its level and its
# time in UTC.
#
# No line holds a traceback, which could show what was asked or where files are; nor a prompt, since
# none is ever logged.


LogFormat = Literal["text", "json"]
LogLevel = Literal["error", "warning", "info"]
FIELDS = "ridgeway.fields"
"""Where a record holds what is told beside its words: `log.info("…", extra={FIELDS: {"status":
200}})`.
"""


def line_facts(record: logging.LogRecord) -> dict[str, Any]:
    """What a line tells: its time, level, logger and words, and what stands beside them."""
    when = datetime.fromtimestamp(record.created, UTC).isoformat(
        timespec="milliseconds"
    )
    words = record.getMessage().partition("\n")[0]
    kind = record.exc_info[0] if record.exc_info else None
    return {
        "time": when.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": f"{words}: {kind.__name__}" if kind else words,
        **record.__dict__.get(FIELDS, {}),
    }


class LineFormatter(logging.Formatter):
    """Time, level, message, then name=value; or one JSON object."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self.form = form

    def format(self, record: logging.LogRecord) -> str:
        facts = line_facts(record)
        if self.form == "json":
            return to_json(facts).decode()
        first = [facts.pop("time"), facts.pop("level").upper(), facts.pop("message")]
        del facts["logger"]
        return " ".join([*first, *(f"{name}={value}" for name, value in facts.items())])


def set_up_logs(form: LogFormat, level: LogLevel) -> None:
    """From now on this process, and those that it starts, log so; if it was not done before."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(form))
    handler.addFilter(_is_worth_logging)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("ridgeway").setLevel(level.upper())
    # its warnings show what stands in clients' headers
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)


def is_json() -> bool:
    """Whether every line on stderr is to be JSON."""
    forms = [handler.formatter for handler in logging.getLogger().handlers]
    return any(isinstance(f, LineFormatter) and f.form == "json" for f in forms)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Not that a request was cut off because the service stops, which uvicorn tells at length."""
    cut = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cut and not record.getMessage().startswith("Traceback")


# What is counted of requests, for Prometheus: answers, their times, and refusals.


REQUEST_BUCKETS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of what Prometheus reads."""
PYTHON = platform.python_version()


def version() -> str:
    try:
        return metadata.version("ridgeway")
    except metadata.PackageNotFoundError:
        return "unknown"


class RequestMetrics:
    """What Prometheus reads. Each server has a registry of its own, so that two in one process do
    not mix.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.counter = partial(Counter, namespace="ridgeway", registry=registry)
        self.gauge = partial(Gauge, namespace="ridgeway", registry=registry)
        self.histogram = partial(Histogram, namespace="ridgeway", registry=registry)
        self.requests = self.counter(
            "requests", "Responses, by path and status.", ("path", "status")
        )
        self.refusals = self.counter(
            "refusals", "Requests refused, by reason.", ("reason",)
        )
        self.in_flight = self.gauge("requests_in_flight", "Requests in flight.")
        Info("ridgeway_build", "Version information.", registry=self.registry).info(
            {"version": version(), "python": PYTHON}
        )
        self.request_seconds = self.histogram(
            "request_seconds",
            "Time from a request's headers to the end of its response.",
            ("path",),
            buckets=REQUEST_BUCKETS_S,
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
