"""The application: every endpoint, behind the guard.

Knows how the parts are put together. Each part is somebody else's job.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import ASGIApp

from coordinator.serve import problems
from coordinator.serve.page import page_api
from coordinator.serve.routing import ROUTE, route_handler, routing_api
from coordinator.serve.service import Service
from coordinator.serve.shortcut import Shortcut

ABOUT = """Routes prompts to domain experts by a signed release, and passes requests on to them.

Errors have the shape of OpenAI's API. If the service has keys, send one as `Authorization: Bearer KEY`."""


def create_app(service: Service) -> ASGIApp:
    """Every endpoint in its place. Requests come in through the guard, then the shortcut, then the framework."""
    route = route_handler(service, lambda live, decision: {})

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(title="Ridgeway", description=ABOUT, version="1", docs_url=None, redoc_url=None, lifespan=lifespan)
    problems.add_to(app)
    app.include_router(routing_api(service, route, dict))
    app.include_router(page_api())
    return Shortcut(app, {ROUTE: route})
