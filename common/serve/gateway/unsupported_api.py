"""What OpenAI's and Anthropic's APIs have and the gateway has not: a clear answer, so that nobody
looks for a slip.
"""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Request, Response

from ridgeway.common.http.http_errors import Problem

ROUTED = (
    "/v1/chat/completions, /v1/responses, /v1/completions, /v1/embeddings and"
    " /v1/messages"
)
UNSUPPORTED = (
    *(
        "assistants",
        "audio",
        "batches",
        "chatkit",
        "containers",
        "conversations",
        "evals",
        "files",
        "fine_tuning",
    ),
    *(
        "images",
        "moderations",
        "realtime",
        "threads",
        "uploads",
        "vector_stores",
        "videos",
    ),
    *("chat/completions", "messages", "responses"),
)
"""Of the last three what lies below them; they themselves are there."""
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


@cache
def unsupported_api() -> APIRouter:
    api = APIRouter(include_in_schema=False)

    async def unsupported(request: Request) -> Response:
        """A clear answer."""
        words = (
            f"the gateway passes on {ROUTED} alone; ask an expert's own server for"
            f" {request.url.path}"
        )
        raise Problem(501, words, code="not_supported")

    for name in UNSUPPORTED:
        if "/" not in name and name not in ("messages", "responses"):
            api.add_api_route(f"/v1/{name}", unsupported, methods=METHODS)
        api.add_api_route(f"/v1/{name}/{{rest:path}}", unsupported, methods=METHODS)
    return api
