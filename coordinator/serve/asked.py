"""What clients ask of the gateway: the bodies of OpenAI's three endpoints, as far as routing must know them.

Every other field is the expert's business and is passed on as it is.

Knows shapes and turns. Knows nothing of experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from common.conversation import Turn
from coordinator.serve.bodies import check_content_type
from coordinator.serve.failures import Gone
from coordinator.serve.problems import Problem, of_validation
from coordinator.serve.routing import conversation
from coordinator.serve.wire import Messages

MOST_TEXTS = 64
"""A list of prompts is routed by its first ones."""


def _plainly(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One sentence instead of one for each shape that it might have had."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("give a text, a list of texts, or token ids, and at least one of them") from None


Texts = Annotated[list[str], Field(min_length=1)]
TokenIds = Annotated[list[StrictInt], Field(min_length=1)]
Prompt = Annotated[
    str | Texts | TokenIds | Annotated[list[TokenIds], Field(min_length=1)],
    WrapValidator(_plainly),
]


class GatewayRequest(BaseModel):
    """What every request to an expert has. Unknown fields are passed on."""

    model_config = ConfigDict(extra="allow")
    model: str = Field(description='"auto", or the name of an expert: see /v1/models.')


class ChatRequest(GatewayRequest):
    """A chat, as OpenAI's clients write it."""

    messages: Messages
    stream: StrictBool | None = None

    def turns(self) -> list[Turn]:
        return conversation(self.messages)


class CompletionRequest(GatewayRequest):
    """A prompt to be continued. Token ids cannot be routed: they need the name of an expert."""

    prompt: Prompt
    stream: StrictBool | None = None

    def turns(self) -> list[Turn]:
        return _turns(self.prompt, "prompt")


class EmbeddingRequest(GatewayRequest):
    """Texts to be turned into vectors. Vectors of different experts cannot be compared: name one."""

    input: Prompt

    def turns(self) -> list[Turn]:
        return _turns(self.input, "input")


def _turns(value: str | list[Any], param: str) -> list[Turn]:
    """Texts as turns of equal weight."""
    texts = [value] if isinstance(value, str) else value[:MOST_TEXTS]
    if not isinstance(texts[0], str):
        raise Problem(
            400, "token ids cannot be routed; give texts, or the name of an expert as model", param=param, code="tokens"
        )
    return [Turn(text, 1.0) for text in texts]


AnyRequest = ChatRequest | CompletionRequest | EmbeddingRequest


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read: its fields as they came, and the same checked."""

    fields: dict[str, Any] = field(repr=False)
    checked: AnyRequest = field(repr=False)

    @property
    def streamed(self) -> bool:
        return not isinstance(self.checked, EmbeddingRequest) and bool(self.checked.stream)


async def read_asked(request: Request, model: type[AnyRequest]) -> Asked:
    """The body of a request; anything wrong with it is a Problem."""
    check_content_type(request)
    try:
        fields = from_json(await request.body(), allow_inf_nan=False)
    except ClientDisconnect:
        raise Gone from None
    except ValueError:
        raise Problem(400, "the body is not valid JSON", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise Problem(400, "the body is not a JSON object", code="invalid_value")
    try:
        return Asked(fields, model.model_validate(fields))
    except ValidationError as error:
        raise of_validation(error) from None
