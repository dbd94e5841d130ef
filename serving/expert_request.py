"""A request as an expert gets it: as it came, but for the model's name, the expert's own fields and
the number of tokens.

Makes no connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from ridgeway.common.routing.experts_file import Expert
from ridgeway.common.web.http_errors import Problem
from ridgeway.common.web.request_context import current_request, hold
from ridgeway.serving.expert_link import Endpoint, ExpertLink
from ridgeway.serving.request_bodies import GatewayBody
from ridgeway.serving.sse import TokenUsage, most_usage

USUAL_MAX_TOKENS = 4096
"""A guess at the tokens of an answer, where a request names no number."""
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
QUIET_STREAMS: tuple[Endpoint, ...] = ("/chat/completions", "/completions")
"""Streams of these say what they used only if they are asked to."""


@dataclass(frozen=True, slots=True)
class ExpertRequest:
    """What an expert is asked.

    only:    the number of the one address that can answer.
    goes_on: from a response that the expert keeps; that it does not have it is then the client's
             mistake.
    most:    the most tokens that it may take.
    hides_usage: whether the gateway alone asks for usage.
    """

    endpoint: Endpoint
    body: bytes = field(repr=False)
    streamed: bool
    only: int | None
    goes_on: bool
    most: TokenUsage
    hides_usage: bool


def expert_request(
    link: ExpertLink, body: GatewayBody, endpoint: Endpoint, only: int | None = None
) -> ExpertRequest:
    """Raises Problem if this expert cannot be asked such a thing."""
    fields = body.fields()
    account = current_request().account
    is_counted = account is not None and account.counts_tokens and body.streamed
    options = fields.get("stream_options")
    options = options if isinstance(options, dict) else {}
    wants_usage = bool(options.get("include_usage"))
    hides_usage = is_counted and endpoint in QUIET_STREAMS and not wants_usage
    if hides_usage:  # the stream must say what it used
        fields["stream_options"] = {**options, "include_usage": True}
    fields = expert_fields(endpoint, link.expert, fields)
    # a number that is too large for a computer is not a number of JSON, and becomes null
    asked = to_json(fields, inf_nan_mode="null")
    most = most_usage(len(asked), _most_answer_tokens(fields, endpoint))
    hold(len(asked))
    goes_on = body.goes_on_from is not None
    return ExpertRequest(
        endpoint, asked, body.streamed, only, goes_on, most, hides_usage
    )


def expert_fields(
    endpoint: Endpoint, expert: Expert, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The request, with the expert's own name of its model and no more tokens than it grants, in
    all answers together.

    May raise Problem.
    """
    asked = {**fields, **expert.body, "model": expert.model}
    if endpoint == "/embeddings":
        asked["model"] = expert.embedding_model or expert.model
        asked.pop("stream", None)  # vectors do not come so
    elif expert.max_tokens is not None:
        asked |= _token_limits(asked, endpoint, expert.max_tokens)
    return asked


def _most_answer_tokens(asked: Mapping[str, Any], endpoint: Endpoint) -> int:
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
