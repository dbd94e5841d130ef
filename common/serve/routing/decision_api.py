"""Decisions for other gateways: a body of OpenAI's or Anthropic's API in, headers out.

For Envoy's ext_authz, nginx, Kong and APISIX (docs/application/other-gateways.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from ridgeway.common.http.http_errors import CLIENT_GONE, ClientGone
from ridgeway.common.routing.conversations import Conversations
from ridgeway.common.serve.request_bodies import GatewayBody, read_gateway_body
from ridgeway.common.serve.routing.routing_service import (
    RoutingService,
    decision_headers,
)
from ridgeway.common.serve.rules import ruled_decision

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
