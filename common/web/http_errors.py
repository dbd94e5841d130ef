"""What a client did wrong, or what went wrong for it, in the shape that its own API has: OpenAI's,
or Anthropic's.

    {"error": {"message": "…", "type": "invalid_request_error", "param": null, "code":
    "model_not_found"}}
    {"type": "error", "error": {"type": "invalid_request_error", "message": "…"}}

Messages hold no prompt, no path and no traceback.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

log = logging.getLogger("ridgeway.http")

ERROR_CODE = "ridgeway.error_code"
"""In the scope: the code of the error that a request, or its stream, was answered with."""
CLIENT_GONE_CODE = "client_gone"
"""Of a stream that its client has left."""
CLIENT_GONE = 499
"""The status that is counted for a client that left before it was answered; no client is sent it.
"""

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


_JSON_POSITION = re.compile(r" at line (\d+) column (\d+)$")
_NO_CHARACTER = "has a \\u escape of no character, perhaps half of a pair,"
UNUSABLE_JSON = {
    "recursion limit exceeded": "is nested too deeply",
    "number out of range": "has a number of too many digits",
    "lone leading surrogate in hex escape": _NO_CHARACTER,
    "unexpected end of hex escape": _NO_CHARACTER,
}
"""What the parser says of JSON that may be valid and is not taken."""
ANTHROPIC_PATH = "/v1/messages"
"""What lies at this address, and below, is Anthropic's API."""
ANTHROPIC_TYPES = ERROR_TYPES | {
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


class ClientGone(Exception):
    """The client has closed its connection: nothing is left to answer."""


@dataclass(eq=False)
class Problem(Exception):
    """An answer that is an error; raised anywhere while a request is served."""

    status: int
    message: str
    code: str | None = field(default=None, kw_only=True)
    param: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] | None = field(default=None, kw_only=True)

    def body(self, path: str = "") -> bytes:
        """path: where the request went, which tells whose API the client speaks."""
        if path.startswith(ANTHROPIC_PATH):
            kind = ANTHROPIC_TYPES.get(
                self.status,
                "api_error" if self.status >= 500 else "invalid_request_error",
            )
            return to_json(
                {"type": "error", "error": {"type": kind, "message": self.message}}
            )
        return to_json({"error": self._facts()})

    def event(self, path: str = "") -> bytes:
        """The last event of a stream that was begun."""
        if path.startswith(ANTHROPIC_PATH):
            return b"event: error\ndata: " + self.body(path) + b"\n\n"
        if path.startswith("/v1/responses"):
            facts = self._facts()
            event = {**facts, "type": "error", "sequence_number": 0, "error": facts}
            return b"event: error\ndata: " + to_json(event) + b"\n\n"
        return b"data: " + self.body(path) + b"\n\n"

    def _facts(self) -> dict[str, str | None]:
        kind = ERROR_TYPES.get(
            self.status,
            "server_error" if self.status >= 500 else "invalid_request_error",
        )
        return {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }

    def response(self, path: str = "") -> Response:
        return Response(self.body(path), self.status, self.headers, "application/json")


class RefusedRequest(Problem):
    """A request that is not let in; `reason` is a word for the metrics."""

    def __init__(self, reason: str, status: int, message: str, **more: Any) -> None:
        super().__init__(status, message, **more)
        self.reason = reason


def json_problem(reason: str) -> Problem:
    """What a client is told of a body that cannot be read, by the words of the parser, which hold
    nothing of the body.
    """
    position = _JSON_POSITION.search(reason)
    words = reason[: position.start()] if position else reason
    words = words.removeprefix("Invalid JSON: ")
    where = f" at line {position[1]}, column {position[2]}" if position else ""
    if words in UNUSABLE_JSON:
        message = f"the body {UNUSABLE_JSON[words]}{where}"
        return Problem(400, message, code="unusable_json")
    message = f"the body is not valid JSON: {words}{where}"
    return Problem(400, message, code="invalid_json")


def validation_problem(error: ValidationError | RequestValidationError) -> Problem:
    """The first thing that a check of the body found, without the value it found it in."""
    without = {"include_url": False, "include_context": False, "include_input": False}
    first = (
        error.errors()
        if isinstance(error, RequestValidationError)
        else error.errors(**without)
    )[0]
    if first["type"] == "json_invalid":
        return json_problem(first["msg"])
    # `str` and `list[ContentPart]` on the way to a field only say as what it was read
    where = ".".join(
        part
        for part in map(str, first["loc"])
        if part not in ("body", "str") and "[" not in part
    )
    words = first["msg"].removeprefix("Value error, ")
    return Problem(
        400,
        f"{where or 'the body'}: {words}",
        code="invalid_value",
        param=where or None,
    )


def problem_of(error: Exception) -> Problem:
    """What a client is told of any error. Of a mistake of ours the kind goes to the log, and
    nothing to the client.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return validation_problem(error)
    if isinstance(error, HTTPException):
        words = {
            404: "not found",
            405: "method not allowed",
        }
        message = words.get(error.status_code, str(error.detail))
        return Problem(error.status_code, message, headers=error.headers)
    log.error("a request failed: %s", type(error).__name__)
    return Problem(
        500, "internal server error; see the server's log", code="internal_error"
    )


def error_response(error: Exception, scope: MutableMapping[str, Any]) -> Response:
    """What a client is told of an error, whose code is noted for the log. Where it was caught it is
    not kept: its traceback holds the request.
    """
    problem = problem_of(error)
    scope[ERROR_CODE] = problem.code
    return problem.response(scope["path"])


def add_error_handlers(app: FastAPI) -> None:
    """Let every error of an application be answered in this shape."""

    async def answer(request: Request, error: Exception) -> Response:
        return error_response(error, request.scope)

    kinds: list[type[Exception]] = [
        Problem,
        RequestValidationError,
        HTTPException,
        Exception,
    ]
    for kind in kinds:
        app.add_exception_handler(kind, answer)
