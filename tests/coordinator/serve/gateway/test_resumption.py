"""A stream that breaks off goes on at another address or expert, and its client gets one whole answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import InputError
from ridgeway.common.experts.experts_file import ExpertsFile
from ridgeway.coordinator.serve.gateway import resumption
from ridgeway.coordinator.serve.gateway.resumption import MAX_RESUMPTIONS, PartialAnswer, PartialChat, PartialMessage
from ridgeway.coordinator.serve.gateway.sse import event_data, named_event
from tests.support.faulty_experts import CHUNKED, EVENTS, Asked, Expert, Part, wait_for
from tests.support.gateway_experts import DOMAINS
from tests.support.in_process import Local, chat, served
from tests.support.serving import prompt_for, tokens_of, word_of

LAW = prompt_for("law", DOMAINS)
TEXT = "The first. Then,\n\nafter two blanks,  the end "
Json = dict[str, Any]


# The events of both APIs


def chunk(delta: Json, reason: str | None = None, name: str = "c", **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **more}
    return (
        b"data: "
        + json.dumps({"id": name, "created": len(name), "model": name, "choices": [choice]}).encode()
        + b"\n\n"
    )


def usage(prompt: int, answer: int) -> bytes:
    told = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    return b"data: " + json.dumps({"id": "u", "choices": [], "usage": told}).encode() + b"\n\n"


def chat_stream(pieces: Sequence[str], name: str = "c") -> list[bytes]:
    said = [chunk({"content": piece}, name=name) for piece in pieces]
    return [chunk({"role": "assistant", "content": ""}, name=name), *said, chunk({}, "stop", name), b"data: [DONE]\n\n"]


def message_stream(pieces: Sequence[str], name: str = "m") -> list[bytes]:
    told = {"input_tokens": 5, "output_tokens": 1}
    start: Json = {"type": "message_start", "message": {"id": name, "model": name, "content": [], "usage": told}}
    said: list[Json] = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}} for piece in pieces
    ]
    block: Json = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    end: Json = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": len(pieces)}}
    ends: list[Json] = [{"type": "content_block_stop", "index": 0}, end, {"type": "message_stop"}]
    return [named_event(event) for event in (start, block, *said, *ends)]


def message_text(events: bytes) -> str:
    deltas = [event["delta"] for event in event_data(events) if event["type"] == "content_block_delta"]
    return "".join(delta["text"] for delta in deltas)


def chat_text(events: bytes) -> str:
    chunks = [event for event in event_data(events) if event["choices"]]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in chunks)


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    """Pieces of these sizes, and the rest in one."""
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [piece for piece in (*pieces, text) if piece]


@given(
    text=st.text(alphabet="ab \n", max_size=40),
    sizes=st.lists(st.integers(1, 5), max_size=12),
    breaks=st.lists(st.integers(0, 12), max_size=4),
    kind=st.sampled_from([(PartialChat, chat_stream, chat_text), (PartialMessage, message_stream, message_text)]),
)
def test_a_text_that_breaks_off_anywhere_and_is_gone_on_with_is_whole(
    text: str,
    sizes: list[int],
    breaks: list[int],
    kind: tuple[type[PartialAnswer], Callable[..., list[bytes]], Callable[[bytes], str]],
) -> None:
    """Nothing is missing or double, whatever the pieces and whatever blanks stand where it broke; it begins once and
    ends once, under one id."""
    make, stream, text_of = kind
    partial, got = make(), b""
    for number, place in enumerate(breaks):
        said = partial.said()
        events = stream(cut(text[len(said.text) if said else 0 :], sizes), f"stream {number}")
        for event in events[: min(place, len(events) - 3)]:
            got += partial.feed(event)
        assert partial.can_go_on
        partial.resume()
    said = partial.said()
    for event in stream(cut(text[len(said.text) if said else 0 :], sizes), "the last"):
        got += partial.feed(event)
    assert text_of(got) == text
    whole = stream(cut(text, sizes))
    assert got.count(b'"role"') == (make is PartialChat) and partial.is_over
    assert got.split(b"\n\n")[-2] == whole[-1].rstrip(b"\n")
    found = [event.get("id") or event.get("message", {}).get("id") for event in event_data(got)]
    assert len(set(filter(None, found))) == 1


@pytest.mark.parametrize(
    "event",
    [
        chunk({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}),
        chunk({"reasoning_content": "hm"}),
        chunk({"refusal": "no"}),
        chunk({"content": "one"}, index=1),
        chunk({"content": "one"}, logprobs={"content": []}),
        b'data: {"error": {"message": "it is too long"}}\n\n',
        b"data: nonsense\n\n",
    ],
)
def test_more_than_text_is_not_gone_on_with(event: bytes) -> None:
    """It passes as it came, and nobody is asked to go on."""
    partial = PartialChat()
    assert partial.feed(chunk({"content": "so far"})) and partial.can_go_on
    assert partial.feed(event) == event
    assert not partial.can_go_on


def test_a_stop_sequence_that_may_have_begun_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on would not see its beginning. Nor is a text gone on with that is too long to be kept."""
    partial = PartialChat(["END"])
    partial.feed(chunk({"content": "TEN"}))
    assert not partial.can_go_on
    partial.feed(chunk({"content": " more"}))
    assert partial.can_go_on
    monkeypatch.setattr(resumption, "MAX_KEPT_BYTES", 10)
    partial.feed(chunk({"content": "and more"}))
    assert not partial.can_go_on


def test_a_tool_that_follows_a_text_has_the_next_number() -> None:
    """Of /messages: the block of text is closed first."""
    partial = PartialMessage()
    for event in message_stream(["so far"])[:3]:
        partial.feed(event)
    partial.resume()
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    start = named_event({"type": "content_block_start", "index": 0, "content_block": block})
    got = partial.feed(start) + partial.feed(named_event({"type": "content_block_stop", "index": 0}))
    assert [(event["type"], event["index"]) for event in event_data(got)] == [
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_stop", 1),
    ]


# The gateway


def breaks_after(count: int, stream: Callable[..., list[bytes]] = chat_stream, more: Sequence[bytes] = ()) -> Part:
    """So many pieces of the text, from where it is to be gone on with, and then nothing; None breaks off never."""

    def part(asked: Asked) -> None:
        messages = asked.json["messages"]
        said = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
        said = said if isinstance(said, str) else "".join(block["text"] for block in said)
        assert TEXT.startswith(said) and said == said.rstrip()
        events = stream(cut(TEXT[len(said) :], [4] * 40), f"from {len(said)}")
        asked.head(200, EVENTS, CHUNKED)
        whole = count >= len(events)
        for event in [*events[:-1], *more, events[-1]] if whole else events[: count + (stream is message_stream) + 1]:
            asked.chunk(event)
        if whole:
            asked.chunk(b"")

    return part


ALL = 1000
VLLM = {"continues": "vllm"}


@contextlib.contextmanager
def gone_on_with(release: Path, folder: Path, *parts: Part, top: Json | None = None, **other: Json) -> Any:
    """The service before an expert `law` with an address for each part, and other experts."""
    with contextlib.ExitStack() as stack:
        experts = [stack.enter_context(Expert(part)) for part in parts]
        settings: Json = {"model": "law-model", "addresses": [each.url for each in experts], **(top or VLLM)}
        entries = {"law": settings, **other}
        lines = [f'fallback = "{list(entries)[-1]}"']
        for name, entry in entries.items():
            lines += [f"[experts.{name}]", *(f"{field} = {json.dumps(value)}" for field, value in entry.items())]
        (folder / "experts.toml").write_text("\n".join(lines))
        local = stack.enter_context(served(release, ExpertsFile(folder / "experts.toml")))
        yield local, experts


def streamed(local: Local, **more: Any) -> list[Any]:
    response = local.post("/v1/chat/completions", chat("law", LAW, stream=True, **more))
    assert response.status_code == 200
    return list(tokens_of(iter(response.text.splitlines())))


def said_by(events: list[Any]) -> str:
    return "".join(word_of(event) for event in events[:-1] if event["choices"])


def test_the_rest_is_asked_for_with_what_is_left_of_the_limits(release: Path, tmp_path: Path) -> None:
    """The text without its last blanks is the last message, tokens that were sent are no more granted, and what was
    used is told as of one answer."""
    parts = (breaks_after(4), breaks_after(ALL, more=[usage(30, 8)]))
    with gone_on_with(release, tmp_path, *parts) as (local, (first, second)):
        events = streamed(local, max_tokens=50, stream_options={"include_usage": True})
        assert said_by(events) == TEXT and events[-1] == "[DONE]"
        asked = second.last().json
        assert asked["messages"][1:] == [{"role": "assistant", "content": TEXT[:16].rstrip()}]
        assert (asked["max_tokens"], asked["continue_final_message"], asked["add_generation_prompt"]) == (
            46,
            True,
            False,
        )
        assert "continue_final_message" not in first.last().json
        assert events[-2]["usage"] == {"prompt_tokens": 26, "completion_tokens": 12, "total_tokens": 38}
        wait_for(lambda: local.counted("tokens_total", key="", expert="law", kind="prompt") == 26, "it is counted")
        assert local.counted("tokens_total", key="", expert="law", kind="answer") == 12
        assert local.counted("resumed_streams_total", expert="law") == 1


def test_one_address_is_asked_again_and_again_but_not_for_ever(release: Path, tmp_path: Path) -> None:
    """Other processes may stand behind it; what ends whoever answers it ends with an error."""
    with gone_on_with(release, tmp_path, breaks_after(3)) as (local, (only,)):
        events = streamed(local)
        assert said_by(events) == TEXT and events[-1] == "[DONE]"
        assert len(only.asked) > 3
    with gone_on_with(release, tmp_path, breaks_after(1), breaks_after(1)) as (local, both):
        events = streamed(local)
        assert events[-1]["error"]["code"] == "expert_broken_off"
        assert TEXT.startswith(said_by(events)) and len(said_by(events)) > 3 * MAX_RESUMPTIONS
        assert sum(len(each.asked) for each in both) == MAX_RESUMPTIONS + 1


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {"n": 2},
        {"logprobs": True},
        {"tools": [{}], "tool_choice": "required"},
        {"guided_regex": "a*"},
    ],
)
def test_what_cannot_be_asked_for_in_two_parts_is_not(release: Path, tmp_path: Path, more: Json) -> None:
    """The client gets the error, as from an expert that cannot go on at all."""
    with gone_on_with(release, tmp_path, breaks_after(3), breaks_after(3)) as (local, experts):
        assert streamed(local, **more)[-1]["error"]["code"] == "expert_broken_off"
        assert sum(len(each.asked) for each in experts) == 1
    with gone_on_with(release, tmp_path, breaks_after(3), breaks_after(3), top={"timeout": 60}) as (local, experts):
        assert streamed(local)[-1]["error"]["code"] == "expert_broken_off"
        assert sum(len(each.asked) for each in experts) == 1


def test_an_answer_that_breaks_off_after_its_last_word_is_ended(release: Path, tmp_path: Path) -> None:
    """Nobody is asked for more."""
    with gone_on_with(release, tmp_path, breaks_after(13)) as (local, (only,)):
        events = streamed(local)
        assert said_by(events) == TEXT and events[-1] == "[DONE]"
        assert len(only.asked) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("turned", [False, True])
def test_an_expert_of_another_api_can_go_on(release: Path, tmp_path: Path, path: str, turned: bool) -> None:
    """Whatever API client, first and second expert speak, the client gets one answer in its own."""
    parts = [breaks_after(4), breaks_after(ALL, message_stream)]
    apis: list[Json] = [VLLM, {"api": "anthropic", "continues": "message"}]
    if turned:
        parts, apis = [breaks_after(4, message_stream), breaks_after(ALL)], apis[::-1]
    with Expert(parts[1]) as second:
        other = {"model": "other", "base_url": second.url, **apis[1]}
        with gone_on_with(release, tmp_path, parts[0], top=apis[0], other=other) as (local, (first,)):
            first.part = once(parts[0])
            body = {**chat("auto", LAW, stream=True), "max_tokens": 100}
            response = local.post(path, body)
            assert response.headers["x-ridgeway-expert"] == "law"
            text_of = message_text if path == "/v1/messages" else chat_text
            assert text_of(response.content) == TEXT
            assert b"error" not in response.content and response.content.count(b"message_start") in (0, 2)
            assert second.last().json["max_tokens"] == 96
            assert local.counted("resumed_streams_total", expert="law") == 1


def once(part: Part) -> Part:
    """Plays it for the first request; any other fails."""
    played: list[Asked] = []

    def first_alone(asked: Asked) -> None:
        played.append(asked)
        part(asked) if len(played) == 1 else asked.reset()

    return first_alone


def test_fields_that_an_api_does_not_know_are_a_sentence(release: Path, tmp_path: Path) -> None:
    """Anthropic's has none for this."""
    wrong = {"api": "anthropic", "continues": "vllm"}
    with (
        pytest.raises(InputError, match='give continues = "message"'),
        gone_on_with(release, tmp_path, breaks_after(1), top=wrong),
    ):
        pass
