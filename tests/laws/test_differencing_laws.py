"""What opened sums give away together: whatever a combination of them leaves alone, or nearly alone, is found.

Held against exact arithmetic over the rationals (does a part of a few members lie in the span of the sums?) and against
linear programming (how much can one member weigh in any combination?).
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from sympy import QQ
from sympy.polys.matrices import DomainMatrix

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.masking.differencing import MAX_SUMS, Part, set_apart
from ridgeway.common.protocol.cohort import SamplingTerms, Terms, form_cohort, lopsided

Sum = dict[str, Part]
MEMBERS = "abcdefgh"
TERMS = Terms(
    mode="masked",
    encoder="0" * 64,
    encoder_name="any",
    features=7,
    sampling=SamplingTerms(window=1, max_tokens=0),
    weighting="equal",
    mass=EQUAL_MASS,
)
LARGEST_WEIGHT = 1 << 37
"""The largest share of a mass that a cohort can name."""


def plain(members: str, weight: int = 1) -> Sum:
    return {key: (f"data of {key}", weight) for key in members}


def parts(weights: st.SearchStrategy[int], sources: int = 2) -> st.SearchStrategy[Part]:
    return st.tuples(st.sampled_from([f"data {number}" for number in range(sources)]), weights)


def sums(weights: st.SearchStrategy[int], members: str = MEMBERS, least: int = 1) -> st.SearchStrategy[Sum]:
    return st.dictionaries(st.sampled_from(members), parts(weights), min_size=least)


SMALL = st.integers(1, 3)


# The oracles


def matrix_of(opened: list[Sum]) -> tuple[list[tuple[str, str]], list[list[int]]]:
    """One column for each member's data in each version, one row for each sum."""
    columns = sorted({(key, source) for each in opened for key, (source, _) in each.items()})
    rows = [[each[key][1] if each.get(key, ("", 0))[0] == source else 0 for key, source in columns] for each in opened]
    return columns, rows


def exactly_shown(opened: list[Sum], group: tuple[str, ...]) -> int:
    """How much of the group lies in the span of the sums, and nothing of anybody else with it.

    By how much dimensions do not add up: that much the span of the sums has in common with that of the group's parts.
    """
    columns, rows = matrix_of(opened)
    own = [[int(other == each) for other in columns] for each in columns if each[0] in group]
    return exact_rank(rows) + len(own) - exact_rank([*rows, *own])


def exact_rank(matrix: list[list[int]]) -> int:
    if not matrix or not matrix[0]:
        return 0
    rows = [[QQ(value) for value in row] for row in matrix]
    return int(DomainMatrix(rows, (len(rows), len(rows[0])), QQ).rank())


def dominance(opened: list[Sum], key: str) -> float:
    """How many times the weight of all others one member can have in a combination of the sums: a linear programme."""
    columns, rows = matrix_of(opened)
    weights = np.array(rows, dtype=float) / max(map(max, rows))
    own, others = (weights[:, [(each[0] == key) is mine for each in columns]] for mine in (True, False))
    largest = 0.0
    for signs in product((-1.0, 1.0), repeat=own.shape[1] - 1):  # that the parts of the member have
        pattern = np.array([1.0, *signs])
        sums, beside = len(rows), others.shape[1]
        found = linprog(
            np.r_[np.zeros(sums), np.ones(beside)],
            A_ub=np.block(
                [
                    [others.T, -np.eye(beside)],
                    [-others.T, -np.eye(beside)],
                    [-(own * pattern).T, np.zeros((own.shape[1], beside))],
                ]
            ),
            b_ub=np.zeros(2 * beside + own.shape[1]),
            A_eq=np.r_[own @ pattern, np.zeros(beside)][None],
            b_eq=[1.0],
            bounds=[(None, None)] * sums + [(0, None)] * beside,
        )
        if found.status == 0:
            largest = max(largest, 1 / max(float(found.fun or 0.0), 1e-12))
    return largest


def groups(opened: list[Sum], size: int) -> list[tuple[str, ...]]:
    return list(combinations(sorted({key for each in opened for key in each}), size))


@given(earlier=st.lists(sums(SMALL), max_size=6), new=sums(SMALL), least=st.integers(2, 4))
def test_no_group_that_exact_arithmetic_shows_is_missed(earlier: list[Sum], new: Sum, least: int) -> None:
    """Members that come and go, data that change, weights that change: any few sums, every group."""
    every = [*earlier, new]
    shown = [group for group in groups(every, least - 1) if exactly_shown(every, group) > exactly_shown(earlier, group)]
    if shown and new not in earlier:
        assert set_apart(earlier, new, least)


@given(earlier=st.lists(sums(st.just(1), "abcde", 2), max_size=6), new=sums(st.just(1), "abcde", 2))
def test_nobody_is_missed_where_combinations_abound(earlier: list[Sum], new: Sum) -> None:
    """Few members and many sums, so that most sums give somebody away."""
    every = [*earlier, new]
    fresh = [key for key in groups(every, 1) if exactly_shown(every, key) > exactly_shown(earlier, key)]
    if fresh and new not in earlier:
        assert set_apart(earlier, new, 2)


@settings(max_examples=60)
@given(asked=st.lists(sums(st.integers(1, 40), "abcdef", 3), max_size=6))
def test_nobody_makes_up_more_than_two_thirds_of_any_combination(asked: list[Sum]) -> None:
    """Held against linear programming: the most that one member can weigh, whatever the sums are multiplied by."""
    opened: list[Sum] = []
    for each in asked:
        if not set_apart(opened, each, 2):
            opened.append(each)
    for (key,) in groups(opened, 1):
        assert dominance(opened, key) <= 2 * 1.02 + 1e-6


def test_a_member_that_is_nearly_alone_in_a_combination_of_four_sums_is_noticed() -> None:
    """No two sums differ in fewer than two, and no combination leaves one alone; but one leaves nearly nobody else."""
    mass = 1 << 24
    opened = [plain("abcdefg"), plain("abcdepq"), plain("pqrs")]
    opened = [{key: (source, mass) for key, (source, _) in each.items()} for each in opened]
    slightly = {"f": ("data of f", mass), "r": ("data of r", mass - 9), "s": ("data of s", mass + 9)}
    assert not exactly_shown([*opened, slightly], ("g",))
    assert set_apart(opened, slightly, 2) == ("g",)


@given(data=st.data(), domains=st.integers(2, 4))
def test_the_first_sum_of_any_cohort_that_is_not_lopsided_may_be_opened(data: st.DataObject, domains: int) -> None:
    """Domains of one holder beside domains of many, weights as `admit` takes them."""
    names = {}
    weights = {}
    for domain in range(domains):
        for number in range(data.draw(st.integers(1, 6))):
            key = f"{100 * domain + number:064x}"
            names[key], weights[key] = f"domain-{domain}", data.draw(st.integers(1, 4))
    cohort = form_cohort(TERMS, names, weights)
    if len(cohort.members) >= 3 and not lopsided(cohort.members):
        assert set_apart([], {each.key: ("data", each.share) for each in cohort.members}, 2) == ()


def test_rounds_in_which_two_members_change_go_on_for_years() -> None:
    """Sixty totals of twelve holders in four domains, two of them changed each time."""
    current = {f"{number:02}": (f"data {number}", 1 << 22) for number in range(12)}
    opened: list[Sum] = []
    for time in range(60):
        assert set_apart(opened, current, 2) == ()
        opened.append(dict(current))
        for number in ((2 * time) % 12, (2 * time + 5) % 12):
            current[f"{number:02}"] = (f"data {number} of {time}", 1 << 22)


def test_more_than_can_be_judged_is_refused() -> None:
    """In bounded time: sums that were made up, and groups without number."""
    made_up = [plain("a") | {f"{number}": ("data", 1)} for number in range(MAX_SUMS)]
    with pytest.raises(Refused) as refused:
        set_apart(made_up, plain("abc"), 2)
    assert refused.value.code == "history_too_long"
    many = {f"{number:04}": ("data", 1 << 20 | number) for number in range(300)}
    with pytest.raises(Refused) as refused:
        set_apart([], many, 3)
    assert refused.value.code == "too_many_to_judge"
    assert set_apart([], many, 2) == ()


def test_a_thousand_members_are_judged_by_those_that_are_alike() -> None:
    """In any group, members in the same sums with the same weights stand for one another; two that left do not."""
    whole = {f"{number:04}": ("data", 1 << 22) for number in range(1000)}
    fewer = {key: part for key, part in whole.items() if key not in ("0007", "0008")}
    fewest = {key: part for key, part in fewer.items() if key not in ("0100", "0200", "0300")}
    assert set_apart([whole], fewest, 4) == ()
    assert set_apart([whole], fewer, 3) == ("0007", "0008")
    assert set_apart([whole, fewest], fewer, 3) == ("0007", "0008")
    assert set_apart([whole, fewest], fewer, 2) == ()


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


@given(staying=st.integers(6, 9), joining=st.integers(0, 4), leaving=st.integers(0, 4), least=st.integers(2, 5))
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
        assert "z" in set_apart([one], scaled | {"z": ("data", 1)}, least)


@given(opened=st.lists(sums(SMALL, least=1), max_size=5), new=sums(SMALL), least=st.integers(-1, 1))
def test_nothing_is_asked_where_one_member_may_be_told_apart(opened: list[Sum], new: Sum, least: int) -> None:
    """A holder that asks for fewer than two asks for nothing."""
    assert set_apart(opened, new, least) == ()


# More sums


def test_three_sums_that_leave_one_member_alone_are_noticed() -> None:
    """a+b, b+c and a+c, each beside others: any two differ in two members, and all three give twice each of them."""
    ab, bc, ac = plain("ab"), plain("bc"), plain("ac")
    assert set_apart([ab], bc, 2) == ()
    assert set_apart([ab, bc], ac, 2) == ("a",)


@given(rest=st.integers(1, 30), weight=st.integers(1, 9))
def test_three_sums_beside_a_common_rest_are_noticed(rest: int, weight: int) -> None:
    """However many stand beside them: the rest is one unknown more, and a fourth sum takes it away."""
    beside = {f"rest {number}": ("data", weight) for number in range(rest)}
    first, second, third = (beside | plain(pair) for pair in ("ab", "bc", "ac"))
    assert set_apart([first], second, 2) == ()
    assert set_apart([first, second], third, 2) == ()
    assert set_apart([first, second, third], beside, 2)


@given(length=st.integers(2, 12))
def test_a_long_chain_of_sums_is_noticed_at_its_end(length: int) -> None:
    """Pairs in a row, two members apart each: the last sum closes a ring of odd length, and everybody lies open."""
    size = 2 * length - 1
    pairs = [{f"{place:02}": ("data", 1), f"{(place + 1) % size:02}": ("data", 1)} for place in range(size)]
    for count in range(1, size - 1):
        assert set_apart(pairs[:count], pairs[count], 2) == ()
    assert set_apart(pairs[:-1], pairs[-1], 2)


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


def test_sums_too_alike_to_be_judged_in_floats_are_not_opened() -> None:
    """Weights that differ in their last bits seem to be the same, and still leave one member alone, exactly."""
    even = plain("abcde", LARGEST_WEIGHT)
    first, second = (
        even | plain("a", LARGEST_WEIGHT - less) | plain("b", LARGEST_WEIGHT - more) for less, more in ((1, 1), (2, 4))
    )
    assert exactly_shown([even, first, second], ("a",)) == 1
    assert set_apart([even, first], second, 2) == tuple("abcde")
