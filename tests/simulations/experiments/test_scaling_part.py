"""Costs over holders, widths and domains at sizes that mean nothing: slopes are right, bytes are all counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.common.statistics.sums import vector_size
from ridgeway.simulations.experiments import scaling_part
from ridgeway.simulations.experiments.report import ReportPart
from ridgeway.simulations.experiments.scaling_part import run, sealed_bytes, slope
from tests.support.experiment_settings import tiny_plan

positive = st.floats(0.01, 100)


@given(
    factor=positive, exponent=st.floats(-3, 3), x=st.lists(st.integers(1, 1000), min_size=2, max_size=8, unique=True)
)
def test_the_slope_of_a_power_is_its_exponent(factor: float, exponent: float, x: list[int]) -> None:
    """Whatever it is multiplied with."""
    assert slope(x, [factor * each**exponent for each in x]) == pytest.approx(exponent, abs=1e-6)


@pytest.mark.parametrize("width", [7, 20])
def test_a_message_is_its_numbers(width: int) -> None:
    """8 bytes a number, and little beside."""
    assert 0 < sealed_bytes(width + 1, 4) - 8 * vector_size(width + 1, 4) < 3000


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> ReportPart:
    with pytest.MonkeyPatch.context() as patch:
        for name, sizes in {"SHORT_HOLDERS": (2, 4, 6), "WIDTHS": (8, 16), "_DOMAINS": (2, 3, 5)}.items():
            patch.setattr(scaling_part, name, sizes)
        return run(tiny_plan(tmp_path_factory.mktemp("scaling")))


def test_every_packet_of_a_round_is_weighed(part: ReportPart) -> None:
    """What holders send and get is what passes the coordinator; numbers that cannot be are left out."""
    rounds = part.tables[0]
    assert rounds.column("round") == ("masked", "masked", "clear", "clear")
    assert rounds.column("holders") == (4, 6, 4, 6)
    for _, holders, seconds, own, rest, up, down, total in rounds.rows:
        assert float(str(total)) == pytest.approx(1e-3 * float(str(holders)) * (float(str(up)) + float(str(down))))
        assert float(str(seconds)) == pytest.approx(1e-3 * float(str(holders)) * float(str(own)) + float(str(rest)))
    few, more, *_ = rounds.column("up from a holder, kB")
    assert float(str(more)) > float(str(few)) > 8e-3 * vector_size(17, 4)


def test_a_sealed_message_grows_by_a_column_a_domain(part: ReportPart) -> None:
    """h + 1 numbers of 8 bytes, but for the digits of its size."""
    sizes = [1e6 * float(str(size)) for size in part.tables[2].column("a sealed message, MB")]
    assert (sizes[-1] - sizes[0]) / 3 == pytest.approx(8 * 17, abs=4)
