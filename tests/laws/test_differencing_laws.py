"""What opened sums give away together: found exactly where a combination of them leaves one member alone.

Held against exact arithmetic over the rationals: whether a part of one member alone lies in the span of the sums.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import QQ
from sympy.polys.matrices import DomainMatrix

from ridgeway.common.masking.differencing import Part, set_apart

Sum = dict[str, Part]
MEMBERS = "abcdefgh"
LARGEST_WEIGHT = 1 << 37
"""The largest share of a mass that a cohort can name."""


def plain(members: str, weight: int = 1) -> Sum:
    return {key: (f"data of {key}", weight) for key in members}


def parts(weights: st.SearchStrategy[int], sources: int = 2) -> st.SearchStrategy[Part]:
    return st.tuples(st.sampled_from([f"data {number}" for number in range(sources)]), weights)


def sums(weights: st.SearchStrategy[int], members: str = MEMBERS, least: int = 1) -> st.SearchStrategy[Sum]:
    return st.dictionaries(st.sampled_from(members), parts(weights), min_size=least)


SMALL = st.integers(1, 3)


# The oracle


def exact_alone(opened: list[Sum]) -> set[str]:
    """The members of whom something lies in the span of the sums, and nothing of anybody else with it."""
    columns = sorted({(key, source) for each in opened for key, (source, _) in each.items()})
    matrix = [
        [each[key][1] if each.get(key, ("", 0))[0] == source else 0 for key, source in columns] for each in opened
    ]
    rank = exact_rank(matrix)
    return {key for key in {key for key, _ in columns} if met(matrix, units(columns, key), rank)}


def units(columns: list[tuple[str, str]], key: str) -> list[list[int]]:
    """One row for each of a member's columns."""
    return [[int(other == own) for other in columns] for own in columns if own[0] == key]


def met(matrix: list[list[int]], own: list[list[int]], rank: int) -> bool:
    """Whether the span of the sums meets the span of one member's own parts: dimensions do not add up."""
    return exact_rank([*matrix, *own]) < rank + len(own)


def exact_rank(matrix: list[list[int]]) -> int:
    if not matrix or not matrix[0]:
        return 0
    rows = [[QQ(value) for value in row] for row in matrix]
    return int(DomainMatrix(rows, (len(rows), len(rows[0])), QQ).rank())


def expected(earlier: list[Sum], new: Sum, least: int) -> tuple[str, ...]:
    """The rule, in other words than the code's."""
    if least < 2 or new in earlier:
        return ()
    for each in earlier:
        differing = sorted(key for key in MEMBERS if each.get(key) != new.get(key))
        if len(differing) < least:
            return tuple(differing)
    return tuple(sorted(exact_alone([*earlier, new]) - exact_alone(earlier)))


@given(earlier=st.lists(sums(SMALL), max_size=6), new=sums(SMALL), least=st.integers(0, 4))
def test_the_answer_is_that_of_exact_arithmetic(earlier: list[Sum], new: Sum, least: int) -> None:
    """Members that come and go, data that change, weights that change: any few sums."""
    assert set_apart(earlier, new, least) == expected(earlier, new, least)


@given(earlier=st.lists(sums(st.just(1), "abcde", 2), max_size=6), new=sums(st.just(1), "abcde", 2))
def test_the_answer_is_that_of_exact_arithmetic_where_combinations_abound(earlier: list[Sum], new: Sum) -> None:
    """Few members and many sums, so that most sums give somebody away."""
    assert set_apart(earlier, new, 2) == expected(earlier, new, 2)


# Two sums


@given(opened=st.lists(sums(SMALL, least=3), min_size=1, max_size=5), least=st.integers(0, 6), data=st.data())
def test_a_sum_opened_twice_sets_nobody_apart(opened: list[Sum], least: int, data: st.DataObject) -> None:
    """The second time nothing new is learnt."""
    assert set_apart(opened, dict(data.draw(st.sampled_from(opened))), least) == ()


def joined(one: Sum) -> Sum:
    return one | {"z": ("data of z", 1)}


def left(one: Sum) -> Sum:
    return {key: part for key, part in one.items() if key != "a"}


def changed_data(one: Sum) -> Sum:
    return one | {"a": ("other data", one["a"][1])}


def changed_weight(one: Sum) -> Sum:
    return one | {"a": (one["a"][0], one["a"][1] + 1)}


@pytest.mark.parametrize(("change", "who"), [(joined, "z"), (left, "a"), (changed_data, "a"), (changed_weight, "a")])
@given(others=sums(SMALL, "bcdefgh", 2), own=parts(SMALL), least=st.integers(2, 6))
def test_two_sums_that_differ_in_one_member_set_it_apart(
    change: object, who: str, others: Sum, own: Part, least: int
) -> None:
    """Whoever joins, leaves, or comes with other data or another weight, alone; in either order."""
    assert callable(change)
    before = {**others, "a": own}
    after = change(before)
    assert set_apart([before], after, least) == (who,)
    assert set_apart([after], before, least) == (who,)


@given(staying=st.integers(2, 8), joining=st.integers(0, 6), leaving=st.integers(0, 6), least=st.integers(2, 6))
def test_two_sums_may_differ_in_as_many_as_are_asked_for(staying: int, joining: int, leaving: int, least: int) -> None:
    """Those who join and those who leave count together; fewer than that are named."""
    before = plain("".join(chr(97 + number) for number in range(staying + leaving)))
    after = {key: part for number, (key, part) in enumerate(before.items()) if number < staying}
    after |= {f"new {number}": ("new data", 1) for number in range(joining)}
    found = set_apart([before], after, least)
    differing = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert set(found) == (differing if 0 < len(differing) < least else set())


@given(one=sums(SMALL, least=2), factor=st.integers(2, 9), least=st.integers(2, 6))
def test_the_same_sum_under_a_common_factor_gives_nothing_away(one: Sum, factor: int, least: int) -> None:
    """If as many members take part as must differ; a newcomer beside them is seen through the factor."""
    scaled = {key: (source, weight * factor) for key, (source, weight) in one.items()}
    assert set_apart([one], scaled, least) == (() if len(one) >= least else tuple(sorted(one)))
    if len(one) + 1 >= least:
        assert set_apart([one], scaled | {"z": ("data", 1)}, least) == ("z",)


@given(opened=st.lists(sums(SMALL, least=1), max_size=5), new=sums(SMALL), least=st.integers(-1, 1))
def test_nothing_is_asked_where_one_member_may_be_told_apart(opened: list[Sum], new: Sum, least: int) -> None:
    """A holder that asks for fewer than two asks for nothing."""
    assert set_apart(opened, new, least) == ()


# More sums


def test_three_sums_that_leave_one_member_alone_are_noticed() -> None:
    """a+b, b+c and a+c, each beside others: any two differ in two members, and all three give twice each of them."""
    ab, bc, ac = plain("ab"), plain("bc"), plain("ac")
    assert set_apart([ab], bc, 2) == ()
    assert set_apart([ab, bc], ac, 2) == ("a", "b", "c")


@given(rest=st.integers(1, 30), weight=st.integers(1, 9))
def test_three_sums_beside_a_common_rest_are_noticed(rest: int, weight: int) -> None:
    """However many stand beside them: the rest is one unknown more, and a fourth sum takes it away."""
    beside = {f"rest {number}": ("data", weight) for number in range(rest)}
    first, second, third = (beside | plain(pair) for pair in ("ab", "bc", "ac"))
    assert set_apart([first], second, 2) == ()
    assert set_apart([first, second], third, 2) == ()
    found = set_apart([first, second, third], beside, 2)
    assert {"a", "b", "c"} <= set(found)


@given(length=st.integers(2, 12))
def test_a_long_chain_of_sums_is_noticed_at_its_end(length: int) -> None:
    """Pairs in a row, two members apart each: the last sum closes a ring of odd length, and everybody lies open."""
    size = 2 * length - 1
    pairs = [{f"{place:02}": ("data", 1), f"{(place + 1) % size:02}": ("data", 1)} for place in range(size)]
    for count in range(1, size - 1):
        assert set_apart(pairs[:count], pairs[count], 2) == ()
    assert len(set_apart(pairs[:-1], pairs[-1], 2)) == size


@given(length=st.integers(2, 8))
def test_a_ring_of_even_length_gives_nobody_away(length: int) -> None:
    """The last sum is a combination of the others."""
    size = 2 * length
    pairs = [{f"{place:02}": ("data", 1), f"{(place + 1) % size:02}": ("data", 1)} for place in range(size)]
    assert set_apart(pairs[:-1], pairs[-1], 2) == ()


@given(opened=st.lists(sums(SMALL, least=2), min_size=1, max_size=5), new=sums(SMALL, least=2), data=st.data())
def test_neither_order_nor_repetition_of_the_earlier_sums_matters(
    opened: list[Sum], new: Sum, data: st.DataObject
) -> None:
    """For combinations; where two sums alone are too near, it may be another pair that is named."""
    found = set_apart(opened, new, 2)
    turned = data.draw(st.permutations([*opened, *opened]))
    assert bool(set_apart(turned, new, 2)) == bool(found)


@pytest.mark.parametrize("weight", [1, 1_000, 10**6, 10**8])
def test_a_light_member_beside_heavy_ones_is_noticed(weight: int) -> None:
    """Weights are the coordinator's to choose: however little of a member is added, the rest can cancel."""
    heavy = [plain(pair, weight) for pair in ("bd", "ce", "de")]
    assert set_apart(heavy, plain("bc", weight) | plain("a"), 2) == ("a",)


@pytest.mark.parametrize("weight", [10**9, 10**10, LARGEST_WEIGHT])
def test_the_lightest_member_beside_the_heaviest_is_noticed(weight: int) -> None:
    """Up to the largest weight that a cohort can name."""
    heavy = [plain(pair, weight) for pair in ("bd", "ce", "de")]
    assert set_apart(heavy, plain("bc", weight) | plain("a"), 2) == ("a",)
