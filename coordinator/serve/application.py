"""The application: every endpoint, behind the guard.

Knows how the parts are put together. Each part is somebody else's job.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from coordinator.serve import problems
from coordinator.serve.routing import routing_api
from coordinator.serve.service import Service

ABOUT = """Routes prompts to domain experts by a signed release, and passes requests on to them.

Errors have the shape of OpenAI's API. If the service has keys, send one as `Authorization: Bearer KEY`."""


def create_app(service: Service) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(title="Ridgeway", description=ABOUT, version="1", docs_url=None, redoc_url=None, lifespan=lifespan)
    problems.add_to(app)
    app.include_router(routing_api(service, lambda live, decision: {}, dict))
    return app
