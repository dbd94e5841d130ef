"""The application: every endpoint, behind the guard; and the page at `/` and the description of the API at `/docs`.

The page is plain files beside this module, held in memory. Their addresses hold a version made of their content, so
that browsers may keep them and still never mix two versions. What the page shows it asks of the API, as any client.

Knows how the parts are put together, and how browsers keep files. Each other part is another module's job.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from importlib.resources import files

from fastapi import APIRouter, FastAPI, Response
from starlette.types import ASGIApp

from ridgeway.coordinator.serve.access.access_rules import AccessRules
from ridgeway.coordinator.serve.access.guard import RequestGuard
from ridgeway.coordinator.serve.gateway.gateway import Gateway, gateway_api
from ridgeway.coordinator.serve.http_errors import Problem, add_error_handlers
from ridgeway.coordinator.serve.routing.routing_api import Shortcut, routing_api
from ridgeway.coordinator.serve.routing.routing_service import RoutingService

ABOUT = """Routes prompts to domain experts by a signed release, and passes requests on to them.

Errors have the shape of OpenAI's API. If the service has keys, send one as `Authorization: Bearer KEY`."""
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
ASSET_PREFIX = "/page/"
READ_METHODS = ["GET", "HEAD"]
NO_CACHE = {"Cache-Control": "no-cache"}
KEEP_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


def create_app(service: RoutingService, *, gateway: Gateway | None = None, rules: AccessRules | None = None) -> ASGIApp:
    """Every endpoint in its place. Requests come in through the guard, then the shortcut, then the framework."""

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
    add_error_handlers(app)
    rules = rules or AccessRules()
    routing = routing_api(service, gateway.file.expert_of if gateway else None, gateway.states if gateway else dict)
    apis = (routing, gateway_api(service, gateway), page_api())
    for api in apis:
        app.include_router(api)
    if gateway is not None:
        service.watchers.append(gateway.watch)
    if rules.keys is not None:
        service.watchers.append(rules.keys.watch)
    return RequestGuard(Shortcut(app, *apis), rules, service.metrics)


def read_site() -> tuple[dict[str, bytes], str]:
    """The files of the page by name, and the version that they are."""
    paths = sorted((files(__package__) / "static").iterdir(), key=lambda path: path.name)
    contents = {path.name: path.read_bytes() for path in paths if path.name.rpartition(".")[2] in MEDIA_TYPES}
    whole = b"".join(f"{name} {len(body)} ".encode() + body for name, body in contents.items())
    return contents, hashlib.sha256(whole).hexdigest()[:16]


def page_api() -> APIRouter:
    """The page's addresses; no program needs them, so the description of the API leaves them out."""
    contents, current = read_site()
    api = APIRouter(include_in_schema=False, default_response_class=Response)

    def document(name: str) -> Response:
        """A document, its addresses those of this version."""
        body = contents[name].replace(ASSET_PREFIX.encode(), f"{ASSET_PREFIX}{current}/".encode())
        return Response(body, headers=NO_CACHE, media_type=MEDIA_TYPES["html"])

    @api.api_route("/", methods=READ_METHODS)
    async def page() -> Response:
        return document("index.html")

    @api.api_route("/docs", methods=READ_METHODS)
    async def docs() -> Response:
        return document("docs.html")

    @api.api_route(ASSET_PREFIX + "{version}/{name}", methods=READ_METHODS)
    async def asset(version: str, name: str) -> Response:
        if version != current or name not in contents:
            raise Problem(404, "there is nothing at this address")
        return Response(contents[name], headers=KEEP_FOREVER, media_type=MEDIA_TYPES[name.rpartition(".")[2]])

    return api
