"""The summary, on tiny corpora."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.simulations.experiments import summary_part
from ridgeway.simulations.experiments.routers import OURS
from tests.support.experiment_settings import tiny_dataset, tiny_plan


def test_a_summary_has_a_number_for_each_dataset_and_kind_of_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tokens alone: to read sentences would take minutes. With little noise every text reaches
    its domain.
    """
    monkeypatch.setattr(summary_part, "SENTENCE", "")
    monkeypatch.setitem(
        summary_part._EXACT, "ridgeway with sentences", ("with sentences", OURS)
    )
    monkeypatch.setattr(
        summary_part,
        "_PRIVATE",
        {"private": ("columns", 20.0), "private, full": ("full", 20.0)},
    )
    monkeypatch.setattr(
        "ridgeway.common.privacy.built_in_text.MAX_KIND_CHARACTERS", 20_000
    )
    sets = (
        tiny_dataset(train=120),
        replace(tiny_dataset(("law", "code", "poetry"), train=120), name="three"),
    )
    part = summary_part.run(replace(tiny_plan(tmp_path), datasets=sets))
    [table] = part.tables
    assert table.columns == ("router", "tiny", "three")
    assert [str(name).partition(",")[0] for name in table.column("router")] == [
        "the published method",
        "the default",
        "with sentences",
        "private",
        "private",
    ]
    assert all(
        isinstance(cell, float) and 80 < cell <= 100
        for row in table.rows[1:]
        for cell in row[1:]
    )
