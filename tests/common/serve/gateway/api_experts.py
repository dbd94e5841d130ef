"""Small real servers of OpenAI's and Anthropic's APIs, as applications: they answer with what they
were asked.

Each keeps the bodies that it was sent. A request with tools is answered by a call of the first,
once; the response of a conversation says how many went before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

Json = dict[str, Any]
ARGUMENTS = '{"city": "Bern", "days": 2}'


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


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [])


# OpenAI's


def openai_expert(name: str) -> ApiExpert:
    app = ApiExpert(name)
    numbers = count(1)
    kept: dict[str, int] = {}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await app.read(request)
        wants_tool = asked.get("tools") and all(
            message["role"] != "tool" for message in asked["messages"]
        )
        text = f"{name} heard {_text_of(asked['messages'][-1].get('content'))}"
        if (asked.get("response_format") or {}).get("type") == "json_schema":
            text = '{"answer": 42}'
        frame = {"id": f"chatcmpl-{next(numbers)}", "created": 1, "model": name}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        if asked.get("stream"):
            wanted = (asked.get("stream_options") or {}).get("include_usage")
            return _events(
                _chunks(frame, text, bool(wants_tool), usage if wanted else None),
                False,
                "data: [DONE]\n\n",
            )
        message: Json = {"role": "assistant", "content": text}
        if wants_tool:
            function = {
                "name": asked["tools"][0]["function"]["name"],
                "arguments": ARGUMENTS,
            }
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": function}
                ],
            }
        reason = "tool_calls" if wants_tool else "stop"
        logprobs = {
            "content": [
                {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
            ]
        }
        choices = [
            {
                "index": place,
                "message": message,
                "finish_reason": reason,
                "logprobs": logprobs,
            }
            for place in range(asked.get("n") or 1)
        ]
        return JSONResponse(
            {**frame, "object": "chat.completion", "choices": choices, "usage": usage}
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


def _chunks(
    frame: Json, text: str, wants_tool: bool, usage: Json | None
) -> Iterator[Json]:
    deltas: list[Json] = [
        {"role": "assistant", "content": ""},
        *({"content": word} for word in text.split(" ")),
    ]
    if wants_tool:
        first = {
            "index": 0,
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": ""},
        }
        rest = [
            {"index": 0, "function": {"arguments": ARGUMENTS[at : at + 5]}}
            for at in range(0, len(ARGUMENTS), 5)
        ]
        deltas = [
            {"role": "assistant", "content": None},
            *({"tool_calls": [each]} for each in (first, *rest)),
        ]
    frame = {**frame, "object": "chat.completion.chunk"}
    for delta in deltas:
        yield {
            **frame,
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        }
    reason = "tool_calls" if wants_tool else "stop"
    yield {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
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
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[Json] = [{"type": "response.created", "response": begun}]
    events += [
        {
            "type": "response.output_text.delta",
            **place,
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
        is_result = isinstance(content, list) and any(
            block["type"] == "tool_result" for block in content
        )
        blocks: list[Json] = [
            {"type": "text", "text": f"{name} heard {_text_of(content)}"}
        ]
        if asked.get("tools") and not is_result:
            call = {
                "type": "tool_use",
                "id": "toolu_1",
                "name": asked["tools"][0]["name"],
            }
            blocks.append({**call, "input": json.loads(ARGUMENTS)})
        reason = "tool_use" if len(blocks) > 1 else "end_turn"
        frame = {
            "id": f"msg_{next(numbers)}",
            "type": "message",
            "role": "assistant",
            "model": name,
        }
        usage = {"input_tokens": 7, "output_tokens": 3}
        whole = {
            **frame,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
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
    for place, block in enumerate(whole["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        yield {"type": "content_block_start", "index": place, "content_block": empty}
        text = block["text"] if is_text else json.dumps(block["input"])
        for at in range(0, len(text), 6):
            piece = text[at : at + 6]
            delta = (
                {"type": "text_delta", "text": piece}
                if is_text
                else {"type": "input_json_delta", "partial_json": piece}
            )
            yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}}
    yield {"type": "message_stop"}


# Both


def expert_of_both(name: str) -> ApiExpert:
    app, other = openai_expert(name), anthropic_expert(name)
    other.asked = app.asked
    app.include_router(other.router)
    return app
