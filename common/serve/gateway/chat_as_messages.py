"""OpenAI's chats in front of experts that speak Anthropic's API: requests, answers and streams
turned into each other.

Only what means the same in both is passed on. What Anthropic's API has no place for is refused in a
sentence; what would change nothing, such as `n` of 1, is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from ridgeway.common.http.http_errors import Problem
from ridgeway.common.serve.gateway.failures import GARBAGE
from ridgeway.common.serve.gateway.messages_as_chat import listed, untranslatable
from ridgeway.common.serve.gateway.sse import DONE, BadStream, event_data

_Fields = Mapping[str, Any]
_Json = dict[str, Any]

USUAL_MAX_TOKENS = 4096
"""Anthropic's API wants a number; this one, where neither the client nor experts.toml gives one."""
_HINTS = frozenset(
    (
        "metadata",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
        "stream_options",
        "verbosity",
    )
)
CHANGES_NOTHING: _Json = {
    "n": 1,
    "logprobs": False,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "store": False,
    "modalities": ["text"],
    "response_format": {"type": "text"},
}
_TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


# Requests


def message_request(fields: _Fields) -> _Json:
    """A request to /chat/completions as one to /messages."""
    turned: _Json = {
        "model": fields["model"],
        "max_tokens": _max_tokens(fields),
        **_conversation(fields["messages"]),
    }
    for name, value in fields.items():
        if (
            value is None
            or name in _HINTS
            or (name in CHANGES_NOTHING and value == CHANGES_NOTHING[name])
        ):
            continue
        if name in ("model", "messages", "max_tokens", "max_completion_tokens"):
            continue
        is_warm = name == "temperature" and not (
            isinstance(value, int | float) and value <= 1
        )
        if name in ("top_p", "top_k", "stream", "temperature") and not is_warm:
            turned[name] = value
        elif name == "stop":
            turned["stop_sequences"] = [value] if isinstance(value, str) else value
        elif name == "user":
            turned["metadata"] = {"user_id": value}
        elif name == "tools":
            turned["tools"] = [
                _tool(tool, f"tools.{place}")
                for place, tool in enumerate(listed(value, name))
            ]
        elif name == "tool_choice":
            turned["tool_choice"] = turned.get("tool_choice", {}) | _tool_choice(value)
        elif name == "parallel_tool_calls":
            turned["tool_choice"] = {
                "type": "auto",
                "disable_parallel_tool_use": not value,
            } | turned.get("tool_choice", {})
        elif name == "response_format":
            turned["output_config"] = {"format": _format(value)}
        else:
            raise untranslatable(name, "Anthropic")
    return turned


def _max_tokens(fields: _Fields) -> Any:
    for name in ("max_completion_tokens", "max_tokens"):
        if fields.get(name) is not None:
            return fields[name]
    return USUAL_MAX_TOKENS


def _conversation(messages: list[_Json]) -> _Json:
    """System prompts apart, results of tools in the user's turn, and turns of one role in a row put
    together.
    """
    system: list[str] = []
    turns: list[_Json] = []
    for place, message in enumerate(messages):
        where = f"messages.{place}"
        role = message["role"]
        if role in ("system", "developer"):
            system.append("\n".join(_texts(message.get("content"), f"{where}.content")))
            continue
        if role == "tool":
            content = "\n".join(_texts(message.get("content"), f"{where}.content"))
            blocks = [
                {
                    "type": "tool_result",
                    "tool_use_id": message.get("tool_call_id"),
                    "content": content,
                }
            ]
        elif role in ("user", "assistant"):
            blocks = list(_blocks(message, where))
        else:
            raise untranslatable(f"{where}.role", "Anthropic")
        role = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return {"messages": turns} | ({"system": "\n\n".join(system)} if system else {})


def _texts(content: Any, where: str) -> Iterator[str]:
    if isinstance(content, str) or content is None:
        yield content or ""
        return
    for place, part in enumerate(content):
        if part["type"] != "text":
            raise untranslatable(f"{where}.{place}.type", "Anthropic")
        yield part.get("text") or ""


def _blocks(message: _Json, where: str) -> Iterator[_Json]:
    content = message.get("content")
    if isinstance(content, str) and content:
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        yield from (
            _block(part, f"{where}.content.{place}")
            for place, part in enumerate(content)
        )
    for place, call in enumerate(
        listed(message.get("tool_calls") or [], f"{where}.tool_calls")
    ):
        inside = f"{where}.tool_calls.{place}"
        try:
            function = call["function"]
            asked = from_json(function.get("arguments") or "{}")
            yield {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": asked,
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            words = f"{inside}: give id and function, with arguments that are JSON"
            raise Problem(400, words, code="invalid_value", param=inside) from None


def _block(part: _Json, where: str) -> _Json:
    if part["type"] == "text":
        return {"type": "text", "text": part.get("text") or ""}
    if part["type"] == "image_url":
        image = part.get("image_url")
        return {
            "type": "image",
            "source": _source(
                image.get("url") if isinstance(image, dict) else None, where
            ),
        }
    if part["type"] == "file":
        file = part.get("file")
        data = file.get("file_data") if isinstance(file, dict) else None
        if not isinstance(data, str) or not data.startswith("data:"):
            raise untranslatable(
                f"{where}.file", "Anthropic"
            )  # a file that lies with OpenAI
        return {"type": "document", "source": _source(data, where)}
    raise untranslatable(f"{where}.type", "Anthropic")


def _source(url: Any, where: str) -> _Json:
    if not isinstance(url, str):
        raise Problem(
            400, f"{where}: there is no url", code="invalid_value", param=where
        )
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url[5:].partition(",")
    kind, _, coding = head.partition(";")
    if coding != "base64":
        raise untranslatable(where, "Anthropic")
    return {"type": "base64", "media_type": kind, "data": data}


def _tool(tool: Any, where: str) -> _Json:
    if (
        not isinstance(tool, dict)
        or tool.get("type") != "function"
        or not isinstance(tool.get("function"), dict)
    ):
        raise untranslatable(f"{where}.type", "Anthropic")
    function = tool["function"]
    turned = {
        "name": function.get("name"),
        "input_schema": function.get("parameters") or {"type": "object"},
    }
    return turned | {
        name: function[name]
        for name in ("description", "strict")
        if function.get(name) is not None
    }


def _tool_choice(choice: Any) -> _Json:
    if isinstance(choice, str) and choice in _TOOL_CHOICES:
        return {"type": _TOOL_CHOICES[choice]}
    if (
        isinstance(choice, dict)
        and choice.get("type") == "function"
        and isinstance(choice.get("function"), dict)
    ):
        return {"type": "tool", "name": choice["function"].get("name")}
    raise untranslatable("tool_choice", "Anthropic")


def _format(value: Any) -> _Json:
    if (
        not isinstance(value, dict)
        or value.get("type") != "json_schema"
        or not isinstance(value.get("json_schema"), dict)
    ):
        raise untranslatable("response_format", "Anthropic")
    return {"type": "json_schema", "schema": value["json_schema"].get("schema")}


# Answers


def chat_answer(body: bytes) -> bytes:
    """An answer of /messages as one of /chat/completions; raises ValueError if it is none."""
    try:
        message = from_json(body)
        blocks = message["content"]
        said: _Json = {"role": "assistant", "content": None, "refusal": None}
        if texts := [block["text"] for block in blocks if block["type"] == "text"]:
            said["content"] = "".join(texts)
        if calls := [_call(block) for block in blocks if block["type"] == "tool_use"]:
            said["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": said,
            "logprobs": None,
            "finish_reason": _finish(message["stop_reason"]),
        }
        frame = _chat_frame(message, "chat.completion")
        return to_json(
            {
                **frame,
                "choices": [choice],
                "usage": _chat_usage(message.get("usage") or {}),
            }
        )
    except (KeyError, TypeError, AttributeError):
        raise ValueError("it is no answer of /messages") from None


def _call(block: _Json) -> _Json:
    function = {"name": block["name"], "arguments": to_json(block["input"]).decode()}
    return {"id": block["id"], "type": "function", "function": function}


def _finish(reason: str | None) -> str:
    return FINISH_REASONS.get(reason or "", "stop")


def _chat_frame(message: _Json, kind: str) -> _Json:
    return {
        "id": message["id"],
        "object": kind,
        "created": int(time.time()),
        "model": message.get("model"),
    }


def _chat_usage(usage: _Json) -> _Json:
    cached = usage.get("cache_read_input_tokens") or 0
    asked = (
        (usage.get("input_tokens") or 0)
        + cached
        + (usage.get("cache_creation_input_tokens") or 0)
    )
    answered = usage.get("output_tokens") or 0
    counts = {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
    }
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}


@dataclass(slots=True)
class ChatEvents:
    """A stream of /messages as one of /chat/completions. with_usage: whether its last event tells
    the tokens used.
    """

    with_usage: bool
    _frame: _Json | None = None
    _calls: dict[int, int] = field(default_factory=dict)
    _usage: _Json = field(default_factory=dict)
    _is_ended: bool = False

    def feed(self, events: bytes) -> bytes:
        try:
            chunks = [
                chunk for event in event_data(events) for chunk in self._turned(event)
            ]
        except (KeyError, TypeError, AttributeError):
            raise BadStream(GARBAGE) from None
        return b"".join(b"data: " + to_json(chunk) + b"\n\n" for chunk in chunks)

    def finish(self) -> bytes:
        if self._frame is None or not self._is_ended:
            raise BadStream(GARBAGE)
        usage = {**self._frame, "choices": [], "usage": _chat_usage(self._usage)}
        last = b"data: " + to_json(usage) + b"\n\n" if self.with_usage else b""
        return last + b"data: " + DONE + b"\n\n"

    def _turned(self, event: _Json) -> Iterator[_Json]:
        kind = event.get("type")
        if kind == "error":
            raise BadStream(GARBAGE)
        if kind == "message_start":
            message = event["message"]
            self._frame = _chat_frame(message, "chat.completion.chunk")
            self._usage = dict(message.get("usage") or {})
            yield self._chunk({"role": "assistant", "content": ""})
        elif (
            kind == "content_block_start"
            and event["content_block"]["type"] == "tool_use"
        ):
            block = event["content_block"]
            place = self._calls[event["index"]] = len(self._calls)
            function = {"name": block["name"], "arguments": ""}
            yield self._chunk(
                {
                    "tool_calls": [
                        {
                            "index": place,
                            "id": block["id"],
                            "type": "function",
                            "function": function,
                        }
                    ]
                }
            )
        elif kind == "content_block_delta" and event["delta"]["type"] == "text_delta":
            yield self._chunk({"content": event["delta"]["text"]})
        elif (
            kind == "content_block_delta"
            and event["delta"]["type"] == "input_json_delta"
        ):
            function = {"arguments": event["delta"]["partial_json"]}
            yield self._chunk(
                {
                    "tool_calls": [
                        {"index": self._calls[event["index"]], "function": function}
                    ]
                }
            )
        elif kind == "message_delta":
            self._usage |= {
                name: value
                for name, value in (event.get("usage") or {}).items()
                if value is not None
            }
            yield self._chunk({}, _finish(event["delta"].get("stop_reason")))
        elif kind == "message_stop":
            self._is_ended = True

    def _chunk(self, delta: _Json, reason: str | None = None) -> _Json:
        if self._frame is None:
            raise BadStream(GARBAGE)
        return {
            **self._frame,
            "choices": [
                {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
            ],
        }
