"""Costs over holders, widths and domains at sizes that mean nothing: slopes are right, bytes are all counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ProcessError
from common.messages import Packet
from common.statistics import triangle_size
from simulations.lab import scaling
from simulations.lab.findings import Part, part_from_json
from simulations.lab.scaling import holders, one_round, one_width
from simulations.lab.scaling.apart import apart
from simulations.lab.scaling.slopes import Expected, grown, power, slope
from simulations.lab.scaling.wire import packet_bytes
from tests.lab_settings import tiny_plan

SIZE = scaling.Size(holders=(3, 5), widths=(8, 16), domains=(2, 3, 5))
positive = st.floats(0.01, 100)


@given(
    factor=positive, exponent=st.floats(-3, 3), x=st.lists(st.integers(1, 1000), min_size=2, max_size=8, unique=True)
)
def test_the_slope_of_a_power_is_its_exponent(factor: float, exponent: float, x: list[int]) -> None:
    """Whatever it is multiplied with."""
    assert slope(x, [factor * each**exponent for each in x]) == pytest.approx(exponent, abs=1e-6)


@given(fixed=positive, factor=positive, exponent=st.sampled_from([1.0, 2.0, 3.0]))
def test_a_fixed_part_and_a_power_are_told_apart(fixed: float, factor: float, exponent: float) -> None:
    """Such a cost is explained wholly, and the share of what is fixed is found."""
    x = [1.0, 2.0, 4.0, 8.0]
    y = [fixed + factor * each**exponent for each in x]
    explained, share = power(x, y, exponent)
    assert explained == pytest.approx(100, abs=1e-6)
    assert share == pytest.approx(100 * fixed / y[-1], abs=1e-4)


def test_what_is_zero_or_alone_has_no_slope() -> None:
    """A logarithm of nothing, and a line through one point, are not invented."""
    expected = [Expected("cost", "cost", 1, "")]
    assert grown("n", [1, 2], [{"cost": 0.0}, {"cost": 1.0}], expected) == []
    assert grown("n", [1], [{"cost": 1.0}], expected) == []
    assert power([1, 2, 3], [5.0, 5.0, 5.0], 1) == (None, None)


@given(sizes=st.lists(st.integers(0, 5000), max_size=3))
def test_a_packet_weighs_no_less_than_what_is_in_it(sizes: list[int]) -> None:
    """And little more: Flower's own words around it are few. Blobs that are alike would travel once."""
    packet = Packet(b"h" * 200, "s" * 100, tuple(bytes([place]) * size for place, size in enumerate(sizes)))
    inside = 300 + sum(sizes)
    assert inside <= packet_bytes(packet) <= inside + 600 * (len(sizes) + 2)


def test_a_masked_round_is_weighed_whole(tmp_path: Path) -> None:
    """Every request and reply counts, the parts add up to the whole, and seconds are divided without a rest."""
    found = one_round.measured(3, "masked", 1, tmp_path)
    assert {"announce", "share", "seal", "confirm_sum", "open_sum", "deliver"} <= set(found["kinds"])
    both = np.sum(list(found["kinds"].values()), axis=0)
    assert both == pytest.approx([found["down"], found["up"]])
    assert found["total"] == pytest.approx(3 * (found["up"] + found["down"]))
    assert found["kinds"]["seal"][1] > 8 * triangle_size(65)
    parts = found["summing"] + found["solving"] + 3 * found["holder"] + found["coordinator"]
    assert parts == pytest.approx(found["seconds"])
    assert min(found["holder"], found["coordinator"], found["memory"]) > 0


def test_more_members_weigh_more_under_masks(tmp_path: Path) -> None:
    """Every other member costs a holder bytes in both directions."""
    few, more = (one_round.measured(count, "masked", 1, tmp_path / str(count)) for count in (3, 5))
    assert more["up"] > few["up"]
    assert more["down"] > few["down"]


@pytest.mark.parametrize("width", [7, 20])
def test_a_message_is_the_triangle_and_the_column(width: int) -> None:
    """8 bytes a number, and little beside."""
    numbers = triangle_size(width + 1) + width + 1
    found = one_width.holder(width, 1)
    assert 0 < found["bytes"] - 8 * numbers < 3000
    assert min(found["summing"], found["sealing"]) > 0
    assert min(one_width.coordinator(width, 1)[name] for name in ("opening", "checking", "solving")) > 0


def test_a_process_that_fails_is_one_sentence() -> None:
    """It says what was measured and what the process said last."""
    with pytest.raises(ProcessError, match=r"one_width nobody 8 1 failed: KeyError: 'nobody'"):
        apart("one_width", "nobody", 8, 1)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders, "apart", _round_here)
        patch.setattr(scaling.widths, "apart", _width_here)
        return scaling.measure(tiny_plan(tmp_path_factory.mktemp("scaling")), SIZE)


def _round_here(module: str, count: int, mode: Any, seed: int, folder: str) -> dict[str, Any]:
    return one_round.measured(count, mode, seed, Path(folder))


def _width_here(module: str, side: str, width: int, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = getattr(one_width, side)(width, seed)
    return found


def test_the_part_has_a_table_for_everything_it_varies(part: Part) -> None:
    """A row a point; the slopes of all of them in one table; and it survives JSON."""
    rows = {table.key: len(table.rows) for table in part.tables}
    assert rows["scaling-holders-masked"] == rows["scaling-holders-clear"] == 2
    assert rows["scaling-width"] == 2
    assert rows["scaling-domains"] == 3
    slopes = next(table for table in part.tables if table.key == "scaling-slopes")
    assert {"holders, masked", "holders, clear", "h", "domains"} == set(slopes.column("over"))
    assert part_from_json(json.loads(json.dumps(part.to_json()))).tables == part.tables
    assert all(plot.x_scale == plot.y_scale == "log" for plot in part.plots)


def test_the_figures_in_words_are_those_of_the_tables(part: Part) -> None:
    """No number that was not measured."""
    table = next(table for table in part.tables if table.key == "scaling-domains")
    first, last = (table.column("a sealed message")[place] for place in (0, -1))
    assert isinstance(first, float) and isinstance(last, float)
    assert f"grows from {first:.2f} to {last:.2f} MB" in " ".join(part.words)


def test_a_sealed_message_grows_by_a_column_a_domain(part: Part) -> None:
    """h + 1 numbers of 8 bytes, but for the digits of its size."""
    table = next(table for table in part.tables if table.key == "scaling-domains")
    sizes = [1e6 * float(size or 0) for size in table.column("a sealed message")]
    assert (sizes[-1] - sizes[0]) / 3 == pytest.approx(8 * 17, abs=4)
