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
        for name, sizes in {"WIDTHS": (8, 16), "_DOMAINS": (2, 3, 5)}.items():
            patch.setattr(scaling_part, name, sizes)
        return run(tiny_plan(tmp_path_factory.mktemp("scaling")))


def test_a_sealed_message_grows_by_a_column_a_domain(part: ReportPart) -> None:
    """h + 1 numbers of 8 bytes, but for the digits of its size."""
    sizes = [1e6 * float(str(size)) for size in part.tables[1].column("a sealed message, MB")]
    assert (sizes[-1] - sizes[0]) / 3 == pytest.approx(8 * 17, abs=4)
