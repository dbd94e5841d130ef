"""Cohort: who takes part in a round and under which terms. Everything in it is public."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from pydantic import Field, model_validator

from ridgeway.common.base.files import sha256
from ridgeway.common.base.records import (
    Digest,
    DomainName,
    EncoderName,
    Mode,
    PublicKey,
    Record,
    SamplingNumbers,
    record_json,
)
from ridgeway.common.base.settings import Weighting
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.statistics import (
    Integers,
    Statistics,
    from_vector,
    of_columns,
    vector_size,
)

MAX_HOLDERS = 10_000


class Terms(Record):
    """What every holder must agree to before it sums or sends anything.

    mode:    private, masked or clear: what leaves a holder, and what everybody may learn from it.
    mass:    the sample mass of every domain under `equal` weighting; 0 under `tokens`.
    privacy: in private rounds, how documents are bounded and what noise is added; else None.
    """

    mode: Mode
    encoder: Digest
    encoder_name: EncoderName
    features: int = Field(ge=2, le=1 << 16)
    sampling: SamplingNumbers
    weighting: Weighting
    mass: int = Field(ge=0, le=1 << 37)
    privacy: Privacy | None = None

    @cached_property
    def id(self) -> str:
        """Sums made under other terms than these cannot be added to them."""
        return sha256(record_json(self.model_dump(mode="json")))

    @model_validator(mode="after")
    def _belong_together(self) -> Terms:
        if (self.mass > 0) != (self.weighting == "equal"):
            raise ValueError("a mass belongs to equal weighting, and to nothing else")
        if (self.mode == "private") != (self.privacy is not None):
            raise ValueError("noise belongs to private rounds, and to no others")
        if self.privacy and self.mass:
            raise ValueError(
                "bounded documents weigh the same, so there is no mass to divide"
            )
        return self

    @property
    def uses_masks(self) -> bool:
        """Whether sums are opened by the members of a session: exact ones, and noise drawn in
        shares.
        """
        return self.mode == "masked" or (
            self.privacy is not None and self.privacy.mode == "full"
        )

    # What is added up

    def vector_size(self, domains: int) -> int:
        return (
            self.features * domains
            if self._sends_columns
            else vector_size(self.features, domains)
        )

    def vector_of(self, statistics: Statistics) -> Integers:
        return (
            statistics.cross.ravel() if self._sends_columns else statistics.as_vector()
        )

    def statistics_of(self, vector: Integers, domains: int) -> Statistics:
        """The inverse of `vector_of`."""
        if self._sends_columns:
            return of_columns(vector.reshape(self.features, domains))
        return from_vector(vector, self.features, domains)

    @property
    def _sends_columns(self) -> bool:
        return self.privacy is not None and self.privacy.mode == "columns"


class Member(Record):
    """A holder's place in a cohort. key: its Ed25519 public key."""

    key: PublicKey
    domain: DomainName


class Cohort(Record):
    """The members of one collection, in the order of their domains and keys."""

    terms: Terms
    members: tuple[Member, ...] = Field(min_length=1, max_length=MAX_HOLDERS)

    @model_validator(mode="after")
    def _one_order(self) -> Cohort:
        keys = [member.key for member in self.members]
        if len(set(keys)) != len(keys):
            raise ValueError("duplicate holder in the cohort")
        if self.members != _sorted_members(self.members):
            raise ValueError("the members are not in their order")
        return self

    @cached_property
    def domains(self) -> tuple[str, ...]:
        return tuple(sorted({member.domain for member in self.members}))

    @cached_property
    def shares(self) -> dict[str, int]:
        """Each holder's share of its domain's mass, by key: equal parts; 0 where nothing is
        weighted.

        Law: the shares of a domain add up to the mass. What is left over goes to the first keys.
        """
        mass = self.terms.mass
        shares: dict[str, int] = {}
        for domain in self.domains:
            keys = sorted(
                member.key for member in self.members if member.domain == domain
            )
            part, left = divmod(mass, len(keys))
            shares |= {key: part + (index < left) for index, key in enumerate(keys)}
        return shares

    @cached_property
    def id(self) -> str:
        return sha256(record_json(self.model_dump(mode="json")))

    def member(self, key: str) -> Member | None:
        return next((member for member in self.members if member.key == key), None)


def form_cohort(terms: Terms, domains: Mapping[str, str]) -> Cohort:
    """The cohort of these holders. domains: each holder's domain, by its key."""
    members = (Member(key=key, domain=domain) for key, domain in domains.items())
    return Cohort(terms=terms, members=_sorted_members(members))


def _sorted_members(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: (member.domain, member.key)))
