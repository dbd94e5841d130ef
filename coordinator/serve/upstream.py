"""Requests to experts: one session for all, and what their answers mean.

A request is sent a second time only where the first cannot have been read: the connection could not be made, or a kept
one turned out to be closed before any byte of an answer. Redirects are not followed, cookies not kept, proxies of the
environment not used, and nothing is unpacked.

Knows aiohttp. Knows nothing of routing, and nothing of whoever asked.
"""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
from pydantic_core import from_json

from coordinator.serve.events import BadStream, Events
from coordinator.serve.failures import (
    BUSY,
    FAILED,
    GARBAGE,
    REFUSED,
    TIMEOUT,
    UNAVAILABLE,
    UNREACHABLE,
    Kind,
)
from coordinator.serve.link import JSON, STREAM, Attempt, Link, Path

LARGEST = 64 * 1024 * 1024
"""No answer that is not streamed has more bytes."""
PARSED = 256 * 1024
"""Of a longer answer, only how it begins and ends is looked at."""
ONE_WRITE = 1024 * 1024
MOST_CONNECTIONS = 8192
KEPT_S = 15.0
OPERATORS_MISTAKES = frozenset((401, 402, 403, 404, 405, 407, 410))
"""The client cannot have caused these: the gateway makes the address, the model's name and the key."""


@dataclass(slots=True)
class Whole:
    """An answer that is not streamed, or a mistake of the client's that the expert has found."""

    status: int
    body: bytes
    kind: str


@dataclass(slots=True)
class Begun:
    """A stream whose first events are there. Whoever takes it reads it to its end or closes it."""

    attempt: Attempt
    response: aiohttp.ClientResponse
    events: Events
    first: bytes

    def close(self) -> None:
        """Closes the connection, unless the answer was read to its end; then that is kept for the next."""
        self.response.close()
        self.attempt.abandon()


@dataclass(slots=True)
class Trail:
    """Whether a request went over a connection that was used before."""

    reused: bool = False


@dataclass(slots=True)
class Question:
    """What is asked of one expert."""

    path: Path
    body: bytes = field(repr=False)
    streamed: bool


class Upstream:
    """The gateway's connections. Use it in an `async with`."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Upstream:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=KEPT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept-encoding": "identity", "user-agent": "ridgeway"},
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, link: Link, question: Question) -> Whole | Begun:
        """An expert's answer, or a Failure."""
        attempt = link.begin()
        try:
            async with asyncio.timeout(link.expert.timeout):
                response = await self._post(attempt, question)
                if not (question.streamed and response.ok):
                    return await _whole(attempt, response)
            return await _begun(attempt, response)
        except TimeoutError:
            raise attempt.fail(TIMEOUT) from None
        except BaseException:
            attempt.abandon()  # nothing, if it has failed already
            raise

    async def _post(self, attempt: Attempt, question: Question) -> aiohttp.ClientResponse:
        try:
            response = await self._send_twice(attempt.link, question)
        except aiohttp.ClientConnectorError:
            raise attempt.fail(UNREACHABLE) from None
        except aiohttp.ConnectionTimeoutError:
            raise attempt.fail(UNREACHABLE) from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            raise attempt.fail(FAILED) from None
        except aiohttp.ClientError:
            raise attempt.fail(GARBAGE) from None
        kind = _failed(response)
        if kind is not None:
            response.close()
            raise attempt.fail(kind, _retry_after(response))
        attempt.heard()
        return response

    async def _send_twice(self, link: Link, question: Question) -> aiohttp.ClientResponse:
        """Sent again at most once, and only if the first cannot have been read."""
        trail = Trail()
        try:
            return await self._send(link, question, trail)
        except aiohttp.ClientError as error:
            if not _was_never_read(error, trail):
                raise
        return await self._send(link, question, trail)

    async def _send(self, link: Link, question: Question, trail: Trail) -> aiohttp.ClientResponse:
        assert self._session is not None, "the gateway is used inside its `async with`"
        body = question.body
        return await self._session.post(
            link.urls[question.path],
            data=body if len(body) < ONE_WRITE else io.BytesIO(body),
            headers=link.headers(question.streamed),
            timeout=link.timeout,
            allow_redirects=False,
            trace_request_ctx=trail,
        )


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, _: Any) -> None:
    context.trace_request_ctx.reused = True


def _was_never_read(error: aiohttp.ClientError, trail: Trail) -> bool:
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return True
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return trail.reused and isinstance(error.message, str)  # otherwise the beginning of an answer had come
    return trail.reused and isinstance(error, aiohttp.ClientOSError)


def _failed(response: aiohttp.ClientResponse) -> Kind | None:
    """What is wrong with an answer by its head alone."""
    status = response.status
    if status in OPERATORS_MISTAKES:
        return REFUSED
    if status == 429:
        return BUSY
    if status == 503:
        return UNAVAILABLE
    if status in (408, 504):
        return TIMEOUT
    if status >= 500:
        return FAILED
    if not (200 <= status < 300 or status >= 400):
        return GARBAGE
    return GARBAGE if response.headers.get("content-encoding", "identity") != "identity" else None


def _retry_after(response: aiohttp.ClientResponse) -> str | None:
    """The expert's own word, if it is a number of seconds or a date."""
    value = response.headers.get("retry-after", "")
    return value if 0 < len(value) <= 40 and value.isascii() and value.isprintable() else None


def _media_type(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _whole(attempt: Attempt, response: aiohttp.ClientResponse) -> Whole:
    """The answer, if it is a JSON object of a bearable size."""
    try:
        body = await _read_all(response)
    except aiohttp.ClientError:
        raise attempt.fail(FAILED) from None
    finally:
        response.close()  # nothing, if it was read to its end
    kind = _media_type(response)
    if body is None or not (kind == JSON or kind.endswith("+json")) or not _is_an_object(body):
        raise attempt.fail(GARBAGE)
    if response.ok:
        attempt.succeed()
    else:
        attempt.mistaken()
    return Whole(response.status, body, JSON)


async def _read_all(response: aiohttp.ClientResponse) -> bytes | None:
    """None if there is too much of it."""
    if (response.content_length or 0) > LARGEST:
        return None
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST:
            return None
    return b"".join(pieces)


def _is_an_object(body: bytes) -> bool:
    body = body.strip()
    if not (body.startswith(b"{") and body.endswith(b"}")):
        return False
    if len(body) > PARSED:
        return True
    try:
        from_json(body)
    except ValueError:
        return False
    return True


async def _begun(attempt: Attempt, response: aiohttp.ClientResponse) -> Begun:
    """The stream, once its first events have come: until then another expert can still be asked."""
    try:
        if _media_type(response) != STREAM:
            raise BadStream(GARBAGE)
        framed = "content-length" in response.headers or "transfer-encoding" in response.headers
        events = Events(response.content.readany, attempt.link.expert.silence, framed)
        first = await events.next()
    except BadStream as error:
        response.close()
        raise attempt.fail(error.kind) from None
    except BaseException:
        response.close()
        raise
    return Begun(attempt, response, events, first)
