"""How sure routers of sums under noise are: a temperature for any noise, lower where accuracy is
known to be high.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.privacy.noise import PrivacyMode, moved_square
from ridgeway.common.privacy.noisy_solve import solve_columns, solve_full
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
    drawn,
    modes,
    products_of,
    seeds,
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
    rng = np.random.default_rng(seed)
    sigma = round(noise * math.sqrt(moved_square(mode)))
    parts = summed(mode, prior, count)
    noise_of = [drawn(rng, sigma, part.column.shape) for part in parts]
    sums = columns_of(parts) + np.stack(noise_of, axis=1)
    known = sums[:-1], sums[-1], float(sigma) ** 2
    if mode == "columns":
        weights = solve_columns(*known, prior, ENCODER.scale)
    else:
        weights = solve_full(products_of(parts), *known, prior, ENCODER.scale, 1.0)
    return private_temperature(mode, *known, weights, prior, ENCODER.scale, accuracy)


@given(st.floats(0.01, 7), st.integers(2, 150))
def test_an_advantage_follows_from_the_accuracy_that_it_gives(
    advantage: float, domains: int
) -> None:
    """Where accuracy still tells one advantage from another."""
    accuracy = rightly_chosen(advantage, domains)
    inverse = advantage_for(accuracy, domains)
    assert abs(rightly_chosen(inverse, domains) - accuracy) < 1e-3
    assert accuracy > 0.999 or abs(inverse - advantage) < 2e-3


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
    ends = low, min(100.0, low + width)
    assert 0 < temperature(mode, prior, noise, ends, seed, count=5) < math.inf


@modes
def test_who_is_right_more_often_is_surer(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """The same weights have a lower temperature where held-out documents say that they do well."""
    falling = [
        temperature(mode, prior, 1.0, (middle - 1, middle + 1))
        for middle in (50.0, 70.0, 90.0, 97.0)
    ]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > 1.5 * falling[-1]


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
