"""The algebra of statistics: exact sums that add, subtract, weigh, travel and are checked."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeway.common.base.errors import BoundExceeded, BrokenIdentity, ShapeMismatch
from ridgeway.common.base.settings import EQUAL_MASS, FEATURE_LIMIT
from ridgeway.common.statistics import (
    Integers,
    Statistics,
    check_bound,
    single_domain,
    triangle_size,
    unpacked,
)
from tests.support.making import (
    drawn_samples,
    one_domain,
    random_samples,
    statistics_of,
)

FEATURES = 4
DOMAINS = 3
MOST = (1 << 38) - 1
"""The largest mass that one domain may have: the next one times 2²⁴ is 2⁶²."""


@st.composite
def corpora(draw: st.DrawFn) -> tuple[Integers, list[int]]:
    """Samples of several domains, with the domain of each."""
    samples = draw(drawn_samples(FEATURES))
    labels = draw(
        st.lists(
            st.integers(0, DOMAINS - 1), min_size=len(samples), max_size=len(samples)
        )
    )
    return samples, labels


@st.composite
def statistics(draw: st.DrawFn) -> Statistics:
    return statistics_of(*draw(corpora()), DOMAINS)


@st.composite
def raw_sums(draw: st.DrawFn, most: int = MOST) -> Statistics:
    """Sums of one domain as large as their mass allows, of both signs."""
    mass = draw(st.integers(1, most))
    square, product, total = (
        draw(st.integers(-limit, limit))
        for limit in (mass << 24, mass << 24, mass << 12)
    )
    other = draw(st.integers(0, mass << 24))
    return single_domain(
        np.array(
            [
                [abs(square), product, total],
                [product, other, -total],
                [total, -total, mass],
            ]
        )
    )


def same(one: Statistics, other: Statistics) -> bool:
    """Equal numbers in equal bytes."""
    return one.equals(other) and one.gram.tobytes() == other.gram.tobytes()


def rounded_half_up(number: int, mass: int, total: int) -> int:
    return math.floor(Fraction(number * mass, total) + Fraction(1, 2))


def weighted_entries(sums: Integers, mass: int, total: int) -> list[list[int]]:
    return [
        [rounded_half_up(number, mass, total) for number in row]
        for row in sums.tolist()
    ]


# Adding and subtracting


@given(one=corpora(), other=corpora())
def test_statistics_of_two_corpora_added_are_those_of_their_union(
    one: tuple[Integers, list[int]], other: tuple[Integers, list[int]]
) -> None:
    """The federated total is the pooled total, bit for bit."""
    union = statistics_of(
        np.concatenate([one[0], other[0]]), one[1] + other[1], DOMAINS
    )
    assert same(statistics_of(*one, DOMAINS) + statistics_of(*other, DOMAINS), union)


@given(corpus=corpora(), data=st.data())
def test_a_part_taken_from_the_total_leaves_the_rest(
    corpus: tuple[Integers, list[int]], data: st.DataObject
) -> None:
    """Removal is exact: what is left is what would have been summed without the part."""
    samples, labels = corpus
    cut = data.draw(st.integers(0, len(samples)))
    part, rest = (
        statistics_of(samples[s], labels[s], DOMAINS)
        for s in (slice(cut), slice(cut, None))
    )
    assert same(statistics_of(samples, labels, DOMAINS) - part, rest)


def test_adding_leaves_its_terms_as_they_were() -> None:
    """A total is new memory: adding to it later cannot change a holder's own sums; printed, these
    are not shown.
    """
    one, other = (one_domain(random_samples(seed, 5, FEATURES)) for seed in (1, 2))
    before = one.gram.copy()
    total = one + other
    total.gram[:] = 0
    assert np.array_equal(one.gram, before)
    assert repr(one) == "<Statistics features=4 domains=1>"


@pytest.mark.parametrize(("features", "domains"), [(FEATURES + 1, 1), (FEATURES, 2)])
def test_statistics_of_other_shapes_do_not_add(features: int, domains: int) -> None:
    """Sums over other features or other domains are refused, both ways."""
    one = one_domain(random_samples(1, 5, FEATURES))
    other = statistics_of(random_samples(2, 5, features), [0] * 5, domains)
    with pytest.raises(ShapeMismatch, match=re.escape(str(other.shape))):
        one + other
    with pytest.raises(ShapeMismatch, match=re.escape(str(other.shape))):
        one - other


@pytest.mark.parametrize(
    ("gram", "cross", "kinds"),
    [
        ((2, 3), (2, 1), "qq"),
        ((2, 2), (3, 1), "qq"),
        ((2, 2), (2, 0), "qq"),
        ((2, 2), (2,), "qq"),
        ((4,), (2, 1), "qq"),
        ((1, 1), (1, 1), "qq"),
        ((2, 2), (2, 1), "dq"),
        ((2, 2), (2, 1), "qi"),
    ],
)
def test_sums_that_do_not_belong_together_are_no_statistics(
    gram: tuple[int, ...], cross: tuple[int, ...], kinds: str
) -> None:
    """Shapes and 64-bit integers (`q`) are settled when statistics are made, not when they are
    used.
    """
    with pytest.raises(ShapeMismatch):
        Statistics(np.ones(gram, kinds[0]), np.ones(cross, kinds[1]))


# Travelling


@given(one=statistics())
def test_unpacking_undoes_packing(one: Statistics) -> None:
    """What travels is one triangle and cross, and nothing is lost."""
    triangle, cross = one.packed()
    assert triangle.size == triangle_size(FEATURES) == FEATURES * (FEATURES + 1) // 2
    assert same(unpacked(triangle, cross), one)
    assert triangle.tolist() == [
        one.gram[i, j] for i in range(FEATURES) for j in range(i, FEATURES)
    ]


@pytest.mark.parametrize(
    "size", [0, triangle_size(FEATURES) - 1, triangle_size(FEATURES) + 1, FEATURES**2]
)
def test_a_triangle_of_another_size_is_refused(size: int) -> None:
    """A triangle that does not fit its cross is not stretched or cut."""
    with pytest.raises(ShapeMismatch, match=f"{size} numbers"):
        unpacked(np.ones(size, dtype=np.int64), np.ones((FEATURES, 1), dtype=np.int64))


@given(samples=drawn_samples(FEATURES), domains=st.integers(1, 5), data=st.data())
def test_a_placed_domain_fills_its_column_alone(
    samples: Integers, domains: int, data: st.DataObject
) -> None:
    """A domain's statistics among several are those of samples that all carry its label."""
    column = data.draw(st.integers(0, domains - 1))
    assert same(
        one_domain(samples).placed(column, domains),
        statistics_of(samples, [column] * len(samples), domains),
    )


@pytest.mark.parametrize(("column", "domains"), [(-1, 3), (3, 3), (0, 0)])
def test_a_place_outside_the_cohort_is_refused(column: int, domains: int) -> None:
    """A column is never put where no domain stands."""
    with pytest.raises(ShapeMismatch):
        one_domain(random_samples(1, 5, FEATURES)).placed(column, domains)


# Weighting


@given(raw=raw_sums(), mass=st.integers(1, EQUAL_MASS))
@example(raw=single_domain(np.array([[3, -1], [-1, 2]])), mass=1)
@example(raw=single_domain(np.array([[5, -3], [-3, 2]])), mass=3)
def test_weighting_is_the_exact_quotient_rounded_half_up(
    raw: Statistics, mass: int
) -> None:
    """Every entry is ⌊A·M/N + ½⌋, negative ones too, however large the corpus."""
    weighted = raw.weighted(mass)
    assert weighted.gram.tolist() == weighted_entries(raw.gram, mass, raw.mass)
    assert weighted.cross.tolist() == weighted_entries(raw.cross, mass, raw.mass)
    assert weighted.mass == mass


@given(raw=raw_sums(), mass=st.integers(1, MOST))
@example(
    raw=single_domain(np.array([[5 << 36, 1 << 35], [1 << 35, (1 << 37) + 1]])),
    mass=(1 << 37) - 3,
)
def test_weighting_to_a_large_mass_is_exact_or_refused(
    raw: Statistics, mass: int
) -> None:
    """No product wraps around on the way; only where N·M reaches 2⁶² may a target within the bound
    be refused.
    """
    try:
        weighted = raw.weighted(mass)
    except BoundExceeded:
        assert raw.mass * mass >= 1 << 62
    else:
        assert weighted.gram.tolist() == weighted_entries(raw.gram, mass, raw.mass)


@given(
    parts=st.lists(raw_sums(), min_size=1, max_size=4), mass=st.integers(1, EQUAL_MASS)
)
def test_columns_add_up_to_the_constant_feature_after_weighting_and_adding(
    parts: list[Statistics], mass: int
) -> None:
    """gram[:, -1] == cross.sum(axis=1) is true of every total, whatever was rounded on the way."""
    placed = [
        part.weighted(mass).placed(column, len(parts))
        for column, part in enumerate(parts)
    ]
    total = sum(placed[1:], start=placed[0])
    assert np.array_equal(total.gram[:, -1], total.cross.sum(axis=1))
    assert total.mass == mass * len(parts)
    assert total.cross[-1].tolist() == [mass] * len(parts)


def test_statistics_without_samples_cannot_be_weighted() -> None:
    """An empty corpus is an error, not a division by zero."""
    empty = single_domain(np.zeros((3, 3), dtype=np.int64))
    with pytest.raises(BrokenIdentity, match="without samples"):
        empty.weighted(EQUAL_MASS)


# The bound


def test_the_bound_is_refused_at_and_accepted_below() -> None:
    """mass · 2²⁴ stays below 2⁶²: the refusal of the next mass names the last one that is taken."""
    check_bound(MOST)
    with pytest.raises(BoundExceeded, match="could overflow") as refusal:
        check_bound(MOST + 1)
    assert re.findall(r"at most ([\d_]+) are", str(refusal.value)) == [f"{MOST:_}"]


def heavy(mass: int, domains: int = 1) -> Statistics:
    """The statistics of `mass` equal samples, all of the first domain."""
    return single_domain(np.array([[mass, mass], [mass, mass]])).placed(0, domains)


@pytest.mark.parametrize("domains", [1, 2, 3])
def test_addition_refuses_what_could_overflow(domains: int) -> None:
    """The bound is looked at before anything is summed."""
    assert (heavy(MOST - 1, domains) + heavy(1, domains)).mass == MOST
    with pytest.raises(BoundExceeded):
        heavy(MOST, domains) + heavy(1, domains)


def test_weighting_and_checking_refuse_what_could_overflow() -> None:
    """Neither the corpus nor the mass asked for may reach the bound."""
    assert heavy(1).weighted(MOST).mass == MOST
    assert heavy(MOST).weighted(1).mass == 1
    heavy(MOST).check()
    for refused in (
        lambda: heavy(1).weighted(MOST + 1),
        lambda: heavy(MOST + 1).weighted(1),
        heavy(MOST + 1).check,
    ):
        with pytest.raises(BoundExceeded):
            refused()


# Checking


@given(corpus=corpora(), times=st.integers(1, 1 << 33))
def test_sums_of_any_text_pass(corpus: tuple[Integers, list[int]], times: int) -> None:
    """No true statistics are refused: few samples, equal samples, empty features and huge corpora
    included.
    """
    one = statistics_of(*corpus, DOMAINS)
    one.check()
    Statistics(one.gram * times, one.cross * times).check()


@given(
    corpora=st.lists(
        st.tuples(drawn_samples(FEATURES), st.integers(1, 1 << 31)),
        min_size=1,
        max_size=5,
    ),
    mass=st.sampled_from([1, 2, 7, 1000, EQUAL_MASS]),
)
def test_weighted_totals_of_any_text_pass(
    corpora: list[tuple[Integers, int]], mass: int
) -> None:
    """Rounding is never mistaken for damage, even where it is all there is to see."""
    total: Statistics | None = None
    for column, (samples, times) in enumerate(corpora):
        once = one_domain(samples)
        weighted = Statistics(once.gram * times, once.cross * times).weighted(mass)
        weighted.check(rounded=1)
        placed = weighted.placed(column, len(corpora))
        total = placed if total is None else total + placed
    assert total is not None
    total.check(rounded=len(corpora))


@pytest.mark.parametrize("count", [1, 20, 400])
def test_sums_over_many_features_pass(count: int) -> None:
    """With more features than samples gram is singular, and still a sum of squares."""
    one = one_domain(random_samples(3, count, 150))
    one.check()
    one.weighted(EQUAL_MASS).check(rounded=1)


def _broken(
    change: list[tuple[int, int, int]], cross: list[tuple[int, int, int]] | None = None
) -> Statistics:
    """True statistics of 50 samples over two domains, with some entries set."""
    samples = random_samples(5, 50, FEATURES)
    samples[:, :-1] //= 8
    one = statistics_of(samples, [0] * 20 + [1] * 30, 2)
    for row, column, value in change:
        one.gram[row, column] = value
    for row, column, value in cross or []:
        one.cross[row, column] = value
    return one


SQUARES = _broken([]).gram.diagonal().tolist()
ALIKE = math.isqrt(SQUARES[0] * SQUARES[1]) + 5
FAR = 50 * FEATURE_LIMIT + 1

BROKEN = {
    "not symmetric": _broken([(0, 1, 12345)]),
    "gram has a negative diagonal": _broken([(0, 0, -1)]),
    "do not add up": _broken([], [(0, 0, 7)]),
    "sample mass is -50": _broken([(3, 3, -50)], [(3, 0, -20), (3, 1, -30)]),
    "sample mass is 0": _broken([(3, 3, 0)], [(3, 0, 0), (3, 1, 0)]),
    "a sum is larger than its samples": _broken(
        [(0, 3, FAR), (3, 0, FAR)],
        [(0, 0, 20 * FEATURE_LIMIT), (0, 1, FAR - 20 * FEATURE_LIMIT)],
    ),
    "larger than its samples allow": _broken([], [(3, 0, -10), (3, 1, 60)]),
    "breaks the Cauchy-Schwarz inequality": _broken([(0, 1, ALIKE), (1, 0, ALIKE)]),
    "the Cauchy-Schwarz inequality": _broken([(0, 1, -ALIKE), (1, 0, -ALIKE)]),
    "not positive semi-definite": _broken(
        [
            (i, j, -round(0.9 * math.sqrt(SQUARES[i] * SQUARES[j])))
            for i in range(3)
            for j in range(3)
            if i != j
        ]
    ),
}


def test_the_statistics_that_are_broken_below_were_sound() -> None:
    """Each refusal below is due to what was broken, not to what it was made from."""
    _broken([]).check()


@pytest.mark.parametrize("reason", BROKEN)
@pytest.mark.parametrize("rounded", [0, 2])
def test_sums_that_no_text_can_have_are_refused(reason: str, rounded: int) -> None:
    """Each broken identity is seen and named, in clear statistics and in weighted totals."""
    with pytest.raises(BrokenIdentity, match=reason):
        BROKEN[reason].check(rounded)


@pytest.mark.parametrize("rounded", [0, 1, 2, 9])
def test_rounding_explains_half_a_unit_for_each_statistics_and_no_more(
    rounded: int,
) -> None:
    """The slack for a weighted total is as small as its law: |A_ij| − n/2 ≤ √((A_ii + n/2)(A_jj +
    n/2)).
    """
    limit = math.floor(
        rounded / 2 + math.sqrt(4 + rounded / 2) * math.sqrt(9 + rounded / 2)
    )
    for excess in (0, 1):
        product = limit + excess
        one = single_domain(np.array([[4, product, 0], [product, 9, 0], [0, 0, 1000]]))
        if excess:
            with pytest.raises(
                BrokenIdentity, match="breaks the Cauchy-Schwarz inequality"
            ):
                one.check(rounded)
        else:
            one.check(rounded)


WRAPPED = {
    **{
        f"a square {excess} beyond the feature limit": _broken(
            [(0, 0, (50 << 24) + excess)]
        )
        for excess in (1, 1 << 20, 1 << 62)
    },
    "columns that add up modulo 2⁶⁴": Statistics(
        np.array([[0, 0], [0, 1]]),
        np.array([[0, 0, 0, 0], [1 << 62, 1 << 62, 1 << 62, (1 << 62) + 1]]),
    ),
    "−2⁶³, which has no absolute value in 64 bits": single_domain(
        np.array([[1 << 62, -(1 << 63), 0], [-(1 << 63), 1 << 62, 0], [0, 0, 1]])
    ),
}


@pytest.mark.parametrize("what", WRAPPED)
def test_sums_that_wrap_around_or_would_do_so_are_refused(what: str) -> None:
    """No sum of n squares exceeds n · 2²⁴: larger ones would wrap around when they are added to
    others. A mask that did not cancel can look like this.
    """
    with pytest.raises(BrokenIdentity):
        WRAPPED[what].check()
