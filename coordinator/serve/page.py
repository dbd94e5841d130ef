"""The page at `/` and the description of the API at `/docs`: plain files beside this module, held in memory.

Their addresses hold a version made of their content, so that browsers may keep them and still never mix two versions.
Knows files and how browsers keep them. Everything the page shows it asks of the API, as any client would.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Response

from coordinator.serve.problems import Problem

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PLACE = "/page/"
READ = ["GET", "HEAD"]
ALWAYS_ASK = {"Cache-Control": "no-cache"}
KEEP = {"Cache-Control": "public, max-age=31536000, immutable"}


@dataclass(frozen=True, slots=True)
class Site:
    """The files of the page by name, and the version that they are."""

    contents: dict[str, bytes]
    version: str

    def document(self, name: str) -> Response:
        """A document, its addresses those of this version."""
        body = self.contents[name].replace(PLACE.encode(), f"{PLACE}{self.version}/".encode())
        return Response(body, headers=ALWAYS_ASK, media_type=KINDS["html"])

    def asset(self, version: str, name: str) -> Response:
        if version != self.version or name not in self.contents:
            raise Problem(404, "there is nothing at this address")
        return Response(self.contents[name], headers=KEEP, media_type=KINDS[name.rpartition(".")[2]])


def read_site() -> Site:
    folder = files(__package__) / "page"
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.name.rpartition(".")[2] in KINDS}
    whole = hashlib.sha256()
    for name, body in sorted(contents.items()):
        whole.update(f"{name} {len(body)} ".encode() + body)
    return Site(contents, whole.hexdigest()[:16])


def page_api() -> APIRouter:
    """The page's addresses; no program needs them, so the description of the API leaves them out."""
    site = read_site()
    api = APIRouter(include_in_schema=False, default_response_class=Response)

    @api.api_route("/", methods=READ)
    async def page() -> Response:
        return site.document("index.html")

    @api.api_route("/docs", methods=READ)
    async def docs() -> Response:
        return site.document("docs.html")

    @api.api_route(PLACE + "{version}/{name}", methods=READ)
    async def asset(version: str, name: str) -> Response:
        return site.asset(version, name)

    return api
