"""Whether a router is worse than the last release: by more than chance explains, and by more than a little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.coordinator.solving.release_comparison import LEAST_LOSS, SIGNIFICANCE, DomainChange, worse


def change(lost: int, won: int, documents: int = 1000) -> DomainChange:
    return DomainChange("law", lost, won, documents)


@pytest.mark.parametrize(
    ("lost", "won", "documents", "is_worse"),
    [
        (0, 0, 1000, False),
        (9, 0, 100, False),  # one in 512: chance
        (11, 0, 100, True),  # one in 2048
        (60, 50, 1000, False),
        (60, 5, 1000, True),
        (100, 82, 1000, False),  # less than a fiftieth of the documents
        (0, 200, 1000, False),
    ],
)
def test_a_loss_counts_if_it_is_neither_chance_nor_small(lost: int, won: int, documents: int, is_worse: bool) -> None:
    """Only documents on which the two differ matter."""
    assert bool(worse([change(lost, won, documents)])) is is_worse


@given(lost=st.integers(0, 300), won=st.integers(0, 300), more=st.integers(1, 50))
def test_more_losses_are_never_less_bad(lost: int, won: int, more: int) -> None:
    if worse([change(lost, won)]):
        assert worse([change(lost + more, won)])


@given(lost=st.integers(0, 100), won=st.integers(0, 100))
def test_a_domain_that_gains_or_loses_little_is_not_worse(lost: int, won: int) -> None:
    if lost - won < LEAST_LOSS * 1000:
        assert worse([change(lost, won)]) == []


def test_many_domains_share_the_alarm() -> None:
    """What would be called worse alone is not among a hundred: one of them is that bad by chance."""
    bad, good = change(11, 0, 100), DomainChange("code", 0, 0, 100)
    assert worse([bad]) == [bad]
    assert worse([bad, *[good] * 99]) == []


def test_honest_routers_raise_no_alarm_more_often_than_it_says() -> None:
    """Where each document is as likely lost as won: in a hundred thousand rounds about a hundred, and not many more."""
    rng = np.random.default_rng(1)
    lost = rng.binomial(80, 0.5, 100_000)
    values, times = np.unique(lost, return_counts=True)
    alarms = sum(int(n) for value, n in zip(values, times, strict=True) if worse([change(int(value), 80 - int(value))]))
    assert alarms <= 100_000 * SIGNIFICANCE + 4 * (100_000 * SIGNIFICANCE) ** 0.5
