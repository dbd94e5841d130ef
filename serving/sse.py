"""A stream of server-sent events on its way from an expert to a client, in whole events, each sent
when it is there.

A piece is passed the moment it arrives unless it ends in the middle of an event; then that end
waits for its rest, so that an error can be put behind what a client has already got. Nothing is
parsed; but marks of a whole answer, and of an error of the expert's own, are looked for. The next
piece is read when the last one was taken, so a slow client slows its expert down and nothing heaps
up. If the client goes, or takes nothing for a minute, the expert's connection is closed; if the
expert fails, the client gets an error as its last event.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from fastapi import Response
from prometheus_client import Gauge
from pydantic_core import from_json
from starlette.types import Receive, Scope, Send

from ridgeway.common.routing.experts_file import Expert
from ridgeway.common.web.http_errors import (
    CLIENT_GONE_CODE,
    ERROR_CODE,
    ClientGone,
    Problem,
)
from ridgeway.common.web.request_context import current_request
from ridgeway.serving.expert_link import (
    BROKEN_OFF,
    FAILED,
    GARBAGE,
    SILENT,
    Attempt,
    FailedExpert,
    FailureKind,
)

MAX_EVENT_BYTES = 4 * 1024 * 1024
CLIENT_TIMEOUT_S = 60.0
"""Write timeout: slow clients are disconnected, so that they hold no place at the expert."""
LINE_STARTS = (
    b"data:",
    b"event:",
    b":",
    b"id:",
    b"retry:",
    b"\n",
    b"\r",
    b"\xef\xbb\xbf",
)
"""How a line of such a stream can begin. The last is a byte order mark."""
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
DONE = b"[DONE]"
END_MARK = re.compile(
    rb"(?:\A|[\r\n])(?:data:\s*\[DONE\]|event:\s*(?:message_stop|response\.completed"
    rb'|response\.incomplete)\b)|"finish_reason":\s*"|"type":\s*"(?:message_stop'
    rb'|response\.completed|response\.incomplete)"'
)
"""What says that an answer is whole, in any of the APIs; in a text its quotes are escaped."""
ERROR_MARK = re.compile(
    rb"(?:\A|[\r\n])(?:event:\s*(?:error|response\.failed)\s*[\r\n]"
    rb'|data:\s*\{\s*"(?:error":\s*[{"\[]|object":\s*"error"|type":\s*"(?:error'
    rb'|response\.failed)"))'
)
"""How an event begins by which an expert says that it has failed."""

STOPPING = Problem(
    503,
    "the service is stopping, and the answer is not whole; ask again",
    code="stopping",
)

_Result = TypeVar("_Result")


class BadStream(Exception):
    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind.outcome)
        self.kind = kind


@dataclass(slots=True)
class EventStream:
    """The events of one answer.

    silence_s: no piece for as many seconds, and the stream has failed.
    """

    _read: Callable[[], Awaitable[bytes]]
    _silence_s: float
    _held: bytes = b""
    _has_begun: bool = False
    _is_whole: bool = False
    _has_failed: bool = False

    async def next(self) -> bytes:
        """Some whole events; nothing at the end."""
        while not self._has_failed:
            piece = await self._piece()
            if not piece:
                return self._end()
            whole = self._whole(piece)
            if whole:
                if not whole.startswith(LINE_STARTS):
                    raise BadStream(GARBAGE)
                if good := self._before_error(whole):
                    return good
        raise BadStream(FAILED)

    async def _piece(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence_s):
                return await self._read()
        except TimeoutError:
            raise BadStream(SILENT) from None
        except Exception:  # whatever a connection raises, it is broken
            raise BadStream(BROKEN_OFF) from None

    def _whole(self, piece: bytes) -> bytes:
        """Everything up to the last event's end; the rest is held."""
        if not self._held and piece.endswith(EVENT_ENDS):
            return piece
        piece = self._held + piece
        may_begin = piece.startswith(LINE_STARTS) or any(
            start.startswith(piece) for start in LINE_STARTS
        )
        if len(piece) > MAX_EVENT_BYTES or not may_begin:
            raise BadStream(GARBAGE)
        cut = max(
            piece.rfind(end) + len(end) if end in piece else 0 for end in EVENT_ENDS
        )
        self._held = piece[cut:]
        return piece[:cut]

    def _before_error(self, events: bytes) -> bytes:
        """What comes before an error of the expert's own."""
        self._has_begun = True
        if error := ERROR_MARK.search(events):
            self._has_failed = True
            line_break = events[error.start() : error.start() + 1] in b"\r\n"
            events = events[: error.start() + line_break]
        self._is_whole = self._is_whole or END_MARK.search(events) is not None
        return events

    def _end(self) -> bytes:
        rest, self._held = self._held, b""
        if rest:  # the last event's blank line may be missing
            rest = self._before_error(rest)
        if not self._has_begun:
            raise BadStream(GARBAGE)
        if self._has_failed or not self._is_whole:
            raise BadStream(FAILED if self._has_failed else BROKEN_OFF)
        return rest


@dataclass(slots=True)
class StreamAnswer:
    """A stream whose first events are there. Its owner reads it to its end or closes it.

    close_connection: does nothing if the answer was read to its end; then the connection is kept
                      for the next.
    """

    attempt: Attempt
    close_connection: Callable[[], None]
    events: EventStream
    first: bytes

    @property
    def beginning(self) -> tuple[bytes, int]:
        """What there is of the answer, and the number of the address that gave it."""
        return self.first, self.attempt.address.number


def event_data(events: bytes) -> Iterator[dict[str, Any]]:
    """The JSON object of each event; comments and [DONE] are passed over."""
    for line in events.splitlines():
        if not line.startswith(b"data:") or (data := line[5:].strip()) in (b"", DONE):
            continue
        try:
            event = from_json(data)
        except ValueError:
            raise BadStream(GARBAGE) from None
        if not isinstance(event, dict):
            raise BadStream(GARBAGE)
        yield event


class StreamRelay(Response):
    """The answer to a request for a stream.

    passed_on: what whole events become for the client.
    on_events: sees what the expert sent, before it is passed on. on_end: is called once, however it
               ends.
    """

    def __init__(
        self,
        answer: StreamAnswer,
        headers: Mapping[str, str],
        streams: Gauge,
        passed_on: Callable[[bytes], bytes],
        on_events: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(None, 200, {**headers, "x-accel-buffering": "no"})
        self.raw_headers = [
            pair for pair in self.raw_headers if pair[0] != b"content-length"
        ]
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
        self._answer = answer
        self._streams = streams
        self._passed_on = passed_on
        self._on_events = on_events
        self._on_end = on_end
        self._scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.inc()
        self._scope = scope
        if (holding := current_request().holding) is not None:
            holding.let_go()  # the request has been sent on
        try:
            await unless_gone(receive, self._pass_on(send))
        except (ClientGone, TimeoutError):
            scope[ERROR_CODE] = CLIENT_GONE_CODE
        finally:
            self._streams.dec()
            self._on_end()
            self._answer.close_connection()
            self._answer.attempt.end("gone", None)  # nothing, if it has ended already

    async def _pass_on(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        )
        try:
            failure = await self._relay(send)
            if failure is not None:
                await self._send_error(send, failure.problem({}))
        except asyncio.CancelledError:
            # the service stops, and has waited long enough; or the client has gone
            await self._send_error(send, STOPPING)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_error(self, send: Send, problem: Problem) -> None:
        self._scope[ERROR_CODE] = problem.code
        await _send(send, problem.event(self._scope["path"]))

    async def _relay(self, send: Send) -> FailedExpert | None:
        """The expert's stream, to its end; how it failed, if it did."""
        try:
            events = self._answer.first
            while events:
                self._on_events(events)
                await _send(send, self._passed_on(events))
                events = await self._answer.events.next()
        except BadStream as error:
            self._answer.close_connection()
            return self._answer.attempt.fail(error.kind).failed
        self._answer.attempt.end("ok", True)
        return None


async def _send(send: Send, body: bytes) -> None:
    """Events that were left out have become nothing."""
    if not body:
        return
    async with asyncio.timeout(CLIENT_TIMEOUT_S):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What the work returns; if the client goes first, the work is cancelled and ClientGone is
    raised.
    """
    doing = asyncio.create_task(work)
    watching = asyncio.create_task(_departure(receive))
    try:
        await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))  # it closes what it has opened
    if doing.cancelled():
        raise ClientGone
    try:
        return doing.result()
    finally:
        # an error's traceback holds this frame, and with it all that it was about
        del doing


async def _departure(receive: Receive) -> None:
    """Returns when the client has gone. The body has been read, so nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass


# The tokens that an answer says it used, whole or streamed, in each of the APIs; and what they
# cost.
#
# Keeps nothing else of them.


_MARK = b'"usage"'
TOKENS_PER_PRICE = 1_000_000
BYTES_PER_TOKEN = 4
MIN_BYTES_PER_TOKEN = 2
MAX_PROMPT_TOKENS = 131_072
"""Reserved for a prompt; what is longer is mostly images."""
MAX_READ_BYTES = 256 * 1024


_MODEL = re.compile(rb'"model"\s*:\s*"([\w.:/@+ -]{1,128})"')
"""The name of the model, as answers have it; in a text its quotes are escaped."""
MODEL_WITHIN_BYTES = 4096


class TokenUsage(NamedTuple):
    """Tokens of the prompt and of the answer."""

    prompt: int = 0
    answer: int = 0

    def cost(self, expert: Expert) -> float:
        """In the unit of experts.toml: by the tokens where it has prices for them, else that of one
        answer.
        """
        if expert.prompt_price is None and expert.answer_price is None:
            return expert.cost
        prices = (expert.prompt_price or 0.0) * self.prompt + (
            expert.answer_price or 0.0
        ) * self.answer
        return prices / TOKENS_PER_PRICE


def span_facts(beginning: bytes, usage: TokenUsage | None) -> dict[str, str | int]:
    """What a span says of an answer, as OpenTelemetry names it."""
    facts: dict[str, str | int] = {}
    if match := _MODEL.search(beginning[:MODEL_WITHIN_BYTES]):
        facts["gen_ai.response.model"] = match[1].decode()
    if usage is not None:
        facts["gen_ai.usage.input_tokens"] = usage.prompt
        facts["gen_ai.usage.output_tokens"] = usage.answer
    return facts


def estimated_usage(asked: int, answered: int) -> TokenUsage:
    """Where an answer says nothing: bytes of the request, and tokens of the answer."""
    return TokenUsage(asked // BYTES_PER_TOKEN, answered)


def most_usage(asked: int, answer_tokens: int) -> TokenUsage:
    """The most that a request is expected to take; asked: its bytes."""
    prompt = min(asked // MIN_BYTES_PER_TOKEN, MAX_PROMPT_TOKENS)
    return TokenUsage(prompt, answer_tokens)


def whole_usage(body: bytes | bytearray) -> TokenUsage | None:
    """What a whole answer says; of a long one, only what stands at its end is read."""
    if _MARK not in body:
        return None
    is_long = len(body) > MAX_READ_BYTES
    try:
        if is_long:
            rest = body[body.rindex(_MARK) + len(_MARK) :][:MAX_READ_BYTES].lstrip(
                b": \t\r\n"
            )
            answer = {"usage": from_json(rest, allow_partial=True)}
        else:
            answer = from_json(body)
    except ValueError:
        return None
    return _usage_in(answer, TokenUsage()) if isinstance(answer, dict) else None


@dataclass(slots=True)
class StreamedUsage:
    """What a stream says, here and there: the last word counts."""

    usage: TokenUsage | None = None
    events: int = 0

    def feed(self, events: bytes) -> None:
        self.events += events.count(b"data:")
        if _MARK not in events:
            return
        try:
            for event in event_data(events):
                self.usage = _usage_in(event, self.usage or TokenUsage()) or self.usage
        except BadStream:
            return


def without_usage(events: bytes) -> bytes:
    """Events without the one that says what was used and nothing else, which the client has not
    asked for.
    """
    if _MARK not in events:
        return events
    return b"".join(
        line for line in events.splitlines(keepends=True) if not _says_usage_alone(line)
    )


def _says_usage_alone(line: bytes) -> bool:
    if _MARK not in line or not line.startswith(b"data:"):
        return False
    try:
        return all(event.get("choices") == [] for event in event_data(line))
    except BadStream:
        return False


def _usage_in(event: dict[str, Any], before: TokenUsage) -> TokenUsage | None:
    """Of an answer or an event, as it is, or of the message or response that an event holds."""
    for holder in (event, event.get("message"), event.get("response")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            prompt = _number(usage, "prompt_tokens", "input_tokens", before.prompt)
            answer = _number(usage, "completion_tokens", "output_tokens", before.answer)
            return TokenUsage(prompt, answer)
    return None


def _number(usage: dict[str, Any], name: str, other: str, before: int) -> int:
    value = usage.get(name, usage.get(other))
    return value if type(value) is int and value > 0 else before
