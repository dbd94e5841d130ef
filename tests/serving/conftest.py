"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.in_process import DOMAINS, Fleet, Local, everyone
from tests.support.serving import release_of


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gateway") / "release"
    release_of(folder, DOMAINS)
    return folder


@pytest.fixture
def fleet(release: Path, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(release, tmp_path / "experts.toml") as fleet:
        yield fleet


@pytest.fixture
def local(fleet: Fleet) -> Local:
    """The service before an expert for each domain and a generalist."""
    return fleet.serve(everyone())
