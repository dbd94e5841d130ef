"""The guard: every request passes it before anything else looks at it, and every answer on its way
out.

In: the host it was sent to, the page it came from, the key, how often, how many at once, how long
its body is. Out: headers that keep browsers safe, a count, and no traceback. Bodies of answers pass
untouched, piece by piece.

Keeps nothing of a body.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeway.common.base.records import client_network
from ridgeway.common.web.api_keys import (
    AccessRules,
    Rate,
    RateLimiter,
    host_name,
    rate_of,
)
from ridgeway.common.web.http_errors import (
    ANTHROPIC_PATH,
    CLIENT_GONE,
    CLIENT_GONE_CODE,
    ERROR_CODE,
    Problem,
    RefusedRequest,
    problem_of,
)
from ridgeway.common.web.key_budgets import KeyAccount
from ridgeway.common.web.request_context import (
    FIELDS,
    HeldBytes,
    Holding,
    RequestMetrics,
    begin_request,
    current_request,
)
from ridgeway.common.web.workers import SharedTimes

log = logging.getLogger("ridgeway.http")

_Headers = list[tuple[bytes, bytes]]
RequestHeaders = dict[bytes, bytes]

STRANGER_RATE = Rate(10.0, 50)
"""How often one address may ask without a key, where there are keys."""
MAX_STRANGERS = 4096
READY_PATH = "/readyz"
HEALTH_PATHS = frozenset(("/healthz", READY_PATH, "/health"))
OPEN_PATHS = HEALTH_PATHS | {"/", "/docs"}
ASSET_PREFIX = "/page/"
FOREIGN_SITES = frozenset((b"cross-site", b"same-site"))
HAS_KEY = "ridgeway.has_key"
"""In the scope: whether a request came with a key; not there where there are no keys."""
PATH_SERVED = "ridgeway.path_served"
"""In the scope: the path, if a request was answered past the framework, which would say it."""
BODY_IS_SLOW = "ridgeway.body_is_slow"
"""In the scope: the connection has given the body up, because it takes too long."""
SCARCE_SILENCE_S = 5.0
"""How long a body that has begun may pause while half of the memory for bodies is taken."""
OTHER_PATH = "other"
METRICS_PATH = "/metrics"
KEY_HEADERS = frozenset((b"authorization", b"api-key", b"x-api-key"))
MAX_PIECE_BYTES = 16 * 1024
"""A longer body of an answer is handed to the connection in pieces, as the client takes them."""

CONTENT_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    b" connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: _Headers = [
    (b"content-security-policy", CONTENT_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"permissions-policy",
        b"camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
]
NO_STORE = (b"cache-control", b"no-store")
TLS_ONLY = (b"strict-transport-security", b"max-age=31536000")
PREFLIGHT_HEADERS = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": (
        "authorization, api-key, x-api-key, content-type, *"
    ),
    "access-control-max-age": "600",
}
"""What a browser is told that asks whether a page of an allowed site may ask."""


def cross_origin_headers(origin: bytes) -> _Headers:
    """CORS headers of an answer to an allowed origin."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    ]


GUARD_HEADERS = frozenset(
    name for name, _ in [*SECURITY_HEADERS, TLS_ONLY, *cross_origin_headers(b"")]
) - {b"vary"}


def with_security_headers(
    headers: Iterable[tuple[bytes, bytes]], added: _Headers
) -> _Headers:
    """The headers of an answer and our own; ours replace its own, but an answer may say how long to
    keep it.
    """
    kept = [header for header in headers if header[0] not in GUARD_HEADERS]
    says_how_long = any(name == b"cache-control" for name, _ in kept)
    return kept + added if says_how_long else [*kept, *added, NO_STORE]


class RequestGuard:
    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        metrics: RequestMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self._rules = rules
        self._rate = rate_of(rules.rate) if rules.rate is not None else None
        shared = None if rules.rates is None else SharedTimes(rules.rates)
        self._keyed = RateLimiter(clock, None, shared)
        self._addresses = RateLimiter(clock, MAX_STRANGERS, shared)
        self._headers = [*SECURITY_HEADERS, TLS_ONLY] if rules.tls else SECURITY_HEADERS
        self._counter = RequestCounter(metrics)
        self.held = HeldBytes(rules.max_held_bytes, self._counter.refused)
        self._serving = 0
        metrics.in_flight.set_function(lambda: self._serving)
        self._draining = False

    def drain(self, is_ready: bool = False) -> None:
        """Go on serving, but say that the service is not ready any more, and let no connection stay
        open.
        """
        self._draining = not is_ready
        self._headers = [*self._headers, (b"connection", b"close")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers: RequestHeaders = dict(scope["headers"])
        request = begin_request(headers)
        try:
            await self._serve(scope, receive, send, headers)
        finally:
            if request.account is not None:
                request.account.close()

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, headers: RequestHeaders
    ) -> None:
        began = time.perf_counter()
        request = current_request()
        answer = GuardedAnswer(send, self._headers, request.id, scope["path"])
        try:
            self._check_caller(scope, headers, answer)
            if is_preflight(scope, headers):
                await Response(status_code=204, headers=PREFLIGHT_HEADERS)(
                    scope, receive, answer
                )
                return
            account = self._check_key(scope, headers)
            if account is not None:
                budget = [(n.encode(), v.encode()) for n, v in account.headers.items()]
                answer.headers = answer.headers + budget
            if self._draining and scope["path"] == READY_PATH:
                raise RefusedRequest(
                    "draining", 503, "the service is stopping", code="draining"
                )
            is_full = self._serving >= self._rules.max_requests
            if is_full and scope["path"] not in HEALTH_PATHS:
                raise RefusedRequest(
                    "load",
                    503,
                    "too many requests are being served",
                    code="overloaded",
                    headers=retry_after(1.0),
                )
            check_length(headers.get(b"content-length"), self._rules.max_body_bytes)
        except RefusedRequest as refused:
            self._counter.turned_away(refused, time.perf_counter() - began)
            await answer.say(refused, scope, receive)
            return
        holding = request.holding = Holding(self.held)
        if b"content-length" in headers or b"transfer-encoding" in headers:
            receive = LimitedBody(
                receive,
                scope,
                self._rules.max_body_bytes,
                holding,
                self._counter.refused,
            )
        self._serving += 1
        try:
            await self.app(scope, receive, answer)
        except asyncio.CancelledError:  # the service stops, and has waited long enough
            stopping = Problem(
                503,
                "the service is stopping; try again",
                code="stopping",
                headers=retry_after(1.0),
            )
            await answer.say(stopping, scope, receive)
            raise
        except Exception as error:  # whatever the application raises ends here
            if answer.status != 500:  # of such a one the log knows already
                await answer.say(problem_of(error), scope, receive)
        finally:
            self._serving -= 1
            holding.let_go()
        self._counter.served(scope, answer.status, time.perf_counter() - began)

    def _check_caller(
        self, scope: Scope, headers: RequestHeaders, answer: GuardedAnswer
    ) -> None:
        """Refuse what a browser was talked into by a page of another site."""
        rules = self._rules
        if len(headers) < len(scope["headers"]) and (
            sum(name == b"host" for name, _ in scope["headers"]) > 1
        ):
            raise RefusedRequest(
                "host", 400, "several Host headers in the request", code="invalid_host"
            )
        host = headers.get(b"host", b"").lower()
        if rules.hosts is not None and host_name(host) not in rules.hosts:
            raise RefusedRequest(
                "host",
                403,
                "unknown Host header (see allow_host)",
                code="host_not_allowed",
            )
        origin = headers.get(b"origin")
        if origin is None:
            is_foreign = headers.get(
                b"sec-fetch-site"
            ) in FOREIGN_SITES and not is_open(scope)
        elif origin in rules.origins:
            is_foreign = False
            answer.headers = [*self._headers, *cross_origin_headers(origin)]
        else:
            own_origins = {b"https://" + host}
            if not rules.tls:
                own_origins.add(b"http://" + host)
            # if a proxy speaks TLS for us, its own pages come by https
            is_foreign = origin not in own_origins
        if is_foreign:
            raise RefusedRequest(
                "origin",
                403,
                "cross-origin request refused (see allow_origin)",
                code="origin_not_allowed",
            )

    def _check_key(self, scope: Scope, headers: RequestHeaders) -> KeyAccount | None:
        """Find out who asks, and refuse those who may not, or ask too often. The key goes no
        further.
        """
        ring = self._rules.keys
        presented = presented_key(headers)
        if not KEY_HEADERS.isdisjoint(headers):
            scope["headers"] = [
                header for header in scope["headers"] if header[0] not in KEY_HEADERS
            ]
        if ring is None:
            if self._rate is not None and scope["path"] not in HEALTH_PATHS:
                self._check_address(scope, self._rate)
            return None
        record = None if presented is None else ring.find(presented)
        scope[HAS_KEY] = record is not None
        if record is None:
            self._check_stranger(scope, presented)
            return None
        request = current_request()
        request.key = record.name
        request.is_only_key = ring.is_single
        if (
            record.scope == "metrics"
            and scope["path"] != METRICS_PATH
            and not is_open(scope)
        ):
            words = f"this key is for {METRICS_PATH} only; use another"
            raise RefusedRequest("scope", 403, words, code="key_scope")
        rate = self._rate if record.rate is None else rate_of(record.rate)
        if rate is not None:
            check_rate(self._keyed, record.name, rate)
        is_limited = record.budget is not None or record.max_parallel is not None
        usage = self._rules.usage
        if not is_limited or usage is None or scope["method"] != "POST":
            return None
        request.account = usage.enter(record.name, record.budget, record.max_parallel)
        return request.account

    def _check_stranger(self, scope: Scope, presented: bytes | None) -> None:
        if scope["path"] in HEALTH_PATHS and is_open(scope):
            return
        self._check_address(scope, STRANGER_RATE)
        if not is_open(scope):
            raise RefusedRequest(
                "key",
                401,
                "unknown API key"
                if presented
                else "an API key is required: send Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    def _check_address(self, scope: Scope, rate: Rate) -> None:
        client = scope.get("client")
        check_rate(self._addresses, client_network(client[0]) if client else "", rate)


@dataclass(slots=True)
class LimitedBody:
    """`receive` of a request with a body, which it holds. What is wrong is raised where it is read,
    and told `refused`.

    The rest of a refused body is not kept: the connection lets it go by, and is closed if it goes
    on for long.
    """

    _receive: Receive
    _scope: Scope
    _max_bytes: int
    _holding: Holding
    _refused: Callable[[RefusedRequest], None]
    _read: int = 0
    _ended: bool = False

    async def __call__(self) -> Message:
        if self._ended or not self._read:
            event = await self._receive()
        else:
            event = await self._rest()
        if self._ended:
            return event
        if event["type"] == "http.disconnect":
            raise Problem(400, "the body ended too early", code="incomplete_body")
        size = len(event.get("body", b""))
        self._read += size
        is_too_large = self._read > self._max_bytes
        self._ended = not is_too_large and not event.get("more_body", False)
        if is_too_large:
            refused = too_large(self._max_bytes)
        elif not self._ended and BODY_IS_SLOW in self._scope:
            refused = too_slow()
        else:
            self._holding.add(size)
            return event
        self._refused(refused)
        raise refused

    async def _rest(self) -> Message:
        """What comes next of a body that has begun. While memory is scarce it may not pause for
        long: what has come of it keeps the bodies of others out.
        """
        while True:
            try:
                async with asyncio.timeout(SCARCE_SILENCE_S):
                    return await self._receive()
            except TimeoutError:
                if self._holding.held.is_scarce:
                    refused = too_slow()
                    self._refused(refused)
                    raise refused from None


class GuardedAnswer:
    """`send` of one request: adds our headers to the answer's, and sees its status (0 before it is
    sent).
    """

    __slots__ = ("_ids", "_send", "headers", "status")

    def __init__(
        self, send: Send, headers: _Headers, request_id: str, path: str
    ) -> None:
        self._send = send
        self.headers = headers
        self.status = 0
        self._ids = [(b"x-request-id", request_id.encode())]
        if path.startswith(ANTHROPIC_PATH):
            self._ids.append((b"request-id", request_id.encode()))

    async def __call__(self, event: Message) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            event["headers"] = (
                with_security_headers(event.get("headers", ()), self.headers)
                + self._ids
            )
        elif len(body := event.get("body", b"")) > MAX_PIECE_BYTES:
            view = memoryview(body)
            last = (len(body) - 1) // MAX_PIECE_BYTES * MAX_PIECE_BYTES
            for start in range(0, last, MAX_PIECE_BYTES):  # at the client's pace
                piece = view[start : start + MAX_PIECE_BYTES]
                await self._send({**event, "body": piece, "more_body": True})
            event["body"] = view[last:]
        await self._send(event)

    async def say(self, problem: Problem, scope: Scope, receive: Receive) -> None:
        """Answer with an error, unless an answer was begun."""
        if not self.status:
            scope[ERROR_CODE] = problem.code
            await problem.response(scope["path"])(scope, receive, self)


class RequestCounter:
    """Counts answers by the path they belong to, unknown ones together, so that no client can fill
    the metrics.
    """

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        # finding a metric by its labels takes as long as counting
        self._answers = lru_cache(metrics.requests.labels)
        self._seconds = lru_cache(metrics.request_seconds.labels)

    def served(self, scope: Scope, status: int, seconds: float) -> None:
        """The path is as the application has it: a model's address is one of many, and nothing
        asked for is in it.
        """
        path = path_served(scope) or OTHER_PATH
        status = status or CLIENT_GONE
        self._answers(path, status).inc()
        self._seconds(path).observe(seconds)
        error = scope.get(ERROR_CODE)
        is_broken = status < 400 and error not in (None, CLIENT_GONE_CODE)
        is_failure = status >= 500 or is_broken
        level = logging.WARNING if is_failure else logging.INFO
        self._log(level, path, status, seconds, error)

    def turned_away(self, refused: RefusedRequest, seconds: float) -> None:
        """Count a request that went no further than the guard."""
        self._metrics.requests.labels(OTHER_PATH, refused.status).inc()
        self.refused(refused)
        self._log(logging.INFO, OTHER_PATH, refused.status, seconds, refused.code)

    def _log(
        self,
        level: int,
        path: str,
        status: int,
        seconds: float,
        error: str | None,
    ) -> None:
        if log.isEnabledFor(level):
            request = current_request()
            fields = {
                "path": path,
                "status": status,
                "seconds": round(seconds, 6),
                "request_id": request.id,
                "key": request.key,
                **request.log_fields,
                **({} if error is None else {"error": error}),
            }
            log.log(level, "answered", extra={FIELDS: fields})

    def refused(self, refused: RefusedRequest) -> None:
        self._metrics.refusals.labels(refused.reason).inc()


def path_served(scope: Scope) -> str | None:
    """The path as the application has it; None if it has none for the request."""
    path = scope.get(PATH_SERVED) or getattr(scope.get("route"), "path", None)
    return None if path is None else str(path)


def is_open(scope: Scope) -> bool:
    """Whether a request needs no key: the page, the description of the API, and whether the service
    is well.
    """
    path: str = scope["path"]
    return (path in OPEN_PATHS or path.startswith(ASSET_PREFIX)) and scope[
        "method"
    ] in ("GET", "HEAD")


def is_preflight(scope: Scope, headers: RequestHeaders) -> bool:
    """Whether a browser only asks whether a page of another site may ask."""
    return (
        scope["method"] == "OPTIONS"
        and b"origin" in headers
        and b"access-control-request-method" in headers
    )


def check_length(announced: bytes | None, max_bytes: int) -> None:
    """Refuse a body that says itself that it is too long, before it is read."""
    if announced is None:
        return
    if not announced.isdigit():
        raise RefusedRequest(
            "size",
            400,
            "the header Content-Length is not a number",
            code="invalid_length",
        )
    if len(announced) > 18 or int(announced) > max_bytes:
        raise too_large(max_bytes)


def too_slow() -> RefusedRequest:
    words = "timeout while reading the body"
    return RefusedRequest(
        "slow", 408, words, code="slow_body", headers={"connection": "close"}
    )


def too_large(max_bytes: int) -> RefusedRequest:
    return RefusedRequest(
        "size",
        413,
        f"the body is larger than the limit of {max_bytes / 1024**2:g} MiB",
        code="body_too_large",
    )


def check_rate(limiter: RateLimiter, who: str, rate: Rate) -> None:
    wait_s = limiter.wait_s(who, rate)
    if wait_s:
        raise RefusedRequest(
            "rate",
            429,
            "too many requests; send fewer per second",
            code="rate_limit_exceeded",
            headers=retry_after(wait_s),
        )


def presented_key(headers: RequestHeaders) -> bytes | None:
    """The key that came with a request: as Authorization: Bearer KEY, or as api-key: KEY or
    x-api-key: KEY.
    """
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key:
        return key.strip()
    return headers.get(b"api-key") or headers.get(b"x-api-key")


def retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds + 0.5)))}
