"""Federations over a contextual encoder: holders run the model, the coordinator never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common import transformer as running
from common.contextual import ContextualEncoder
from common.errors import RoundFailed
from common.messages import Refusal, open_packet
from common.release import ROUTER, load_release
from coordinator.candidates import Grid
from coordinator.membership import remove, retire
from coordinator.rounds import run_round
from tests.coordinator.faults import make_haste
from tests.corpora_on_disk import sentences
from tests.tiny_models import tiny_contextual
from tests.village import Direct, Village, found, no_watch, populate

HOLDERS = {"code": "code", "law": "law", "medicine-1": "medicine", "medicine-2": "medicine"}
GRID = Grid(ridges=(1e-3, 1e-2), normalise_columns=(False, True), selectors=("average", "entropy"), k=(5,))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> ContextualEncoder:
    return tiny_contextual(tmp_path_factory.mktemp("models") / "bert")


def village_of(folder: Path, encoder: Any, mode: str) -> Village:
    village = found(folder, encoder=encoder, mode=mode, window=16, candidates=GRID)
    populate(village, HOLDERS)
    return village


def no_model(*_: object) -> None:
    raise AssertionError("the coordinator ran the model")


@pytest.mark.parametrize("mode", ["clear", "masked"])
def test_a_round_gives_a_calibrated_router(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Sums, candidates, choice and confidence, as with a table; holders store the release."""
    make_haste(monkeypatch, once=False)
    village = village_of(tmp_path / "village", encoder, mode)
    published = run_round(village.federation(), Direct(village), no_watch)
    loaded = load_release(village.federation().release_folder(published.number))
    assert loaded.router.confidence.calibrated
    assert loaded.manifest["evaluation"]["candidates"] == len(GRID.candidates())
    assert loaded.router.route(sentences("law", 99)[-1]).best == "law"
    assert village.holder("law").newest == published.number


def test_a_holder_without_the_model_says_so(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a code and a fixed sentence: no path leaves."""
    make_haste(monkeypatch, once=False)
    village = village_of(tmp_path / "village", encoder, "clear")
    monkeypatch.setattr(running, "_loaded", {})
    with pytest.raises(RoundFailed):
        run_round(village.federation(), transport := Direct(village), no_watch)
    messages = [open_packet(reply).message for _, reply in transport.replies]
    refusals = [message for message in messages if isinstance(message, Refusal)]
    assert {refusal.code for refusal in refusals} == {"encoder_missing"}
    assert {refusal.reason for refusal in refusals} == {"the round's encoder cannot be used on this holder's machine"}


def test_members_leave_without_the_model(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A domain is retired and a holder removed exactly, by the card alone."""
    make_haste(monkeypatch, once=False)
    village = village_of(tmp_path / "village", encoder, "clear")
    run_round(village.federation(), Direct(village), no_watch)
    monkeypatch.setattr(running, "transformer", no_model)
    federation = village.federation()
    removed = remove(federation, "medicine-2").published
    assert removed is not None
    retired = retire(federation, "law").published
    assert retired is not None
    assert load_release(federation.release_folder(retired.number)).router.domains == ("code", "medicine")


def test_clear_and_masked_rounds_give_the_same_router(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are integers before anything is masked."""
    make_haste(monkeypatch, once=False)
    routers = []
    for mode in ("clear", "masked"):
        village = village_of(tmp_path / mode, encoder, mode)
        published = run_round(village.federation(), Direct(village), no_watch)
        routers.append((village.federation().release_folder(published.number) / ROUTER).read_bytes())
    assert routers[0] == routers[1]
