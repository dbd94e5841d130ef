"""experts.toml: which expert answers for which domain, where it is, and what it costs.

    mu = 0.0
    fallback = "generalist"

    [experts.law]
    base_url = "http://127.0.0.1:9001/v1"
    model = "law-7b"

Knows the file, the release's domains and the environment's variables. Knows nothing of connections.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from common.cohort import Record
from common.errors import InputError
from common.files import stamp_if_there
from common.router import Router
from common.toml import read_settings

AUTO = "auto"
"""The model's name by which a client leaves the choice to the router; no expert may be called so."""
MOST_SECONDS = 86_400
ENDPOINTS = ("/completions", "/embeddings")


def _web_address(text: str) -> str:
    """An address that paths can be added to, without a secret in it."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address begins with http:// or https:// and names a host, as http://127.0.0.1:9001/v1")
    if "@" in parts.netloc:
        raise ValueError("an address holds no password; name a variable of the environment in api_key_env")
    if parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ValueError("an address ends with its path, as http://127.0.0.1:9001/v1")
    _ = parts.port  # raises if it is no number
    text = text.rstrip("/")
    if text.endswith(ENDPOINTS):
        raise ValueError("an address ends before /chat/completions and the like, which are added to it")
    return text


def _printable(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("a name has no line breaks and no blanks around it")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]


class Expert(Record):
    """One expert. Times are in seconds.

    base_url:        what `/chat/completions` is added to.
    model:           the name by which its server knows it; embedding_model likewise, for embeddings.
    api_key_env:     the variable of the environment that holds its key.
    quality, cost:   what probability·quality − mu·cost is made of.
    timeout:         to the head of an answer, or to the end of one that is not streamed.
    silence:         between two pieces of a stream.
    max_concurrent:  so many requests at a time; whoever comes then goes to the fallback.
    max_tokens:      a request that asks for more tokens is passed on with this number.
    """

    base_url: Annotated[str, AfterValidator(_web_address)]
    model: Name
    embedding_model: Name | None = None
    api_key_env: Name | None = None
    quality: float = Field(default=1.0, ge=0)
    cost: float = Field(default=0.0, ge=0)
    connect_timeout: Seconds = 3.0
    timeout: Seconds = 120.0
    silence: Seconds = 30.0
    max_concurrent: int = Field(default=256, ge=1, le=100_000)
    max_tokens: int | None = Field(default=None, ge=1)

    def key(self, environment: Mapping[str, str]) -> str | None:
        """The secret itself; it is kept nowhere in this record."""
        if self.api_key_env is None:
            return None
        key = environment.get(self.api_key_env, "")
        if not key:
            raise InputError(f"the variable {self.api_key_env} is to hold an expert's key and is not set; set it")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(f"the variable {self.api_key_env} holds no key: there are blanks or odd letters in it")
        return key


class Experts(Record):
    """All of them.

    mu:       the weight of cost against probability and quality.
    fallback: the expert for abstentions, for domains without an expert, and for experts that are down.
    """

    mu: float = Field(default=0.0, ge=0)
    fallback: str | None = None
    experts: Annotated[dict[Name, Expert], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> Experts:
        if AUTO in self.experts:
            raise ValueError(f"no expert may be called {AUTO!r}: by that name clients leave the choice to the router")
        if self.fallback is not None and self.fallback not in self.experts:
            raise ValueError(f"the fallback {self.fallback!r} is not among the experts; add [experts.{self.fallback}]")
        return self

    def check(self, router: Router) -> None:
        """Raise if a decision of this router could find no expert."""
        if self.fallback is not None:
            return
        missing = [domain for domain in router.domains if domain not in self.experts]
        if missing:
            raise InputError(f"there is no expert for {', '.join(missing)}; add one to the file, or a fallback")
        about = router.confidence
        if about.threshold > 0 and about.fallback not in self.experts:
            raise InputError("the release can abstain, and there is no expert for that; name a fallback in the experts")


class ExpertsFile:
    """The file and what it said last. `refresh` reads it again if it has changed."""

    def __init__(self, path: Path, mu: float | None = None, environment: Mapping[str, str] = os.environ) -> None:
        self.path = path
        self._mu = mu
        self._environment = environment
        self._stamp: list[object] = [stamp_if_there(path), None]
        self._refused = False
        self.experts = self._read()

    def _read(self) -> Experts:
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder; name the file of experts in it")
        if not self.path.is_file():
            raise InputError(f"there is no {self.path}; write one as docs/serving.md shows")
        experts = read_settings(self.path, Experts)
        for name in experts.experts:
            self._named_key(experts, name)
        return experts if self._mu is None else experts.model_copy(update={"mu": self._mu})

    def _named_key(self, experts: Experts, name: str) -> str | None:
        try:
            return experts.experts[name].key(self._environment)
        except InputError as error:
            raise InputError(f"{self.path}: experts.{name}: {error}") from None

    def key(self, name: str) -> str | None:
        return self._named_key(self.experts, name)

    def check(self, router: Router) -> None:
        """For a new release: whether these experts can serve it."""
        self.experts.check(router)

    def refresh(self, router: Router) -> bool:
        """Whether there are other experts now; raises, and keeps the old ones, if the new file cannot be used."""
        stamp = [stamp_if_there(self.path), router.release if self._refused else None]
        if stamp == self._stamp or stamp[0] is None:  # in the middle of being replaced
            return False
        self._stamp, self._refused = [stamp[0], router.release], True
        experts = self._read()
        experts.check(router)
        self._stamp, self._refused = [stamp[0], None], False
        changed = experts != self.experts
        self.experts = experts
        return changed


def find_experts(path: Path | None, mu: float | None = None) -> ExpertsFile | None:
    """The file, if one is named; mu takes the place of what it says."""
    if path is None:
        if mu is not None:
            raise InputError("--mu weighs the cost of experts, and there are none; name them by --experts")
        return None
    if mu is not None and not 0 <= mu < math.inf:
        raise InputError(f"--mu is a weight of cost, a number from 0 on, not {mu:g}")
    return ExpertsFile(path, mu)
