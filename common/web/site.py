"""The files of a page, held in memory and sent so that browsers may keep them and still never mix
two versions.

A page is plain files: those that every page shares, in `static` beside this module, and those of
its own folder. The address of each holds a version made of their content. What a page shows it asks
of the API, as any client.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import ASGIApp

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.files import without_folder
from ridgeway.common.web.api_keys import AccessRules
from ridgeway.common.web.guard import ASSET_PREFIX, RequestGuard
from ridgeway.common.web.http_errors import Problem, add_error_handlers
from ridgeway.common.web.request_context import EXPOSITION, RequestMetrics
from ridgeway.common.web.server import Look, watching

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SHARED_PARTS = ("head.html", "key.html")
"""A document names them in a comment."""
READ_METHODS = ["GET", "HEAD"]
NO_CACHE = {"Cache-Control": "no-cache"}
KEEP_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


@dataclass(frozen=True, slots=True)
class Site:
    """The files of a page by name, and the version that they are."""

    contents: Mapping[str, bytes]
    version: str


def read_site(package: str) -> Site:
    """What every page shares and what lies in `static` of a package, which may not have a name
    twice.
    """
    paths = [
        path
        for name in (__package__, package)
        for path in (files(name) / "static").iterdir()
    ]
    contents = {
        path.name: path.read_bytes()
        for path in sorted(paths, key=lambda path: path.name)
        if path.name.rpartition(".")[2] in MEDIA_TYPES
    }
    whole = b"".join(
        f"{name} {len(body)} ".encode() + body for name, body in contents.items()
    )
    return Site(contents, hashlib.sha256(whole).hexdigest()[:16])


def site_api(site: Site, documents: Mapping[str, str]) -> APIRouter:
    """The page's addresses; no program needs them, so the description of an API leaves them out.

    documents: the file that stands at each address.
    """
    api = APIRouter(include_in_schema=False, default_response_class=Response)

    def add(path: str, name: str) -> None:
        """A document: the parts that it shares put in, its addresses those of this version."""
        body = site.contents[name]
        for part in SHARED_PARTS:
            body = body.replace(f"<!-- {part} -->\n".encode(), site.contents[part])
        body = body.replace(
            ASSET_PREFIX.encode(), f"{ASSET_PREFIX}{site.version}/".encode()
        )

        @api.api_route(path, methods=READ_METHODS)
        async def document() -> Response:
            return Response(body, headers=NO_CACHE, media_type=MEDIA_TYPES["html"])

    for path, name in documents.items():
        add(path, name)

    @api.api_route(ASSET_PREFIX + "{version}/{name}", methods=READ_METHODS)
    async def asset(version: str, name: str) -> Response:
        if version != site.version or name not in site.contents:
            raise Problem(404, "not found")
        return Response(
            site.contents[name],
            headers=KEEP_FOREVER,
            media_type=MEDIA_TYPES[name.rpartition(".")[2]],
        )

    return api


# A page that is only read, as an application: its files, what it asks for, metrics and health,
# behind the guard.
#
# What a page shows is somebody else's job.


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
