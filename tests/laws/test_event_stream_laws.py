"""Streams cut anywhere: what comes out is what went in, in whole events, and nothing waits that is
whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.serving.expert_link import (
    BROKEN_OFF,
    FAILED,
    GARBAGE,
    SILENT,
    FailureKind,
)
from ridgeway.serving.sse import MAX_EVENT_BYTES, BadStream, EventStream

LINES = [
    "data: {}",
    'data: {"delta": "é"}',
    ": wait",
    "event: ping",
    "id: 7",
    "retry: 10",
    "data: [DONE]",
]

breaks = st.sampled_from(["\n", "\r\n"])
events = st.lists(st.sampled_from(LINES), min_size=1, max_size=3)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    line_break = draw(breaks)
    return "".join(
        "".join(line + line_break for line in event) + line_break
        for event in [*draw(st.lists(events, min_size=1, max_size=6)), ["data: [DONE]"]]
    ).encode()


@st.composite
def cut(draw: st.DrawFn) -> list[bytes]:
    """A stream in pieces, as a network might cut it."""
    whole = draw(streams())
    cuts = draw(st.sets(st.integers(1, len(whole) - 1), max_size=8))
    return [whole[start:end] for start, end in pairwise([0, *sorted(cuts), len(whole)])]


def source(pieces: Sequence[bytes], error: Exception | None = None) -> EventStream:
    left = list(pieces)

    async def read() -> bytes:
        if not left and error is not None:
            raise error
        return left.pop(0) if left else b""

    return EventStream(read, 5.0)


def passed(events: EventStream) -> tuple[list[bytes], FailureKind | None]:
    """What was handed on, and how it failed if it did."""

    async def read() -> tuple[list[bytes], FailureKind | None]:
        got: list[bytes] = []
        try:
            while piece := await events.next():
                got.append(piece)
        except BadStream as error:
            return got, error.kind
        return got, None

    return asyncio.run(read())


@given(pieces=cut())
def test_a_stream_comes_out_as_it_went_in(pieces: list[bytes]) -> None:
    """Byte for byte, however it was cut, and always in whole events."""
    got, kind = passed(source(pieces))
    assert kind is None
    assert b"".join(got) == b"".join(pieces)
    assert all(piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in got)


@given(pieces=cut())
def test_a_stream_that_dies_leaves_whole_events_behind(pieces: list[bytes]) -> None:
    """Wherever it dies, an error can be put behind what has been handed on."""
    got, kind = passed(source(pieces[:-1], error=ConnectionResetError()))
    assert kind is BROKEN_OFF
    assert all(piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in got)
    assert b"".join(pieces).startswith(b"".join(got))


@given(pieces=cut(), index=st.integers(0, 7))
def test_nothing_whole_waits(pieces: list[bytes], index: int) -> None:
    """An event is handed on with the piece that ends it, not with a later one."""
    sent = pieces[: index + 1]
    got, _ = passed(source(sent, error=ConnectionResetError()))
    rest = b"".join(sent)[len(b"".join(got)) :]
    assert b"\n\n" not in rest and b"\r\n\r\n" not in rest


@pytest.mark.parametrize(
    "start", [b"<html>", b"{}\n\n", b'{"error": 1}', b"\x00\x01", b"dat \n\n"]
)
def test_what_does_not_begin_as_events_do_is_garbage(start: bytes) -> None:
    """At the start and after any event."""
    assert passed(source([start])) == ([], GARBAGE)
    assert passed(source([TOKEN, start])) == ([TOKEN], GARBAGE)


def test_a_stream_without_any_event_is_garbage() -> None:
    """An answer that ends before it began."""
    assert passed(source([])) == ([], GARBAGE)


def test_an_event_without_end_is_garbage() -> None:
    """What waits for an event's end is bounded."""
    piece = b"data: " + b"y" * (MAX_EVENT_BYTES // 4)
    assert passed(source([piece] * 5)) == ([], GARBAGE)


TOKEN = b"data: 1\n\n"


@pytest.mark.parametrize(
    "mark",
    [
        b"data: [DONE]\n\n",
        b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
        b'data: {"choices": [], "usage": {}}\n\n',
        b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
        b'event: response.incomplete\r\ndata: {"type": "response.incomplete"}\r\n\r\n',
        b'data: {"type":"response.completed"}\n\n',
    ],
)
def test_a_stream_is_whole_only_if_it_says_so(mark: bytes) -> None:
    """However properly HTTP ends it: a proxy may do so when the model behind it has died."""
    assert passed(source([TOKEN, mark])) == ([TOKEN, mark], None)
    assert passed(source([TOKEN])) == ([TOKEN], BROKEN_OFF)


@pytest.mark.parametrize(
    "text",
    [
        b'data: {"delta": "data: [DONE] \\"finish_reason\\": \\"stop\\""}\n\n',
        b'data: {"finish_reason":null}\n\n',
    ],
)
def test_a_text_about_the_end_is_not_the_end(text: bytes) -> None:
    assert passed(source([text])) == ([text], BROKEN_OFF)


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "boom"}}\n\n',
        b'data:{"error":"boom"}\r\n\r\n',
        b'data: {"object": "error", "message": "boom"}\n\n',
        b'event: error\ndata: {"type": "error"}\n\n',
        b'data: {"type": "response.failed"}\n\n',
        b'event: response.failed\ndata: {"type": "response.failed"}\n\n',
    ],
)
def test_an_error_of_the_experts_own_is_a_failure(error: bytes) -> None:
    """What came before it is handed on, and nothing of it or after it, even if the stream then ends
    as it should.
    """
    done = b"data: [DONE]\n\n"
    assert passed(source([error, done])) == ([], FAILED)
    assert passed(source([TOKEN, error + done])) == ([TOKEN], FAILED)
    assert passed(source([TOKEN + error, done])) == ([TOKEN], FAILED)
    assert passed(source([TOKEN, error.rstrip()])) == ([TOKEN], FAILED)


@pytest.mark.parametrize(
    "text",
    [b'data: {"error": null}\n\n', b'data: {"delta": "data: {\\"error\\": 1}"}\n\n'],
)
def test_a_text_about_errors_is_none(text: bytes) -> None:
    assert passed(source([text, b"data: [DONE]\n\n"]))[1] is None


def test_the_last_blank_line_may_be_missing() -> None:
    """Some servers leave it out."""
    events = [TOKEN, b"data: [DONE]"]
    assert passed(source([TOKEN + b"da", b"ta: [DONE]"])) == (events, None)


def test_silence_is_a_failure() -> None:
    """No piece for longer than is allowed."""

    async def read() -> bytes:
        await asyncio.Event().wait()
        return b""

    assert passed(EventStream(read, 0.01)) == ([], SILENT)
