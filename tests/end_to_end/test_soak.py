"""The gateway under everything at once, for a while; `make soak` takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.soak import soak

SECONDS = 20.0


@pytest.mark.slow
def test_a_gateway_that_everything_befalls_loses_no_request_that_could_be_answered(
    tmp_path: Path,
) -> None:
    """New releases, workers killed and renewed, failing experts and hostile clients: see
    tests/support/soak.py.
    """
    report = soak(tmp_path, SECONDS)
    assert report.problems == []
    answered = report.answers
    assert (
        min(
            answered["whole 200"],
            answered["stream 200 whole"],
            answered["stream 200 broken"],
        )
        > 0
    )
    assert report.kills
