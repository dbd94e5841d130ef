"""A holder that was left out comes back alone where the total was opened before, and in no other case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.messages import SealedSums
from ridgeway.common.protocol.packet import open_packet
from ridgeway.common.routing.release import ROUTER, load_release
from ridgeway.coordinator.round.ledger import MAX_TOTALS, LedgerRelease
from ridgeway.coordinator.round.masked_round import MaskedGathering
from ridgeway.coordinator.round.membership import remove, rollback
from ridgeway.coordinator.round.round import run_round
from tests.support.corpora_on_disk import write_jsonl
from tests.support.hostile import MEMBERS
from tests.support.simulated_federation import Direct, Parties, no_watch, own_texts

BACK = "medicine"
OTHERS = ("code-1", "law-1")


def round_of(parties: Parties, *away: str, allow: tuple[str, ...] = ()) -> tuple[LedgerRelease, Direct]:
    transport = Direct(parties, [name for name in MEMBERS if name not in away])
    return run_round(parties.federation(), transport, no_watch, allow_missing=allow), transport


def opened(parties: Parties) -> list[Mapping[str, Any]]:
    return [entry.facts for entry in parties.federation().ledger.journal.entries("opened_sum")]


def router(parties: Parties, number: int) -> bytes:
    return (parties.federation().release_folder(number) / ROUTER).read_bytes()


def corpus(parties: Parties, name: str) -> Path:
    return Path(parties.holder(name).settings.corpus[0])


@pytest.fixture
def without(later: Parties) -> tuple[Parties, dict[str, Path]]:
    """After a second total, from which one holder is missing and in which two have changed; and the old corpora."""
    before = {name: corpus(later, name) for name in OTHERS}
    for name in OTHERS:
        later.change_corpus(name)
    made, _ = round_of(later, BACK, allow=(BACK,))
    assert BACK not in made.domains
    return later, before


def turn_back(parties: Parties, before: Mapping[str, Path]) -> None:
    """Give the others the corpora that they had in the first total."""
    for name, path in before.items():
        parties.rewrite(name, f'"{corpus(parties, name)}"', f'"{path}"')


def test_a_holder_comes_back_alone_into_a_total_that_was_opened_before(
    without: tuple[Parties, dict[str, Path]],
) -> None:
    """Nobody seals, signs or counts anything: the kept total and its counts give the very router of then."""
    parties, before = without
    turn_back(parties, before)
    had = opened(parties)
    made, transport = round_of(parties)
    assert (made.number, BACK in made.domains) == (3, True)
    assert router(parties, 3) == router(parties, 1)
    assert load_release(parties.federation().release_folder(3)).manifest["evaluation"] is not None
    assert not [each for _, each in transport.replies if isinstance(open_packet(each).message, SealedSums)]
    assert opened(parties) == had
    parties.federation().ledger.verify()
    assert round_of(parties)[0].number == 3


@pytest.mark.parametrize("hostile", [False, True], ids=["honest coordinator", "hostile coordinator"])
def test_one_document_more_and_it_does_not_come_back_alone(
    without: tuple[Parties, dict[str, Path]], monkeypatch: pytest.MonkeyPatch, hostile: bool
) -> None:
    """The difference to the total of then would be that document: the round says so; holders refuse even if it lies."""
    parties, before = without
    turn_back(parties, before)
    plain = corpus(parties, BACK)
    changed = plain.with_suffix(".more.jsonl")
    texts = (f"medicine, one more document of the number {number} " * 3 for number in count())
    [summed] = islice((text for text in texts if not is_held_out(text, 0.25)), 1)
    changed.write_text(plain.read_text() + json.dumps({"text": summed}) + "\n")
    parties.rewrite(BACK, f'"{plain}"', f'"{changed}"')
    had = opened(parties)
    words = f"only {BACK} has changed"
    if hostile:
        monkeypatch.setattr(MaskedGathering, "_must_hide", lambda *words: None)
        words = "signed the sum of statistics.*would show what only 1 of the members gave"
    with pytest.raises(RoundFailed, match=words):
        round_of(parties)
    assert opened(parties) == had


def test_where_the_others_have_changed_the_words_say_what_would_help(
    without: tuple[Parties, dict[str, Path]],
) -> None:
    """Beside the second total the one that comes back would lie open; with another change at once it does not."""
    parties, _ = without
    with pytest.raises(RoundFailed, match=f"only {BACK} has come back: .*when another holder has joined, left or"):
        round_of(parties)
    parties.change_corpus("law-2")
    assert BACK in round_of(parties)[0].domains


def test_the_absent_holder_whose_return_would_help_is_named(later: Parties) -> None:
    """One has changed, and alone would be shown, and a newcomer is away: if that one comes, the two hide each other."""
    later.change_corpus("law-1")
    later.admit("poetry")
    with pytest.raises(
        RoundFailed, match=r"only law-1 has changed: .*again when poetry is there too, or another holder"
    ):
        round_of(later)
    transport = Direct(later, [*MEMBERS, "poetry"])
    assert "poetry" in run_round(later.federation(), transport, no_watch).domains


def test_a_kept_total_that_loses_a_domain_gives_way_to_one_that_does_not(later: Parties) -> None:
    """After a rollback: whoever is there is unchanged in both, and the newest release has what the newer lacks."""
    later.change_corpus("code-1")
    round_of(later, BACK, allow=(BACK,))
    assert rollback(later.federation(), 1).published is not None
    made, _ = round_of(later, "code-1", BACK)
    assert BACK in made.domains and router(later, made.number) == router(later, 1)


def test_of_many_totals_the_newest_are_kept_and_a_removed_holder_is_in_none(later: Parties) -> None:
    """Their files too: what is removed is erased, and what is old makes room."""
    for turn in range(MAX_TOTALS + 1):
        for name in ("code-1", "code-2") if turn % 2 else ("law-1", "law-2"):
            path = write_jsonl(later.folder / f"{name}-{turn}.jsonl", own_texts(f"{name} {turn}", MEMBERS[name], 9))
            later.rewrite(name, f'"{corpus(later, name)}"', f'"{path}"')
        round_of(later)
    ledger = later.federation().ledger
    assert len(ledger.standing().totals) == MAX_TOTALS
    ledger.erase_outdated()
    ledger.verify()
    kept = {path.stem for path in (later.federation().folder / "contributions").iterdir()}
    assert {each.digest for each in ledger.standing().totals} <= kept
    remove(later.federation(), "code-1")
    assert not list((later.federation().folder / "contributions").iterdir())
