"""Cohort: who takes part in a round and under which terms. Everything in it is public.

Knows the words of the agreement. Knows nothing of messages, files or Flower.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from common.errors import InputError
from common.files import canonical_json, sha256
from common.settings import DOMAIN_NAME, EQUAL_MASS, Sampling, Weighting


def check_port(address: str) -> str:
    if not 1 <= int(address.rpartition(":")[2]) <= 65535:
        raise ValueError("a port lies between 1 and 65535")
    return address


def check_name(name: str) -> str:
    if not DOMAIN_NAME.fullmatch(name):
        raise ValueError("a name has at most 64 letters, digits, dots, dashes and underscores")
    return name


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PublicKey = Digest
DomainName = Annotated[str, AfterValidator(check_name)]
HolderName = DomainName
EncoderName = Annotated[str, Field(max_length=200, pattern=r"^[0-9A-Za-z_][0-9A-Za-z_.:/-]*$")]
Address = Annotated[str, Field(pattern=r"^[^\s/@]{1,250}:[0-9]{1,5}$"), AfterValidator(check_port)]
Mode = Literal["clear", "masked"]

MOST_HOLDERS = 10_000


class Record(BaseModel):
    """A value that is checked as it is made: no unknown fields, no silent conversions, no change afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy, checked like any other: the library's own would keep what was computed of the original."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(update or {})})


class Window(Record):
    """How a document becomes samples, as it is written in messages."""

    window: int = Field(ge=1, le=1 << 16)
    max_tokens: int = Field(ge=0, le=1 << 40)
    stride: int = Field(default=0, ge=0, le=1 << 16)
    documents: int = Field(default=0, ge=0, le=1 << 12)

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        possible(self.window, self.max_tokens, self.stride, self.documents)
        return self

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.window, self.max_tokens, self.stride, self.documents)


def possible(window: int, max_tokens: int, stride: int, documents: int) -> Sampling:
    """The sampling, if there is such a one; else the ValueError that records are refused with."""
    try:
        return Sampling(window, max_tokens, stride, documents)
    except InputError as error:
        raise ValueError(str(error)) from None


class Terms(Record):
    """What every holder must agree to before it sums or sends anything.

    mode: whether statistics travel in the clear or masked.
    mass: the sample mass of every domain under `equal` weighting; 0 under `tokens`.
    """

    mode: Mode
    encoder: Digest
    encoder_name: EncoderName
    features: int = Field(ge=2, le=1 << 16)
    sampling: Window
    weighting: Weighting
    mass: int = Field(ge=0, le=1 << 37)

    @cached_property
    def id(self) -> str:
        """Sums made under other terms cannot be added to these."""
        return sha256(canonical_json(self.model_dump(mode="json")))

    @model_validator(mode="after")
    def _mass_belongs_to_equal_weighting(self) -> Terms:
        if (self.mass > 0) != (self.weighting == "equal"):
            raise ValueError("a mass belongs to equal weighting, and to nothing else")
        return self


class Member(Record):
    """A holder's place in a cohort.

    key:   the holder's Ed25519 public key.
    share: its part of the domain's mass; 0 where nothing is weighted.
    """

    key: PublicKey
    domain: DomainName
    share: int = Field(ge=0, le=1 << 37)


class Cohort(Record):
    """The members of one collection, in the order of their domains and keys."""

    terms: Terms
    members: tuple[Member, ...] = Field(min_length=1, max_length=MOST_HOLDERS)

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
        return sha256(canonical_json(self.model_dump(mode="json")))

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


def _divide(mass: int, weights: Mapping[str, int]) -> dict[str, int]:
    """The mass in integers, as nearly by weight as can be: what is left over goes to the first keys."""
    total = sum(weights.values())
    shares = {key: mass * weight // total for key, weight in weights.items()}
    left = mass - sum(shares.values())
    for key in sorted(weights)[:left]:
        shares[key] += 1
    return shares


def equal_mass(weighting: Weighting) -> int:
    return EQUAL_MASS if weighting == "equal" else 0
