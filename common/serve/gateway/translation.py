"""What a request becomes for the expert that is asked, and its answer for the client: whose API
each of them speaks.

Where both speak the same, everything passes as it came but the model's name and the number of
tokens.

Makes no connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic_core import from_json, to_json

from ridgeway.common.experts.experts_file import Expert
from ridgeway.common.http.http_errors import Problem
from ridgeway.common.http.request_context import current_request, hold
from ridgeway.common.serve.gateway.chat_as_messages import (
    USUAL_MAX_TOKENS,
    ChatEvents,
    chat_answer,
    message_request,
)
from ridgeway.common.serve.gateway.expert_client import ExpertRequest
from ridgeway.common.serve.gateway.expert_link import Endpoint, ExpertLink
from ridgeway.common.serve.gateway.messages_as_chat import (
    NOT_TRANSLATABLE,
    MessageEvents,
    chat_request,
    message_answer,
)
from ridgeway.common.serve.gateway.sse import StreamTranslator
from ridgeway.common.serve.gateway.token_usage import (
    TokenUsage,
    WithoutUsage,
    most_usage,
)
from ridgeway.common.serve.request_bodies import GatewayBody

OWN_LIMITS: Mapping[Endpoint, tuple[str, ...]] = {
    "/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/completions": ("max_tokens",),
    "/responses": ("max_output_tokens",),
    "/messages": ("max_tokens",),
}
"""The fields by which a request names a number of tokens; the first is set where it names none."""
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
"""All that are bounded wherever they stand; llama.cpp's server lets the last one go before the
others.
"""


@dataclass(frozen=True, slots=True)
class Translation:
    """endpoint: where the expert is asked. The others are None where nothing is to be changed.

    events: made for a client that asks for usage, or does not.
    """

    endpoint: Endpoint
    request: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    answer: Callable[[bytes], bytes] | None = None
    events: Callable[[bool], StreamTranslator] | None = None


def asks_for_usage(fields: Mapping[str, Any]) -> bool:
    options = fields.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


AS_IT_IS = {endpoint: Translation(endpoint) for endpoint in get_args(Endpoint)}
MESSAGES_AS_CHAT = Translation(
    "/chat/completions",
    chat_request,
    message_answer,
    lambda with_usage: MessageEvents(),
)
CHAT_AS_MESSAGES = Translation("/messages", message_request, chat_answer, ChatEvents)
STREAMS_OF_CHATS = (AS_IT_IS["/chat/completions"], AS_IT_IS["/completions"])
"""Streams that say what they used only if they are asked to."""


def translation_for(endpoint: Endpoint, expert: Expert) -> Translation:
    """Between a client that asks at this endpoint and an expert; raises Problem if there is
    none.
    """
    if expert.api == "openai":
        return MESSAGES_AS_CHAT if endpoint == "/messages" else AS_IT_IS[endpoint]
    if endpoint == "/messages":
        return AS_IT_IS[endpoint]
    if endpoint == "/chat/completions":
        return CHAT_AS_MESSAGES
    words = (
        f"the expert speaks Anthropic's API, which has no {endpoint}; name another"
        " expert as model"
    )
    raise Problem(400, words, code=NOT_TRANSLATABLE, param="model")


def expert_fields(
    translation: Translation, expert: Expert, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The request, with the expert's own name of its model and no more tokens than it grants, in
    all answers together.

    May raise Problem.
    """
    asked = {
        **(fields if translation.request is None else translation.request(fields)),
        **expert.body,
        "model": expert.model,
    }
    if translation.endpoint == "/embeddings":
        asked["model"] = expert.embedding_model or expert.model
        asked.pop("stream", None)  # vectors do not come so
    elif expert.max_tokens is not None:
        asked |= _token_limits(asked, translation.endpoint, expert.max_tokens)
    return asked


def most_answer_tokens(asked: Mapping[str, Any], endpoint: Endpoint) -> int:
    """The most tokens that the answers to a request have; a guess where it names no number."""
    if endpoint == "/embeddings":
        return 0
    named = [asked.get(name) for name in TOKEN_LIMITS]
    limits = [limit for limit in named if type(limit) is int and limit > 0]
    wished = [asked.get(name) for name in ("n", "best_of")]
    answers = max((n for n in wished if type(n) is int and n > 0), default=1)
    prompts = _prompts(asked.get("prompt"))
    return max(limits, default=USUAL_MAX_TOKENS) * answers * prompts


def _token_limits(
    asked: Mapping[str, Any], endpoint: Endpoint, granted: int
) -> dict[str, int]:
    """The limits of a request whose answers together may have the granted number of tokens."""
    answers = _count(asked, "n", "best_of") * _prompts(asked.get("prompt"))
    if answers > granted:
        words = (
            f"the expert grants {granted} tokens a request, and this asks for {answers}"
            " answers; ask for fewer"
        )
        raise Problem(400, words, code="too_many_answers", param="n")
    most = granted // answers
    wished = {name: asked[name] for name in TOKEN_LIMITS if asked.get(name) is not None}
    limits = {
        name: wish if type(wish) is int and 1 <= wish <= most else most
        for name, wish in wished.items()
    }
    is_named = any(name in limits for name in OWN_LIMITS[endpoint])
    return limits if is_named else {**limits, OWN_LIMITS[endpoint][0]: most}


def _count(asked: Mapping[str, Any], *names: str) -> int:
    """The largest of some fields, each of which is 1 if it is left out. An expert may understand
    "2" or 2.0.
    """
    counts = {name: asked[name] for name in names if asked.get(name) is not None}
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise Problem(
                400,
                f"{name}: give a whole number from 1 on",
                code="invalid_value",
                param=name,
            )
    return max(counts.values(), default=1)


def _prompts(prompt: Any) -> int:
    """How many texts are to be continued: a list of token ids is one."""
    return (
        len(prompt)
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        else 1
    )


@dataclass(frozen=True, slots=True)
class AskedExpert:
    """A request as one expert gets it, from a client that asked at `endpoint`.

    most: the most tokens that it may take.
    dropped: the fields that were left out.
    hides_usage: whether the gateway alone asks for usage; wants_usage: whether the client does.
    """

    endpoint: Endpoint
    translation: Translation
    request: ExpertRequest
    most: TokenUsage
    dropped: tuple[str, ...]
    hides_usage: bool
    wants_usage: bool

    def translator(self) -> StreamTranslator | None:
        """What a stream of this expert goes through; None if it passes as it comes."""
        if self.hides_usage:
            return WithoutUsage()
        return (
            None
            if self.translation.events is None
            else self.translation.events(self.wants_usage)
        )


def asked_expert(
    link: ExpertLink, body: GatewayBody, endpoint: Endpoint, only: int | None = None
) -> AskedExpert:
    """Raises Problem if this expert cannot be asked such a thing."""
    translation = translation_for(endpoint, link.expert)
    fields = body.fields()
    account = current_request().account
    wants_usage = asks_for_usage(fields)
    is_counted = account is not None and account.counts_tokens and body.streamed
    hides_usage = is_counted and translation in STREAMS_OF_CHATS and not wants_usage
    if hides_usage:  # the stream must say what it used
        options = fields.get("stream_options")
        fields["stream_options"] = {
            **(options if isinstance(options, dict) else {}),
            "include_usage": True,
        }
    fields, dropped = _translated(translation, link.expert, fields)
    # a number that is too large for a computer is not a number of JSON, and becomes null
    asked = to_json(fields, inf_nan_mode="null")
    most = most_usage(len(asked), most_answer_tokens(fields, translation.endpoint))
    hold(len(asked))
    goes_on = body.goes_on_from is not None
    request = ExpertRequest(translation.endpoint, asked, body.streamed, only, goes_on)
    return AskedExpert(
        endpoint, translation, request, most, dropped, hides_usage, wants_usage
    )


def _translated(
    translation: Translation, expert: Expert, fields: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The request as the expert understands it, and the fields that were left out of it."""
    dropped: list[str] = []
    while True:
        try:
            return expert_fields(translation, expert, fields), tuple(dropped)
        except Problem as problem:
            name = problem.param
            if (
                expert.untranslatable != "drop"
                or problem.code != NOT_TRANSLATABLE
                or name not in fields
            ):
                raise
            dropped.append(name)
            del fields[name]


def mistake_of(status: int, body: bytes) -> Problem:
    """The mistake that an expert found, for a client that speaks another API."""
    try:
        found = from_json(body)
        error = found.get("error", found)
        message = (
            error
            if isinstance(error, str)
            else error.get("message") or error.get("detail")
        )
    except (ValueError, AttributeError):
        message = None
    if not isinstance(message, str):
        message = "the expert finds the request wrong, and does not say why"
    return Problem(status, message, code="expert_mistake")
