"""The routing API: where a prompt should go and why, the release in use, and how the service is.

Four endpoints for applications and operators, and one for the page. Knows HTTP; decisions are made by the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from common.conversation import Turn, weighted_turns
from common.decisions import fields, origin, reasons
from common.router import Decision
from coordinator.serve.bodies import ERRORS, described, json_answer, read_body
from coordinator.serve.guard import KNOWN
from coordinator.serve.live import Live
from coordinator.serve.problems import Problem
from coordinator.serve.service import Service
from coordinator.serve.shortcut import Handler
from coordinator.serve.wire import (
    Health,
    Message,
    Readiness,
    ReleaseCard,
    Routed,
    RoutedMany,
    RouteRequest,
)

Chosen = Callable[[Live, Decision], dict[str, Any]]
"""What the gateway adds to a decision: the expert it would choose."""


ROUTE = "/v1/route"
MOST_EXPLAINED = 100_000


def route_handler(service: Service, chosen: Chosen) -> Handler:
    async def route(request: Request) -> Response:
        """Where a prompt, many prompts, or a conversation should go."""
        asked = await read_body(request, RouteRequest)
        if asked.explain:
            return await _explained(service, asked, chosen)
        if asked.prompts is not None:
            live, decisions = await service.decide_many(asked.prompts)
            return json_answer(_many(live, [fields(each) | chosen(live, each) for each in decisions]))
        live, decision = await service.decide(_turns(asked))
        return json_answer(fields(decision) | chosen(live, decision) | origin(live.router))

    return route


def routing_api(service: Service, route: Handler, experts: Callable[[], dict[str, str]]) -> APIRouter:
    api = APIRouter(tags=["routing"])
    api.post(
        ROUTE,
        responses={200: {"model": Routed | RoutedMany}, **ERRORS},
        openapi_extra=described(RouteRequest),
        response_class=Response,
    )(route)

    @api.get("/v1/releases/current", responses=ERRORS)
    async def current() -> ReleaseCard:
        """The release in use: its manifest, who signed it, and why a newer one was refused, if one was."""
        return ReleaseCard(**service.card())

    @api.get("/v1/activity", include_in_schema=False)
    async def activity() -> Response:
        """What the page shows: the last minutes, and drift."""
        return json_answer({**service.standing(), "experts": experts()})

    @api.get("/healthz", tags=["operating"])
    async def health() -> Health:
        """Whether the process answers."""
        return Health(status="ok")

    @api.get("/readyz", tags=["operating"])
    async def ready(request: Request) -> Readiness:
        """Whether prompts can be routed, and, to those with a key, how the experts are."""
        states = experts() if request.scope.get(KNOWN, True) else {}
        return Readiness(ready=True, release=service.current.live.id, experts=states)

    @api.get("/metrics", tags=["operating"], response_class=PlainTextResponse, responses=ERRORS)
    async def metrics() -> Response:
        """Everything that is counted, for Prometheus."""
        return Response(service.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return api


def _many(live: Live, decided: list[dict[str, Any]]) -> dict[str, Any]:
    return {**origin(live.router), "decisions": decided}


async def _explained(service: Service, asked: RouteRequest, chosen: Chosen) -> Response:
    """Put together beside the event loop, since every token is in it."""
    texts = [[Turn(prompt, 1.0)] for prompt in asked.prompts] if asked.prompts is not None else [_turns(asked)]
    if sum(len(turn.text) for turns in texts for turn in turns) > MOST_EXPLAINED:
        raise Problem(
            400, f"only texts of up to {MOST_EXPLAINED:,} characters are explained", code="too_long_to_explain"
        )
    live, explanations = await service.explain(texts)

    def written() -> Response:
        decided = [
            fields(each.decision) | chosen(live, each.decision) | reasons(each, live.router) for each in explanations
        ]
        return json_answer(decided[0] | origin(live.router) if asked.prompts is None else _many(live, decided))

    return await asyncio.to_thread(written)


def _turns(asked: RouteRequest) -> list[Turn]:
    if asked.messages is not None:
        return conversation(asked.messages)
    return [Turn(asked.prompt or "", 1.0)]


def conversation(messages: list[Message]) -> list[Turn]:
    """The weighted turns of a chat."""
    return weighted_turns([(message.role, message.spoken) for message in messages])
