"""The routing API: where a prompt should go and why, and its answers as typed records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeway.common.routing.conversations import Conversations, evidence_to_leave
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.expert_choice import ExpertChoice
from ridgeway.common.routing.router import Explanation, Router, origin
from ridgeway.common.web.guard import HAS_KEY, PATH_SERVED
from ridgeway.common.web.http_errors import (
    CLIENT_GONE,
    ClientGone,
    Problem,
    error_response,
)
from ridgeway.common.web.request_context import EXPOSITION, hold
from ridgeway.serving.request_bodies import (
    GatewayBody,
    RouteRequest,
    WantedDecisions,
    described,
    read_body,
    read_gateway_body,
)
from ridgeway.serving.routing_service import (
    RoutingService,
    ServedRelease,
    decision_headers,
)
from ridgeway.serving.rules import ruled_decision

# What is answered, as typed records; the OpenAPI description is made of them. The shapes of what is
# asked are in `request_bodies`.


class _Answer(BaseModel):
    """What stands below a field is its description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Word(BaseModel):
    """A word, the domain it speaks for, what it adds to the margin, and to each domain over their
    mean.
    """

    text: str
    domain: str
    weight: float
    parts: list[float]


class RoutedPrompt(_Answer):
    """Where one prompt should go. The last four are there if an explanation was asked for."""

    domain: str | None
    """Where it should go; if the router abstained, the fallback's name, or null."""
    confidence: float
    """The probability that `best` is right, if the router is calibrated."""
    scores: dict[str, float]
    """Every domain's probability."""
    abstained: bool
    """Whether it belongs to no domain, or the confidence is below the threshold."""
    scope: float | None = None
    """The chance that it belongs to any domain, if that was learnt."""
    belongs: bool = True
    """Whether that chance is large enough."""
    reason: str | None = None
    """Why it abstained: out_of_scope or low_confidence."""
    best: str
    """The domain ahead of the others, abstention or not."""
    tokens: int
    """How many tokens the prompt has."""
    router: str
    """What decided: table, or sentences (the sentence encoder)."""
    expert: str | None = None
    """Where the gateway would send it, cost and quality considered."""
    expert_reason: str | None = None
    """Why this expert: see docs/application/routing-http.md."""
    expert_quality: float | None = None
    """What is expected of its answer, where that was measured."""
    left_out: int | None = None
    """Characters that were not routed: see docs/application/routing-http.md."""
    stays: bool | None = None
    """Whether the chat stays with the domain it was `after`."""
    evidence: float | None = None
    """log p(best)/p(after), or to the runner-up after an abstention."""
    evidence_needed: float | None = None
    """What it takes to leave: more where the text is short."""
    follow_up: bool | None = None
    """Whether the message could stand in any conversation, as a sentence encoder sees it."""
    runner_up: str | None = None
    """The domain in the second place."""
    margin: float | None = None
    """What separates `best` from the runner-up."""
    order: list[str] | None = None
    """The domains in the order of the words' parts."""
    explanation: list[Word] | None = None
    """The words; their weights add up to the margin."""


class Origin(_Answer):
    """Where decisions come from."""

    calibrated: bool
    """Whether confidence was fitted on held-out text."""
    release: str
    """The release that decided."""


class Routed(RoutedPrompt, Origin):
    """Where one prompt should go, and by which release."""


class RoutedMany(Origin):
    """Where each of many prompts should go, in their order."""

    decisions: list[RoutedPrompt]


class ExpertWorths(BaseModel):
    """What the choice of an expert weighs: it takes the largest of Σ p(domain)·quality[domain] −
    mu·cost.

    mu is the operator's; quality is by domain, in the order of `domains`, and then by expert, in
    that of `experts`.
    """

    mu: float
    experts: list[str]
    costs: list[float]
    domains: list[str]
    quality: list[list[float]]


class Health(BaseModel):
    status: str


class Readiness(_Answer):
    ready: bool
    release: str
    experts: dict[str, str]
    """Each expert: up, degraded (up at some of its addresses), down, trying (again),
    or refusing (its address, model or key is wrong).
    """


class ReleaseCard(_Answer):
    """The release in use: what its manifest says, who signed it, since when it is in use."""

    release: str
    signer: str
    since: float
    """Seconds since 1970."""
    domains: list[str]
    masses: dict[str, int]
    manifest: dict[str, Any]
    refused: str | None
    """Why a newer release was not taken, if one was not."""


class ModelCard(BaseModel):
    """A name that can be asked for."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "ridgeway"


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelCard]


class Complaint(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every answer that is an error."""

    error: Complaint


class MessagesComplaint(BaseModel):
    type: str
    message: str


class MessagesErrorReply(BaseModel):
    """The same, as Anthropic's API has it."""

    type: str
    error: MessagesComplaint


Responses = dict[int | str, dict[str, Any]]
"""What FastAPI takes as the description of an endpoint's answers, by status."""


def _errors(descriptions: dict[int, str]) -> Responses:
    return {
        status: {"model": ErrorReply, "description": words}
        for status, words in descriptions.items()
    }


ERRORS = _errors(
    {
        400: "The body cannot be used.",
        401: "There is no key, or it is not known.",
        403: "A page of another site may not ask.",
        413: "The body is too large.",
        415: "The body is not said to be JSON.",
        429: "Too many requests.",
    }
)
EXPERT_ERRORS = _errors(
    {
        404: "There is no such model, or there are no experts.",
        422: "The expert cannot use the body.",
        429: "Too many requests, here or at the expert.",
        502: "The expert failed.",
        503: "The expert is down.",
        504: "The expert did not answer in time.",
    }
)


def as_anthropics(errors: Responses) -> Responses:
    """The errors of an endpoint of Anthropic's API."""
    return {
        status: {**description, "model": MessagesErrorReply}
        for status, description in errors.items()
    }


EXPERT_ANSWER: Responses = {
    200: {
        "description": (
            "The expert's own answer. The headers x-ridgeway-… say which expert it was,"
            " and why."
        ),
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {},
        },
    }
}


# Five endpoints for applications and operators, and two for the page; and a shorter way to those
# that are called most.


Handler = Callable[[Request], Awaitable[Response]]
ExpertOf = Callable[[Router, Decision], ExpertChoice | None]
"""The expert that the gateway would choose by a router's decision."""

MAX_EXPLAINED_CHARACTERS = 100_000


class Shortcut:
    """Answers POST requests to some paths itself and leaves everything else to the application.

    FastAPI's way to a handler takes longer than routing decides a short prompt. The handlers are
    the very ones that the framework has and describes; what they raise is answered alike.
    """

    def __init__(self, app: ASGIApp, *apis: APIRouter) -> None:
        self.app = app
        routes = [
            route for api in apis for route in api.routes if isinstance(route, APIRoute)
        ]
        self._handlers: dict[str, Handler] = {
            route.path: route.endpoint for route in routes if route.methods == {"POST"}
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = (
            self._handlers.get(scope["path"])
            if scope["type"] == "http" and scope["method"] == "POST"
            else None
        )
        if handler is None:
            await self.app(scope, receive, send)
            return
        scope[PATH_SERVED] = scope["path"]
        try:
            response = await handler(Request(scope, receive))
        except Exception as error:
            response = error_response(error, scope)
        await response(scope, receive, send)


class JsonAnswer(Response):
    """Bytes of JSON and their length; the framework's own takes longer to make."""

    def __init__(self, content: bytes) -> None:
        self.status_code = 200
        self.background = None
        self.body = content
        length = b"%d" % len(content)
        self.raw_headers = [
            (b"content-length", length),
            (b"content-type", b"application/json"),
        ]


def json_answer(value: Any) -> Response:
    return written_answer(to_json(value))


def written_answer(content: bytes) -> Response:
    """An answer in JSON, which is held until it was sent."""
    hold(len(content))
    return JsonAnswer(content)


def routing_api(
    service: RoutingService,
    expert_of: ExpertOf | None,
    experts: Callable[[], dict[str, str]],
    worths: Callable[[], ExpertWorths | None],
) -> APIRouter:
    """The endpoints; `experts` says of each expert how it is, `worths` what their choice weighs."""
    api = APIRouter(tags=["routing"])

    def with_expert(router: Router, decision: Decision) -> dict[str, Any]:
        answer = decision.to_json()
        choice = None if expert_of is None else expert_of(router, decision)
        if choice:
            answer |= choice.to_json()
        return answer

    @api.post(
        "/v1/route",
        responses={200: {"model": Routed | RoutedMany}, **ERRORS},
        openapi_extra=described(RouteRequest),
        response_class=Response,
    )
    async def route(request: Request) -> Response:
        """Where a prompt, many prompts, or a conversation should go."""
        # the body is not held any longer
        wanted = (await read_body(request, RouteRequest)).wanted()
        if wanted.explain:
            return await _explained(service, wanted, with_expert)
        if wanted.prompts is None:
            turns, left_out = wanted.texts[0]
            served, decision = await service.decide(turns)
            router = served.router
            answer = with_expert(router, decision) | origin(router) | _cut(left_out)
            if wanted.after is not None:
                answer |= await asyncio.to_thread(
                    _staying, router, decision, wanted.after, turns[0].text
                )
            return json_answer(answer)
        served, decisions = await service.decide_many(wanted.prompts)
        decided = [
            with_expert(served.router, decision) | _cut(left_out)
            for decision, (_, left_out) in zip(decisions, wanted.texts, strict=True)
        ]
        return json_answer({**origin(served.router), "decisions": decided})

    @api.post(
        "/v1/compare",
        responses={
            200: {"model": Routed | RoutedMany},
            404: {"model": ErrorReply, "description": "There is no such release."},
            **ERRORS,
        },
        openapi_extra=described(RouteRequest),
        response_class=Response,
    )
    async def compare(request: Request) -> Response:
        """The same as /v1/route with an explanation, by the release that `compare` in serve.toml
        names; it is counted nowhere.
        """
        if service.compared is None:
            words = (
                "there is no second release here; name one as `compare` in serve.toml"
            )
            raise Problem(404, words, code="no_comparison")
        wanted = (await read_body(request, RouteRequest)).wanted()
        return await _explained(
            service, wanted, lambda _, decision: decision.to_json(), service.compared
        )

    _add_state(api, service, experts, worths)
    return api


def _add_state(
    api: APIRouter,
    service: RoutingService,
    experts: Callable[[], dict[str, str]],
    worths: Callable[[], ExpertWorths | None],
) -> None:
    """The endpoints that tell of the service itself."""

    @api.get("/v1/releases/current", responses=ERRORS)
    async def current() -> ReleaseCard:
        """The release in use: its manifest, who signed it, and why a newer one was refused, if one
        was.
        """
        return ReleaseCard(
            **service.current.served.card(), refused=service.current.refused
        )

    @api.get("/v1/activity", include_in_schema=False)
    async def activity() -> Response:
        """What the page shows: the last minutes, and drift."""
        served = service.current.served
        return json_answer(
            {
                "release": served.id,
                "compared": service.compared.id if service.compared else None,
                "refused": service.current.refused,
                "activity": service.activity.to_json(),
                "drift": service.drift.to_json(served),
                "experts": {
                    name: {"state": state, **service.metrics.of_expert(name)}
                    for name, state in experts().items()
                },
            }
        )

    @api.get("/v1/worths", include_in_schema=False)
    async def expert_worths() -> Response:
        """What the page shows of the choice of experts; null where there are none."""
        return json_answer(worths())

    @api.head("/healthz", include_in_schema=False)
    @api.get("/healthz", tags=["operating"])
    async def health() -> Health:
        """Whether the process answers."""
        return Health(status="ok")

    @api.head("/readyz", include_in_schema=False)
    @api.get("/readyz", tags=["operating"])
    async def ready(request: Request) -> Readiness:
        """Whether prompts can be routed, and, to those with a key, how the experts are."""
        states = experts() if request.scope.get(HAS_KEY, True) else {}
        return Readiness(ready=True, release=service.current.served.id, experts=states)

    @api.get(
        "/metrics",
        tags=["operating"],
        response_class=PlainTextResponse,
        responses=ERRORS,
    )
    async def metrics() -> Response:
        """Everything that is counted, for Prometheus."""
        return Response(service.exposition(), media_type=EXPOSITION)


def _cut(left_out: int) -> dict[str, int]:
    """That a text was too long to be routed whole, if it was."""
    return {"left_out": left_out} if left_out else {}


def _staying(
    router: Router, decision: Decision, after: str | None, text: str
) -> dict[str, Any]:
    """Whether a chat stays with its domain, if one was named; an empty name is an abstention's."""
    if after is None:
        return {}
    if after and after not in router.domains:
        words = (
            f"after: there is no domain of this name; give {', '.join(router.domains)}"
        )
        raise Problem(400, words, code="invalid_value", param="after")
    return evidence_to_leave(router, decision, after or None, text)._asdict()


async def _explained(
    service: RoutingService,
    wanted: WantedDecisions,
    with_expert: Callable[[Router, Decision], dict[str, Any]],
    compared: ServedRelease | None = None,
) -> Response:
    """Put together beside the event loop, since every token is in it."""
    texts = [turns for turns, _ in wanted.texts]
    if (
        sum(len(turn.text) for turns in texts for turn in turns)
        > MAX_EXPLAINED_CHARACTERS
    ):
        words = (
            f"only texts of up to {MAX_EXPLAINED_CHARACTERS:,} characters are explained"
        )
        raise Problem(400, words, code="too_long_to_explain")

    def write(router: Router, explanations: list[Explanation]) -> bytes:
        decided = [
            explanation.to_json()
            | with_expert(router, explanation.decision)
            | _cut(left_out)
            | _staying(router, explanation.decision, wanted.after, turns[0].text)
            for explanation, (turns, left_out) in zip(
                explanations, wanted.texts, strict=True
            )
        ]
        whole = (
            decided[0] | origin(router)
            if wanted.prompts is None
            else {**origin(router), "decisions": decided}
        )
        return to_json(whole)

    return written_answer(await service.explain(texts, write, compared))


# Decisions for other gateways: a body of OpenAI's or Anthropic's API in, headers out.
#
# For Envoy's ext_authz, nginx, Kong and APISIX (docs/application/other-gateways.md).


DECIDE = "/v1/decide"
NGINX_LOCATION = "x-nginx-location"
"""How the names of nginx's locations begin: then the answer's x-accel-redirect leads to one."""

Decider = Callable[[GatewayBody], Awaitable[dict[str, str]]]


def decision_api(service: RoutingService, decide: Decider | None) -> APIRouter:
    """decide: by the experts of the gateway; None where there are none: then domains are told."""
    api = APIRouter(tags=["routing"])
    chosen = decide or _by_domain(service)

    @api.post(DECIDE, response_class=Response, include_in_schema=False)
    @api.post(
        f"{DECIDE}/{{path:path}}", response_class=Response, include_in_schema=False
    )
    async def decision(request: Request) -> Response:
        """Where a request should go: 200, no body, and headers. The path behind is not read."""
        try:
            body = await read_gateway_body(request, None)
            body = await body.under(service.rules, request.headers)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)
        headers = await chosen(body)
        location = request.headers.get(NGINX_LOCATION)
        if location is not None:
            headers["x-accel-redirect"] = f"@{location}{headers['x-ridgeway-expert']}"
        return Response(headers=headers)

    return api


def _by_domain(service: RoutingService) -> Decider:
    """The domain stands for its expert, and the fallback for that of abstentions."""
    conversations = Conversations(service)

    async def decide(body: GatewayBody) -> dict[str, str]:
        served = service.current.served
        began = time.perf_counter()
        stays = False
        if body.ruled is not None:
            decision = ruled_decision(served.router, body.ruled)
            domain = decision.domain
        elif body.exchange is None:
            turns = body.routed.turns if body.routed else []
            served, decision = await service.decide(turns)
            domain = decision.domain
        else:
            turn = await asyncio.to_thread(conversations.route_exchange, body.exchange)
            domain, stays, decision = turn
            service.note(served, decision, time.perf_counter() - began)
        if body.ruled is not None:
            reason = "rule"
        elif stays:
            reason = "sticky"
        else:
            reason = "abstained" if decision.abstained else "best"
        headers = decision_headers(served, decision) | {
            "x-ridgeway-reason": reason,
            "x-ridgeway-expert": domain or "",
        }
        return {name: quote(value, safe=" ") for name, value in headers.items()}

    return decide
