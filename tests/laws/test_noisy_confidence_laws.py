"""How sure routers of sums under noise are: a temperature for any noise, lower where accuracy is
known to be high.
"""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.privacy.noise import PrivacyMode, moved_square
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.coordinator.solving.calibration import (
    MAX_ADVANTAGE,
    advantage_for,
    private_temperature,
    rightly_chosen,
)
from tests.laws.test_noisy_solve_laws import (
    ENCODER,
    columns_of,
    modes,
    seeds,
    solved,
    summed,
)
from tests.laws.test_noisy_solve_laws import prior as prior
from tests.support.seeds import few_examples

SURE = (90.0, 92.0)


def temperature(
    mode: PrivacyMode,
    prior: PublicPrior,
    noise: float,
    accuracy: tuple[float, float],
    seed: int = 0,
    count: int = 40,
) -> float:
    """Of the router of three domains; noise: σ relative to what a document can move."""
    sigma = round(noise * math.sqrt(moved_square(mode)))
    parts = summed(mode, prior, count)
    known = *columns_of(parts, sigma, seed), float(sigma) ** 2
    weights = solved(mode, parts, noise, prior, seed)
    return private_temperature(mode, *known, weights, prior, ENCODER.scale, accuracy)


@given(st.floats(0.01, 7), st.integers(2, 150))
def test_an_advantage_follows_from_the_accuracy_that_it_gives(
    advantage: float, domains: int
) -> None:
    """Where accuracy still tells one advantage from another."""
    accuracy = rightly_chosen(advantage, domains)
    known = advantage_for(accuracy, domains)
    assert abs(rightly_chosen(known, domains) - accuracy) < 1e-3
    assert accuracy > 0.999 or abs(known - advantage) < 2e-3


def test_an_accuracy_that_no_advantage_gives_has_the_nearest() -> None:
    assert advantage_for(0.0, 5) < 0.02
    assert math.isclose(advantage_for(1.5, 5), MAX_ADVANTAGE)


@modes
@few_examples
@given(
    seed=seeds, noise=st.floats(0, 1e6), low=st.floats(0, 100), width=st.floats(0, 100)
)
def test_whatever_noise_says_there_is_a_temperature(
    mode: PrivacyMode,
    prior: PublicPrior,
    seed: int,
    noise: float,
    low: float,
    width: float,
) -> None:
    """It is positive and finite, which is all that a router asks of it."""
    accuracy = low, min(100.0, low + width)
    assert 0 < temperature(mode, prior, noise, accuracy, seed, count=5) < math.inf


@modes
def test_who_is_right_more_often_is_surer(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """The same weights have a lower temperature where held-out documents say that they do well."""
    known = [
        temperature(mode, prior, 1.0, (middle - 1, middle + 1))
        for middle in (50.0, 70.0, 90.0, 97.0)
    ]
    assert known == sorted(known, reverse=True) and known[0] > 1.5 * known[-1]


@modes
def test_an_accuracy_that_is_not_known_counts_for_little(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """Between an interval of everything and one of nothing the public guess has its say."""
    unsure, low, high = (
        temperature(mode, prior, 1.0, ends)
        for ends in ((0.0, 100.0), (40.0, 42.0), SURE)
    )
    assert high < unsure < low
