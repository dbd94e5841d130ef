"""What this holder agrees to: the last word is the holder's.

Pure checks of public terms against the holder's own settings. Nothing here looks at a corpus.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.records import (
    Digest,
    Mode,
    PublicKey,
    Record,
    SamplingNumbers,
)
from ridgeway.common.base.settings import (
    DEFAULT_DELTA,
    EQUAL_MASS,
    MAX_LIFETIME_EPSILON,
    MAX_ROUND_EPSILON,
    Weighting,
)
from ridgeway.common.masking.agreement import SMALLEST_COHORT, threshold_for
from ridgeway.common.privacy.accountant import Delta, Privacy
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.protocol.cohort import Cohort, Terms

Budget = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class Policy(Record):
    """The holder's conditions, as they stand in client.toml.

    coordinator: the key that requests and releases must be signed with, or one that it was handed
                 over to.
    encoders:    fingerprints of the encoders whose sums may leave.
    modes:       the modes of rounds that this holder takes part in.
    privacy:     how private rounds bound documents: "columns" or "full".
    max_round_epsilon: what one private round may cost a document, at a δ of `max_delta`.
    max_epsilon: what all that ever left may cost a document together; inf allows anything.
    min_cohort:  the fewest members of a cohort, and of a sum that this holder helps to open.
    mass:        the sample mass of every domain, where domains are weighted equally.
    share_scores: answer with the sums of the scores that `scores` in client.toml names; else with
                  none.
    sampling:    how text is sampled: so and no other way.
    """

    coordinator: PublicKey
    encoders: tuple[Digest, ...] = Field(min_length=1)
    modes: tuple[Mode, ...] = Field(default=("private",), min_length=1)
    privacy: PrivacyMode = "columns"
    max_round_epsilon: Budget = MAX_ROUND_EPSILON
    max_epsilon: Budget = MAX_LIFETIME_EPSILON
    max_delta: Delta = DEFAULT_DELTA
    weightings: tuple[Weighting, ...] = ("equal",)
    sampling: SamplingNumbers
    min_cohort: int = Field(default=SMALLEST_COHORT, ge=1)
    mass: int = Field(default=EQUAL_MASS, ge=1, le=1 << 37)
    share_scores: bool = True


def check_terms(policy: Policy, terms: Terms) -> None:
    """Raise Refused unless these terms are acceptable. What is named in a refusal is public
    anyway.
    """
    if terms.encoder not in policy.encoders:
        known = ", ".join(encoder[:12] for encoder in policy.encoders)
        raise Refused(
            "encoder_not_allowed",
            f"the round uses encoder {terms.encoder[:12]}; this holder allows {known}",
        )
    if terms.mode not in policy.modes:
        raise Refused(
            "mode_not_allowed",
            f"this holder allows {' and '.join(policy.modes)} rounds, not {terms.mode}"
            " ones",
        )
    if terms.privacy:
        _check_privacy(policy, terms.privacy)
    elif terms.weighting not in policy.weightings:
        raise Refused(
            "weighting_not_allowed",
            f"this holder does not allow {terms.weighting} weighting",
        )
    if terms.mass not in (0, policy.mass):
        raise Refused(
            "mass_not_allowed",
            f"this holder allows a mass of {policy.mass:,}, not {terms.mass:,}",
        )
    if terms.sampling != policy.sampling:
        raise Refused(
            "window_not_allowed",
            f"this holder allows {policy.sampling}, not {terms.sampling}",
        )


def _check_privacy(policy: Policy, asked: Privacy) -> None:
    conditions = (
        (
            asked.mode == policy.privacy,
            f"private rounds with {policy.privacy!r}, not {asked.mode!r}",
        ),
        (
            asked.epsilon <= policy.max_round_epsilon,
            f"an ε of {policy.max_round_epsilon:g} per round, not {asked.epsilon:g}",
        ),
        (
            asked.delta <= policy.max_delta,
            f"a δ of {policy.max_delta:g}, not {asked.delta:g}",
        ),
    )
    for is_met, words in conditions:
        if not is_met:
            raise Refused("privacy_not_allowed", f"this holder allows {words}")


def check_cohort(policy: Policy, cohort: Cohort, key: str, domain: str) -> None:
    """Raise Refused unless the holder is in the cohort, and agrees to it."""
    check_terms(policy, cohort.terms)
    member = cohort.member(key)
    if member is None:
        raise Refused("not_in_cohort", "this holder is not in the cohort")
    if member.domain != domain:
        raise Refused(
            "wrong_domain",
            f"the cohort lists this holder under {member.domain}; its domain is"
            f" {domain}",
        )
    if len(cohort.members) < policy.min_cohort:
        raise Refused(
            "cohort_too_small",
            f"this holder allows cohorts of {policy.min_cohort} or more members, not"
            f" {len(cohort.members)}",
        )


def check_roster(policy: Policy, pinned: Collection[str]) -> None:
    """Raise Refused if too few members are pinned to make a cohort under masks of."""
    least = max(policy.min_cohort, SMALLEST_COHORT)
    if len(pinned) < least:
        raise Refused(
            "roster_not_pinned",
            f"this holder has confirmed {len(pinned) - 1} other members, and a cohort"
            f" under masks needs {least}; its owner must confirm them with `ridgeway"
            " client members`",
        )


def check_members_of_sum(policy: Policy, members: int, pinned: int) -> None:
    """Raise Refused unless a sum has enough members, and more than two thirds of the pinned
    roster.
    """
    if members < policy.min_cohort:
        raise Refused(
            "cohort_too_small",
            f"this holder opens sums of {policy.min_cohort} or more members, not"
            f" {members}",
        )
    if members < threshold_for(pinned):
        raise Refused(
            "too_few_of_roster",
            f"this holder has pinned {pinned} members and opens sums of"
            f" {threshold_for(pinned)} or more, not {members}",
        )
