"""What is answered over HTTP, as typed records; the OpenAPI description is made of them.

The shapes of what is asked are in `request_bodies`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    """What stands below a field is its description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Word(BaseModel):
    """A word, the domain it speaks for, what it adds to the margin, and to each domain over their
    mean.
    """

    text: str
    domain: str
    weight: float
    parts: list[float]


class RoutedPrompt(_Answer):
    """Where one prompt should go. The last four are there if an explanation was asked for."""

    domain: str | None
    """Where it should go; if the router abstained, the fallback's name, or null."""
    confidence: float
    """The probability that `best` is right, if the router is calibrated."""
    scores: dict[str, float]
    """Every domain's probability."""
    abstained: bool
    """Whether it belongs to no domain, or the confidence is below the threshold."""
    scope: float | None = None
    """The chance that it belongs to any domain, if that was learnt."""
    belongs: bool = True
    """Whether that chance is large enough."""
    reason: str | None = None
    """Why it abstained: out_of_scope or low_confidence."""
    best: str
    """The domain ahead of the others, abstention or not."""
    tokens: int
    """How many tokens the prompt has."""
    router: str
    """What decided: table, or sentences (the sentence encoder)."""
    expert: str | None = None
    """Where the gateway would send it, cost and quality considered."""
    expert_reason: str | None = None
    """Why this expert: see docs/application/routing-http.md."""
    expert_quality: float | None = None
    """What is expected of its answer, where that was measured."""
    left_out: int | None = None
    """Characters that were not routed: see docs/application/routing-http.md."""
    stays: bool | None = None
    """Whether the chat stays with the domain it was `after`."""
    evidence: float | None = None
    """log p(best)/p(after), or to the runner-up after an abstention."""
    evidence_needed: float | None = None
    """What it takes to leave: more where the text is short."""
    follow_up: bool | None = None
    """Whether the message could stand in any conversation, as a sentence encoder sees it."""
    runner_up: str | None = None
    """The domain in the second place."""
    margin: float | None = None
    """What separates `best` from the runner-up."""
    order: list[str] | None = None
    """The domains in the order of the words' parts."""
    explanation: list[Word] | None = None
    """The words; their weights add up to the margin."""


class Origin(_Answer):
    """Where decisions come from."""

    calibrated: bool
    """Whether confidence was fitted on held-out text."""
    release: str
    """The release that decided."""


class Routed(RoutedPrompt, Origin):
    """Where one prompt should go, and by which release."""


class RoutedMany(Origin):
    """Where each of many prompts should go, in their order."""

    decisions: list[RoutedPrompt]


class ExpertWorths(BaseModel):
    """What the choice of an expert weighs: it takes the largest of Σ p(domain)·quality[domain] −
    mu·cost.

    mu is the operator's; quality is by domain, in the order of `domains`, and then by expert, in
    that of `experts`.
    """

    mu: float
    experts: list[str]
    costs: list[float]
    domains: list[str]
    quality: list[list[float]]


class Health(BaseModel):
    status: str


class Readiness(_Answer):
    ready: bool
    release: str
    experts: dict[str, str]
    """Each expert: up, degraded (up at some of its addresses), down, trying (again),
    or refusing (its address, model or key is wrong).
    """


class ReleaseCard(_Answer):
    """The release in use: what its manifest says, who signed it, since when it is in use."""

    release: str
    signer: str
    since: float
    """Seconds since 1970."""
    domains: list[str]
    masses: dict[str, int]
    manifest: dict[str, Any]
    refused: str | None
    """Why a newer release was not taken, if one was not."""


class ModelCard(BaseModel):
    """A name that can be asked for."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "ridgeway"


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelCard]


class Complaint(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every answer that is an error."""

    error: Complaint


class MessagesComplaint(BaseModel):
    type: str
    message: str


class MessagesErrorReply(BaseModel):
    """The same, as Anthropic's API has it."""

    type: str
    error: MessagesComplaint


Responses = dict[int | str, dict[str, Any]]
"""What FastAPI takes as the description of an endpoint's answers, by status."""


def _errors(descriptions: dict[int, str]) -> Responses:
    return {
        status: {"model": ErrorReply, "description": words}
        for status, words in descriptions.items()
    }


ERRORS = _errors(
    {
        400: "The body cannot be used.",
        401: "There is no key, or it is not known.",
        403: "A page of another site may not ask.",
        413: "The body is too large.",
        415: "The body is not said to be JSON.",
        429: "Too many requests.",
    }
)
EXPERT_ERRORS = _errors(
    {
        404: "There is no such model, or there are no experts.",
        422: "The expert cannot use the body.",
        429: "Too many requests, here or at the expert.",
        502: "The expert failed.",
        503: "The expert is down.",
        504: "The expert did not answer in time.",
    }
)


def as_anthropics(errors: Responses) -> Responses:
    """The errors of an endpoint of Anthropic's API."""
    return {
        status: {**description, "model": MessagesErrorReply}
        for status, description in errors.items()
    }


EXPERT_ANSWER: Responses = {
    200: {
        "description": (
            "The expert's own answer. The headers x-ridgeway-… say which expert it was,"
            " and why."
        ),
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {},
        },
    }
}
