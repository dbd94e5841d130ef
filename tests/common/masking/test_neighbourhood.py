"""How large neighbourhoods are: the table beside bounds that are computed anew, and who is drawn."""

from __future__ import annotations

import secrets
from fractions import Fraction
from math import comb, log2

import pytest
from scipy.stats import chisquare, hypergeom

from ridgeway.common.base.errors import Refused
from ridgeway.common.masking.neighbourhood import _TABLE, COMPLETE, MAX_GONE, Neighbourhood, draw, neighbourhood_for
from ridgeway.common.protocol.cohort import MAX_HOLDERS
from tests.support.neighbourhood_failure import PRIVACY_BITS, ROUND_BITS, log2_privacy_failure, log2_round_failure

SIZES = sorted(
    {COMPLETE + 1, *(size for most, _ in _TABLE for size in (most - 1, most, most + 1) if size <= MAX_HOLDERS)}
)


def sizes_for(members: int) -> Neighbourhood:
    found = neighbourhood_for(members)
    assert found is not None
    return found


@pytest.mark.parametrize("members", SIZES)
def test_neighbourhoods_fail_as_seldom_as_is_promised(members: int) -> None:
    """At both ends of every row: secrets once in 2⁴⁰ sessions with a third colluding, rounds once in 2³⁰."""
    sizes = sizes_for(members)
    assert log2_privacy_failure(members, sizes) <= -PRIVACY_BITS
    assert log2_round_failure(members, sizes, -(-members // MAX_GONE)) <= -ROUND_BITS


@pytest.mark.parametrize("members", [101, 150, 333, 500, 777, 1000])
def test_neighbourhoods_within_a_row_fail_as_seldom(members: int) -> None:
    """The ends of a row are not better than its middle by chance."""
    test_neighbourhoods_fail_as_seldom_as_is_promised(members)


@pytest.mark.parametrize("members", [200, 500, 1000])
def test_a_smaller_neighbourhood_would_not_do(members: int) -> None:
    """With a tenth fewer holders, no threshold keeps both promises: the table is not wasteful."""
    holders, gone = sizes_for(members).holders * 9 // 10, -(-members // MAX_GONE)
    largest = max(
        (Neighbourhood(holders, threshold) for threshold in range(1, holders)),
        key=lambda sizes: (log2_round_failure(members, sizes, gone) <= -ROUND_BITS, sizes.threshold),
    )
    assert log2_privacy_failure(members, largest) > -PRIVACY_BITS


def exact_tail(all_: int, marked: int, drawn: int, least: int) -> Fraction:
    ways = sum(comb(marked, n) * comb(all_ - marked, drawn - n) for n in range(least, min(marked, drawn) + 1))
    return Fraction(ways, comb(all_, drawn))


def exact_privacy_failure(members: int, holders: int, threshold: int) -> Fraction:
    """The same bound in whole numbers, written down from the statement alone."""
    colluding = max(count for count in range(members) if 3 * count < members)
    honest, quorum = members - colluding, next(n for n in range(members) if 3 * n > 2 * members)
    total = Fraction(0)
    for group in range(1, honest // 2 + 1):
        rest = max(quorum - colluding - group, group)
        inside = exact_tail(members - 1, colluding + group - 1, holders, threshold) ** group
        missed = Fraction(comb(members - 1 - group, holders), comb(members - 1, holders)) ** rest
        missed *= Fraction(comb(members - 1 - rest, holders), comb(members - 1, holders)) ** group
        total += comb(honest, group) * min(inside, comb(honest - group, rest) * missed)
    return total


@pytest.mark.parametrize("members", [101, 150, 250])
def test_the_bound_on_privacy_is_that_of_exact_arithmetic(members: int) -> None:
    """Logarithms lose nothing that matters."""
    sizes = sizes_for(members)
    exact = exact_privacy_failure(members, *sizes)
    logarithm = log2(exact.numerator) - log2(exact.denominator)
    assert log2_privacy_failure(members, sizes) == pytest.approx(logarithm, abs=1e-6)


@pytest.mark.parametrize("members", [150, 1000, 5000])
def test_the_bound_on_rounds_is_that_of_the_hypergeometric_distribution(members: int) -> None:
    """By scipy's."""
    sizes, gone = sizes_for(members), -(-members // MAX_GONE)
    tail = hypergeom(members - 1, gone, sizes.holders).sf(sizes.holders - sizes.threshold)
    expected = log2(tail) + log2(members) if tail else -1000.0
    assert log2_round_failure(members, sizes, gone) <= max(expected + 1e-3, -ROUND_BITS - 10)
    assert log2_round_failure(members, sizes, members // 4) == pytest.approx(
        log2(members)
        + hypergeom(members - 1, members // 4, sizes.holders).logsf(sizes.holders - sizes.threshold)
        / 0.6931471805599453,
        abs=1e-3,
    )


def test_small_cohorts_are_complete_and_too_large_ones_are_refused() -> None:
    """A hundred members still deal to everybody; beyond the table nothing is guessed."""
    assert neighbourhood_for(COMPLETE) is None
    assert neighbourhood_for(COMPLETE + 1) == _TABLE[0][1]
    assert _TABLE[-1][0] >= MAX_HOLDERS
    with pytest.raises(Refused, match="too many for a masked cohort") as refused:
        neighbourhood_for(_TABLE[-1][0] + 1)
    assert refused.value.code == "cohort_too_large"


def test_everybody_is_drawn_equally_often() -> None:
    """No place is likelier than another, and as many are drawn as are asked for."""
    others, times = range(2, 22), 3000
    counts = dict.fromkeys(others, 0)
    for _ in range(times):
        drawn = draw(others, 7, secrets.token_bytes)
        assert len(set(drawn)) == 7
        assert list(drawn) == sorted(drawn)
        for place in drawn:
            counts[place] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-6
