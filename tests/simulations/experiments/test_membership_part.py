"""Domains that join and leave: a change a row, `retire` beside `remove`, the same on every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.simulations.experiments import experiment_rounds
from ridgeway.simulations.experiments.membership_part import run
from ridgeway.simulations.experiments.report.report_tables import ReportPart, part_from_json
from tests.support.experiment_settings import tiny_dataset, tiny_plan

PRESENT = (2, 3, 4, 3, 2)
"""How many of four domains there are after each change."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("membership")


@pytest.fixture(scope="module")
def part(place: Path) -> ReportPart:
    return run(tiny_plan(place))


def lasting(part: ReportPart) -> list[object]:
    """What is found, without how long it took."""
    return [
        [cell for cell, column in zip(row, each.columns, strict=True) if column.unit != "s"]
        for each in part.tables
        for row in each.rows
    ]


def test_domains_join_one_by_one_and_leave_again(part: ReportPart) -> None:
    """Who came first leaves first, by rounds and by `remove`; every change ends in a release that routes well."""
    (changes,) = part.tables
    assert changes.column("present") == PRESENT
    assert changes.column("change") == ("start", "join", "join", "leave", "leave")
    assert changes.column("domain")[3:] == tuple(str(changes.column("domain")[0]).split(" and "))
    assert all(isinstance(value, float) and value > 90 for value in changes.column("accuracy"))


def test_retiring_is_shown_beside_removing(part: ReportPart) -> None:
    """Two series over the changes; that of retiring begins where everybody is there."""
    (changes,) = part.tables
    removed, retired = part.plots[0].series
    assert None not in removed.y
    assert retired.y[:2] == (None, None)
    assert retired.y[2] == removed.y[2]
    assert retired.y[3:] == changes.column("accuracy after retire")[3:]
    assert None not in retired.y[3:]


def test_another_run_finds_the_same(part: ReportPart, tmp_path: Path) -> None:
    """Times apart: other folders and other keys change nothing."""
    assert lasting(run(tiny_plan(tmp_path))) == lasting(part)


def test_what_is_cached_is_not_done_again(part: ReportPart, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is settled a second time, and what comes from the cache is the same part, also after JSON."""
    monkeypatch.setattr(experiment_rounds, "settled", None)
    again = run(tiny_plan(place))
    assert again == part == part_from_json(json.loads(json.dumps(part.to_json())))
    assert not list((place / "work").iterdir())


def test_two_domains_are_too_few(tmp_path: Path) -> None:
    """Nobody could leave, so the dataset is left out with the reason."""
    part = run(tiny_plan(tmp_path, tiny_dataset(("code", "law"))))
    assert not part.tables
    assert "has 2 domains" in part.left_out[0]
