"""A stream that breaks off goes on elsewhere: what its client has got so far, and who goes on with it.

The text so far is kept, and is the last assistant's message of the next request. What the next stream says becomes part
of the first: its id, model and time are the first one's, its role is not said again, and neither are blanks at the end
of the text so far, which servers want cut off. Where going on is not safe (more than text was said, or the request asks
for more than text), nobody is asked.

Knows the events of both APIs as clients get them, and experts. Knows nothing of routing.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from prometheus_client import Counter
from pydantic_core import to_json

from ridgeway.common.http import held_bytes
from ridgeway.common.http.http_errors import Problem
from ridgeway.common.http.request_context import current_request
from ridgeway.coordinator.serve.gateway.chat_as_messages import CHANGES_NOTHING, HINTS
from ridgeway.coordinator.serve.gateway.expert_client import ExpertClient
from ridgeway.coordinator.serve.gateway.expert_link import Attempt, Endpoint, ExpertLink
from ridgeway.coordinator.serve.gateway.failures import GARBAGE, ExpertFailure
from ridgeway.coordinator.serve.gateway.sse import (
    DONE,
    BadStream,
    StreamAnswer,
    StreamTranslator,
    event_data,
    named_event,
)
from ridgeway.coordinator.serve.gateway.token_usage import StreamedUsage
from ridgeway.coordinator.serve.gateway.translation import SaidSoFar, asked_expert
from ridgeway.coordinator.serve.request_bodies import GatewayBody

MAX_RESUMPTIONS = 5
"""Of one answer: a request that ends whoever answers it must not go on for ever."""
MAX_KEPT_BYTES = 1024 * 1024
"""A longer text is not kept, and so not gone on with."""
SAFE_FIELDS = HINTS | {
    *("model", "messages", "system", "stream", "user", "seed", "tools", "parallel_tool_calls", "chat_template_kwargs"),
    *("max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_sequences", "stop_token_ids"),
    *("temperature", "top_p", "top_k", "min_p", "logit_bias"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "cache_control"),
}
"""What means the same of the rest of an answer as of the whole; structured output, `n` and `logprobs` do not."""
FREE_CHOICES = ("auto", "none", {"type": "auto"}, {"type": "none"})
FRAME = ("id", "created", "model", "system_fingerprint")

log = logging.getLogger("ridgeway.serve")

Json = dict[str, Any]


def is_safe(fields: Mapping[str, Any]) -> bool:
    """Whether the rest of an answer can be asked for, if all that was said so far is text."""
    for name, value in fields.items():
        is_free = name == "tool_choice" and value in FREE_CHOICES
        is_idle = name in CHANGES_NOTHING and value == CHANGES_NOTHING[name]
        if not (value is None or name in SAFE_FIELDS or is_free or is_idle):
            return False
    return bool(fields["messages"][-1]["role"] != "assistant")  # that would be gone on with already


def stops_of(fields: Mapping[str, Any]) -> list[str]:
    stops = [fields.get("stop"), fields.get("stop_sequences")]
    listed = [each for some in stops for each in (some if isinstance(some, list) else [some])]
    return [each for each in listed if isinstance(each, str) and each]


class PartialAnswer(ABC):
    """What a client has got of an answer, and what it gets of a stream that goes on with it.

    tokens:  how many pieces of text there were: experts send each token as one.
    is_over: it was said why the answer ends.
    Law: what a client gets of a text that breaks off anywhere and is gone on with from there is that text.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.tokens = 0
        self.size = 0
        self.is_over = False
        self._is_ended = False
        self._stops = stops
        self._texts: list[str] | None = []
        self._is_resumed = False
        self._resumed_at = 0
        self._blanks = ""  # those that the client has, and that who goes on will say again

    @property
    def can_go_on(self) -> bool:
        """Not if more than text was said, or if a stop sequence may have begun at its end."""
        if self._texts is None or self.is_over:
            return False
        said = "".join(self._texts)
        return not any(said.endswith(stop[:size]) for stop in self._stops for size in range(1, len(stop)))

    def said(self) -> SaidSoFar | None:
        """What is to be gone on with; None if there is nothing yet, so that the answer can begin anew."""
        text = "".join(self._texts or ()).rstrip()
        return SaidSoFar(text, self.tokens) if text else None

    def resume(self) -> int:
        """Another stream follows; the number of tokens that it counts with its prompt."""
        said, whole = self.said(), "".join(self._texts or ())
        self._blanks = whole[len(said.text) if said else 0 :]
        self._is_resumed, self._resumed_at = True, said.tokens if said else 0
        return self._resumed_at

    def feed(self, events: bytes) -> bytes:
        """The first stream passes as it comes; of those after it, what belongs to the same answer."""
        turned: list[Json] = []
        self._is_ended = self._is_ended or events.rstrip().endswith(DONE)
        try:
            turned += [each for event in event_data(events) for each in self._turned(event)]
        except (BadStream, KeyError, TypeError, AttributeError, ValueError):
            self._forget()
            if self._is_resumed:
                raise BadStream(GARBAGE) from None
        return self._written(turned) if self._is_resumed else events

    @abstractmethod
    def _turned(self, event: Json) -> Iterator[Json]:
        """Notes an event, and says what it is in the answer."""

    @abstractmethod
    def _written(self, turned: Sequence[Json]) -> bytes: ...

    def ending(self) -> bytes | None:
        """What is missing of an answer that has said why it ends; None if it has not."""
        if not self.is_over:
            return None
        return b"" if self._is_ended else self._last()

    @abstractmethod
    def _last(self) -> bytes:
        """The event that ends an answer."""

    def _added(self, text: str) -> str:
        """What is new in a piece of text."""
        if self._blanks:
            pairs = zip(self._blanks, text, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._blanks = self._blanks[same:] if same == len(text) else ""
            text = text[same:]
        if text and self._texts is not None:
            self.tokens += 1
            self.size += len(text.encode(errors="replace"))
            self._texts.append(text)
            try:
                held_bytes.hold(len(text))
            except Problem:
                self._forget()
            if self.size > MAX_KEPT_BYTES:
                self._forget()
        return text

    def _forget(self) -> None:
        """There is more than text now, or too much of it."""
        self._texts = None

    def _whole_usage(self, usage: Json) -> Json:
        """What one stream would have used: the text so far is part of the answer, and not of the prompt."""
        moved = {"prompt_tokens": -1, "input_tokens": -1, "completion_tokens": 1, "output_tokens": 1}
        return usage | {
            name: max(0, usage[name] + sign * self._resumed_at)
            for name, sign in moved.items()
            if type(usage.get(name)) is int
        }


class PartialChat(PartialAnswer):
    """Of /chat/completions."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        super().__init__(stops)
        self._frame: Json | None = None
        self._has_role = False

    def _turned(self, event: Json) -> Iterator[Json]:
        if self._frame is None:
            self._frame = {name: event[name] for name in FRAME if name in event}
        choices, usage = event.get("choices") or [], event.get("usage")
        if "error" in event:
            self._forget()
        says_something = not choices or bool(usage)
        for choice in choices:
            delta = dict(choice.get("delta") or {})
            others = {name: value for name, value in delta.items() if name not in ("role", "content") and value}
            if others or choice.get("index") or choice.get("logprobs"):
                self._forget()
            self.is_over = self.is_over or bool(choice.get("finish_reason"))
            text = self._added(delta.get("content") or "")
            role = {"role": delta["role"]} if delta.get("role") and not self._has_role else {}
            self._has_role = self._has_role or bool(role)
            choice["delta"] = role | others | ({"content": text} if text else {})
            says_something = says_something or bool(choice["delta"] or choice.get("finish_reason"))
        if says_something:
            yield {**event, **self._frame} | ({"usage": self._whole_usage(usage)} if usage else {})

    def _written(self, turned: Sequence[Json]) -> bytes:
        last = self._last() if self._is_ended else b""
        return b"".join(b"data: " + to_json(each) + b"\n\n" for each in turned) + last

    def _last(self) -> bytes:
        return b"data: " + DONE + b"\n\n"


class PartialMessage(PartialAnswer):
    """Of /messages. Its text is one block, and further blocks of a stream that goes on are numbered on."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        super().__init__(stops)
        self._is_begun = False
        self._open: int | None = None
        self._shift: int | None = 0

    def resume(self) -> int:
        self._shift = None  # to be known with the first block
        return super().resume()

    def _turned(self, event: Json) -> Iterator[Json]:
        kind = event["type"]
        if kind == "message_start":
            if not self._is_begun:
                yield event
            self._is_begun = True
            return
        if kind == "content_block_start":
            yield from self._started(event)
            return
        event = {**event, "index": event["index"] + (self._shift or 0)} if "index" in event else event
        if kind == "content_block_delta" and event["delta"]["type"] == "text_delta":
            text = self._added(event["delta"]["text"])
            if text:
                yield {**event, "delta": {**event["delta"], "text": text}}
            return
        if kind == "message_delta":
            self.is_over = self.is_over or bool(event["delta"].get("stop_reason"))
            yield {**event, "usage": self._whole_usage(event.get("usage") or {})}
            return
        self._is_ended = self._is_ended or kind == "message_stop"
        if kind != "ping":  # the block has ended, or it is more than text
            self._forget()
        yield event

    def _started(self, event: Json) -> Iterator[Json]:
        is_text = event["content_block"]["type"] == "text" and not event["content_block"].get("text")
        before, self._open = self._open, event["index"] + (self._shift or 0)
        if not is_text or self._open:
            self._forget()
        if self._shift is None and before is not None:
            self._shift = before - event["index"] + (not is_text)
            self._open = event["index"] + self._shift
            if is_text:
                return
            yield {"type": "content_block_stop", "index": before}
        self._shift = self._shift or 0
        yield {**event, "index": self._open}

    def _written(self, turned: Sequence[Json]) -> bytes:
        return b"".join(map(named_event, turned))

    def _last(self) -> bytes:
        return named_event({"type": "message_stop"})


PARTIAL_ANSWERS: Mapping[Endpoint, type[PartialAnswer]] = {
    "/chat/completions": PartialChat,
    "/messages": PartialMessage,
}


@dataclass(slots=True)
class Resumption:
    """Goes on with one answer, wherever it can be gone on with.

    fallbacks: who is there for an expert that is down, in this order.
    """

    client: ExpertClient
    body: GatewayBody
    endpoint: Endpoint
    partial: PartialAnswer
    usage: StreamedUsage
    resumed: Counter
    fallbacks: Sequence[ExpertLink]
    count: int = 0

    def hold(self) -> None:
        held_bytes.hold(len(self.body.content) + self.partial.size)

    def feed(self, events: bytes) -> bytes:
        return self.partial.feed(events)

    def ending(self) -> bytes | None:
        return self.partial.ending()

    async def go_on(self, broken: Attempt) -> tuple[StreamAnswer, StreamTranslator | None] | None:
        if self.count == MAX_RESUMPTIONS or not self.partial.can_go_on:
            return None
        said = self.partial.said()
        for place, link in enumerate((broken.link, *self.fallbacks)):
            after = broken.address if link is broken.link else None
            with contextlib.suppress(Problem, ExpertFailure):
                asking = asked_expert(link, self.body, self.endpoint, said=said)
                answer = await self.client.ask(link, asking.request, place == len(self.fallbacks), after)
                if isinstance(answer, StreamAnswer):
                    self._note(broken, answer.attempt)
                    self.fallbacks = self.fallbacks[place:]
                    return answer, asking.translator()
        return None

    def _note(self, broken: Attempt, now: Attempt) -> None:
        self.count += 1
        self.usage.resume(self.partial.resume())
        held_bytes.let_go()  # the request has been sent on
        self.hold()
        self.resumed.labels(broken.link.name).inc()
        current_request().told["resumed"] = self.count
        log.info("a stream of expert %s broke off, and goes on at %s", broken.address.shown, now.address.shown)


def resumption_for(
    client: ExpertClient,
    body: GatewayBody,
    endpoint: Endpoint,
    usage: StreamedUsage,
    resumed: Counter,
    links: Sequence[ExpertLink],
) -> Resumption | None:
    """For a stream that has begun; None where nobody could go on. links: who has begun it, and those in its place."""
    if endpoint not in PARTIAL_ANSWERS or all(link.expert.continues == "none" for link in links):
        return None
    fields = body.fields()
    if not is_safe(fields):
        return None
    partial = PARTIAL_ANSWERS[endpoint](stops_of(fields))
    kept = GatewayBody(body.content, body.model, body.streamed, None)
    return Resumption(client, kept, endpoint, partial, usage, resumed, links[1:])
