"""Villages in which masked rounds are played; every test gets a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.rounds import run_round
from tests.coordinator.faults import make_haste
from tests.hostile import MEMBERS, NEWCOMERS
from tests.village import Direct, Village, found, no_watch, own_texts, populate


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Village:
    """Five holders on the roster and two who may join; nothing has happened yet."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        village = found(tmp_path_factory.mktemp("whole"), mode="masked")
        populate(village, MEMBERS)
        for name, domain in NEWCOMERS.items():
            village.settle(name, domain, own_texts(name, "code", 8))
        village.pin_all()
        return village


@pytest.fixture
def village(whole: Village, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Village:
    make_haste(monkeypatch)
    return whole.copy(tmp_path / "village")


@pytest.fixture(scope="session")
def after_one(whole: Village, tmp_path_factory: pytest.TempPathFactory) -> Village:
    """The same after one round of the five."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        village = whole.copy(tmp_path_factory.mktemp("after-one") / "village")
        run_round(village.federation(), Direct(village, list(MEMBERS)), no_watch)
        return village


@pytest.fixture
def later(after_one: Village, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Village:
    make_haste(monkeypatch)
    return after_one.copy(tmp_path / "village")
