"""What the page is told of the last minutes."""

from __future__ import annotations

import pytest

from ridgeway.serving.telemetry import (
    MAX_STEPS,
    MAX_TIMES_PER_STEP,
    STEP_S,
    Activity,
)
from tests.support.in_process import Clock


def test_decisions_of_five_seconds_are_counted_together() -> None:
    """By domain, with the middle and the end of their times."""
    activity = Activity(clock := Clock())
    for number in range(100):
        activity.add({"law": 1, "code": 2}, number % 2, 0.001 * (number + 1))
    clock.now += STEP_S
    activity.add({"law": 1}, 0, 0.5)
    first, second = activity.to_json()["steps"]
    assert first == {
        "start": 1000,
        "decisions": {"law": 100, "code": 200},
        "abstained": 50,
        "p50_ms": pytest.approx(51.0),
        "p99_ms": 100.0,
    }
    assert second["decisions"] == {"law": 1}


def test_what_is_older_than_five_minutes_is_forgotten() -> None:
    """Also if nothing has come since."""
    activity = Activity(clock := Clock())
    activity.add({"law": 1}, 0, 0.1)
    clock.now += STEP_S * MAX_STEPS
    assert activity.to_json()["steps"] == []
    for _ in range(3 * MAX_STEPS):
        clock.now += STEP_S
        activity.add({"law": 1}, 0, 0.1)
    assert len(activity.to_json()["steps"]) == MAX_STEPS


def test_a_busy_step_keeps_a_bounded_number_of_times() -> None:
    """A flood does not fill the memory."""
    activity = Activity(Clock())
    for _ in range(10 * MAX_TIMES_PER_STEP):
        activity.add({"law": 1}, 0, 0.1)
    (step,) = activity.to_json()["steps"]
    assert step["decisions"] == {"law": 10 * MAX_TIMES_PER_STEP}
    assert len(activity._steps[0].times) == MAX_TIMES_PER_STEP
