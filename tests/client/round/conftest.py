"""Masked sessions that were played up to some step, for the tests of a holder against a hostile
coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faults import make_haste
from tests.support.hostile import Hostile, Stages


@pytest.fixture(scope="session")
def all_stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        return Stages(tmp_path_factory.mktemp("stages"))


@pytest.fixture
def stages(all_stages: Stages, dealing: str) -> Stages:
    return all_stages


@pytest.fixture
def at(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Hostile]:
    """A session right before a step; the test has it to itself."""
    make_haste(monkeypatch)
    return lambda step, lot="statistics": stages.at(step, tmp_path / "parties", lot)
