"""What a client did wrong, or what went wrong for it, in the shape that OpenAI's clients understand.

    {"error": {"message": "…", "type": "invalid_request_error", "param": null, "code": "model_not_found"}}

Knows HTTP's statuses. Messages hold no prompt, no path and no traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

log = logging.getLogger("ridgeway.serve")

CLIENT_GONE = 499
"""What is counted for a client that left before it was answered; nobody is sent it."""

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class Problem(Exception):
    """An answer that is an error; raised anywhere while a request is served."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        return KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> bytes:
        return to_json({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, "application/json")


def of_validation(error: ValidationError | RequestValidationError) -> Problem:
    """The first thing that a check of the body found, without the value it found it in."""
    quickly = {"include_url": False, "include_context": False, "include_input": False}
    details = error.errors() if isinstance(error, RequestValidationError) else error.errors(**quickly)
    first = details[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body" and not _is_a_kind(part))
    if first["type"] == "json_invalid":
        return Problem(400, "the body is not valid JSON", code="invalid_json")
    words = first["msg"].removeprefix("Value error, ")
    return Problem(400, f"{where or 'the body'}: {words}", code="invalid_value", param=where or None)


def _is_a_kind(part: int | str) -> bool:
    """Whether a step of the way to a field only says as what it was read: `str` or `list[Part]`."""
    return part == "str" or (isinstance(part, str) and "[" in part)


def unforeseen(error: Exception) -> Problem:
    """A mistake of ours: its kind goes to the log, nothing of it to the client."""
    log.error("a request failed: %s", type(error).__name__)
    return Problem(500, "the server made a mistake; its log says which", code="internal_error")


def add_to(app: FastAPI) -> None:
    """Let every error of an application be answered in this shape."""

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def refused(request: Request, error: RequestValidationError) -> Response:
        return of_validation(error).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        words = {404: "there is nothing at this address", 405: "this address has no such method"}
        message = words.get(error.status_code, str(error.detail))
        return Problem(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return unforeseen(error).response()
