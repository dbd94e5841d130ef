"""A holder under two keys is one holder: in a cohort, in every difference of sums, and before every question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ridgeway.client.deploy.holder_folder import renew_identity
from ridgeway.client.evidence import HolderRecord
from ridgeway.client.round.holder import CARD, IDENTITY, earlier_key
from ridgeway.common.base.errors import InputError, Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.base.identity import HandOver, hand_over, load_identity, next_key
from ridgeway.common.masking.history import History
from ridgeway.common.protocol.invitation import Card, read_paper, write_paper
from ridgeway.common.protocol.messages import Announce, Confirmed, Offer, Revealed
from ridgeway.common.protocol.packet import seal_packet
from ridgeway.coordinator.round.masked_round import outlook
from ridgeway.coordinator.round.preflight import check_holders
from ridgeway.coordinator.round.round import run_round
from tests.support.faults import make_haste
from tests.support.hostile import Hostile, code_of
from tests.support.making import fixed_identity
from tests.support.simulated_federation import Direct, Parties, found, no_watch, populate

PEOPLE = {"medicine": "medicine", "code-1": "code", "code-2": "code", "law-1": "law", "law-2": "law"}


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


def sealed(parties: Parties, number: int, names: Sequence[str] = tuple(PEOPLE)) -> Hostile:
    session = Hostile(parties, list(names), f"{number:032x}")
    session.begin()
    session.seal()
    return session


def opened(parties: Parties, number: int, names: Sequence[str] = tuple(PEOPLE)) -> Hostile:
    session = sealed(parties, number, names)
    session.finish("statistics")
    return session


def refused_by_all(session: Hostile) -> set[str]:
    """What everybody says who is asked to sign the sum; nobody may sign it."""
    codes = {code_of(session.ask(name, session.confirm_request("statistics", session.names))) for name in session.names}
    assert session.gave(Confirmed, "statistics") == session.gave(Revealed) == []
    return codes


# Sums under the old key and under the new one


def test_a_holder_that_renewed_its_key_does_not_pass_for_one_that_changed(parties: Parties) -> None:
    """Two sums, between which one has another key and another one other text: the difference shows the text's owner."""
    opened(parties, 1)
    renew(parties, "law-1")
    parties.change_corpus("code-1")
    assert refused_by_all(sealed(parties, 2)) == {"sets_apart"}


def test_a_holder_that_leaves_under_one_key_and_comes_under_another_is_one(parties: Parties) -> None:
    """Without the hand-over, one left and one joined; with it nobody did, and the one who changed stands alone."""
    opened(parties, 1)
    for _ in range(2):
        renew(parties, "medicine")
    parties.change_corpus("medicine")
    assert refused_by_all(sealed(parties, 2)) == {"sets_apart"}


def test_the_same_sum_under_a_new_key_shows_nothing_new(parties: Parties) -> None:
    """A renewal alone stands in nobody's way: the same data under another key may be opened again, and is the same."""
    first = opened(parties, 1)
    before = parties.holder("law-1").memory.own_sources()
    renew(parties, "law-1")
    second = opened(parties, 2)
    assert second.adverts["law-1"].key != first.adverts["law-1"].key
    assert second.adverts["law-1"].source == first.adverts["law-1"].source
    assert parties.holder("law-1").memory.own_sources() == before


def test_text_that_no_sum_has_seen_is_named_by_the_new_key_alone(parties: Parties) -> None:
    """Whoever has stolen the old key cannot test guesses at it; what was in a sum before keeps its name, for good."""
    first = opened(parties, 1).adverts["law-1"]
    renew(parties, "law-1")
    parties.change_corpus("law-1")
    holder = parties.holder("law-1")
    changed = holder.ready(parties.federation().terms)
    thief = load_identity(earlier_key(holder.folder, first.key))
    guess = sha256(thief.sign(f"ridgeway source {changed.content}".encode()).encode())
    assert holder.source(changed) not in (guess, first.source)


def test_a_combination_of_sums_under_both_keys_is_refused_by_those_who_know_one_each(parties: Parties) -> None:
    """One holder is in two sums under two keys and away from the third: the three together would show it alone.

    Half of the members know the old key only. The others tell them, signed by the owner of both, so the coordinator's
    word is not needed.
    """
    opened(parties, 1, ["medicine", "code-1", "code-2"])
    renew(parties, "medicine")
    opened(parties, 2, ["medicine", "law-1", "law-2"])
    third = sealed(parties, 3, ["code-1", "code-2", "law-1", "law-2"])
    known = parties.holder("code-1").handovers
    assert [link.after for link in known.links] == [parties.holder("medicine").identity.public]
    assert refused_by_all(third) == {"sets_apart"}


def test_a_hand_over_that_is_kept_from_a_member_is_missed(parties: Parties) -> None:
    """Its digest is signed with the keys of those who know it, so the coordinator can leave none out."""
    opened(parties, 1)
    renew(parties, "law-1")
    session = Hostile(parties, list(PEOPLE), "2" * 32)
    session.announce()
    session.histories = [each.model_copy(update={"handovers": ()}) for each in session.histories]
    codes = {code_of(session.ask(name, session.share_request())) for name in session.names}
    assert codes == {"history_withheld"}


def test_counts_about_the_same_data_are_given_once_under_whichever_keys(parties: Parties) -> None:
    """A member that renews its key again and again cannot have the others count again."""
    session = opened(parties, 1)
    session.count("scores")
    session.finish("scores")
    renew(parties, "law-1")
    again = opened(parties, 2)
    assert {code_of(again.ask(name, *again.question("scores"))) for name in PEOPLE} == {"already_counted"}


# Two keys at once


def test_one_holder_under_two_keys_is_not_two_members_of_a_cohort(parties: Parties) -> None:
    """A copy of the folder from before the renewal answers beside the renewed one: every member sees through it."""
    copy = parties.copy(parties.folder / "copy").homes["law-1"]
    link = renew(parties, "law-1")
    session = Hostile(parties, [*PEOPLE, "twin"], "1" * 32)
    parties.homes["twin"] = copy
    session.key_of["twin"] = link.before
    session._roster["twin"] = session._roster["law-1"]
    session.announce()
    codes = {code_of(session.ask(name, session.share_request())) for name in PEOPLE if name != "twin"}
    assert codes == {"repeated_holder"}


def test_the_old_key_counts_no_more_once_its_hand_over_was_met(parties: Parties) -> None:
    """Whoever has stolen it cannot take the holder's place, and is told why."""
    copy = parties.copy(parties.folder / "copy").homes["law-1"]
    link = renew(parties, "law-1")
    opened(parties, 1)
    parties.homes["law-1"] = copy
    session = Hostile(parties, list(PEOPLE), "2" * 32)
    session.key_of["law-1"] = link.before
    session._roster["law-1"] = session._roster["law-1"].__class__("law-1", "law", link.before, "", 1)
    session.announce()
    assert {code_of(session.ask(name, session.share_request())) for name in PEOPLE if name != "law-1"} == {
        "key_handed_over"
    }


def test_a_second_hand_over_of_one_key_is_refused_by_all_who_met_the_first(parties: Parties) -> None:
    """The holders, its owner and the coordinator; their journals keep the proof, and `client verify` shows it."""
    copy = parties.copy(parties.folder / "copy")
    renew(parties, "law-1")
    opened(parties, 1)
    stolen = renew_identity(copy.homes["law-1"])
    with pytest.raises(InputError, match="handed over twice"):
        parties.federation().ledger.admit("law-1", read_paper(copy.homes["law-1"] / CARD, Card), 1)
    parties.homes["law-1"] = copy.homes["law-1"]
    session = Hostile(parties, list(PEOPLE), "2" * 32)
    session.key_of["law-1"] = stolen.after
    session._roster["law-1"] = session._roster["law-1"].__class__("law-1", "law", stolen.after, "", 1)
    session.announce()
    others = [name for name in PEOPLE if name != "law-1"]
    assert {code_of(session.ask(name, session.share_request())) for name in others} == {"forked_key"}
    [keys] = [each for each in HolderRecord(parties.homes["medicine"]).check() if each.name == "keys"]
    assert not keys.good
    assert "handed over twice" in keys.words


def test_a_hand_over_that_the_old_key_has_not_signed_is_nothing(parties: Parties) -> None:
    """Neither from another member nor on a card."""
    stranger, victim = fixed_identity(9), parties.holder("law-1")
    good = hand_over(fixed_identity(8), stranger, 1)
    forged = HandOver(victim.identity.public, stranger.public, 1, good.signatures)
    with pytest.raises(Refused, match="not signed"):
        parties.holder("medicine").take_handovers([forged])
    card = read_paper(parties.homes["law-1"] / CARD, Card)
    write_paper(
        card.model_copy(update={"key": stranger.public, "handovers": (forged,)}), stranger, parties.folder / "forged"
    )
    with pytest.raises(Refused, match="not signed"):
        parties.federation().ledger.admit("law-1", read_paper(parties.folder / "forged", Card), 1)
    plain = card.model_copy(update={"key": stranger.public})
    write_paper(plain, stranger, parties.folder / "plain")
    with pytest.raises(InputError, match="with another key"):
        parties.federation().ledger.admit("law-1", read_paper(parties.folder / "plain", Card), 1)


def test_hand_overs_of_strangers_are_not_kept(parties: Parties) -> None:
    """A coordinator cannot fill a journal with keys that concern nobody here."""
    link = hand_over(fixed_identity(8), fixed_identity(9), 1)
    federation = parties.federation()
    request = seal_packet(Announce(terms=federation.terms, handovers=(link,)), federation.identity, round="4" * 32)
    session = Hostile(parties, list(PEOPLE), "4" * 32)
    assert isinstance(session.send("law-1", request).message, Offer)
    assert parties.holder("law-1").handovers.links == ()


# A round


def test_a_renewal_changes_no_release(parties: Parties) -> None:
    """Holders that pinned the old key go on with the new one, the kept total counts, and nothing is opened again."""
    first = run_round(parties.federation(), Direct(parties), no_watch)
    opened_before = len(parties.federation().ledger.opened_log())
    old = parties.holder("law-1").identity.public
    renew(parties, "law-1")
    federation = parties.federation()
    assert outlook(federation) is None
    assert not any(each.obstacles for each in check_holders(federation, Direct(parties), no_watch))
    second = run_round(parties.federation(), Direct(parties), no_watch)
    assert second.release == first.release
    assert len(parties.federation().ledger.opened_log()) == opened_before
    new = parties.holder("law-1").identity.public
    assert all(
        new in parties.holder(name).pinned_keys and old not in parties.holder(name).pinned_keys for name in PEOPLE
    )
    record = HolderRecord(parties.homes["law-1"])
    assert all(each.good for each in record.check())
    assert any(each.opened == "yes" for each in record.sent())
    for name in ("law-2", "medicine"):
        parties.change_corpus(name)
    third = run_round(parties.federation(), Direct(parties), no_watch)
    assert third.number == first.number + 1
    assert parties.federation().verify()["releases"] == 2


def test_a_holder_that_was_not_told_yet_does_not_take_part(parties: Parties) -> None:
    """Before the operator has admitted the new key, its answers are nobody's."""
    renew_identity(parties.homes["law-1"])
    released = run_round(parties.federation(), Direct(parties), no_watch)
    assert {each.name for each in released.members} == set(PEOPLE) - {"law-1"}
    refused = parties.federation().ledger.journal.entries("refused")
    assert {each.facts["code"] for each in refused} == {"unknown_holder"}


def test_a_renewal_that_is_cut_off_is_brought_to_its_end(parties: Parties) -> None:
    """After the journal has the hand-over, the next process finds the new key; before that, the old one holds."""
    home = parties.homes["law-1"]
    before = load_identity(home / IDENTITY)
    renew_identity(home)
    after = parties.holder("law-1").identity.public
    (home / IDENTITY).rename(next_key(home / IDENTITY))
    (home / IDENTITY).write_bytes(earlier_key(home, before.public).read_bytes())
    assert parties.holder("law-1").identity.public == after
    assert not next_key(home / IDENTITY).exists()


def test_a_history_tells_of_hand_overs_by_their_digests(parties: Parties) -> None:
    """So each travels once, however many members know it."""
    link = renew(parties, "law-1")
    told = parties.holder("law-1").memory.history().told()
    assert told == History(handovers=(link,))
