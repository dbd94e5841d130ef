"""Confidence as it is fitted to what holders counted."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from ridgeway.common.routing.decision import SCOPE_COUNTS_SHAPE
from ridgeway.common.routing.evaluation import (
    CONFIDENCE_EDGES,
    CURVES,
    calibration_size,
)
from ridgeway.coordinator.solving.calibration import bin_middles, fit, lowest_between


def test_reliability_is_that_of_what_was_fitted() -> None:
    """Nine of ten right at 90 to 95 % under the second temperature, which is taken."""
    counts = np.zeros(calibration_size(2), dtype=np.int64)
    assert fit((1.0, 2.0), counts, 2) is None
    reliability = counts[: -prod(SCOPE_COUNTS_SHAPE)].reshape(
        len(CURVES), 2, len(CONFIDENCE_EDGES), 2
    )
    reliability[:, 0, 0] = (10, 9)
    reliability[:, 1, CONFIDENCE_EDGES.index(0.9)] = (10, 9)
    fitted = fit((1.0, 2.0), counts, 2)
    assert fitted is not None and fitted.temperature == 2.0
    assert [bar for bar in fitted.reliability if bar[1]] == [(0.9, 1.0, 0.9)]


def test_a_bin_is_told_by_what_confidence_can_be_in_it() -> None:
    """Its middle, from one in so many domains on: of ten, what is below 0.2 lies at 0.15."""
    assert bin_middles(10)[:3].tolist() == pytest.approx([0.15, 0.25, 0.35])
    assert bin_middles(2)[:5].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.55])
    assert bin_middles(1000)[[0, -1]].tolist() == pytest.approx([0.1005, 0.9995])


def test_a_temperature_lies_between_those_that_were_tried() -> None:
    """At the bottom of a parabola over their logarithms, which is found with how low it is; at an
    edge, the edge.
    """
    tried = [2.0 ** (step / 4) for step in range(-8, 9)]
    for heat in (0.9, 1.3, 2.0):
        lowest = lowest_between(tried, 0.25 + np.log(np.array(tried) / heat) ** 2)
        assert lowest == pytest.approx((0.25, heat, lowest.nearest))
        assert abs(np.log2(tried[lowest.nearest] / heat)) <= 1 / 8
    assert lowest_between(tried, np.arange(17.0)) == (0.0, tried[0], 0)
    assert lowest_between(tried, -np.arange(17.0)) == (-16.0, tried[16], 16)
    assert lowest_between(tried, np.zeros(17)) == (0.0, tried[0], 0)
