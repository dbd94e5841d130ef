"""What ε promises, against its definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.simulations.experiments import epsilon_part
from tests.support.experiment_settings import tiny_plan


def test_noise_tells_less_than_epsilon_allows_and_more_of_many_documents_than_of_many_rounds(
    tmp_path: Path,
) -> None:
    """Once is the ε itself; k documents cost what k² rounds do."""
    meaning, multiples = epsilon_part.run(tiny_plan(tmp_path)).tables
    allowed, noise = (
        meaning.column("pairs told apart: allowed, %"),
        meaning.column("by this noise, %"),
    )
    assert all(
        50 < float(str(less)) < float(str(more)) < 100
        for less, more in zip(noise, allowed, strict=True)
    )
    assert meaning.column("odds change by at most")[1] == pytest.approx(
        2.71828, abs=1e-4
    )
    for epsilon, what, once, *more in multiples.rows:
        assert once == pytest.approx(float(str(epsilon)), rel=1e-6)
        assert sorted(map(float, map(str, more))) == [float(str(cell)) for cell in more]
        assert what in ("documents of one person", "rounds")
