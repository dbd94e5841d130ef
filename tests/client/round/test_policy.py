"""The holder's conditions: each has its code, and what is agreed to is agreed to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ridgeway.client.round.policy import (
    Policy,
    check_cohort,
    check_members_of_sum,
    check_roster,
    check_terms,
)
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.settings import EQUAL_MASS, Sampling
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from tests.support.making import fixed_identity

ENCODER, OTHER = "a" * 64, "b" * 64
COORDINATOR, OWN, NEIGHBOUR = (fixed_identity(number).public for number in (1, 2, 3))
POLICY = Policy(
    coordinator=COORDINATOR,
    encoders=(ENCODER,),
    sampling=Sampling(16),
    modes=("clear",),
    min_cohort=2,
)
TERMS = Terms(
    mode="clear",
    encoder=ENCODER,
    encoder_name="tiny",
    features=7,
    sampling=Sampling(16),
    weighting="equal",
    mass=EQUAL_MASS,
)
PLAIN = {"weighting": "tokens", "mass": 0}
PRIVATE = {
    **PLAIN,
    "mode": "private",
    "privacy": Privacy(mode="columns", epsilon=1.0, prior=OTHER),
}
PRIVATELY = {"modes": ("private",)}


def terms(**changes: Any) -> Terms:
    return Terms(**{**TERMS.model_dump(), "sampling": TERMS.sampling, **changes})


def private(**changes: Any) -> Terms:
    return terms(
        **{
            **PRIVATE,
            "privacy": Privacy(
                **{"mode": "columns", "epsilon": 1.0, "prior": OTHER, **changes}
            ),
        }
    )


def cohort(members: dict[str, str], given: Terms = TERMS) -> Cohort:
    return form_cohort(given, members)


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
        ({"sampling": Sampling(1)}, terms(sampling=Sampling(1))),
        (
            {"sampling": Sampling(16, max_tokens=99)},
            terms(sampling=Sampling(16, max_tokens=99)),
        ),
        ({"weightings": ("equal", "tokens")}, terms(**PLAIN)),
        ({"modes": ("masked", "clear")}, terms(mode="masked")),
        (PRIVATELY, terms(**PRIVATE)),
        ({**PRIVATELY, "max_round_epsilon": 0.5}, private(epsilon=0.5)),
        ({**PRIVATELY, "privacy": "full"}, private(mode="full")),
        ({**PRIVATELY, "max_delta": 1e-6}, private(delta=1e-6)),
    ],
)
def test_terms_within_the_policy_are_agreed_to(
    policy: dict[str, Any], given: Terms
) -> None:
    """Whatever it names."""
    check_terms(POLICY.model_copy(update=policy), given)


@pytest.mark.parametrize(
    ("policy", "given", "expected"),
    [
        ({}, terms(encoder=OTHER), "encoder_not_allowed"),
        ({"modes": ("private", "masked")}, TERMS, "mode_not_allowed"),
        ({}, terms(mode="masked"), "mode_not_allowed"),
        ({"modes": ("masked", "clear")}, terms(**PRIVATE), "mode_not_allowed"),
        (
            {**PRIVATELY, "max_round_epsilon": 0.99},
            terms(**PRIVATE),
            "privacy_not_allowed",
        ),
        (PRIVATELY, private(epsilon=8.0), "privacy_not_allowed"),
        (PRIVATELY, private(mode="full"), "privacy_not_allowed"),
        (PRIVATELY, private(delta=1e-6), "privacy_not_allowed"),
        ({}, terms(mass=EQUAL_MASS - 1), "mass_not_allowed"),
        ({}, terms(**PLAIN), "weighting_not_allowed"),
        ({"weightings": ("tokens",)}, TERMS, "weighting_not_allowed"),
        ({"sampling": Sampling(17)}, TERMS, "window_not_allowed"),
        ({}, terms(sampling=Sampling(17)), "window_not_allowed"),
        ({}, terms(sampling=Sampling(16, max_tokens=1)), "window_not_allowed"),
        ({"sampling": Sampling(16, stride=32)}, TERMS, "window_not_allowed"),
        ({}, terms(sampling=Sampling(16, units=5)), "window_not_allowed"),
    ],
)
def test_terms_outside_the_policy_are_refused_with_their_code(
    policy: dict[str, Any], given: Terms, expected: str
) -> None:
    """For the terms alone, and for a cohort under them."""
    conditions = POLICY.model_copy(update=policy)
    assert code(check_terms, conditions, given) == expected
    assert (
        code(
            check_cohort,
            conditions,
            cohort({OWN: "law", NEIGHBOUR: "code"}, given),
            OWN,
            "law",
        )
        == expected
    )


def test_a_holder_agrees_to_a_cohort_alone_in_its_domain_or_not() -> None:
    """Its share is all of the mass where it is alone, else an equal part."""
    alone, shared = (
        cohort({OWN: "law", NEIGHBOUR: "code"}),
        cohort({OWN: "law", NEIGHBOUR: "law"}),
    )
    check_cohort(POLICY, alone, OWN, "law")
    check_cohort(POLICY, shared, OWN, "law")
    assert alone.shares[OWN] == EQUAL_MASS
    assert shared.shares == dict.fromkeys((OWN, NEIGHBOUR), EQUAL_MASS // 2)


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
        {"sampling": {"window": 0}},
        {"sampling": {"window": 8, "max_tokens": -1}},
        {"sampling": {"window": 8, "documents": 1}},
        {"sampling": {"window": True}},
        {"sampling": {}},
        {"sampling": 8},
        {"min_cohort": 0},
        {"modes": ()},
        {"modes": ("loud",)},
        {"max_epsilon": 0.0},
        {"max_round_epsilon": float("nan")},
        {"new": 1},
    ],
)
def test_a_policy_that_protects_nothing_cannot_be_written(
    changes: dict[str, Any],
) -> None:
    """No key, no encoder, no window, no cohort, or a condition that nobody knows."""
    with pytest.raises(ValidationError):
        Policy(**{**POLICY.model_dump(), **changes})


def test_terms_and_policies_that_no_text_can_be_sampled_by_are_no_records() -> None:
    """Whoever sends or writes them: it is said when they are read, not in the middle of a round."""
    for record in (TERMS, POLICY):
        with pytest.raises(
            ValidationError, match="a stride of 8 is shorter than the window of 16"
        ):
            record.model_copy(update={"sampling": {"window": 16, "stride": 8}})


@pytest.mark.parametrize(
    ("members", "pinned", "expected"),
    [(2, 2, "cohort_too_small"), (4, 6, "too_few_of_roster")],
)
def test_a_sum_of_few_is_refused(members: int, pinned: int, expected: str) -> None:
    """Fewer than the holder's own minimum, or no more than two thirds of those that it has
    pinned.
    """
    policy = POLICY.model_copy(update={"min_cohort": 3})
    assert code(check_members_of_sum, policy, members, pinned) == expected
    check_members_of_sum(policy, 5, 6)


@pytest.mark.parametrize("least", [1, 3])
def test_without_a_roster_there_is_no_cohort_under_masks(least: int) -> None:
    """Three are the fewest, whatever the holder allows."""
    policy = POLICY.model_copy(update={"min_cohort": least})
    assert code(check_roster, policy, [OWN, NEIGHBOUR]) == "roster_not_pinned"
    check_roster(policy, [OWN, NEIGHBOUR, COORDINATOR])


def test_terms_and_cohorts_that_contradict_themselves_are_no_records() -> None:
    """A mass without weighting, noise without privacy, a member twice, another order."""
    plain = cohort({OWN: "law", NEIGHBOUR: "code"})
    for changes, sentence in (
        (
            {"members": (plain.members[0], plain.members[0])},
            "duplicate holder in the cohort",
        ),
        ({"members": plain.members[::-1]}, "not in their order"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            plain.model_copy(update=changes)
    for changed in ({"mass": 0}, {"weighting": "tokens"}):
        with pytest.raises(ValidationError, match="a mass belongs to equal weighting"):
            terms(**changed)
    for noise in ({"mode": "private"}, {**PRIVATE, "mode": "clear"}):
        with pytest.raises(ValidationError, match="noise belongs to private rounds"):
            terms(**{**PLAIN, **noise})
    with pytest.raises(ValidationError, match="bounded documents weigh the same"):
        terms(**{**PRIVATE, "weighting": "equal", "mass": EQUAL_MASS})
