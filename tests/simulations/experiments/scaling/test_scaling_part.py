"""Costs over holders, widths and domains at sizes that mean nothing: slopes are right, bytes are all counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.statistics.sums import triangle_size
from ridgeway.simulations.experiments.report.report_tables import ReportPart, part_from_json
from ridgeway.simulations.experiments.scaling import scaling_costs, scaling_part
from ridgeway.simulations.experiments.scaling.scaling_costs import round_costs
from ridgeway.simulations.experiments.scaling.scaling_part import Cost, Sweep, slope
from tests.support.experiment_settings import tiny_plan

SIZE = scaling_part.ScalingSizes(holders=(3, 5), widths=(8, 16), domains=(2, 3, 5))
positive = st.floats(0.01, 100)


@given(
    factor=positive, exponent=st.floats(-3, 3), x=st.lists(st.integers(1, 1000), min_size=2, max_size=8, unique=True)
)
def test_the_slope_of_a_power_is_its_exponent(factor: float, exponent: float, x: list[int]) -> None:
    """Whatever it is multiplied with."""
    assert slope(x, [factor * each**exponent for each in x]) == pytest.approx(exponent, abs=1e-6)


def test_what_is_zero_or_alone_has_no_slope() -> None:
    """A logarithm of nothing, and a line through one point, are not invented."""
    sweep = Sweep("a", "a", "n", (Cost("cost", "cost", "s"),), {})
    assert sweep.slopes([{"n": 1, "cost": 0.0}, {"n": 2, "cost": 1.0}]) == []
    assert sweep.slopes([{"n": 1, "cost": 1.0}]) == []
    assert len(sweep.slopes([{"n": 1, "cost": 1.0}, {"n": 2, "cost": 1.0}])) == 1


def test_a_masked_round_is_weighed_whole(tmp_path: Path) -> None:
    """Every request and reply counts, the parts add up to the whole, and seconds are divided without a rest."""
    found = round_costs(3, "masked", 1, tmp_path)
    assert found["total"] == pytest.approx(3 * (found["up"] + found["down"]))
    assert found["up"] > 8 * triangle_size(65)
    assert found["summing"] > 0
    parts = found["scoring"] + found["solving"] + 3 * found["holder"] + found["coordinator"]
    assert parts == pytest.approx(found["seconds"])
    assert min(found["holder"], found["coordinator"], found["memory"]) > 0


def test_more_members_weigh_more_under_masks(tmp_path: Path) -> None:
    """Every other member costs a holder bytes in both directions."""
    few, more = (round_costs(count, "masked", 1, tmp_path / str(count)) for count in (3, 5))
    assert more["up"] > few["up"]
    assert more["down"] > few["down"]


@pytest.mark.parametrize("width", [7, 20])
def test_a_message_is_the_triangle_and_the_column(width: int) -> None:
    """8 bytes a number, and little beside."""
    numbers = triangle_size(width + 1) + width + 1
    found = scaling_costs.holder_costs(width, 1)
    assert 0 < found["bytes"] - 8 * numbers < 3000
    assert min(found["summing"], found["sealing"]) > 0
    assert min(scaling_costs.coordinator_costs(width, 1)[name] for name in ("opening", "checking", "solving")) > 0


def test_a_process_that_fails_is_one_sentence() -> None:
    """It says what was measured and what the process said last."""
    with pytest.raises(ProcessError, match=r"scaling_costs nobody 8 1` failed: KeyError: 'nobody'"):
        scaling_part.apart("nobody", 8, 1)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> ReportPart:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_part, "apart", _here)
        return scaling_part.measure(tiny_plan(tmp_path_factory.mktemp("scaling")), SIZE)


def _here(name: str, *words: Any) -> dict[str, Any]:
    """In this process, so that it is quick."""
    found: dict[str, Any] = getattr(scaling_costs, name)(*words)
    return found


def test_the_part_has_a_table_for_everything_it_varies(part: ReportPart) -> None:
    """A row a point; the slopes of all of them in one table; and it survives JSON."""
    rows = {table.key: len(table.rows) for table in part.tables}
    assert rows["scaling-holders-masked"] == rows["scaling-holders-clear"] == 2
    assert rows["scaling-width"] == 2
    assert rows["scaling-domains"] == 3
    slopes = next(table for table in part.tables if table.key == "scaling-slopes")
    assert {
        "A masked round over holders",
        "A clear round over holders",
        "Costs over the width h",
        "Costs over domains",
    } == set(slopes.column("over"))
    assert part_from_json(json.loads(json.dumps(part.to_json()))).tables == part.tables
    assert all(plot.x_scale == plot.y_scale == "log" for plot in part.plots)


def test_a_sealed_message_grows_by_a_column_a_domain(part: ReportPart) -> None:
    """h + 1 numbers of 8 bytes, but for the digits of its size."""
    table = next(table for table in part.tables if table.key == "scaling-domains")
    sizes = [1e6 * float(size or 0) for size in table.column("a sealed message")]
    assert (sizes[-1] - sizes[0]) / 3 == pytest.approx(8 * 17, abs=4)
