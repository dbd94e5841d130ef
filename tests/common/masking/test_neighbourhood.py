"""How large neighbourhoods are: the table beside bounds that are computed anew, and who is
drawn.
"""

from __future__ import annotations

import secrets

import pytest
from scipy.stats import chisquare

from ridgeway.common.masking.shares import (
    _TABLE,
    COMPLETE,
    MAX_GONE,
    Neighbourhood,
    draw,
    neighbourhood_for,
)
from ridgeway.common.protocol.cohort import MAX_HOLDERS
from tests.support.making import refusing
from tests.support.neighbourhood_failure import (
    PRIVACY_BITS,
    ROUND_BITS,
    log2_privacy_failure,
    log2_round_failure,
)

SIZES = sorted(
    {
        COMPLETE + 1,
        150,
        333,
        777,
        *(
            size
            for most, _ in _TABLE
            for size in (most - 1, most, most + 1)
            if size <= MAX_HOLDERS
        ),
    }
)


def sizes_for(members: int) -> Neighbourhood:
    sizes = neighbourhood_for(members)
    assert sizes is not None
    return sizes


@pytest.mark.parametrize("members", SIZES)
def test_neighbourhoods_fail_as_seldom_as_is_promised(members: int) -> None:
    """At the ends of rows and within: secrets once in 2⁴⁰ sessions with a third colluding, rounds
    once in 2³⁰.
    """
    sizes = sizes_for(members)
    assert log2_privacy_failure(members, sizes) <= -PRIVACY_BITS
    assert log2_round_failure(members, sizes, -(-members // MAX_GONE)) <= -ROUND_BITS


def test_small_cohorts_are_complete_and_too_large_ones_are_refused() -> None:
    """A hundred members still deal to everybody; beyond the table nothing is guessed."""
    assert neighbourhood_for(COMPLETE) is None
    assert neighbourhood_for(COMPLETE + 1) == _TABLE[0][1]
    assert _TABLE[-1][0] >= MAX_HOLDERS
    with refusing("cohort_too_large"):
        neighbourhood_for(_TABLE[-1][0] + 1)


def test_everybody_is_drawn_equally_often() -> None:
    """No member is likelier than another, and as many are drawn as are asked for."""
    others, times = range(2, 22), 3000
    counts = dict.fromkeys(others, 0)
    for _ in range(times):
        drawn = draw(others, 7, secrets.token_bytes)
        assert len(set(drawn)) == 7
        assert list(drawn) == sorted(drawn)
        for member in drawn:
            counts[member] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-6
