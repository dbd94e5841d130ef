"""Kept totals: who is away or comes back changes nothing as long as nobody opens a new epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ridgeway.common.protocol.messages import SealedSums
from ridgeway.coordinator.round.ledger import MAX_TOTALS, LedgerRelease
from ridgeway.coordinator.round.membership import remove, rollback
from tests.support.corpora_on_disk import write_jsonl
from tests.support.hostile import MEMBERS
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    own_texts,
    round_fails,
    round_of,
)

BACK = "medicine"


def round_without(
    parties: Parties, *away: str, **wishes: Any
) -> tuple[LedgerRelease, list[str]]:
    """A round without these holders; and who sealed something."""
    transport = Direct(parties, [name for name in MEMBERS if name not in away])
    made = round_of(parties, transport, accept_worse=DOMAINS, **wishes)
    return made, transport.senders(SealedSums)


def totals(parties: Parties) -> list[Mapping[str, Any]]:
    return parties.entries("totalled")


@pytest.fixture
def without(later: Parties) -> Parties:
    """After a second total, of new epochs of all but one, which is away."""
    for name in set(MEMBERS) - {BACK}:
        later.change_corpus(name)
    made, _ = round_without(later, BACK, allow_missing=(BACK,))
    assert BACK not in made.domains
    return later


def test_who_comes_back_with_a_new_epoch_is_in_with_new_epochs_of_the_others(
    without: Parties,
) -> None:
    """With data of an old total, or its own new epoch alone, it is in no other: nothing is
    opened.
    """
    had = totals(without)
    for open_epoch in (False, True):
        if open_epoch:
            without.ready(BACK)
        with round_fails("law-1, law-2 must open a new epoch"):
            round_without(without)
    assert totals(without) == had
    without.new_epochs(*set(MEMBERS) - {BACK})
    made, sealed = round_without(without)
    assert BACK in made.domains and set(sealed) == set(MEMBERS)


def test_a_kept_total_that_loses_a_domain_gives_way_to_one_that_does_not(
    without: Parties,
) -> None:
    """After a rollback: whoever is there has the epoch of the second total, which lacks a domain of
    the release.
    """
    rollback(without.federation, 1)
    with round_fails("would lose medicine"):
        round_without(without, BACK, end_rollback=True)
    assert len(totals(without)) == 2


def test_after_a_rollback_the_kept_total_gives_the_router_again(later: Parties) -> None:
    """Nobody seals, signs or counts anything: the kept total and its counts give the very router of
    then.
    """
    later.change_settings("threshold = 0.0", 'threshold = 0.5\nfallback = "general"')
    round_without(later)
    rollback(later.federation, 1)
    made, sealed = round_without(later, end_rollback=True)
    assert made.number == 4 and later.router(4) == later.router(1)
    assert not sealed and len(totals(later)) == 1
    later.ledger.verify()


def test_of_many_totals_the_newest_are_kept_and_a_removed_holder_is_in_none(
    later: Parties,
) -> None:
    """Their files too: what is removed is erased, and what is old makes room."""
    for turn in range(MAX_TOTALS + 1):
        for name in MEMBERS:
            [before] = later.holder(name).settings.corpus
            path = write_jsonl(
                later.folder / f"{name}-{turn}.jsonl",
                own_texts(f"{name} {turn}", MEMBERS[name], 11),
            )
            later.rewrite(name, f'"{before}"', f'"{path}"')
            later.ready(name)
        round_without(later)
    ledger = later.ledger
    assert len(ledger.standing().totals) == MAX_TOTALS
    assert len(ledger.standing().totalled_epochs) == len(MEMBERS) * (MAX_TOTALS + 2)
    ledger.erase_outdated()
    ledger.verify()
    kept = later.sums_files()
    assert {total.digest for total in ledger.standing().totals} <= kept
    remove(later.federation, "code-1")
    assert not later.sums_files()
