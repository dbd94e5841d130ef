"""Small real servers of OpenAI's and Anthropic's APIs, as applications: they answer with what they
were asked.

Each keeps the bodies that it was sent. The response of a conversation says how many went before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

Json = dict[str, Any]


class ApiExpert(FastAPI):
    """An application and what it was asked: (path, headers, body)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.asked: list[tuple[str, Json, Json]] = []

    async def read(self, request: Request) -> Json:
        body: Json = await request.json()
        self.asked.append((request.url.path, dict(request.headers), body))
        return body

    @property
    def last(self) -> Json:
        return self.asked[-1][2]


def _events(events: Iterable[Json], named: bool, last: str = "") -> Response:
    def lines() -> Iterator[str]:
        for event in events:
            yield (
                f"event: {event['type']}\n" if named else ""
            ) + f"data: {json.dumps(event)}\n\n"
        yield last

    return StreamingResponse(lines(), media_type="text/event-stream")


# OpenAI's


def openai_expert(name: str) -> ApiExpert:
    app = ApiExpert(name)
    numbers = count(1)
    kept: dict[str, int] = {}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await app.read(request)
        text = f"{name} heard {asked['messages'][-1]['content']}"
        frame = {"id": f"chatcmpl-{next(numbers)}", "created": 1, "model": name}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        if asked.get("stream"):
            wanted = (asked.get("stream_options") or {}).get("include_usage")
            chunks = _chunks(frame, text, usage if wanted else None)
            return _events(chunks, False, "data: [DONE]\n\n")
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {**frame, "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    @app.post("/v1/responses")
    async def respond(request: Request) -> Response:
        asked = await app.read(request)
        before = asked.get("previous_response_id")
        if before is not None and before not in kept:
            error = {
                "message": f"there is no {before}",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
            return JSONResponse({"error": error}, 404)
        number = next(numbers)
        made = f"resp_{name}{number}"
        kept[made] = kept.get(before or "", 0) + 1
        done = _response(made, name, f"{name} answers {kept[made]}", "completed")
        return (
            _events(_response_events(done), True)
            if asked.get("stream")
            else JSONResponse(done)
        )

    return app


def _chunks(frame: Json, text: str, usage: Json | None) -> Iterator[Json]:
    frame = {**frame, "object": "chat.completion.chunk"}
    for word in text.split(" "):
        delta = {"role": "assistant", "content": word}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield {**frame, "choices": [choice]}
    yield {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    if usage is not None:
        yield {**frame, "choices": [], "usage": usage}


def _response(made: str, name: str, text: str, status: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    frame = {
        "id": made,
        "object": "response",
        "created_at": 1,
        "model": name,
        "status": status,
        "output": [item],
    }
    return frame | {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
        "error": None,
    }


def _response_events(done: Json) -> Iterator[Json]:
    begun = {**done, "status": "in_progress", "output": []}
    text = done["output"][0]["content"][0]["text"]
    position = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[Json] = [{"type": "response.created", "response": begun}]
    events += [
        {
            "type": "response.output_text.delta",
            **position,
            "delta": f"{word} ",
            "logprobs": [],
        }
        for word in text.split(" ")
    ]
    events += [{"type": "response.completed", "response": done}]
    yield from (
        {**event, "sequence_number": number} for number, event in enumerate(events)
    )


# Anthropic's


def anthropic_expert(name: str) -> ApiExpert:
    app = ApiExpert(name)
    numbers = count(1)

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        asked = await app.read(request)
        content = asked["messages"][-1]["content"]
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        whole = {
            "id": f"msg_{next(numbers)}",
            "type": "message",
            "role": "assistant",
            "model": name,
            "content": [{"type": "text", "text": f"{name} heard {content}"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 7, "output_tokens": 3},
        }
        return (
            _events(_message_events(whole), True)
            if asked.get("stream")
            else JSONResponse(whole)
        )

    return app


def _message_events(whole: Json) -> Iterator[Json]:
    start = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 7, "output_tokens": 1},
    }
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    text = whole["content"][0]["text"]
    empty = {"type": "text", "text": ""}
    yield {"type": "content_block_start", "index": 0, "content_block": empty}
    for start_of_piece in range(0, len(text), 6):
        piece = text[start_of_piece : start_of_piece + 6]
        delta = {"type": "text_delta", "text": piece}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}}
    yield {"type": "message_stop"}


# Both


def expert_of_both(name: str) -> ApiExpert:
    app, other = openai_expert(name), anthropic_expert(name)
    other.asked = app.asked
    app.include_router(other.router)
    return app
