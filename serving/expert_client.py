"""Requests to experts: how an expert gets one, one session for all, and what their answers mean."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
from opentelemetry.trace import SpanKind
from pydantic_core import from_json, to_json

from ridgeway.common.routing.experts_file import Expert, FallbackReason
from ridgeway.common.web.http_errors import Problem
from ridgeway.common.web.request_context import current_request, has_room, hold, let_go
from ridgeway.serving import expert_link
from ridgeway.serving.expert_link import (
    EVENT_STREAM,
    JSON,
    AddressLink,
    Attempt,
    Endpoint,
    ExpertFailure,
    ExpertLink,
    FailedExpert,
    FailureKind,
    api_of,
)
from ridgeway.serving.recent_notes import LOOKED_AT_BYTES
from ridgeway.serving.request_bodies import GatewayBody
from ridgeway.serving.sse import (
    BadStream,
    EventStream,
    StreamAnswer,
    TokenUsage,
    most_usage,
    span_facts,
    whole_usage,
)
from ridgeway.serving.telemetry import trace_headers, tracer

# A request as an expert gets it: as it came, but for the model's name, the expert's own fields and
# the number of tokens.
#
# Makes no connections.


USUAL_MAX_TOKENS = 4096
"""A guess at the tokens of an answer, where a request names no number."""
OWN_LIMITS: Mapping[Endpoint, tuple[str, ...]] = {
    "/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/completions": ("max_tokens",),
    "/responses": ("max_output_tokens",),
    "/messages": ("max_tokens",),
}
"""The fields by which a request names a number of tokens; the first is set where it names none."""
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
"""All that are bounded wherever they stand; llama.cpp's server lets the last one go before the
others.
"""
QUIET_STREAMS: tuple[Endpoint, ...] = ("/chat/completions", "/completions")
"""Streams of these say what they used only if they are asked to."""


@dataclass(frozen=True, slots=True)
class ExpertRequest:
    """What an expert is asked.

    only:    the number of the one address that can answer.
    goes_on: from a response that the expert keeps; that it does not have it is then the client's
             mistake.
    most:    the most tokens that it may take.
    hides_usage: whether the gateway alone asks for usage.
    """

    endpoint: Endpoint
    body: bytes = field(repr=False)
    streamed: bool
    only: int | None
    goes_on: bool
    most: TokenUsage
    hides_usage: bool


def expert_request(
    link: ExpertLink, body: GatewayBody, endpoint: Endpoint, only: int | None = None
) -> ExpertRequest:
    """Raises Problem if this expert cannot be asked such a thing."""
    fields = body.fields()
    account = current_request().account
    is_counted = account is not None and account.counts_tokens and body.streamed
    options = fields.get("stream_options")
    options = options if isinstance(options, dict) else {}
    wants_usage = bool(options.get("include_usage"))
    hides_usage = is_counted and endpoint in QUIET_STREAMS and not wants_usage
    if hides_usage:  # the stream must say what it used
        fields["stream_options"] = {**options, "include_usage": True}
    fields = expert_fields(endpoint, link.expert, fields)
    # a number that is too large for a computer is not a number of JSON, and becomes null
    asked = to_json(fields, inf_nan_mode="null")
    most = most_usage(len(asked), _most_answer_tokens(fields, endpoint))
    hold(len(asked))
    goes_on = body.goes_on_from is not None
    return ExpertRequest(
        endpoint, asked, body.streamed, only, goes_on, most, hides_usage
    )


def expert_fields(
    endpoint: Endpoint, expert: Expert, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The request, with the expert's own name of its model and no more tokens than it grants, in
    all answers together.

    May raise Problem.
    """
    asked = {**fields, **expert.body, "model": expert.model}
    if endpoint == "/embeddings":
        asked["model"] = expert.embedding_model or expert.model
        asked.pop("stream", None)  # vectors do not come so
    elif expert.max_tokens is not None:
        asked |= _token_limits(asked, endpoint, expert.max_tokens)
    return asked


def _most_answer_tokens(asked: Mapping[str, Any], endpoint: Endpoint) -> int:
    """The most tokens that the answers to a request have; a guess where it names no number."""
    if endpoint == "/embeddings":
        return 0
    named = [asked.get(name) for name in TOKEN_LIMITS]
    limits = [limit for limit in named if type(limit) is int and limit > 0]
    wished = [asked.get(name) for name in ("n", "best_of")]
    answers = max((n for n in wished if type(n) is int and n > 0), default=1)
    prompts = _prompts(asked.get("prompt"))
    return max(limits, default=USUAL_MAX_TOKENS) * answers * prompts


def _token_limits(
    asked: Mapping[str, Any], endpoint: Endpoint, granted: int
) -> dict[str, int]:
    """The limits of a request whose answers together may have the granted number of tokens."""
    answers = _count(asked, "n", "best_of") * _prompts(asked.get("prompt"))
    if answers > granted:
        words = (
            f"the expert grants {granted} tokens a request, and this asks for {answers}"
            " answers; ask for fewer"
        )
        raise Problem(400, words, code="too_many_answers", param="n")
    most = granted // answers
    wished = {name: asked[name] for name in TOKEN_LIMITS if asked.get(name) is not None}
    limits = {
        name: wish if type(wish) is int and 1 <= wish <= most else most
        for name, wish in wished.items()
    }
    is_named = any(name in limits for name in OWN_LIMITS[endpoint])
    return limits if is_named else {**limits, OWN_LIMITS[endpoint][0]: most}


def _count(asked: Mapping[str, Any], *names: str) -> int:
    """The largest of some fields, each of which is 1 if it is left out. An expert may understand
    "2" or 2.0.
    """
    counts = {name: asked[name] for name in names if asked.get(name) is not None}
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise Problem(
                400,
                f"{name}: give a whole number from 1 on",
                code="invalid_value",
                param=name,
            )
    return max(counts.values(), default=1)


def _prompts(prompt: Any) -> int:
    """How many texts are to be continued: a list of token ids is one."""
    return (
        len(prompt)
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        else 1
    )


# Requests to experts: one session for all, and what their answers mean.
#
# An address gets a request a second time only where the first cannot have been read: the connection
# could not be made, or a kept one turned out to be closed before any byte of an answer. An expert's
# other addresses are asked while one has failed and nothing of an answer has been passed on; after
# two that gave no answer in time, no third. Redirects are not followed, cookies not kept, proxies
# of the environment not used, and nothing is unpacked.


MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of an answer that is not streamed."""
MAX_PARSED_BYTES = 256 * 1024
"""Of a longer answer, only how it begins and ends is looked at."""
MAX_ONE_WRITE_BYTES = 1024 * 1024
MAX_EXPERT_CONNECTIONS = 8192
_KEEP_ALIVE_S = 15.0
_HEALTH_TIMEOUT_S = 3.0
HEALTH_TICK_S = 0.1
MAX_TIMEOUTS = 2
"""So many addresses are asked one after the other that do not answer in time: it may be the request
that takes long.
"""
READ_BUFFER_BYTES = 16 * 1024
SOCKET_BUFFER_BYTES = 64 * 1024
"""What an expert sends and its client does not read waits there, and not in this process."""
TOO_LONG_STATUSES = (400, 413, 422)
TOO_LONG = re.compile(
    rb"context_length_exceeded|exceed_context_size|string_above_max_length|context"
    rb" (?:length|window|size)"
    rb"|(?:prompt|input|request) is too long|inputs? tokens|max_model_len",
    re.IGNORECASE,
)
"""How OpenAI, Anthropic, vLLM, llama.cpp, SGLang and TGI say that a prompt is too long."""
MAX_COMPLAINT_BYTES = 16_384
OPERATIONS: Mapping[Endpoint, str] = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}
"""What OpenTelemetry calls that which an endpoint does."""
FAILURE_BY_STATUS = {
    429: expert_link.BUSY,
    503: expert_link.UNAVAILABLE,
    **dict.fromkeys((408, 504), expert_link.TIMEOUT),
    **dict.fromkeys((401, 402, 403, 404, 405, 407, 410), expert_link.REFUSED),
}
"""The client cannot have caused a refusal: the gateway makes the address, the model's name and the
key.
"""


@dataclass(slots=True)
class ConnectionTrail:
    """How a request went: over a connection that was used before, and for the second time."""

    reused: bool = False
    is_second: bool = False


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that is not streamed, and the number of the address that gave it."""

    status: int
    body: bytearray
    address: int

    @property
    def beginning(self) -> tuple[bytes, int]:
        """How the answer begins, and the number of the address that gave it."""
        return bytes(self.body[:LOOKED_AT_BYTES]), self.address

    @property
    def complaint(self) -> FallbackReason | None:
        """`context` if the expert says that the prompt is too long for it."""
        if self.status not in TOO_LONG_STATUSES:
            return None
        return "context" if TOO_LONG.search(self.body[:MAX_COMPLAINT_BYTES]) else None


class ExpertClient:
    """The gateway's connections. Use it in an `async with`."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ExpertClient:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=MAX_EXPERT_CONNECTIONS,
                keepalive_timeout=_KEEP_ALIVE_S,
                socket_factory=_small_socket,
            ),
            read_bufsize=READ_BUFFER_BYTES,
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

    async def ask(
        self, link: ExpertLink, request: ExpertRequest, is_last: bool
    ) -> WholeAnswer | StreamAnswer:
        """An expert's answer: a stream, or a whole one, which may be a mistake of the client's that
        the expert has found. is_last: as `ExpertLink.begin` has it. Raises ExpertFailure.
        """
        tried: list[AddressLink] = []
        began = time.monotonic()
        slow = 0
        failure: FailedExpert | None = None
        while True:
            try:
                attempt = link.begin(tried, request.only, is_last)
            except ExpertFailure:
                if failure is None:
                    raise
                raise ExpertFailure(failure) from None
            try:
                return await self._ask_address(attempt, request)
            except ExpertFailure as failed:
                failure = failed.failed
                slow += failure.kind is expert_link.TIMEOUT
                if slow >= MAX_TIMEOUTS or len(tried) + 1 == len(link.addresses):
                    raise
                tried.append(attempt.address)
                is_last = (
                    is_last and time.monotonic() - began < link.expert.connect_timeout
                )

    async def is_well(self, address: AddressLink, link: ExpertLink) -> bool:
        """Whether an address passes its health check."""
        assert self._session is not None and address.health_url is not None
        try:
            async with (
                asyncio.timeout(_HEALTH_TIMEOUT_S),
                self._session.get(
                    address.health_url,
                    headers=link.headers(link.expert.apis[0], streamed=False),
                    allow_redirects=False,
                ) as response,
            ):
                return response.ok
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    async def _ask_address(
        self, attempt: Attempt, request: ExpertRequest
    ) -> WholeAnswer | StreamAnswer:
        """An attempt is a span, up to the end of its answer or of its stream."""
        link = attempt.link
        operation = OPERATIONS[request.endpoint]
        attempt.span = tracer.start_span(
            f"{operation} {link.expert.model}",
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": api_of(request.endpoint),
                "gen_ai.request.model": link.expert.model,
                "ridgeway.expert": link.name,
                "ridgeway.address": attempt.address.number,
            },
        )
        try:
            async with asyncio.timeout(link.expert.timeout):
                response = await self._post(attempt, request)
                if not (request.streamed and response.ok):
                    return await _whole(attempt, response)
            return await _begun(attempt, response)
        except TimeoutError:
            raise attempt.fail(expert_link.TIMEOUT) from None
        except BaseException:
            attempt.end("gone", None)  # nothing, if it has failed already
            raise

    async def _post(
        self, attempt: Attempt, request: ExpertRequest
    ) -> aiohttp.ClientResponse:
        try:
            response = await self._send(attempt, request)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise attempt.fail(expert_link.UNREACHABLE) from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            raise attempt.fail(expert_link.FAILED) from None
        except aiohttp.ClientError:
            raise attempt.fail(expert_link.GARBAGE) from None
        kind = _failed(response)
        if kind is not None and not (request.goes_on and response.status == 404):
            response.close()
            raise attempt.fail(kind, _retry_after(response))
        attempt.answer_began()
        return response

    async def _send(
        self, attempt: Attempt, request: ExpertRequest
    ) -> aiohttp.ClientResponse:
        """Sent again at most once, and only if the first cannot have been read."""
        assert self._session is not None, "the gateway is used inside its `async with`"
        trail = ConnectionTrail()
        body = request.body
        headers = {**trace_headers(attempt.span), "x-request-id": current_request().id}
        api = api_of(request.endpoint)
        while True:
            try:
                return await self._session.post(
                    attempt.address.urls[request.endpoint],
                    data=body if len(body) < MAX_ONE_WRITE_BYTES else io.BytesIO(body),
                    headers={**headers, **attempt.link.headers(api, request.streamed)},
                    timeout=attempt.link.timeout,
                    allow_redirects=False,
                    trace_request_ctx=trail,
                )
            except aiohttp.ClientError as error:
                if trail.is_second or not _was_never_read(error, trail.reused):
                    raise
                trail.is_second = True


def _small_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    return made


async def _note_reuse(
    session: aiohttp.ClientSession, context: SimpleNamespace, _: Any
) -> None:
    if isinstance(
        context.trace_request_ctx, ConnectionTrail
    ):  # a health check has none
        context.trace_request_ctx.reused = True


def _was_never_read(error: aiohttp.ClientError, reused: bool) -> bool:
    """`reused`: whether the request went over a connection that was used before."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return True
    if isinstance(error, aiohttp.ServerDisconnectedError):
        # otherwise the beginning of an answer had come
        return reused and isinstance(error.message, str)
    return reused and isinstance(error, aiohttp.ClientOSError)


def _failed(response: aiohttp.ClientResponse) -> FailureKind | None:
    """What is wrong with an answer by its head alone."""
    status = response.status
    if status in FAILURE_BY_STATUS:
        return FAILURE_BY_STATUS[status]
    if status >= 500:
        return expert_link.FAILED
    if not (200 <= status < 300 or status >= 400):
        return expert_link.GARBAGE
    if response.headers.get("content-encoding", "identity") != "identity":
        return expert_link.GARBAGE
    return None


def _retry_after(response: aiohttp.ClientResponse) -> str | None:
    """The expert's own word, if it is a number of seconds or a date."""
    value = response.headers.get("retry-after", "")
    return (
        value
        if 0 < len(value) <= 40 and value.isascii() and value.isprintable()
        else None
    )


def _media_type(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _whole(attempt: Attempt, response: aiohttp.ClientResponse) -> WholeAnswer:
    """The answer, if it is a JSON object of a bearable size. It is held until it was sent on."""
    body = bytearray()
    try:
        kind = await _read_all(response, body)
    except aiohttp.ClientError:
        kind = expert_link.FAILED
    finally:
        response.close()  # nothing, if it was read to its end
    media_type = _media_type(response)
    is_json = media_type == JSON or media_type.endswith("+json")
    if kind is None and not (is_json and _is_an_object(body)):
        kind = expert_link.GARBAGE
    if kind is not None:
        let_go(len(body))
        raise attempt.fail(kind)
    attempt.facts = lambda: span_facts(bytes(body[:LOOKED_AT_BYTES]), whole_usage(body))
    attempt.end("ok" if response.ok else "mistake", True)
    return WholeAnswer(response.status, body, attempt.address.number)


async def _read_all(
    response: aiohttp.ClientResponse, body: bytearray
) -> FailureKind | None:
    """Adds to `body` what comes; what is wrong if there is too much of it."""
    if (response.content_length or 0) > MAX_ANSWER_BYTES:
        return expert_link.GARBAGE
    async for piece in response.content.iter_any():
        if len(body) + len(piece) > MAX_ANSWER_BYTES:
            return expert_link.GARBAGE
        if not has_room(len(piece)):
            return expert_link.NO_ROOM
        hold(len(piece))
        body += piece
    return None


def _is_an_object(body: bytearray) -> bool:
    if len(body) > MAX_PARSED_BYTES:
        return body[:1024].lstrip().startswith(b"{") and body[-1024:].rstrip().endswith(
            b"}"
        )
    if not (body.lstrip().startswith(b"{") and body.rstrip().endswith(b"}")):
        return False
    try:
        from_json(body)
    except ValueError:
        return False
    return True


async def _begun(attempt: Attempt, response: aiohttp.ClientResponse) -> StreamAnswer:
    """The stream, once its first events have come: until then another expert can still be asked."""
    try:
        if _media_type(response) != EVENT_STREAM:
            raise BadStream(expert_link.GARBAGE)
        events = EventStream(response.content.readany, attempt.link.expert.silence)
        first = await events.next()
    except BadStream as error:
        response.close()
        raise attempt.fail(error.kind) from None
    except BaseException:
        response.close()
        raise
    attempt.first_event()
    return StreamAnswer(attempt, response.close, events, first)


async def check_health(
    links: Callable[[], Iterable[ExpertLink]], client: ExpertClient
) -> None:
    """Ask every address whose expert names a health path at its interval, until cancelled."""
    now = asyncio.get_running_loop().time
    due: dict[AddressLink, float] = {}
    running: dict[AddressLink, asyncio.Task[None]] = {}

    async def check(address: AddressLink, link: ExpertLink) -> None:
        address.note_check(await client.is_well(address, link))

    async with asyncio.TaskGroup() as group:
        while True:
            checked = {
                address: link
                for link in links()
                if link.expert.health is not None
                for address in link.addresses
            }
            due = {address: due.get(address, 0.0) for address in checked}
            running = {
                address: task for address, task in running.items() if not task.done()
            }
            for address, link in checked.items():
                if now() >= due[address] and address not in running:
                    due[address] = now() + link.expert.health_interval
                    running[address] = group.create_task(check(address, link))
            await asyncio.sleep(HEALTH_TICK_S)
