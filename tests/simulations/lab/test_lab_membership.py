"""Domains that join and leave: exact to the byte, whatever the order, and noticed where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.flower  # noqa: F401  (Flower, without the warnings of what it imports)
from common.router import Confidence
from common.settings import DEFAULT
from common.statistics import Statistics
from coordinator.publish import Choices
from simulations.lab import membership, ready
from simulations.lab.changes import Later, Order, Step
from simulations.lab.findings import Part, Table, part_from_json
from simulations.lab.membership import Found, described, run
from simulations.lab.ready import Ready
from simulations.lab.rounds import own_sums, settled
from tests.lab_settings import LETTERS, tiny_plan, tiny_setting
from tests.village import hurry

CHOICES = Choices(DEFAULT.weighting, DEFAULT.ridge, False, DEFAULT.selector, Confidence())
PRESENT = (2, 3, 4, 3, 2)
"""How many of four domains there are after each change."""


@pytest.fixture(scope="module", autouse=True)
def _haste() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("membership")


@pytest.fixture(scope="module")
def part(place: Path) -> Part:
    return run(tiny_plan(place))


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """Sums of four domains that lie ready."""
    folder = tmp_path_factory.mktemp("ready")
    village = settled(tiny_plan(folder), tiny_setting(), folder / "village", "clear")
    return Ready(village.federation, {name: own_sums(village, name) for name in village.nodes}, folder / "releases")


def table(part: Part, key: str) -> Table:
    return next(each for each in part.tables if each.key == key)


def lasting(part: Part) -> list[object]:
    """What is found, without how long it took."""
    return [
        [cell for cell, column in zip(row, each.columns, strict=True) if column.unit != "s"]
        for each in part.tables
        for row in each.rows
    ]


# Exactness


@settings(max_examples=15)
@given(changes=st.lists(st.sets(st.sampled_from(sorted(LETTERS)), min_size=2), min_size=1, max_size=4))
def test_after_any_changes_the_total_is_that_of_those_present(sums: Ready, changes: list[set[str]]) -> None:
    """Whoever came and went on the way, the running total and its router are those made anew, byte for byte."""
    for present in changes:
        running = sums.change_to(present, CHOICES)
    assert running.equals(sums.anew(sorted(present), CHOICES))


@settings(max_examples=10)
@given(order=st.permutations(sorted(LETTERS)))
def test_the_order_of_joining_does_not_change_a_byte(sums: Ready, order: list[str]) -> None:
    """Added up in any order, and handed over in any order, the sums give one router."""
    made = sums.in_order(order, CHOICES)
    assert made.equals(sums.anew(order, CHOICES))
    assert made.equals(sums.anew(sorted(order), CHOICES))


def test_a_unit_too_many_is_noticed(sums: Ready) -> None:
    """One of the numbers off by one: another total, though the router may be hard to tell apart."""
    made = sums.in_order(sorted(LETTERS), CHOICES)
    gram = made.statistics.gram.copy()
    gram[0, 0] += 1
    assert not made.equals(replace(made, statistics=Statistics(gram, made.statistics.cross)))
    assert not made.equals(replace(made, router=made.router[:-1] + b"x"))


# The part


def test_every_change_through_production_is_exact(part: Part) -> None:
    """Rounds, `remove`, the running total and what is made anew agree after every change."""
    changes = table(part, "membership-tiny")
    assert changes.column("present") == PRESENT
    assert changes.column("change") == ("start", "join", "join", "leave", "leave")
    assert set(changes.column("equal to one built anew")) == {"yes"}
    assert set(table(part, "membership-orders-tiny").column("equal to the joins above")) == {"yes"}
    assert "After 5 of 5 changes" in "\n".join(part.words)


def test_equal_bytes_mean_equal_domains(part: Part) -> None:
    """Totals and routers of other domains have other hashes, and all orders have those of the last join."""
    changes, orders = table(part, "membership-tiny"), table(part, "membership-orders-tiny")
    for name in ("SHA-256 of the total", "SHA-256 of the router"):
        assert len(set(changes.column(name))) == len(PRESENT)
        assert set(orders.column(name)) == {changes.column(name)[2]}


def test_whoever_was_retired_comes_back_as_if_never_gone(part: Part) -> None:
    """A round without them is exact, and one with all of them again gives the router of the last join."""
    later = table(part, "membership-later-tiny")
    assert later.column("present") == (2, 4)
    assert later.column("equal to one built anew") == ("yes", "yes")
    assert later.column("equal to the router of the last join") == ("no", "yes")


def test_retiring_is_shown_beside_removing(part: Part) -> None:
    """Two series over the changes; that of retiring begins where everybody is there."""
    leaving = table(part, "membership-leaving-tiny")
    assert leaving.column("present") == (3, 2)
    removed, retired = part.plots[0].series
    assert None not in removed.y
    assert retired.y[:2] == (None, None)
    assert retired.y[2] == removed.y[2]
    assert retired.y[3:] == leaving.column("after retire")


def test_another_run_finds_the_same(part: Part, tmp_path: Path) -> None:
    """Times apart: other folders and other keys change nothing."""
    assert lasting(run(tiny_plan(tmp_path))) == lasting(part)


def test_what_lies_on_the_shelf_is_not_done_again(part: Part, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is settled a second time, and what comes from the shelf is the same part, also after JSON."""
    monkeypatch.setattr(membership, "settled", None)
    again = run(tiny_plan(place))
    assert again == part == part_from_json(json.loads(json.dumps(part.to_json())))
    assert not list((place / "work").iterdir())


def test_a_running_total_that_is_off_shows_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a domain's sums off by one where they are added, every change with it would say no."""
    true = ready.Ready._weighted

    def off(self: Ready, name: str) -> Statistics:
        found = true(self, name)
        if name == "law":
            found.gram[0, 0] += 1
        return found

    monkeypatch.setattr(ready.Ready, "_weighted", off)
    changes = table(run(tiny_plan(tmp_path, tiny_setting(("code", "law", "poetry")))), "membership-tiny")
    equal = changes.column("equal to one built anew")
    assert equal[1] == "no"
    assert len(equal) == 3


def test_two_domains_are_too_few(tmp_path: Path) -> None:
    """Nobody could leave, so the setting is left out with the reason."""
    part = run(tiny_plan(tmp_path, tiny_setting(("code", "law"))))
    assert not part.tables
    assert "has 2 domains" in part.left_out[0]


# Words


def story(equal: bool, retired: float) -> Found:
    both, three = ("code", "law"), ("code", "law", "poetry")
    facts = {"seconds": 1.0, "sums": 0.5, "total": "a", "router": "b", "chosen": "average"}
    steps = (
        Step("start", "code and law", both, 98.0, equal=True, **facts),  # type: ignore[arg-type]
        Step("join", "poetry", three, 96.0, equal=equal, **facts),  # type: ignore[arg-type]
        Step("leave", "law", both, 97.0, equal=True, retired=retired, retire_seconds=0.1, **facts),  # type: ignore[arg-type]
    )
    orders = (Order(three, "a", "b", equal),)
    return Found("small", steps, orders, (Later("next", both, 97.0, 1.0, "average", equal, equal),))


def test_words_follow_what_was_measured() -> None:
    """Where bytes differ, or routers are right equally often, the words say so."""
    good, bad = ("\n".join(described(story(*each))) for each in ((True, 97.0), (False, 95.5)))
    assert "After 3 of 3 changes" in good
    assert "1 of 1 other orders" in good
    assert "both routers are right equally often" in good
    assert "After 2 of 3 changes" in bad
    assert "0 of 1 other orders" in bad
    assert "-1.50 points" in bad
    assert "admitted again" in good
    assert "admitted again" not in bad
