"""Bodies of requests: their shapes, bytes in and checked records out, and the description of them
that OpenAPI needs.

Reading them here rather than through FastAPI's parameters saves a tenth of a routed request. Of the
endpoints of OpenAI and Anthropic only those fields are checked that routing must know; every other
is the expert's business and is passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from sys import getsizeof
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

import pydantic
from fastapi import Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from ridgeway.common.routing.conversation import Message, Turn, weighted_turns
from ridgeway.common.routing.conversations import (
    CutTurns,
    Exchange,
    cut_turns,
    exchange_of,
)
from ridgeway.common.routing.experts_file import AUTO
from ridgeway.common.web.http_errors import (
    ClientGone,
    Problem,
    json_problem,
    validation_problem,
)
from ridgeway.common.web.request_context import current_request, hold
from ridgeway.serving.rules import RoutingRules

SESSION_HEADER = "x-session-id"
"""The name of a conversation, whatever its messages are."""
NAMING_HEADERS = ("x-claude-code-session-id", "session-id", "session_id")
NAMING_FIELDS = ("user", "safety_identifier", "prompt_cache_key")
"""Whose conversation it is; Anthropic's clients say that as `metadata.user_id`."""
_MAX_PROMPTS = 1024
MAX_MESSAGES = 4096
MAX_NAME = 256
MAX_VALUES = 50_000
"""Lists, objects and their keys in one body: to read that many takes a few hundredths of a second.
"""
MAX_ROUTED_TEXTS = 64
"""A list of prompts for an expert is routed by its first ones."""

_Model = TypeVar("_Model", bound=BaseModel)


class ContentPart(BaseModel):
    """A part of a message's content. Only text is routed on."""

    model_config = ConfigDict(extra="allow")
    type: str
    text: str | None = None


ContentParts = Annotated[list[ContentPart], Field(fail_fast=True)]
"""The first thing that is wrong is enough: to find them all takes long, and no client is told of
more.
"""


class ChatMessage(BaseModel):
    """One message of a conversation, as OpenAI's clients write it."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | ContentParts | None = None

    @property
    def text(self) -> str:
        """The text of the message, images and the like left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or [] if part.text)

    @property
    def said(self) -> Message:
        """Who says what; the result of a tool is a tool's, whose message it may stand in."""
        parts = self.content if isinstance(self.content, list) else []
        return (
            "tool" if any(part.type == "tool_result" for part in parts) else self.role
        ), self.text


AtMostMessages = Annotated[
    list[_Model], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
]
ChatMessages = AtMostMessages[ChatMessage]


class WantedDecisions(NamedTuple):
    """What is to be routed, cut to its size; `prompts` if there were many."""

    texts: list[CutTurns]
    prompts: list[str] | None
    explain: bool
    after: str | None = None


_Prompts = Annotated[
    list[str], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)
]


class RouteRequest(BaseModel):
    """What to route: one prompt, many, or a conversation. Exactly one of the three."""

    model_config = ConfigDict(
        extra="forbid", strict=True, use_attribute_docstrings=True
    )
    prompt: str | None = None
    """One prompt."""
    prompts: _Prompts | None = None
    """Many prompts, each routed on its own."""
    messages: ChatMessages | None = None
    """A conversation; the last user turn weighs more than all the others."""
    explain: bool = False
    """Add each word and what it added to the decision."""
    after: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    """The domain that the chat is with: its last user message alone is routed, and may
    leave it.
    """

    @model_validator(mode="after")
    def _one_of_three(self) -> RouteRequest:
        if (self.prompt is None) + (self.prompts is None) + (
            self.messages is None
        ) != 2:
            raise ValueError("give exactly one of prompt, prompts and messages")
        if self.after is not None and self.messages is None:
            raise ValueError("after goes with messages alone")
        return self

    def wanted(self) -> WantedDecisions:
        """What is routed of it, which is held from now on."""
        if self.prompts is not None:
            texts = [cut_turns([Turn(prompt, 1.0)]) for prompt in self.prompts]
        else:
            turns = (
                [Turn(self.prompt or "", 1.0)]
                if self.messages is None
                else weighted_turns([(chat.role, chat.text) for chat in self.messages])
            )
            texts = [cut_turns(turns if self.after is None else turns[:1])]
        hold(sum([getsizeof(turn.text) for turns, _ in texts for turn in turns]))
        prompts = (
            None if self.prompts is None else [turns[0].text for turns, _ in texts]
        )
        return WantedDecisions(texts, prompts, self.explain, self.after)


def _plainly(value: Any, check: object) -> Any:
    """One sentence instead of one for each shape that it might have had, and a glance instead of a
    check of each id.
    """
    parts = value if isinstance(value, list) else []
    kinds = set(map(type, parts))
    if (
        kinds == {list}
        and all(parts)
        and set(map(type, chain.from_iterable(parts))) == {int}
    ):
        return value
    if isinstance(value, str) or kinds in ({str}, {int}):
        return value
    raise ValueError(
        "give a text, a list of texts, or token ids, and at least one of them"
    )


_Texts = Annotated[list[str], Field(min_length=1)]
TokenIds = Annotated[list[pydantic.StrictInt], Field(min_length=1)]
TokenIdLists = Annotated[list[TokenIds], Field(min_length=1)]
Prompt = Annotated[
    str | _Texts | TokenIds | TokenIdLists, pydantic.WrapValidator(_plainly)
]


class GatewayRequest(BaseModel):
    """What every request to an expert has. Unknown fields are passed on."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    model: str
    """The name of an expert, or "auto": see /v1/models."""


class ChatRequest(GatewayRequest):
    """A chat, as OpenAI's clients write it."""

    messages: ChatMessages
    stream: StrictBool | None = None

    def said(self) -> list[Message]:
        return [message.said for message in self.messages]


class CompletionRequest(GatewayRequest):
    """A prompt to be continued. Token ids cannot be routed: they need the name of an expert."""

    prompt: Prompt
    stream: StrictBool | None = None

    def turns(self) -> list[Turn]:
        """Texts as turns of equal weight."""
        prompt = self.prompt
        texts = [prompt] if isinstance(prompt, str) else prompt[:MAX_ROUTED_TEXTS]
        if not isinstance(texts[0], str):
            words = (
                "token ids cannot be routed; give texts, or the name of an expert as"
                " model"
            )
            raise Problem(400, words, param="prompt", code="tokens")
        return [Turn(str(text), 1.0) for text in texts]


class EmbeddingRequest(GatewayRequest):
    """Texts to be turned into vectors. Vectors of different experts cannot be compared: name
    one.
    """

    input: Prompt


class MessagesTurn(ChatMessage):
    """One message of a conversation, as Anthropic's clients write it."""

    role: Literal["user", "assistant"]


class MessagesRequest(GatewayRequest):
    """A chat, as Anthropic's clients write it."""

    messages: AtMostMessages[MessagesTurn]
    max_tokens: Annotated[pydantic.StrictInt, Field(ge=1)]
    system: str | ContentParts | None = None
    stream: StrictBool | None = None

    def said(self) -> list[Message]:
        system = (
            [ChatMessage(role="system", content=self.system)] if self.system else []
        )
        return [message.said for message in [*system, *self.messages]]


class ResponseItem(BaseModel):
    """One item of what a response is asked for: a message, or something that is not routed on."""

    model_config = ConfigDict(extra="allow")
    type: str | None = None
    role: str | None = None
    content: Any = None

    @property
    def is_tool_result(self) -> bool:
        return (
            self.role is None
            and self.type is not None
            and self.type.endswith("_output")
        )

    @property
    def text(self) -> str:
        if self.role is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        parts = self.content if isinstance(self.content, list) else []
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))


class ConversationName(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: str


class ResponsesRequest(GatewayRequest):
    """What a response is asked for. One that goes on from another goes to the expert that has that
    other.
    """

    input: str | AtMostMessages[ResponseItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    stream: StrictBool | None = None

    @model_validator(mode="after")
    def _goes_on_from_one(self) -> ResponsesRequest:
        if self.previous_response_id and self.conversation:
            raise ValueError("give one of previous_response_id and conversation")
        return self

    def said(self) -> list[Message]:
        items = [("user", self.input)] if isinstance(self.input, str) else []
        if isinstance(self.input, list):
            items = [
                ("tool" if item.is_tool_result else item.role or "", item.text)
                for item in self.input
            ]
        return [("system", self.instructions or ""), *items]

    @property
    def goes_on_from(self) -> str | None:
        """The response or conversation that an expert keeps."""
        named = (
            self.conversation.id
            if isinstance(self.conversation, ConversationName)
            else self.conversation
        )
        return self.previous_response_id or named


AnyGatewayRequest = (
    ChatRequest
    | CompletionRequest
    | EmbeddingRequest
    | MessagesRequest
    | ResponsesRequest
)


@dataclass(frozen=True, slots=True)
class GatewayBody:
    """The body of a request to an expert as it came, and what the gateway must know of it.

    model:   the name that was asked for.
    routed:  what is routed; None if the client named an expert, and of embeddings.
    exchange:    of a chat that is routed, which conversation it is.
    tools:       the names of the tools that it offers.
    ruled:       the domain that a rule decides.
    goes_on_from: the response or conversation that an expert keeps.
    """

    content: bytes = field(repr=False)
    model: str
    streamed: bool
    routed: CutTurns | None = field(repr=False)
    goes_on_from: str | None = None
    exchange: Exchange | None = field(default=None, repr=False)
    tools: tuple[str, ...] = ()
    ruled: str | None = None

    async def under(
        self, rules: RoutingRules, headers: Mapping[str, str]
    ) -> GatewayBody:
        """The same after the rules that come before the router."""
        if self.routed is None:
            return self
        text = self.routed.turns[0].text
        return replace(self, ruled=await rules.domain(text, headers, self.tools))

    def fields(self) -> dict[str, Any]:
        """Every field, read anew: parsed values may take ten times the memory of their text, for as
        long as an expert takes to answer.
        """
        return cast(dict[str, Any], from_json(self.content, allow_inf_nan=False))


async def read_body(request: Request, model: type[_Model]) -> _Model:
    """The body of a request; anything wrong with it is a Problem."""
    content = await _content(request)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise validation_problem(error) from None


async def read_gateway_body(
    request: Request,
    model: type[AnyGatewayRequest] | None,
    aliases: Mapping[str, str] | None = None,
) -> GatewayBody:
    """As `read_body`, for an expert. Raises ClientGone if the client goes before it is there.

    model: None for a body of any endpoint, which is routed whatever model it names.
    aliases: other names of experts.
    """
    content = await _content(request)
    try:
        fields = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise json_problem(str(error)) from None
    if not isinstance(fields, dict):
        raise Problem(400, "the body is not a JSON object", code="invalid_value")
    try:
        checked = (model or _shape(fields)).model_validate(fields)
    except ValidationError as error:
        raise validation_problem(error) from None
    streamed = not isinstance(checked, EmbeddingRequest) and bool(checked.stream)
    goes_on_from = (
        checked.goes_on_from if isinstance(checked, ResponsesRequest) else None
    )
    routed = None
    exchange = None
    asked = AUTO if model is None else checked.model
    named = (aliases or {}).get(asked, asked)
    if named != AUTO or isinstance(checked, EmbeddingRequest):
        pass
    elif isinstance(checked, CompletionRequest):
        routed = cut_turns(checked.turns())
    else:
        exchange = exchange_of(
            checked.said(),
            (current_request().key, *_names(fields, request)),
            request.headers.get(SESSION_HEADER, ""),
        )
        routed = exchange.turns
    return GatewayBody(
        content, named, streamed, routed, goes_on_from, exchange, _tools(fields)
    )


def _shape(fields: dict[str, Any]) -> type[AnyGatewayRequest]:
    """Of a body, by the fields that it has."""
    if "messages" in fields:
        return MessagesRequest if "system" in fields else ChatRequest
    return CompletionRequest if "prompt" in fields else ResponsesRequest


def _tools(fields: dict[str, Any]) -> tuple[str, ...]:
    """The names of tools, as either API writes them."""
    offered = fields.get("tools")
    names = []
    for tool in offered if isinstance(offered, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            names.append(name)
    return tuple(names)


def _names(fields: dict[str, Any], request: Request) -> list[str]:
    """Whose conversation it is, as far as the client says."""
    metadata = fields.get("metadata")
    named = [fields.get(name) for name in NAMING_FIELDS]
    named.append(metadata.get("user_id") if isinstance(metadata, dict) else None)
    named += [request.headers.get(name) for name in NAMING_HEADERS]
    return [name if isinstance(name, str) else "" for name in named]


async def _content(request: Request) -> bytes:
    """The bytes of a body that is said to be JSON. Raises ClientGone if the client goes first."""
    _check_content_type(request)
    pieces = []
    more = True
    while more:
        event = await request.receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(event.get("body", b""))
        more = event.get("more_body", False)
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    _check_values(content)
    return content


def _check_values(content: bytes) -> None:
    """Refuse a body that would take long to read: while it is read, every other request waits."""
    # its length, then whatever stands in texts counted too, is mostly enough to know
    if len(content) <= MAX_VALUES or _values(content) <= MAX_VALUES:
        return
    outside = content.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    if _values(b"".join(outside)) > MAX_VALUES:
        words = (
            f"the body has more than {MAX_VALUES:,} lists, objects and keys; send fewer"
            " at a time"
        )
        raise Problem(400, words, code="too_many_values")


def _values(content: bytes) -> int:
    return sum(map(content.count, (b"[", b"{", b":")))


def _check_content_type(request: Request) -> None:
    """A page of another site can send a form or plain text unasked, but JSON only if it is let."""
    media_type = request.headers.get("content-type", "").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise Problem(
            415, "send the body as JSON, with the header Content-Type: application/json"
        )


@cache
def described(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI words for a body that is read by `read_body`."""
    schema = model.model_json_schema()
    whole = _spelt_out(schema, schema.pop("$defs", {}))
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": whole}},
        }
    }


def _spelt_out(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema with what it refers to put in its place; the description has no other room for
    it.
    """
    if isinstance(schema, list):
        return [_spelt_out(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _spelt_out(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _spelt_out(part, definitions) for name, part in schema.items()}
