"""What this holder agrees to: the last word is the holder's.

Pure checks of public terms against the holder's own settings. Knows nothing of corpora, files or Flower.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from pydantic import Field, model_validator

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.schema import Digest, PublicKey, Record
from ridgeway.common.base.settings import DEFAULT_DELTA, EQUAL_MASS, Sampling, Weighting
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.privacy.privacy_settings import Delta, PrivacyChoice
from ridgeway.common.protocol.cohort import SHARE_RATIO, Cohort, DomainShare, Member, Terms, checked_sampling, lopsided


class Policy(Record):
    """The holder's conditions, as they stand in client.toml.

    coordinator: the key that requests and releases must be signed with, or one that it was handed over to.
    encoders:    fingerprints of the encoders whose sums may leave.
    require_masking: refuse rounds in which statistics travel in the clear.
    min_cohort:  the fewest members of a cohort, and of a sum that this holder helps to open.
    min_difference: the fewest members whose part may be told apart by combining sums; 1 allows anything.
    mass:        the sample mass of every domain, where domains are weighted equally.
    share_scores: answer with the sums of the scores that `scores` in client.toml names; else with none.
    share_ratio: how many times the share of another holder of its domain a holder may have, at most.
    privacy:     "columns" or "full": refuse rounds in which documents are not bounded and noised in this way.
    max_epsilon: what all vectors that ever left under noise may cost a document together, at a δ of `max_delta`.
    window:      tokens a sample; with `max_tokens`, `stride`, `documents`, `units` and `mistyped` it says how text is
                 sampled: so and no other way, since sums over many different windows of one text would tell more.
    """

    coordinator: PublicKey
    encoders: tuple[Digest, ...] = Field(min_length=1)
    require_masking: bool = True
    weightings: tuple[Weighting, ...] = ("equal",)
    window: int = Field(ge=1)
    max_tokens: int = Field(default=0, ge=0)
    stride: int = Field(default=0, ge=0)
    documents: int = Field(default=0, ge=0)
    units: int = Field(default=0, ge=0)
    mistyped: int = Field(default=0, ge=0)
    min_cohort: int = Field(default=SMALLEST_COHORT, ge=1)
    min_difference: int = Field(default=2, ge=1)
    mass: int = Field(default=EQUAL_MASS, ge=1, le=1 << 37)
    share_ratio: int = Field(default=SHARE_RATIO, ge=1)
    share_scores: bool = True
    privacy: PrivacyChoice = "none"
    max_epsilon: float = Field(default=8.0, gt=0)
    max_delta: Delta = DEFAULT_DELTA

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        _ = self.sampling
        return self

    @property
    def sampling(self) -> Sampling:
        return checked_sampling(self)


def check_terms(policy: Policy, terms: Terms) -> None:
    """Raise Refused unless these terms are acceptable. What is named in a refusal is public anyway."""
    if terms.encoder not in policy.encoders:
        known = ", ".join(each[:12] for each in policy.encoders)
        raise Refused(
            "encoder_not_allowed", f"the round uses encoder {terms.encoder[:12]}; this holder has agreed to {known}"
        )
    if policy.require_masking and terms.mode != "masked":
        raise Refused("masking_required", "this holder sends masked statistics only")
    if policy.privacy not in ("none", terms.privacy and terms.privacy.mode):
        asked = terms.privacy.mode if terms.privacy else "none"
        raise Refused("privacy_not_allowed", f"this holder has agreed to privacy {policy.privacy!r}, not to {asked!r}")
    if terms.privacy and terms.privacy.delta > policy.max_delta:
        raise Refused(
            "privacy_not_allowed",
            f"this holder has agreed to a δ of {policy.max_delta:g} at most, not to {terms.privacy.delta:g}",
        )
    if terms.privacy is None and terms.weighting not in policy.weightings:
        raise Refused("weighting_not_allowed", f"this holder does not agree to {terms.weighting} weighting")
    if terms.mass not in (0, policy.mass):
        raise Refused("mass_not_allowed", f"this holder has agreed to a mass of {policy.mass:,}, not of {terms.mass:,}")
    if terms.sampling.sampling != policy.sampling:
        raise Refused(
            "window_not_allowed", f"this holder has agreed to {policy.sampling}, not to {terms.sampling.sampling}"
        )


def check_cohort(policy: Policy, cohort: Cohort, key: str, domain: str) -> Member:
    """The holder's own place in a cohort that it agrees to."""
    check_terms(policy, cohort.terms)
    member = cohort.member(key)
    if member is None:
        raise Refused("not_in_cohort", "this holder is not in the cohort it was asked to join")
    if member.domain != domain:
        raise Refused("wrong_domain", f"the cohort counts this holder to {member.domain}; it holds {domain}")
    masses = dict.fromkeys(cohort.domains, 0)
    for each in cohort.members:
        masses[each.domain] += each.share
    if any(mass != cohort.terms.mass for mass in masses.values()):
        raise Refused("uneven_shares", "the shares of a domain's holders do not add up to the mass of a domain")
    if cohort.terms.mode == "masked":
        check_shares(policy, cohort.members)
    if len(cohort.members) < policy.min_cohort:
        raise Refused(
            "cohort_too_small",
            f"this holder joins cohorts of {policy.min_cohort} or more, not of {len(cohort.members)}",
        )
    return member


def check_shares(policy: Policy, members: Collection[Member | DomainShare]) -> None:
    """Raise Refused if somebody's sums would stand out among those of its domain, or of all these members."""
    words = lopsided(members, policy.share_ratio)
    if words:
        raise Refused("lopsided_shares", words)


def check_roster(policy: Policy, pinned: Collection[str]) -> None:
    """Raise Refused if too few members are pinned to make a masked cohort of."""
    least = max(policy.min_cohort, SMALLEST_COHORT)
    if len(pinned) < least:
        raise Refused(
            "roster_not_pinned",
            f"this holder has pinned the keys of {len(pinned) - 1} others, and a masked cohort needs {least} members; "
            "it pins them with `ridgeway client pin`",
        )
