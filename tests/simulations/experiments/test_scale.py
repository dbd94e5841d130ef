"""Points of how costs grow: slopes, files that are added to, and plots out of files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.common.cli.terminal import run
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.simulations.experiments import scale
from ridgeway.simulations.experiments.report import read_part
from ridgeway.simulations.experiments.scale_points import MEASURES, features, holders
from tests.support.tiny import tiny_encoder


def command(words: str) -> int:
    return run(typer.main.get_command(scale.app), words.split())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The points that were measured; y is the cube of x."""
    points: list[float] = []

    def measured(module: str, axis: str, value: float) -> dict[str, float]:
        points.append(value)
        return {"features": value, "solving, CPU s": 2 * value**3, "nothing": 0.0}

    monkeypatch.setattr(scale, "measured_apart", measured)
    return points


def test_a_slope_is_the_exponent() -> None:
    """Of y = a·xᵇ, whatever a is."""
    places = np.array([1.0, 10.0, 50.0])
    assert scale.fitted_slope(places, 7 * places**1.5) == pytest.approx(1.5)


def test_only_missing_points_are_measured(asked: list[float], tmp_path: Path) -> None:
    """A second run adds to the file of the first; the slopes and the plot are those of all
    points.
    """
    assert command(f"features --up-to 256 --out {tmp_path}") == 0
    assert command(f"features --up-to 1024 --out {tmp_path}") == 0
    assert asked == [64, 128, 256, 512, 1024]
    part = read_part(tmp_path / "scale-features.json")
    assert part is not None
    [table] = part.tables
    assert table.column("features") == (64, 128, 256, 512, 1024)
    assert "solving, CPU s 3.00 (3.00)" in table.note and "nothing" not in table.note
    assert (tmp_path / "scale-features.svg").read_text().startswith("<?xml")


def test_plots_come_out_of_the_files_alone(asked: list[float], tmp_path: Path) -> None:
    """The same points give the same bytes."""
    command(f"features --up-to 128 --out {tmp_path}")
    plot = tmp_path / "scale-features.svg"
    before = plot.read_bytes()
    plot.unlink()
    assert command(f"--out {tmp_path}") == 0
    assert plot.read_bytes() == before
    assert len(asked) == 2


def test_an_unknown_axis_is_refused(tmp_path: Path) -> None:
    """Before anything is measured."""
    assert command(f"weather --out {tmp_path}") == 2
    assert list(tmp_path.iterdir()) == []


def test_every_axis_is_measured() -> None:
    """Points and measures name the same axes."""
    assert list(scale.POINTS) == list(MEASURES)


def test_a_point_begins_with_its_place(tmp_path: Path) -> None:
    """The first figure is where the point lies; all others are costs."""
    found = features(16, tmp_path)
    assert next(iter(found.items())) == ("features", 16)
    assert all(value is not None and value > 0 for value in found.values())


def test_all_that_one_holder_does_in_a_masked_round_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every exchange, and what it sends is more than its vector."""
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    monkeypatch.setattr(
        "ridgeway.simulations.experiments.scale_points._ENCODER",
        f"dir:{tmp_path / 'encoder'}",
    )
    found = holders("masked")(4, tmp_path)
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "own-work.jsonl").read_text().splitlines()
    ]
    assert (
        list(dict.fromkeys(steps))
        == "announce share seal confirm_sum open_sum evaluate deliver".split()
    )
    assert (found["a holder sends, MB"] or 0) > 2e-3
