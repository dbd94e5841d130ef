"""What is asked and answered over HTTP, as typed records; the OpenAPI description is made of them.

Knows shapes. Knows nothing of routers.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_PROMPTS = 1024
MOST_MESSAGES = 4096


class Part(BaseModel):
    """A part of a message's content. Only text is routed on."""

    model_config = ConfigDict(extra="allow")
    type: str
    text: str | None = None


Parts = Annotated[list[Part], Field(fail_fast=True)]
"""The first thing that is wrong is enough: to find them all takes long, and nobody is told of more."""


class Message(BaseModel):
    """One message of a conversation, as OpenAI's clients write it."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | Parts | None = None

    @property
    def spoken(self) -> str:
        """The text of the message, images and the like left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or [] if part.text)


Messages = Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]


class RouteRequest(BaseModel):
    """What to route: one prompt, many, or a conversation. Exactly one of the three."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt: str | None = Field(None, description="One prompt.")
    prompts: Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)] | None = Field(
        None, description="Many prompts, each routed on its own."
    )
    messages: Messages | None = Field(
        None, description="A conversation; the last user turn weighs more than all the others."
    )
    explain: bool = Field(False, description="Add each token and what it added to the decision.")

    @model_validator(mode="after")
    def _one_of_three(self) -> RouteRequest:
        if (self.prompt is None) + (self.prompts is None) + (self.messages is None) != 2:
            raise ValueError("give exactly one of prompt, prompts and messages")
        return self


class Token(BaseModel):
    """A token, the domain it speaks for, what it adds to the margin, and to each domain over their mean."""

    text: str
    domain: str
    weight: float
    parts: list[float]


class Decided(BaseModel):
    """Where one prompt should go. The last four are there if an explanation was asked for."""

    domain: str = Field(description="Where it should go; the fallback's name if the router abstained.")
    confidence: float = Field(description="The probability that `best` is right, if the router is calibrated.")
    scores: dict[str, float] = Field(description="Every domain's probability.")
    abstained: bool = Field(description="Whether the confidence lay below the threshold.")
    best: str = Field(description="The domain ahead of the others, abstention or not.")
    tokens: int = Field(description="How many tokens the prompt has.")
    expert: str | None = Field(None, description="Where the gateway would send it, cost and quality considered.")
    runner_up: str | None = Field(None, description="The domain in the second place.")
    margin: float | None = Field(None, description="What separates `best` from the runner-up.")
    order: list[str] | None = Field(None, description="The domains in the order of the tokens' parts.")
    explanation: list[Token] | None = Field(None, description="The tokens; their weights add up to the margin.")


class Origin(BaseModel):
    """Where decisions come from."""

    calibrated: bool = Field(description="Whether confidence was fitted on held-out text.")
    release: str = Field(description="The release that decided.")


class Routed(Decided, Origin):
    """Where one prompt should go, and by which release."""


class RoutedMany(Origin):
    """Where each of many prompts should go, in their order."""

    decisions: list[Decided]


class Complaint(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every answer that is an error."""

    error: Complaint


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    ready: bool
    release: str
    experts: dict[str, str] = Field(
        description="Each expert: up, down, trying (again), or refusing (its address, model or key is wrong)."
    )


class ReleaseCard(BaseModel):
    """The release in use: what its manifest says, who signed it, since when it is in use."""

    release: str
    signer: str
    since: float = Field(description="Seconds since 1970.")
    domains: list[str]
    masses: dict[str, int]
    manifest: dict[str, Any]
    refused: str | None = Field(description="Why a newer release was not taken, if one was not.")
