"""A page that is only read, as an application: its files, what it asks for, metrics and health,
behind the guard.

What a page shows is somebody else's job.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.files import without_folder
from ridgeway.common.http.access_rules import AccessRules
from ridgeway.common.http.guard import RequestGuard
from ridgeway.common.http.http_errors import Problem, add_error_handlers
from ridgeway.common.http.request_metrics import EXPOSITION, RequestMetrics
from ridgeway.common.http.server import Look, watching
from ridgeway.common.http.site import read_site, site_api


@dataclass(frozen=True, slots=True)
class PageParts:
    """package: holds the page's own files in `static`. folder: what is shown; no answer says where
    it lies. looks: what is at each address below /v1, found anew whenever it is asked for.
    """

    package: str
    folder: Path
    looks: Mapping[str, Callable[..., Any]]
    metrics: RequestMetrics


def create_page_app(
    parts: PageParts, rules: AccessRules | None = None, watched: Iterable[Look] = ()
) -> ASGIApp:
    """Every address of the page in its place. watched: while it is served, beside the keys."""
    rules = rules or AccessRules()
    all_watched = [*watched, *([rules.keys.watch] if rules.keys is not None else [])]

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with watching(all_watched):
            yield

    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    add_error_handlers(app)

    @app.exception_handler(RidgewayError)
    async def unreadable(request: Request, error: RidgewayError) -> Response:
        words = without_folder(error, parts.folder)
        if isinstance(error, InputError):
            return Problem(404, words, code="not_found").response()
        return Problem(503, words, code="unreadable").response()

    @app.get("/health")
    async def health() -> Mapping[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/metrics")
    def metrics() -> Response:
        """Everything that is counted, for Prometheus."""
        return Response(parts.metrics.exposition(), media_type=EXPOSITION)

    # a plain function is called in a thread, beside the event loop
    for path, look in parts.looks.items():
        app.add_api_route(f"/v1{path}", look, response_model=None)
    app.include_router(site_api(read_site(parts.package), {"/": "index.html"}))
    return RequestGuard(app, rules, parts.metrics)
