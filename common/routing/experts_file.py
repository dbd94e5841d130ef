"""experts.toml: the experts there are, where each is and what it costs, and the table of their
quality beside it.

    mu = 0.0
    fallback = "generalist"

    [experts.law]
    base_url = "http://127.0.0.1:9001/v1"
    model = "law-7b"
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    model_validator,
)

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import stamp_if_there
from ridgeway.common.base.records import ExpertName, ExpertNames, Record, read_settings
from ridgeway.common.routing.quality import QualityTable, load_quality
from ridgeway.common.routing.router import Router

AUTO = "auto"
"""The model's name by which a client leaves the choice to the router; no expert may be called so.
"""
MAX_TIMEOUT_S = 86_400
MAX_ADDRESSES = 256
Api = Literal["openai", "anthropic"]
FallbackReason = Literal["down", "busy", "context", "refused", "api"]
"""Why another expert may be asked: this one failed, has too many requests, finds the prompt too
long, does not accept the gateway's address, model or key, or does not speak the client's API.
"""
USUAL_REASONS: tuple[FallbackReason, ...] = ("down", "busy")
GATEWAY_HEADERS = frozenset(
    """accept accept-encoding authorization connection content-encoding content-length
    content-type expect host te trailer transfer-encoding upgrade x-api-key
    x-request-id traceparent tracestate""".split()
)
REQUEST_FIELDS = frozenset(("model", "messages", "prompt", "input", "stream"))
ENDPOINT_ENDINGS = ("/completions", "/embeddings", "/responses", "/messages")


def _web_address(text: str) -> str:
    """An address that paths can be added to, without a secret in it."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            "an address begins with http:// or https:// and names a host, as"
            " http://127.0.0.1:9001/v1"
        )
    if "@" in parts.netloc:
        raise ValueError(
            "an address holds no password; name a variable of the environment in"
            " api_key_env"
        )
    if parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ValueError("an address ends with its path, as http://127.0.0.1:9001/v1")
    _ = parts.port  # raises if it is no number
    text = text.rstrip("/")
    if text.endswith(ENDPOINT_ENDINGS):
        raise ValueError(
            "an address ends before /chat/completions and the like, which are added"
            " to it"
        )
    return text


def _named(field: str, value: object) -> object:
    """A plain text stands for a record that has it in this field."""
    return {field: value} if isinstance(value, str) else value


def _check_path(path: str) -> str:
    if not path.startswith("/") or not path.isprintable() or set(path) & set(" ?#"):
        raise ValueError(
            "a path begins with a slash, as /health, and is added to the host and port"
            " of an address"
        )
    return path


def _check_header(name: str) -> str:
    if name in GATEWAY_HEADERS:
        raise ValueError(f"the gateway sets the header {name} itself")
    return name


def _check_fields(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if taken := sorted(REQUEST_FIELDS & set(fields)):
        raise ValueError(
            f"the field {taken[0]} is the client's, or the gateway sets it"
        )
    return fields


HeaderName = Annotated[
    str, Field(pattern=r"^[a-z0-9-]{1,64}$"), AfterValidator(_check_header)
]
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=4096)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]


class FallbackStep(Record):
    """An expert to ask in another's place, and for which reasons."""

    expert: ExpertName
    on: Annotated[tuple[FallbackReason, ...], Field(min_length=1, strict=False)] = (
        USUAL_REASONS
    )


AnyStep = Annotated[
    FallbackStep, BeforeValidator(lambda value: _named("expert", value))
]


class Expert(Record):
    """One expert. Times are in seconds.

    base_url:        what `/chat/completions` is added to; `addresses` in its place, if there are
                     several.
    apis:            whose APIs its server speaks; requests pass through unchanged.
    model:           the name by which its server knows it; embedding_model likewise, for
                     embeddings.
    domains:         those that it serves, or the quality of its answers in each; without it, the
                     one of its name.
    fallbacks:       who is asked in its place, in this order; without it, its peers and the file's
                     fallback.
    api_key_env:     the variable of the environment that holds its key; api_key_file: or a file,
                     from the folder of experts.toml on, which is read again when it changes.
    headers, query, body: what each request to it has besides: headers, parameters of the address,
                     and fields of the body, also where the client has given them.
    quality, cost:   what its answers are worth, beside what was measured, and what they cost.
    prompt_price, answer_price: what a million tokens cost, for the metrics; without either, an
                                answer costs `cost`.
    timeout:         to the head of an answer, or to the end of one that is not streamed.
    silence:         between two pieces of a stream.
    max_concurrent:  requests at a time at each address; those that come then go to the fallback.
    max_tokens:      of all answers to one request together; one that asks for more, or names none,
                     gets this many.
    health:          a path that answers 200 while an address is well, asked every
                     `health_interval`.
    """

    base_url: WebAddress | None = None
    addresses: Annotated[tuple[WebAddress, ...], Field(max_length=MAX_ADDRESSES)] = ()
    apis: Annotated[tuple[Api, ...], Field(min_length=1)] = ("openai",)
    domains: ExpertNames | dict[ExpertName, Annotated[float, Field(ge=0)]] | None = None
    fallbacks: tuple[AnyStep, ...] | None = None
    model: ExpertName
    embedding_model: ExpertName | None = None
    api_key_env: ExpertName | None = None
    api_key_file: Annotated[str, Field(min_length=1)] | None = None
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    query: dict[ExpertName, ExpertName] = Field(default_factory=dict)
    body: Annotated[dict[str, JsonValue], AfterValidator(_check_fields)] = Field(
        default_factory=dict
    )
    quality: float = Field(default=1.0, ge=0)
    cost: float = Field(default=0.0, ge=0)
    prompt_price: float | None = Field(default=None, ge=0)
    answer_price: float | None = Field(default=None, ge=0)
    connect_timeout: Seconds = 3.0
    timeout: Seconds = 120.0
    silence: Seconds = 30.0
    max_concurrent: int = Field(default=256, ge=1, le=100_000)
    max_tokens: int | None = Field(default=None, ge=1)
    health: Annotated[str, AfterValidator(_check_path)] | None = None
    health_interval: Seconds = 5.0

    @model_validator(mode="after")
    def _places(self) -> Expert:
        if (self.base_url is None) == (not self.addresses):
            raise ValueError(
                "an expert has a base_url, or a list of addresses, and not both; give"
                " one of them"
            )
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("give api_key_env or api_key_file, and not both")
        if len(set(self.places)) < len(self.places):
            raise ValueError("duplicate address; give it once")
        return self

    @property
    def places(self) -> tuple[str, ...]:
        return self.addresses or (self.base_url or "",)

    def serves(self, name: str) -> Mapping[str, float]:
        """The domains that an expert of this name serves, and the quality of its answers there."""
        if isinstance(self.domains, dict):
            return self.domains
        return dict.fromkeys((name,) if self.domains is None else self.domains, 1.0)

    def key(self, environment: Mapping[str, str], folder: Path) -> str | None:
        """The secret itself; it is kept nowhere in this record."""
        if self.api_key_file is not None:
            source = f"the file {self.api_key_file}"
            try:
                key = (folder / self.api_key_file).read_text("ascii").strip()
            except (OSError, ValueError):
                raise InputError(
                    f"{source} is to hold an expert's key and cannot be read"
                ) from None
            if not key:
                raise InputError(f"{source} is to hold an expert's key and is empty")
        elif self.api_key_env is not None:
            source = f"the variable {self.api_key_env}"
            key = environment.get(self.api_key_env, "")
            if not key:
                raise InputError(
                    f"{source} is to hold an expert's key and is not set; set it"
                )
        else:
            return None
        if not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(
                f"{source} holds no key: it contains spaces or non-ASCII characters"
            )
        return key


class Experts(Record):
    """All of them.

    mu:       the weight of cost against quality.
    fallback: the expert for abstentions, for domains without an expert, and for experts that are
              down.
    table:    a file with their measured quality, from this file's folder on; without it, what the
              release says.
    embeddings: the expert that makes vectors for the model `auto`: those of several cannot be
              compared.
    aliases:  other names of experts, or of `auto`, for clients that have theirs written down.
    """

    mu: float = Field(default=0.0, ge=0)
    fallback: str | None = None
    table: str | None = Field(default=None, min_length=1)
    embeddings: str | None = None
    aliases: dict[ExpertName, str] = Field(default_factory=dict)
    experts: Annotated[dict[ExpertName, Expert], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> Experts:
        if AUTO in self.experts:
            raise ValueError(
                f"no expert may be called {AUTO!r}: by that name clients leave the"
                " choice to the router"
            )
        if self.fallback is not None and self.fallback not in self.experts:
            raise ValueError(
                f"the fallback {self.fallback!r} is not among the experts; add"
                f" [experts.{self.fallback}]"
            )
        vectors = self.experts.get(self.embeddings or "")
        if self.embeddings is not None and (
            vectors is None or "openai" not in vectors.apis
        ):
            raise ValueError(
                f"embeddings: {self.embeddings!r} is not an expert of OpenAI's API in"
                " this file"
            )
        for alias, name in self.aliases.items():
            if alias == AUTO or alias in self.experts:
                raise ValueError(f"aliases: {alias!r} is the name of an expert already")
            if name != AUTO and name not in self.experts:
                raise ValueError(
                    f"aliases.{alias}: {name!r} is neither {AUTO!r} nor an expert of"
                    " this file"
                )
        for name, expert in self.experts.items():
            for step in expert.fallbacks or ():
                if step.expert == name or step.expert not in self.experts:
                    raise ValueError(
                        f"experts.{name}.fallbacks: {step.expert!r} is not another"
                        " expert of this file"
                    )
        return self

    def servers(self, domain: str) -> dict[str, float]:
        """The experts of a domain, and how good each is in it: those that name it; else the
        fallback.
        """
        servers = {
            name: expert.serves(name)[domain]
            for name, expert in self.experts.items()
            if domain in expert.serves(name)
        }
        return servers or ({self.fallback: 1.0} if self.fallback is not None else {})

    def chain(self, name: str, peers: Sequence[str] = ()) -> tuple[FallbackStep, ...]:
        """Who is asked in an expert's place, in order: as it says itself; else its peers, and then
        the fallback.
        """
        fallbacks = self.experts[name].fallbacks
        if fallbacks is not None:
            return fallbacks
        names = dict.fromkeys((*peers, *filter(None, [self.fallback])))
        return tuple(FallbackStep(expert=other) for other in names if other != name)

    def measured(self, table: QualityTable | None) -> QualityTable | None:
        """The part of a table that is about these experts, in their order; None if it has no scores
        of theirs.
        """
        if table is None:
            return None
        columns = {
            name: column
            for column, name in enumerate(table.experts)
            if table.counts[:, column].any()
        }
        names = tuple(name for name in self.experts if name in columns)
        chosen = [columns[name] for name in names]
        return (
            QualityTable(
                table.domains, names, table.sums[:, chosen], table.counts[:, chosen]
            )
            if names
            else None
        )

    def check(self, router: Router, beside: QualityTable | None = None) -> None:
        """Raise if a decision of this router could find no expert. beside: the table that the file
        names.
        """
        measured = self.measured(beside or router.quality)
        if beside is not None and measured is None:
            raise InputError(
                f"{self.table} holds scores of none of these experts; measure them, or"
                " name another table"
            )
        if self.fallback is not None:
            return
        missing = [domain for domain in router.domains if not self.servers(domain)]
        if missing and measured is None:
            raise InputError(
                f"there is no expert for {', '.join(missing)}; add one to the file, or"
                " a fallback"
            )
        about = router.confidence
        if about.threshold > 0 and about.fallback not in self.experts:
            raise InputError(
                "the release can abstain, and there is no expert for that; name a"
                " fallback in the experts"
            )


def read_experts(path: Path) -> tuple[Experts, QualityTable | None]:
    """What the file says, and the table that it names, if it names one."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the file of experts in it")
    if not path.is_file():
        raise InputError(
            f"there is no {path}; write one as docs/application/experts-toml.md shows"
        )
    experts = read_settings(path, Experts)
    table = load_quality(path.parent / experts.table) if experts.table else None
    return experts, table


class ExpertsFile:
    """The file and what it said last. `refresh` reads it again if it has changed."""

    def __init__(self, path: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.path = path
        self._environment = environment
        # the release that the file, as it is now, could not be used with
        self._refused_for: str | None = None
        self.experts, self.table, self._keys = self._read()
        self._stamps = self._looked_at()

    def _read(self) -> tuple[Experts, QualityTable | None, dict[str, str | None]]:
        experts, table = read_experts(self.path)
        keys = {
            name: self._key(name, expert) for name, expert in experts.experts.items()
        }
        return experts, table, keys

    def _looked_at(self) -> list[object]:
        """What changes when the file does, or its table, or a file with a key."""
        files = [expert.api_key_file for expert in self.experts.experts.values()]
        names = (self.path.name, *filter(None, [self.experts.table, *files]))
        return [stamp_if_there(self.path.parent / name) for name in names]

    def key(self, name: str) -> str | None:
        """The key of an expert of this file."""
        return self._keys[name]

    def _key(self, name: str, expert: Expert) -> str | None:
        try:
            return expert.key(self._environment, self.path.parent)
        except InputError as error:
            raise InputError(f"{self.path}: experts.{name}: {error}") from None

    def check(self, router: Router) -> None:
        """For a new release: whether these experts can serve it."""
        self.experts.check(router, self.table)

    def refresh(self, router: Router) -> bool:
        """Whether there are other experts now; raises, and keeps the old ones, if the new file
        cannot be used.
        """
        stamps = self._looked_at()
        is_known = stamps == self._stamps and self._refused_for in (
            None,
            router.release,
        )
        if is_known or None in stamps:  # in the middle of being replaced
            return False
        self._stamps = stamps
        self._refused_for = router.release
        experts, table, keys = self._read()
        experts.check(router, table)
        self._refused_for = None
        before = self.experts, _facts(self.table), self._keys
        self.experts = experts
        self.table = table
        self._keys = keys
        self._stamps = self._looked_at()
        return (experts, _facts(table), keys) != before


def _facts(table: QualityTable | None) -> dict[str, Any] | None:
    return table.to_json() if table else None
