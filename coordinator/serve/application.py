"""The application: every endpoint, behind the guard.

Knows how the parts are put together. Each part is somebody else's job.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import ASGIApp

from coordinator.serve import problems
from coordinator.serve.gateway import Gateway
from coordinator.serve.guard import Guard
from coordinator.serve.openai_api import gateway_api, gateway_handlers
from coordinator.serve.page import page_api
from coordinator.serve.routing import ROUTE, route_handler, routing_api
from coordinator.serve.rules import Rules
from coordinator.serve.service import Service
from coordinator.serve.shortcut import Shortcut

ABOUT = """Routes prompts to domain experts by a signed release, and passes requests on to them.

Errors have the shape of OpenAI's API. If the service has keys, send one as `Authorization: Bearer KEY`."""


def create_app(service: Service, *, gateway: Gateway | None = None, rules: Rules | None = None) -> ASGIApp:
    """Every endpoint in its place. Requests come in through the guard, then the shortcut, then the framework."""
    route = route_handler(service, gateway.chosen if gateway else lambda live, decision: {})
    passed_on = gateway_handlers(gateway)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway or contextlib.nullcontext(), service.running():
            yield

    app = FastAPI(
        title="Ridgeway",
        description=ABOUT,
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    problems.add_to(app)
    app.include_router(routing_api(service, route, gateway.states if gateway else dict))
    app.include_router(gateway_api(service, gateway, passed_on))
    app.include_router(page_api())
    if gateway is not None:
        service.watchers.append(gateway.watch)
    rules = rules or Rules()
    if rules.keys is not None:
        service.watchers.append(rules.keys.watch)
    return Guard(Shortcut(app, {ROUTE: route, **passed_on}), rules, service.metrics)
