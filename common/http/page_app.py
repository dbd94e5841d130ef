"""A page that is only read, as an application: its files, what it asks for, metrics and health,
behind the guard.

What a page shows is somebody else's job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from starlette.types import ASGIApp

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.http.access_rules import AccessRules
from ridgeway.common.http.guard import RequestGuard
from ridgeway.common.http.http_errors import Problem, add_error_handlers
from ridgeway.common.http.request_metrics import EXPOSITION, RequestMetrics
from ridgeway.common.http.server import Look, watching
from ridgeway.common.http.site import read_site, site_api

_Words = Callable[[RidgewayError], str]
"""An error in the words that a browser may see."""


@dataclass(frozen=True, slots=True)
class PageParts:
    """package: holds the page's own files in `static`. api: what it asks for. words: what is said
    of errors.
    """

    package: str
    api: APIRouter
    words: _Words
    metrics: RequestMetrics


def create_page_app(
    parts: PageParts, rules: AccessRules | None = None, looks: Iterable[Look] = ()
) -> ASGIApp:
    """Every address of the page in its place. looks: what is watched while it is served, beside the
    keys.
    """
    rules = rules or AccessRules()
    watched = [*looks, *([rules.keys.watch] if rules.keys is not None else [])]

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with watching(watched):
            yield

    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    add_error_handlers(app)
    for api in (
        parts.api,
        _operating_api(parts),
        site_api(read_site(parts.package), {"/": "index.html"}),
    ):
        app.include_router(api)
    return RequestGuard(app, rules, parts.metrics)


def _operating_api(parts: PageParts) -> APIRouter:
    api = APIRouter()

    @api.get("/health")
    async def health() -> Mapping[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @api.get("/metrics")
    async def metrics() -> Response:
        """Everything that is counted, for Prometheus."""
        return Response(
            await looked(parts.metrics.exposition, parts.words), media_type=EXPOSITION
        )

    return api


def without_place(words: object, folder: Path) -> str:
    """What an error or a sentence says, without the place of the folder."""
    text = str(words)
    for place in (folder.resolve(), folder):
        text = text.replace(f"{place}/", "").replace(str(place), "DIR")
    return text


async def looked(look: Callable[[], Any], words: _Words) -> Any:
    """What a look at a folder finds, beside the event loop; one that cannot be read is an error
    with its reason.
    """
    try:
        return await asyncio.to_thread(look)
    except InputError as error:
        raise Problem(404, words(error), code="not_found") from None
    except RidgewayError as error:
        raise Problem(503, words(error), code="unreadable") from None
