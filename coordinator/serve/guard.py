"""The door: every request passes it before anything else looks at it, and every answer on its way out.

In: the host it was sent to, the page it came from, the key, how often, how many at once, how long its body is.
Out: headers that keep browsers safe, a count, and no traceback. Bodies of answers pass untouched, piece by piece.

Knows ASGI. Knows nothing of routing and experts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from coordinator.serve.headers import ASKING, Headers, allowing, dressed, security_headers
from coordinator.serve.intake import Event, Intake, Receive, Refusal, Scope, check_length
from coordinator.serve.limits import Limiter, Rate, neighbourhood, rate_of
from coordinator.serve.problems import CLIENT_GONE, Problem, unforeseen
from coordinator.serve.rules import Rules, host_name, own_origin

if TYPE_CHECKING:
    from coordinator.serve.keys import Entry
    from coordinator.serve.metrics import Metrics

Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Told = dict[bytes, bytes]

STRANGERS = Rate(10.0, 50)
"""How often one address may ask without a key, where there are keys."""
MOST_STRANGERS = 4096
HEALTH = frozenset(("/healthz", "/readyz"))
OPEN = HEALTH | {"/", "/docs"}
PAGE = "/page/"
FOREIGN = frozenset((b"cross-site", b"same-site"))
KNOWN = "ridgeway.known"
"""In the scope: whether a request came with a key; not there where there are no keys."""
PLACE = "ridgeway.place"
"""In the scope: the path, if a request was answered past the framework, which would say it."""
OTHER = "other"


class Guard:
    """An application behind rules."""

    def __init__(self, app: App, rules: Rules, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self._rules = rules
        self._rate = rate_of(rules.rate) if rules.rate is not None else None
        self._keyed = Limiter(clock)
        self._addresses = Limiter(clock, MOST_STRANGERS)
        self._headers = security_headers(rules.tls)
        self._tally = Tally(metrics)
        self._serving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._live(scope, receive, send)
            return
        began = time.perf_counter()
        answer = Answer(send, self._headers)
        told: Told = dict(scope["headers"])
        try:
            self._check_caller(scope, told, answer)
            if is_asking(scope, told):
                await answer.allow()
                return
            self._check_rest(scope, told)
        except Refusal as refusal:
            self._tally.turned_away(refusal)
            await answer.say(refusal)
            return
        if b"content-length" in told or b"transfer-encoding" in told:
            receive = Intake(receive, scope, self._rules.max_body, self._tally.refused)
        self._serving += 1
        try:
            await self.app(scope, receive, answer)
        except asyncio.CancelledError:  # the service stops, and has waited long enough
            await answer.say(Problem(503, "the service is stopping; ask again", code="stopping", headers=after(1.0)))
            raise
        except Exception as error:  # whatever the application raises ends here
            if answer.status != 500:  # of such a one the log knows already
                await answer.say(error if isinstance(error, Problem) else unforeseen(error))
        finally:
            self._serving -= 1
        self._tally.served(scope, answer.status, time.perf_counter() - began)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    def _check_rest(self, scope: Scope, told: Told) -> None:
        self._check_key(scope, told)
        if self._serving >= self._rules.max_requests and scope["path"] not in HEALTH:
            raise Refusal("load", 503, "too many requests are being served", code="overloaded", headers=after(1.0))
        check_length(told.get(b"content-length"), self._rules.max_body)

    def _check_caller(self, scope: Scope, told: Told, answer: Answer) -> None:
        """Refuse what a browser was talked into by a page of another site."""
        rules = self._rules
        host = told.get(b"host", b"").lower()
        if rules.hosts is not None and host_name(host) not in rules.hosts:
            raise Refusal(
                "host", 403, "the service is not called by this name; see --allow-host", code="host_not_allowed"
            )
        origin = told.get(b"origin")
        if origin is None:
            if told.get(b"sec-fetch-site") in FOREIGN and not is_open(scope):
                raise foreign()
        elif origin in rules.origins:
            answer.headers = [*self._headers, *allowing(origin)]
        elif not own_origin(origin, host, rules.tls):
            raise foreign()

    def _check_key(self, scope: Scope, told: Told) -> None:
        """Find out who asks, and refuse whoever may not, or asks too often. The key goes no further."""
        ring = self._rules.keys
        presented = presented_key(told)
        if b"authorization" in told or b"api-key" in told:
            scope["headers"] = [each for each in scope["headers"] if each[0] not in (b"authorization", b"api-key")]
        if ring is None:
            if self._rate is not None and scope["path"] not in HEALTH:
                check_rate(self._addresses, address(scope), self._rate)
            return
        entry = None if presented is None else ring.find(presented)
        scope[KNOWN] = entry is not None
        if entry is None:
            self._check_stranger(scope, presented)
        else:
            self._check_known(entry)

    def _check_known(self, entry: Entry) -> None:
        rate = self._rate if entry.rate is None else rate_of(entry.rate)
        if rate is not None:
            check_rate(self._keyed, entry.name, rate)

    def _check_stranger(self, scope: Scope, presented: bytes | None) -> None:
        if scope["path"] in HEALTH and is_open(scope):
            return
        check_rate(self._addresses, address(scope), STRANGERS)
        if not is_open(scope):
            words = "this key is not known" if presented else "a key is needed: send Authorization: Bearer KEY"
            raise Refusal("key", 401, words, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


class Answer:
    """`send` of one request: adds our headers to the answer's, and sees its status (0 before it is sent)."""

    __slots__ = ("_send", "headers", "status")

    def __init__(self, send: Send, headers: Headers) -> None:
        self._send = send
        self.headers = headers
        self.status = 0

    async def __call__(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            event["headers"] = dressed(event.get("headers", ()), self.headers)
        await self._send(event)

    async def say(self, problem: Problem) -> None:
        """Answer with an error, unless an answer was begun."""
        if self.status:
            return
        body = problem.body()
        more = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        await self._whole(problem.status, body, [(b"content-type", b"application/json"), *more])

    async def allow(self) -> None:
        """Tell a browser that a page of an allowed site may ask."""
        await self._whole(204, b"", ASKING)

    async def _whole(self, status: int, body: bytes, headers: Headers) -> None:
        length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
        await self({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
        await self({"type": "http.response.body", "body": body})


class Tally:
    """Counts answers by the address they belong to, unknown ones together, so that nobody can fill the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._kept: dict[tuple[str, int], tuple[Any, Any]] = {}

    def served(self, scope: Scope, status: int, seconds: float) -> None:
        place = place_of(scope), status or CLIENT_GONE
        counter, times = self._kept.get(place) or self._keep(place)
        counter.inc()
        times.observe(seconds)

    def _keep(self, place: tuple[str, int]) -> tuple[Any, Any]:
        """Finding a metric by its labels takes as long as counting."""
        self._kept[place] = self._metrics.requests.labels(*place), self._metrics.request_seconds.labels(place[0])
        return self._kept[place]

    def turned_away(self, refusal: Refusal) -> None:
        """Of a request that went no further than the door."""
        self._metrics.requests.labels(OTHER, refusal.status).inc()
        self.refused(refusal)

    def refused(self, refusal: Refusal) -> None:
        self._metrics.refusals.labels(refusal.reason).inc()


def place_of(scope: Scope) -> str:
    """The path as the application has it: the address of a model is one of many, and nothing asked for is in it."""
    return str(scope.get(PLACE) or getattr(scope.get("route"), "path", OTHER))


def is_open(scope: Scope) -> bool:
    """Whether a request needs no key: the page, the description of the API, and whether the service is well."""
    path: str = scope["path"]
    return (path in OPEN or path.startswith(PAGE)) and scope["method"] in ("GET", "HEAD")


def is_asking(scope: Scope, told: Told) -> bool:
    """Whether a browser only asks whether a page of another site may ask."""
    return scope["method"] == "OPTIONS" and b"origin" in told and b"access-control-request-method" in told


def check_rate(limiter: Limiter, who: str, rate: Rate) -> None:
    wait = limiter.wait_s(who, rate)
    if wait:
        words = "too many requests; ask more slowly"
        raise Refusal("rate", 429, words, code="rate_limit_exceeded", headers=after(wait))


def foreign() -> Refusal:
    return Refusal("origin", 403, "a page of another site may not ask; see --allow-origin", code="origin_not_allowed")


def presented_key(told: Told) -> bytes | None:
    """The key that came with a request: as Authorization: Bearer KEY, or as api-key: KEY."""
    scheme, _, key = told.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key:
        return key.strip()
    return told.get(b"api-key")


def address(scope: Scope) -> str:
    client = scope.get("client")
    return neighbourhood(client[0]) if client else ""


def after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds + 0.5)))}
