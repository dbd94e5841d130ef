"""Cohort: who takes part in a round and under which terms. Everything in it is public.

Knows the words of the agreement. Knows nothing of messages, files or Flower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import sha256
from ridgeway.common.base.schema import Digest, DomainName, EncoderName, Mode, PublicKey, Record, record_json
from ridgeway.common.base.settings import Sampling, Weighting
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.statistics.sums import Integers, Statistics, from_vector, of_columns, vector_size

MAX_HOLDERS = 10_000
SHARE_RATIO = 4
"""How many times the share of another holder of its domain a holder may have, unless policies say otherwise."""
Penalty = Annotated[float, Field(ge=1e-6, le=10)]
"""A λ, relative to the mean diagonal of A: outside these bounds holders could not tell weights from crafted ones."""


class SamplingTerms(Record):
    """How a document becomes samples, as it is written in messages."""

    window: int = Field(ge=1, le=1 << 16)
    max_tokens: int = Field(ge=0, le=1 << 40)
    stride: int = Field(default=0, ge=0, le=1 << 16)
    documents: int = Field(default=0, ge=0, le=1 << 12)
    units: int = Field(default=0, ge=0, le=1 << 12)
    mistyped: int = Field(default=0, ge=0, le=1 << 12)

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        _ = self.sampling
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What came later is left out where it is not used, so that older terms keep their bytes."""
        return {name: value for name, value in whole(self).items() if value or name not in ("units", "mistyped")}

    @property
    def sampling(self) -> Sampling:
        return checked_sampling(self)


def checked_sampling(numbers: Record) -> Sampling:
    """The sampling of a record's numbers; raises the ValueError that records are refused with if there is none."""
    try:
        return Sampling(**{field.name: getattr(numbers, field.name) for field in fields(Sampling)})
    except InputError as error:
        raise ValueError(str(error)) from None


class Terms(Record):
    """What every holder must agree to before it sums or sends anything.

    mode: whether statistics travel in the clear or masked.
    mass: the sample mass of every domain under `equal` weighting; 0 under `tokens`.
    ridges: every λ, relative to the mean diagonal of A, that routers are solved with and holders are asked to try.
    privacy: how documents are bounded and what noise is added; None where sums are exact.
    """

    mode: Mode
    encoder: Digest
    encoder_name: EncoderName
    features: int = Field(ge=2, le=1 << 16)
    sampling: SamplingTerms
    weighting: Weighting
    mass: int = Field(ge=0, le=1 << 37)
    ridges: tuple[Penalty, ...] = Field(default=(), max_length=16)
    privacy: Privacy | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Terms of exact sums are written as they were before there were others, so they keep their ids."""
        return {name: value for name, value in write(self).items() if name != "privacy" or value is not None}

    @cached_property
    def id(self) -> str:
        return sha256(record_json(self.model_dump(mode="json")))

    @cached_property
    def sums_id(self) -> str:
        """Sums made under other terms than these cannot be added to them; λ comes in afterwards."""
        return sha256(record_json(self.model_dump(mode="json", exclude={"ridges"})))

    @model_validator(mode="after")
    def _mass_belongs_to_equal_weighting(self) -> Terms:
        if (self.mass > 0) != (self.weighting == "equal"):
            raise ValueError("a mass belongs to equal weighting, and to nothing else")
        if self.privacy and self.mass:
            raise ValueError("documents that are bounded weigh the same, so there is no mass to divide")
        return self

    # What travels under masks

    def vector_size(self, domains: int) -> int:
        return self.features * domains if self._sends_columns else vector_size(self.features, domains)

    def vector_of(self, statistics: Statistics) -> Integers:
        return statistics.cross.ravel() if self._sends_columns else statistics.as_vector()

    def statistics_of(self, vector: Integers, domains: int) -> Statistics:
        """The inverse of `vector_of`."""
        if self._sends_columns:
            return of_columns(vector.reshape(self.features, domains))
        return from_vector(vector, self.features, domains)

    @property
    def _sends_columns(self) -> bool:
        return self.privacy is not None and self.privacy.mode == "columns"


class Member(Record):
    """A holder's place in a cohort.

    key:   the holder's Ed25519 public key.
    share: its part of the domain's mass; 0 where nothing is weighted.
    """

    key: PublicKey
    domain: DomainName
    share: int = Field(ge=0, le=1 << 37)


class DomainShare(NamedTuple):
    """What of a member decides whether it would stand out."""

    domain: str
    share: int


class Cohort(Record):
    """The members of one collection, in the order of their domains and keys."""

    terms: Terms
    members: tuple[Member, ...] = Field(min_length=1, max_length=MAX_HOLDERS)

    @model_validator(mode="after")
    def _one_order(self) -> Cohort:
        keys = [member.key for member in self.members]
        if len(set(keys)) != len(keys):
            raise ValueError("a holder stands in the cohort twice")
        if list(self.members) != sorted(self.members, key=lambda member: (member.domain, member.key)):
            raise ValueError("the members are not in their order")
        if any((member.share > 0) != (self.terms.mass > 0) for member in self.members):
            raise ValueError("shares belong to equal weighting, and to nothing else")
        return self

    @cached_property
    def domains(self) -> tuple[str, ...]:
        return tuple(sorted({member.domain for member in self.members}))

    @cached_property
    def id(self) -> str:
        return sha256(record_json(self.model_dump(mode="json")))

    def member(self, key: str) -> Member | None:
        return next((member for member in self.members if member.key == key), None)


def form_cohort(terms: Terms, domains: Mapping[str, str], weights: Mapping[str, int]) -> Cohort:
    """The cohort of these holders; the mass of a domain is divided among its own by their weights.

    domains: each holder's domain, by its key. weights: each holder's weight among those of its domain.
    Law: the shares of a domain add up to the mass.
    """
    parts = {
        domain: _divide(terms.mass, {key: weights[key] for key in domains if domains[key] == domain})
        for domain in set(domains.values())
    }
    members = [Member(key=key, domain=domain, share=parts[domain][key]) for key, domain in domains.items()]
    return Cohort(terms=terms, members=tuple(sorted(members, key=lambda member: (member.domain, member.key))))


def lopsided(members: Collection[Member | DomainShare], ratio: int = SHARE_RATIO) -> str:
    """Why the sum of these members' statistics would show one of them; empty if it would not.

    Nobody may make up more than two thirds of the sum, or of its domain's part where others hold the domain too; and
    within a domain no share may be more than `ratio` times another. (What a mass leaves over makes a share 1 larger.)
    """
    shares: dict[str, list[int]] = {}
    for member in members:
        shares.setdefault(member.domain, []).append(member.share or 1)
    for domain, own in sorted(shares.items()):
        if max(own) > ratio * min(own):
            return f"one holder of {domain} has more than {ratio} times the share of another"
        if len(own) > 1 and 3 * (max(own) - 1) > 2 * sum(own):
            return f"one of several holders of {domain} would make up more than two thirds of it and lie open in it"
    every = [share for own in shares.values() for share in own]
    if 3 * (max(every) - 1) > 2 * sum(every):
        return "one member would make up more than two thirds of the sum and lie open in it"
    return ""


def _divide(mass: int, weights: Mapping[str, int]) -> dict[str, int]:
    """The mass in integers, as nearly by weight as can be: what is left over goes to the first keys."""
    total = sum(weights.values())
    shares = {key: mass * weight // total for key, weight in weights.items()}
    left = mass - sum(shares.values())
    for key in sorted(weights)[:left]:
        shares[key] += 1
    return shares
