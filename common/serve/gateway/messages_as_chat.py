"""Anthropic's API in front of experts that speak OpenAI's: requests, answers and streams turned
into each other.

What OpenAI's API has no place for is refused in a sentence, never left out in silence; hints about
caches are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from ridgeway.common.http.http_errors import Problem
from ridgeway.common.serve.gateway.failures import GARBAGE
from ridgeway.common.serve.gateway.sse import BadStream, event_data, named_event

_Fields = Mapping[str, Any]
_Json = dict[str, Any]

NOT_TRANSLATABLE = "not_translatable"
AS_THEY_ARE = ("max_tokens", "temperature", "top_p", "top_k", "stream")
_HINTS = ("service_tier", "cache_control")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def untranslatable(where: str, api: str) -> Problem:
    words = (
        f"{where}: the expert speaks {api}'s API, which has nothing like this; leave it"
        " out, or name another expert"
    )
    return Problem(400, words, param=where, code=NOT_TRANSLATABLE)


# Requests


def chat_request(fields: _Fields) -> _Json:
    """A request to /messages as one to /chat/completions."""
    chat: _Json = {"model": fields["model"], "messages": list(_messages(fields))}
    for name, value in fields.items():
        if value is None or name in ("model", "messages", "system", *_HINTS):
            continue
        if name in AS_THEY_ARE:
            chat[name] = value
        elif name == "stop_sequences":
            chat["stop"] = value
        elif name == "tools":
            chat["tools"] = [
                _tool(tool, f"tools.{place}")
                for place, tool in enumerate(listed(value, name))
            ]
        elif name == "tool_choice":
            chat |= _tool_choice(_object(value, name))
        elif name == "metadata":
            chat |= (
                {"user": value["user_id"]}
                if isinstance(value, dict) and value.get("user_id")
                else {}
            )
        elif name == "output_config":
            chat |= _output(_object(value, name))
        elif name != "thinking" or _object(value, name).get("type") != "disabled":
            raise untranslatable(name, "OpenAI")
    if chat.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _messages(fields: _Fields) -> Iterator[_Json]:
    if fields.get("system"):
        yield {"role": "system", "content": _plain(fields["system"], "system")}
    for place, message in enumerate(fields["messages"]):
        where = f"messages.{place}.content"
        content = message.get("content")
        if isinstance(content, str) or content is None:
            yield {"role": message["role"], "content": content or ""}
        elif message["role"] == "assistant":
            yield _assistant(content, where)
        else:
            yield from _user(content, where)


def _assistant(blocks: list[_Json], where: str) -> _Json:
    texts = []
    calls = []
    for place, block in enumerate(blocks):
        if block["type"] == "text":
            texts.append(block.get("text") or "")
        elif block["type"] == "tool_use":
            function = {
                "name": block.get("name"),
                "arguments": to_json(block.get("input") or {}).decode(),
            }
            calls.append(
                {"id": block.get("id"), "type": "function", "function": function}
            )
        elif block["type"] not in (
            "thinking",
            "redacted_thinking",
        ):  # of use to the model that thought it alone
            raise untranslatable(f"{where}.{place}.type", "OpenAI")
    message: _Json = {"role": "assistant", "content": "".join(texts) or None}
    return (
        {**message, "tool_calls": calls}
        if calls
        else {**message, "content": "".join(texts)}
    )


def _user(blocks: list[_Json], where: str) -> Iterator[_Json]:
    """Results of tools are messages of their own, before what the user says."""
    parts = []
    for place, block in enumerate(blocks):
        inside = f"{where}.{place}"
        if block["type"] == "tool_result":
            content = _plain(block.get("content") or "", f"{inside}.content")
            yield {
                "role": "tool",
                "tool_call_id": block.get("tool_use_id"),
                "content": content,
            }
        else:
            parts.append(_part(block, inside))
    if parts:
        yield {"role": "user", "content": parts}


def _part(block: _Json, where: str) -> _Json:
    kind = block["type"]
    source = block.get("source")
    if kind == "text":
        return {"type": "text", "text": block.get("text") or ""}
    if not isinstance(source, dict) or kind not in ("image", "document"):
        raise untranslatable(f"{where}.type", "OpenAI")
    data = f"data:{source.get('media_type')};base64,{source.get('data')}"
    if kind == "image":
        url = source.get("url") if source.get("type") == "url" else data
        return {"type": "image_url", "image_url": {"url": url}}
    if source.get("type") == "text":
        return {"type": "text", "text": str(source.get("data") or "")}
    if source.get("type") != "base64":
        raise untranslatable(f"{where}.source.type", "OpenAI")
    return {
        "type": "file",
        "file": {"filename": block.get("title") or "document.pdf", "file_data": data},
    }


def _plain(content: Any, where: str) -> str:
    """A text, or the texts of blocks; other blocks cannot stand here."""
    if isinstance(content, str):
        return content
    for place, block in enumerate(listed(content, where)):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise untranslatable(f"{where}.{place}.type", "OpenAI")
    return "\n".join(block.get("text") or "" for block in content)


def _tool(tool: Any, where: str) -> _Json:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        raise untranslatable(f"{where}.type", "OpenAI")
    function = {
        "name": tool.get("name"),
        "parameters": tool.get("input_schema") or {"type": "object"},
    }
    function |= {
        name: tool[name]
        for name in ("description", "strict")
        if tool.get(name) is not None
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: _Json) -> _Json:
    kind = choice.get("type")
    if kind == "tool":
        chosen: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _TOOL_CHOICES:
        chosen = _TOOL_CHOICES[kind]
    else:
        raise Problem(
            400,
            "tool_choice.type: give auto, any, tool or none",
            code="invalid_value",
            param="tool_choice",
        )
    return {"tool_choice": chosen} | (
        {"parallel_tool_calls": False}
        if choice.get("disable_parallel_tool_use")
        else {}
    )


def _output(config: _Json) -> _Json:
    form = config.get("format")
    if (
        set(config) - {"format"}
        or not isinstance(form, dict)
        or form.get("type") != "json_schema"
    ):
        raise untranslatable("output_config", "OpenAI")
    schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _object(value: Any, where: str) -> _Json:
    if not isinstance(value, dict):
        raise Problem(
            400, f"{where}: give an object", code="invalid_value", param=where
        )
    return value


def listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Problem(400, f"{where}: give a list", code="invalid_value", param=where)
    return value


# Answers


def message_answer(body: bytes) -> bytes:
    """An answer of /chat/completions as one of /messages; raises ValueError if it is none."""
    try:
        chat = from_json(body)
        choice = chat["choices"][0]
        message = choice["message"]
        content = []
        if text := message.get("content") or message.get("refusal"):
            content.append({"type": "text", "text": text})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            asked = from_json(function.get("arguments") or "{}")
            content.append(
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": function["name"],
                    "input": asked,
                }
            )
        reason = (
            "refusal"
            if message.get("refusal")
            else _stop_reason(choice.get("finish_reason"))
        )
        return to_json(
            {
                **_frame(chat, content),
                "stop_reason": reason,
                "usage": _usage(chat.get("usage")),
            }
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError("it is no answer of /chat/completions") from None


def _frame(chat: _Json, content: list[_Json]) -> _Json:
    name = str(chat.get("id") or "")
    return {
        "id": name if name.startswith("msg_") else f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": chat.get("model"),
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop_reason(reason: str | None) -> str:
    return STOP_REASONS.get(reason or "stop", "end_turn")


def _usage(usage: _Json | None) -> _Json:
    usage = usage or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    asked = usage.get("prompt_tokens") or 0
    counts = {
        "input_tokens": max(0, asked - cached),
        "output_tokens": usage.get("completion_tokens") or 0,
    }
    return counts | ({"cache_read_input_tokens": cached} if cached else {})


class MessageEvents:
    """A stream of /chat/completions as one of /messages."""

    def __init__(self) -> None:
        self._begun = False
        self._open: _Json | None = None  # the block that is being written
        self._blocks = 0
        self._calls: dict[int, int] = {}
        self._reason: str | None = None
        self._usage: _Json = {}

    def feed(self, events: bytes) -> bytes:
        try:
            return b"".join(
                named_event(event)
                for chunk in event_data(events)
                for event in self._turned(chunk)
            )
        except (KeyError, TypeError, AttributeError, IndexError):
            raise BadStream(GARBAGE) from None

    def finish(self) -> bytes:
        if not self._begun:
            raise BadStream(GARBAGE)
        delta = {"stop_reason": _stop_reason(self._reason), "stop_sequence": None}
        last = {"type": "message_delta", "delta": delta, "usage": _usage(self._usage)}
        return b"".join(
            map(named_event, (*self._close(), last, {"type": "message_stop"}))
        )

    def _turned(self, chunk: _Json) -> Iterator[_Json]:
        if chunk.get("error"):
            raise BadStream(GARBAGE)
        if not self._begun:
            self._begun = True
            yield {
                "type": "message_start",
                "message": {**_frame(chunk, []), "usage": _usage(None)},
            }
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content") or delta.get("refusal"):
                if self._open is None or self._open["type"] != "text":
                    yield from self._start({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            for call in delta.get("tool_calls") or ():
                yield from self._call(call)
            self._reason = choice.get("finish_reason") or self._reason

    def _call(self, call: _Json) -> Iterator[_Json]:
        function = call.get("function") or {}
        place = call.get("index") or 0
        if place not in self._calls:
            yield from self._start(
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": function["name"],
                    "input": {},
                }
            )
            self._calls[place] = self._blocks - 1
        if written := function.get("arguments"):
            yield self._delta({"type": "input_json_delta", "partial_json": written})

    def _start(self, block: _Json) -> Iterator[_Json]:
        yield from self._close()
        self._open = block
        yield {
            "type": "content_block_start",
            "index": self._blocks,
            "content_block": block,
        }
        self._blocks += 1

    def _delta(self, delta: _Json) -> _Json:
        return {
            "type": "content_block_delta",
            "index": self._blocks - 1,
            "delta": delta,
        }

    def _close(self) -> Iterator[_Json]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._blocks - 1}
