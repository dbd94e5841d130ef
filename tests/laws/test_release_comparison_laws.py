"""When a router is called worse than the last: seldom by chance, always when much is lost, never
for little.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from ridgeway.coordinator.solving.solve import (
    LEAST_LOSS,
    SIGNIFICANCE,
    DomainChange,
    worse,
)

counts = st.integers(0, 2000)


def is_worse(lost: int, won: int, documents: int, others: int = 0) -> bool:
    """Whether a domain is called worse, among others in which nothing has changed."""
    changed = DomainChange("law", lost, won, documents)
    still = [DomainChange(f"other-{number}", 0, 0, 100) for number in range(others)]
    return [*worse([changed, *still])] == [changed]


@given(differing=st.integers(0, 200), more=counts, others=st.integers(0, 30))
def test_routers_that_are_as_good_are_called_worse_no_more_often_than_said(
    differing: int, more: int, others: int
) -> None:
    """Exactly, over every way in which documents on which two equal routers differ can fall."""
    alarms = [
        is_worse(lost, differing - lost, differing + more, others)
        for lost in range(differing + 1)
    ]
    chance = float(np.dot(alarms, binom.pmf(np.arange(differing + 1), differing, 0.5)))
    assert chance <= SIGNIFICANCE / (others + 1)


@given(lost=counts, won=counts, more=counts)
def test_what_is_gained_on_balance_or_is_next_to_nothing_is_never_worse(
    lost: int, won: int, more: int
) -> None:
    """However many documents there are."""
    documents = lost + won + more
    if lost - won < LEAST_LOSS * documents or lost <= won:
        assert not is_worse(lost, won, documents)


@given(lost=st.integers(20, 2000), kept=counts, others=st.integers(0, 30))
def test_a_tenth_lost_and_nothing_won_is_worse(
    lost: int, kept: int, others: int
) -> None:
    """From twenty documents on, chance does not do that."""
    assert is_worse(lost, 0, lost + min(kept, 9 * lost), others)


@given(lost=counts, won=counts, more=counts, further=st.integers(0, 50))
def test_to_lose_more_is_not_better(
    lost: int, won: int, more: int, further: int
) -> None:
    """Of the same documents."""
    documents = lost + won + more + further
    assert is_worse(lost, won, documents) <= is_worse(lost + further, won, documents)
