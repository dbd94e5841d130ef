"""Federations over a contextual encoder: holders run the model, the coordinator never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.encoding import transformer as running
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.common.protocol.messages import Refusal
from ridgeway.common.protocol.packet import open_packet
from ridgeway.common.routing.release import ROUTER, load_release
from ridgeway.common.routing.router import router_of
from ridgeway.coordinator.round.membership import remove, retire
from ridgeway.coordinator.round.round import run_round
from tests.support.corpora_on_disk import sentences
from tests.support.faults import make_haste
from tests.support.simulated_federation import Direct, Parties, found, no_watch, populate
from tests.support.tiny_models import tiny_contextual

HOLDERS = {"code": "code", "law": "law", "medicine-1": "medicine", "medicine-2": "medicine"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> ContextualEncoder:
    return tiny_contextual(tmp_path_factory.mktemp("models") / "bert")


def parties_of(folder: Path, encoder: Any, mode: str) -> Parties:
    parties = found(folder, encoder=encoder, mode=mode, window=16)
    populate(parties, HOLDERS)
    return parties


def no_model(*_: object) -> None:
    raise AssertionError("the coordinator ran the model")


@pytest.mark.parametrize("mode", ["clear", "masked"])
def test_a_round_gives_a_calibrated_router(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Sums, counts and confidence, as with a table; holders store the release."""
    make_haste(monkeypatch, once=False)
    parties = parties_of(tmp_path / "parties", encoder, mode)
    published = run_round(parties.federation(), Direct(parties), no_watch)
    loaded = load_release(parties.federation().release_folder(published.number))
    assert loaded.confidence.calibrated
    assert set(loaded.manifest["evaluation"]["domains"]) == {"code", "law", "medicine"}
    assert router_of(loaded).route(sentences("law", 99)[-1]).best == "law"
    assert parties.holder("law").newest == published.number


def test_a_holder_without_the_model_says_so(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a code and a fixed sentence: no path leaves."""
    make_haste(monkeypatch, once=False)
    parties = parties_of(tmp_path / "parties", encoder, "clear")
    monkeypatch.setattr(running, "_loaded", {})
    with pytest.raises(RoundFailed):
        run_round(parties.federation(), transport := Direct(parties), no_watch)
    messages = [open_packet(reply).message for _, reply in transport.replies]
    refusals = [message for message in messages if isinstance(message, Refusal)]
    assert {refusal.code for refusal in refusals} == {"encoder_missing"}
    assert {refusal.reason for refusal in refusals} == {"the round's encoder cannot be used on this holder's machine"}


def test_members_leave_without_the_model(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A domain is retired and a holder removed exactly, by the card alone."""
    make_haste(monkeypatch, once=False)
    parties = parties_of(tmp_path / "parties", encoder, "clear")
    run_round(parties.federation(), Direct(parties), no_watch)
    monkeypatch.setattr(running, "transformer", no_model)
    federation = parties.federation()
    removed = remove(federation, "medicine-2").published
    assert removed is not None
    retired = retire(federation, "law").published
    assert retired is not None
    assert load_release(federation.release_folder(retired.number)).domains == ("code", "medicine")


def test_clear_and_masked_rounds_give_the_same_router(
    encoder: ContextualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are integers before anything is masked."""
    make_haste(monkeypatch, once=False)
    routers = []
    for mode in ("clear", "masked"):
        parties = parties_of(tmp_path / mode, encoder, mode)
        published = run_round(parties.federation(), Direct(parties), no_watch)
        routers.append((parties.federation().release_folder(published.number) / ROUTER).read_bytes())
    assert routers[0] == routers[1]
