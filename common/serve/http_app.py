"""The application: every endpoint, behind the guard; and the page at `/` and the description of the
API at `/docs`.

What the page shows it asks of the API.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import ASGIApp

from ridgeway.common.http.access_rules import AccessRules
from ridgeway.common.http.guard import RequestGuard
from ridgeway.common.http.http_errors import add_error_handlers
from ridgeway.common.http.site import read_site, site_api
from ridgeway.common.serve.gateway.gateway import Gateway, gateway_api
from ridgeway.common.serve.routing.decision_api import decision_api
from ridgeway.common.serve.routing.routing_api import Shortcut, routing_api
from ridgeway.common.serve.routing.routing_service import RoutingService
from ridgeway.common.serve.tracing import TracedRequests

_ABOUT = """Routes prompts to domain experts by a signed release, and passes requests on to them.

Errors have the shape of OpenAI's API, at `/v1/messages` of Anthropic's. If the
service has keys, send one as `Authorization: Bearer KEY`."""
_DOCUMENTS = {"/": "index.html", "/docs": "docs.html"}


def create_app(
    service: RoutingService,
    *,
    gateway: Gateway | None = None,
    rules: AccessRules | None = None,
) -> ASGIApp:
    """Every endpoint in its place. Requests come in through the guard, then the shortcut, then the
    framework.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway or contextlib.nullcontext(), service.running():
            yield

    app = FastAPI(
        title="Ridgeway",
        description=_ABOUT,
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    add_error_handlers(app)
    rules = rules or AccessRules()
    experts = (
        (gateway.choice, gateway.states, gateway.worths)
        if gateway
        else (None, dict, lambda: None)
    )
    routing = routing_api(service, *experts)
    site = site_api(read_site(__package__), _DOCUMENTS)
    decisions = decision_api(service, gateway.decide if gateway else None)
    apis = (routing, decisions, gateway_api(service, gateway), site)
    for api in apis:
        app.include_router(api)
    if gateway is not None:
        service.watchers.append(gateway.watch)
    if rules.keys is not None:
        service.watchers.append(rules.keys.watch)
    if rules.usage is not None:
        service.watchers.append(rules.usage.renew)
    shortcut: ASGIApp = Shortcut(app, *apis)
    return RequestGuard(TracedRequests(shortcut), rules, service.metrics)
