"""The holder's conditions: each has its code, and what is agreed to is agreed to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ridgeway.client.round.policy import Policy, check_cohort, check_shares, check_terms
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.protocol.cohort import Cohort, Member, SamplingTerms, Terms, form_cohort, lopsided
from tests.support.making import fixed_identity

ENCODER, OTHER = "a" * 64, "b" * 64
COORDINATOR, OWN, NEIGHBOUR = (fixed_identity(number).public for number in (1, 2, 3))
POLICY = Policy(coordinator=COORDINATOR, encoders=(ENCODER,), window=16, require_masking=False, min_cohort=2)
TERMS = Terms(
    mode="clear",
    encoder=ENCODER,
    encoder_name="tiny",
    features=7,
    sampling=SamplingTerms(window=16, max_tokens=0),
    weighting="equal",
    mass=EQUAL_MASS,
)
PLAIN = {"weighting": "tokens", "mass": 0}


def terms(**changes: Any) -> Terms:
    return Terms(**{**TERMS.model_dump(), "sampling": TERMS.sampling, **changes})


def cohort(members: dict[str, str], given: Terms = TERMS) -> Cohort:
    return form_cohort(given, members, dict.fromkeys(members, 1))


def code(check: Any, *values: Any) -> str:
    """The code of the refusal, whose reason is a sentence that can be shown."""
    with pytest.raises(Refused) as refused:
        check(*values)
    assert 10 < len(refused.value.reason) <= 500
    return refused.value.code


@pytest.mark.parametrize(
    ("policy", "given"),
    [
        ({}, TERMS),
        ({"encoders": (OTHER, ENCODER)}, TERMS),
        ({"window": 1}, terms(sampling=SamplingTerms(window=1, max_tokens=0))),
        ({"max_tokens": 99}, terms(sampling=SamplingTerms(window=16, max_tokens=99))),
        ({"weightings": ("equal", "tokens")}, terms(**PLAIN)),
    ],
)
def test_terms_within_the_policy_are_agreed_to(policy: dict[str, Any], given: Terms) -> None:
    """Whatever it names."""
    check_terms(POLICY.model_copy(update=policy), given)


@pytest.mark.parametrize(
    ("policy", "given", "expected"),
    [
        ({}, terms(encoder=OTHER), "encoder_not_allowed"),
        ({"require_masking": True}, TERMS, "masking_required"),
        ({}, terms(**PLAIN), "weighting_not_allowed"),
        ({"weightings": ("tokens",)}, TERMS, "weighting_not_allowed"),
        ({"window": 17}, TERMS, "window_not_allowed"),
        ({}, terms(sampling=SamplingTerms(window=17, max_tokens=0)), "window_not_allowed"),
        ({}, terms(sampling=SamplingTerms(window=1, max_tokens=0)), "window_not_allowed"),
        ({}, terms(sampling=SamplingTerms(window=16, max_tokens=1)), "window_not_allowed"),
        ({"max_tokens": 99}, TERMS, "window_not_allowed"),
        ({"stride": 32}, TERMS, "window_not_allowed"),
        ({}, terms(sampling=SamplingTerms(window=16, max_tokens=0, stride=32)), "window_not_allowed"),
        ({}, terms(sampling=SamplingTerms(window=16, max_tokens=0, documents=1)), "window_not_allowed"),
    ],
)
def test_terms_outside_the_policy_are_refused_with_their_code(
    policy: dict[str, Any], given: Terms, expected: str
) -> None:
    """For the terms alone, and for a cohort under them."""
    conditions = POLICY.model_copy(update=policy)
    assert code(check_terms, conditions, given) == expected
    assert code(check_cohort, conditions, cohort({OWN: "law", NEIGHBOUR: "code"}, given), OWN, "law") == expected


def test_a_holder_finds_its_own_place_in_a_cohort() -> None:
    """With its share: all of the mass where it is alone in its domain, a part where it is not."""
    alone = check_cohort(POLICY, cohort({OWN: "law", NEIGHBOUR: "code"}), OWN, "law")
    assert (alone.key, alone.domain, alone.share) == (OWN, "law", EQUAL_MASS)
    assert check_cohort(POLICY, cohort({OWN: "law", NEIGHBOUR: "law"}), OWN, "law").share == EQUAL_MASS // 2


@pytest.mark.parametrize(
    ("members", "least", "expected"),
    [
        ({NEIGHBOUR: "law", COORDINATOR: "code"}, 2, "not_in_cohort"),
        ({OWN: "code", NEIGHBOUR: "law"}, 2, "wrong_domain"),
        ({OWN: "law"}, 2, "cohort_too_small"),
        ({OWN: "law", NEIGHBOUR: "code"}, 3, "cohort_too_small"),
    ],
)
def test_a_cohort_that_the_holder_did_not_agree_to_is_refused(
    members: dict[str, str], least: int, expected: str
) -> None:
    """Without it, for another domain, or with too few others to be hidden among."""
    policy = POLICY.model_copy(update={"min_cohort": least})
    assert code(check_cohort, policy, cohort(members), OWN, "law") == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"coordinator": "abc"},
        {"encoders": ()},
        {"encoders": ("x",)},
        {"window": 0},
        {"max_tokens": -1},
        {"min_cohort": 0},
        {"new": 1},
    ],
)
def test_a_policy_that_protects_nothing_cannot_be_written(changes: dict[str, Any]) -> None:
    """No key, no encoder, no window, no cohort, or a condition that nobody knows."""
    with pytest.raises(ValidationError):
        Policy(**{**POLICY.model_dump(), **changes})


def test_terms_and_policies_that_no_text_can_be_sampled_by_are_no_records() -> None:
    """Whoever sends or writes them: it is said when they are read, not in the middle of a round."""
    with pytest.raises(ValidationError, match="windows of 16 tokens cannot begin every 8"):
        SamplingTerms(window=16, max_tokens=0, stride=8)
    with pytest.raises(ValidationError, match="windows of 16 tokens cannot begin every 8"):
        POLICY.model_copy(update={"stride": 8})


@pytest.mark.parametrize("weights", [(2, 1), (1, 2)])
def test_a_holder_may_weigh_twice_as_much_as_the_other_of_its_domain(weights: tuple[int, int]) -> None:
    """Whichever of the two gets the unit that is left over when the mass is divided by three."""
    keys = [digit * 64 for digit in "0123"]
    domains = dict(zip(keys, ("law", "law", "code", "medicine"), strict=True))
    shared = form_cohort(terms(mode="masked"), domains, dict(zip(keys, (*weights, 1, 1), strict=True)))
    assert lopsided(shared.members) == ""


def test_a_domain_of_one_is_not_left_among_the_least_of_another() -> None:
    """Those who had most of the other domain's mass have fallen away: its only holder would be three quarters."""
    members = [Member(key=OWN, domain="medicine", share=12), *(Member(key=OTHER, domain="law", share=1),) * 4]
    assert code(check_shares, POLICY, members) == "lopsided_shares"
    check_shares(POLICY, [*members, Member(key=OTHER, domain="law", share=4)])


def test_no_share_is_more_than_the_ratio_of_another_of_its_domain() -> None:
    """Though nobody has two thirds of anything; whoever weighs next to nothing hides nobody."""
    members = [Member(key=OWN, domain="law", share=share) for share in (5, 5, 1)]
    assert code(check_shares, POLICY, members) == "lopsided_shares"
    check_shares(POLICY.model_copy(update={"share_ratio": 5}), members)


def test_terms_and_cohorts_that_contradict_themselves_are_no_records() -> None:
    """A mass without weighting, a member twice, another order, shares of nothing."""
    plain = cohort({OWN: "law", NEIGHBOUR: "code"})
    for changes, sentence in (
        ({"members": (plain.members[0], plain.members[0])}, "stands in the cohort twice"),
        ({"members": plain.members[::-1]}, "not in their order"),
        ({"terms": terms(**PLAIN)}, "shares belong to equal weighting"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            plain.model_copy(update=changes)
    for changed in ({"mass": 0}, {"weighting": "tokens"}):
        with pytest.raises(ValidationError, match="a mass belongs to equal weighting"):
            terms(**changed)
