"""Federations in which masked rounds are played; every test gets a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults import make_haste
from tests.support.hostile import MEMBERS, NEWCOMERS
from tests.support.simulated_federation import (
    Direct,
    Parties,
    found,
    own_texts,
    populate,
    round_of,
)


@pytest.fixture
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take less time; corpora stay as they are."""
    make_haste(monkeypatch)


@pytest.fixture
def haste_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take less time; corpora may change."""
    make_haste(monkeypatch, once=False)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Five holders on the roster and two who may join; nothing has happened yet."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        made = found(tmp_path_factory.mktemp("whole"), mode="masked")
        parties = populate(made, MEMBERS)
        for name, domain in NEWCOMERS.items():
            parties.settle(name, domain, own_texts(name, "code", 11))
        return parties


@pytest.fixture
def parties(whole: Parties, tmp_path: Path, haste: None) -> Parties:
    return whole.copy(tmp_path / "parties")


@pytest.fixture(scope="session")
def after_one(whole: Parties, tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """The same after one round of the five."""
    with pytest.MonkeyPatch.context() as patch:
        make_haste(patch)
        parties = whole.copy(tmp_path_factory.mktemp("after-one") / "parties")
        round_of(parties, Direct(parties, MEMBERS))
        return parties


@pytest.fixture
def later(after_one: Parties, tmp_path: Path, haste: None) -> Parties:
    return after_one.copy(tmp_path / "parties")
