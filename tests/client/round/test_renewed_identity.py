"""A holder under two keys is one holder: in a cohort, in every total, and before every question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeway.client.deploy.holder_folder import renew_identity
from ridgeway.client.evidence import HolderRecord
from ridgeway.client.round.epochs import OPENED
from ridgeway.client.round.holder import CARD, IDENTITY
from ridgeway.common.base.errors import InputError, Refused
from ridgeway.common.base.identity import HandOver, hand_over, next_key
from ridgeway.common.protocol.cohort import (
    Card,
    read_signed_json,
    write_signed_json,
)
from ridgeway.common.protocol.messages import Announce, Offer, Revealed
from ridgeway.common.protocol.packet import seal_packet
from ridgeway.coordinator.round.round import check_round
from tests.support.faults import make_haste
from tests.support.hostile import CONFIRM, Hostile
from tests.support.making import fixed_identity
from tests.support.simulated_federation import (
    Direct,
    Parties,
    found,
    no_watch,
    populate,
    round_of,
)

PEOPLE = {
    "medicine": "medicine",
    "code-1": "code",
    "code-2": "code",
    "law-1": "law",
    "law-2": "law",
}


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    make_haste(monkeypatch)
    made = found(tmp_path, mode="masked")
    populate(made, PEOPLE)
    return made


def renew(parties: Parties, name: str) -> HandOver:
    link = renew_identity(parties.homes[name])
    parties.admit(name)
    return link


def sealed(parties: Parties, number: int) -> Hostile:
    session = Hostile(parties, list(PEOPLE), f"{number:032x}")
    session.until(CONFIRM)
    return session


def opened(parties: Parties, number: int) -> Hostile:
    session = sealed(parties, number)
    session.finish("statistics")
    return session


# Sums under the old key and under the new one


def test_a_holder_that_renewed_its_key_does_not_pass_for_one_that_joined(
    parties: Parties,
) -> None:
    """Its data of one epoch is in one total, under whichever key: nobody signs the second sum,
    itself among them.
    """
    opened(parties, 1)
    renew(parties, "law-1")
    parties.ready("code-1")
    session = sealed(parties, 2)
    signs = [name for name in PEOPLE if name != "code-1"]
    codes = {session.refused_sum(name, "statistics", session.names) for name in signs}
    assert codes == {"epoch_used"}
    assert session.gave(Revealed) == []


def test_the_same_sum_under_a_new_key_shows_nothing_new(parties: Parties) -> None:
    """A renewal alone stands in nobody's way: the same data under another key may be opened again,
    and is the same.
    """
    first = opened(parties, 1)
    renew(parties, "law-1")
    second = opened(parties, 2)
    assert second.adverts["law-1"].key != first.adverts["law-1"].key
    assert second.adverts["law-1"].source == first.adverts["law-1"].source
    for name in PEOPLE:
        entries = parties.holder(name).journal.entries(OPENED)
        assert len({entry.facts["total"] for entry in entries}) == 1


def test_members_of_totals_are_known_by_their_first_keys(parties: Parties) -> None:
    """So a member that came back under another key is none that joined: the notice names those that
    really did.
    """
    opened(parties, 1)
    renew(parties, "law-1")
    for name in PEOPLE:
        parties.ready(name)
    opened(parties, 2)
    [notice] = parties.holder("medicine").totals.notices()
    assert notice["members"] == []


def test_counts_are_given_for_one_router_under_whichever_keys(parties: Parties) -> None:
    """A member that renews its key again and again cannot have the others count for another
    router.
    """
    session = opened(parties, 1)
    session.count()
    session.finish("counts")
    renew(parties, "law-1")
    again = opened(parties, 2)
    again.count(other=True)
    for name in PEOPLE:
        assert again.refused_sum(name, "counts", again.names) == "already_counted"


# Two keys at once


def test_one_holder_under_two_keys_is_not_two_members_of_a_cohort(
    parties: Parties,
) -> None:
    """A copy of the folder from before the renewal answers beside the renewed one: every member
    sees through it.
    """
    copy = parties.copy(parties.folder / "copy").homes["law-1"]
    link = renew(parties, "law-1")
    session = Hostile(parties, [*PEOPLE, "twin"], "1" * 32)
    parties.homes["twin"] = copy
    session.key_of["twin"] = link.before
    session._roster["twin"] = session._roster["law-1"]
    session.announce()
    codes = {session.refusal(name, session.share_request()) for name in PEOPLE}
    assert codes == {"repeated_holder"}


def refused_under(session: Hostile, key: str) -> set[str]:
    """The codes of all others' refusals of a cohort in which law-1 has this key."""
    session.key_of["law-1"] = key
    session._roster["law-1"] = replace(session._roster["law-1"], key=key)
    session.announce()
    others = [name for name in PEOPLE if name != "law-1"]
    return {session.refusal(name, session.share_request()) for name in others}


def test_the_old_key_counts_no_more_once_its_hand_over_was_met(
    parties: Parties,
) -> None:
    """Whoever has stolen it cannot take the holder's place, and is told why."""
    copy = parties.copy(parties.folder / "copy").homes["law-1"]
    link = renew(parties, "law-1")
    opened(parties, 1)
    parties.homes["law-1"] = copy
    session = Hostile(parties, list(PEOPLE), "2" * 32)
    assert refused_under(session, link.before) == {"key_handed_over"}


def test_a_second_hand_over_of_one_key_is_refused_by_all_who_met_the_first(
    parties: Parties,
) -> None:
    """The holders, its owner and the coordinator; their journals keep the proof, and `client
    verify` shows it.
    """
    copy = parties.copy(parties.folder / "copy")
    renew(parties, "law-1")
    opened(parties, 1)
    stolen = renew_identity(copy.homes["law-1"])
    with pytest.raises(InputError, match="handed over twice"):
        parties.federation.ledger.admit(
            "law-1", read_signed_json(copy.homes["law-1"] / CARD, Card)
        )
    parties.homes["law-1"] = copy.homes["law-1"]
    session = Hostile(parties, list(PEOPLE), "2" * 32)
    session.handovers = (*session.handovers, stolen)
    assert refused_under(session, stolen.after) == {"forked_key"}
    checks = HolderRecord(parties.homes["medicine"]).check()
    [wrong] = [check for check in checks if not check.good]
    assert wrong.name == "keys" and "handed over twice" in wrong.words


def test_a_hand_over_that_the_old_key_has_not_signed_is_nothing(
    parties: Parties,
) -> None:
    """Neither from another member nor on a card."""
    stranger, victim = fixed_identity(9), parties.holder("law-1")
    good = hand_over(fixed_identity(8), stranger, 1)
    forged = HandOver(victim.key, stranger.public, 1, good.signatures)
    with pytest.raises(Refused, match="not signed"):
        parties.holder("medicine").take_handovers([forged])
    card = read_signed_json(parties.homes["law-1"] / CARD, Card)
    write_signed_json(
        card.model_copy(update={"key": stranger.public, "handovers": (forged,)}),
        stranger,
        parties.folder / "forged",
    )
    with pytest.raises(Refused, match="not signed"):
        parties.federation.ledger.admit(
            "law-1", read_signed_json(parties.folder / "forged", Card)
        )
    plain = card.model_copy(update={"key": stranger.public})
    write_signed_json(plain, stranger, parties.folder / "plain")
    with pytest.raises(InputError, match="with another key"):
        parties.federation.ledger.admit(
            "law-1", read_signed_json(parties.folder / "plain", Card)
        )


def test_hand_overs_of_strangers_are_not_kept(parties: Parties) -> None:
    """A coordinator cannot fill a journal with keys that concern nobody here."""
    link = hand_over(fixed_identity(8), fixed_identity(9), 1)
    federation = parties.federation
    request = seal_packet(
        Announce(terms=federation.terms, handovers=(link,)),
        federation.identity,
        round="4" * 32,
    )
    session = Hostile(parties, list(PEOPLE), "4" * 32)
    assert isinstance(session.send("law-1", request).message, Offer)
    assert parties.holder("law-1").handovers.links == ()


# A round


def test_a_renewal_changes_no_release(parties: Parties) -> None:
    """Holders that pinned the old key go on with the new one, the kept total counts, and nothing is
    opened again.
    """
    first = round_of(parties)
    opened_before = len(parties.holder("medicine").journal.entries(OPENED))
    old = parties.holder("law-1").key
    renew(parties, "law-1")
    check_round(parties.federation, Direct(parties), no_watch)
    second = round_of(parties)
    assert second.release == first.release
    assert len(parties.holder("medicine").journal.entries(OPENED)) == opened_before
    new = parties.holder("law-1").key
    assert all(
        new in parties.holder(name).pinned_keys
        and old not in parties.holder(name).pinned_keys
        for name in PEOPLE
    )
    record = HolderRecord(parties.homes["law-1"])
    assert all(check.good for check in record.check())
    assert any(item.opened == "yes" for item in record.sent())
    for name in PEOPLE:
        parties.change_corpus(name)
    third = round_of(parties)
    assert third.number == first.number + 1
    assert parties.federation.verify()["releases"] == 2


def test_a_holder_that_was_not_told_yet_does_not_take_part(parties: Parties) -> None:
    """Before the operator has admitted the new key, its answers are nobody's."""
    renew_identity(parties.homes["law-1"])
    released = round_of(parties)
    assert {member.name for member in released.members} == set(PEOPLE) - {"law-1"}
    refused = parties.federation.ledger.journal.entries("refused")
    assert {entry.facts["code"] for entry in refused} == {"unknown_holder"}


def test_a_renewal_that_is_cut_off_is_brought_to_its_end(parties: Parties) -> None:
    """After the journal has the hand-over, the next process finds the new key; before that, the old
    one holds.
    """
    home = parties.homes["law-1"]
    before = (home / IDENTITY).read_bytes()
    renew_identity(home)
    after = parties.holder("law-1").key
    (home / IDENTITY).rename(next_key(home / IDENTITY))
    (home / IDENTITY).write_bytes(before)
    assert parties.holder("law-1").key == after
    assert not next_key(home / IDENTITY).exists()
