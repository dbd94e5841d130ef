"""The tokens that an answer says it used, whole or streamed, in each of the APIs; and what they
cost.

Keeps nothing else of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import from_json

from ridgeway.common.experts.experts_file import Expert
from ridgeway.common.serve.gateway.sse import BadStream, event_data

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


def _usage_in(told: dict[str, Any], before: TokenUsage) -> TokenUsage | None:
    """Of an answer or an event, as it is, or of the message or response that an event holds."""
    for holder in (told, told.get("message"), told.get("response")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            prompt = _number(usage, "prompt_tokens", "input_tokens", before.prompt)
            answer = _number(usage, "completion_tokens", "output_tokens", before.answer)
            return TokenUsage(prompt, answer)
    return None


def _number(usage: dict[str, Any], name: str, other: str, before: int) -> int:
    value = usage.get(name, usage.get(other))
    return value if type(value) is int and value > 0 else before
