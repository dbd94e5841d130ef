"""Membership: who joins, changes, retires or is removed, and what that does to releases and to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from client.answers import answer
from client.setup import CARD
from common.errors import InputError, Refused
from common.invite import Card, read_paper
from common.messages import Deliver, Packet, Refusal, open_packet, seal_packet
from common.release import MANIFEST, ROUTER, TOKENIZER, load_release
from common.settings import EQUAL_MASS
from common.statistics import Statistics
from coordinator.federation import Federation
from coordinator.ledger import Published
from coordinator.membership import remove, retire
from coordinator.rounds import deliver_newest, run_round
from tests.coordinator.faults import Crash, make_haste, router_bytes
from tests.corpora_on_disk import touch_later, write_jsonl
from tests.making import contents, fixed_identity, sign_again
from tests.village import Direct, Village, found, no_watch, own_texts, populate

DOMAINS = {"code": "code", "law": "law", "medicine": "medicine"}


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch, once=False)


@pytest.fixture
def village(tmp_path: Path) -> Village:
    """Three holders of three domains; one candidate, so that no choice depends on who evaluated."""
    made = found(tmp_path / "village")
    populate(made, DOMAINS)
    return made


def round_of(
    village: Village, names: Sequence[str] | None = None, down: Sequence[str] = ()
) -> tuple[Published, Direct]:
    """A round with these holders there."""
    transport = Direct(village, names)
    transport.down = set(down)
    return run_round(village.federation(), transport, no_watch), transport


def senders(transport: Direct) -> list[str]:
    """Who sent statistics."""
    return [name for name, reply in transport.replies if open_packet(reply).message.kind == "clear_statistics"]


def router(village: Village, published: Published) -> bytes:
    return (village.federation().release_folder(published.number) / ROUTER).read_bytes()


def own_sums(village: Village, *names: str) -> dict[str, Statistics]:
    terms = village.federation().terms
    return {name: village.holder(name).current(terms).statistics for name in names}


def by_hand(village: Village, *names: str) -> bytes:
    """The router of these holders' raw sums, from the definition."""
    standing = village.federation().ledger.standing()
    return router_bytes(own_sums(village, *names), standing, village.encoder, 1e-3)


# Joining


def test_of_a_newcomer_only_the_newcomer_sends_anything(village: Village) -> None:
    """The others' sums are in the ledger; the release is that of all of them from the start."""
    first, transport = round_of(village)
    assert senders(transport) == ["code", "law", "medicine"]
    village.settle("poetry", "poetry", own_texts("poetry", "law", 7))
    village.admit("poetry")
    second, transport = round_of(village)
    assert senders(transport) == ["poetry"]
    assert (second.number, second.domains) == (first.number + 1, ("code", "law", "medicine", "poetry"))
    assert router(village, second) == by_hand(village, "code", "law", "medicine", "poetry")


def test_an_unchanged_round_asks_nobody_for_sums_and_gives_the_same_router(village: Village) -> None:
    """And no one need be there for it but to be counted."""
    first, _ = round_of(village)
    second, transport = round_of(village, down=("law",))
    assert senders(transport) == []
    assert second.domains == first.domains
    assert router(village, second) == router(village, first)


@pytest.mark.parametrize("weight", [1, 2, 5])
def test_two_holders_of_one_domain_share_its_mass_by_weight(village: Village, weight: int) -> None:
    """Shares add up to the mass, and the release is what the definition gives."""
    round_of(village)
    village.settle("law-2", "law", own_texts("law-2", "law", 7))
    village.admit("law-2", weight)
    published, transport = round_of(village)
    assert senders(transport) == ["law", "law-2"] or senders(transport) == ["law-2", "law"]
    shares = {n: each.share for n, each in village.federation().ledger.standing().contributions.items()}
    assert shares["law"] + shares["law-2"] == EQUAL_MASS
    assert shares["law-2"] in (EQUAL_MASS * weight // (weight + 1), EQUAL_MASS * weight // (weight + 1) + 1)
    assert published.domains == ("code", "law", "medicine")
    assert router(village, published) == by_hand(village, "code", "law", "law-2", "medicine")


def test_a_holder_whose_corpus_changed_replaces_what_it_sent(village: Village) -> None:
    """It alone sends; the release is that of its new corpus, as if the old one had never been."""
    first, _ = round_of(village)
    before = own_sums(village, "law")["law"]
    corpus = write_jsonl(village.folder / "corpora" / "law.jsonl", own_texts("changed", "law", 11))
    touch_later(corpus)
    second, transport = round_of(village)
    assert senders(transport) == ["law"]
    assert not own_sums(village, "law")["law"].equals(before)
    assert router(village, second) == by_hand(village, "code", "law", "medicine") != router(village, first)


# Retiring


def test_retiring_a_domain_drops_its_column_at_once(village: Village) -> None:
    """The other columns stay as they are; no holder is asked; later rounds leave it out."""
    first, _ = round_of(village)
    change = retire(village.federation(), "law")
    assert change.published is not None
    assert (change.published.number, change.published.domains) == (2, ("code", "medicine"))
    old, new = (load_release(village.federation().release_folder(number)) for number in (1, 2))
    assert new.weights.tobytes() == old.weights[:, [0, 2]].tobytes()
    assert (new.manifest["parent"], new.manifest["number"]) == (first.release, 2)
    third, transport = round_of(village)
    assert third.domains == ("code", "medicine")
    assert senders(transport) == []
    assert router(village, third) == by_hand(village, "code", "medicine")
    village.federation().ledger.verify()


def test_a_domain_that_is_in_no_release_retires_without_one(village: Village) -> None:
    """It is left out of the first round."""
    assert retire(village.federation(), "law").published is None
    assert round_of(village)[0].domains == ("code", "medicine")


@pytest.mark.parametrize("domain", ["poetry", "law"])
def test_only_an_active_domain_can_retire(village: Village, domain: str) -> None:
    """A second time is once too often; the error says which there are."""
    retire(village.federation(), "law")
    with pytest.raises(InputError, match=f"no domain '{domain}' to retire; there are code, medicine"):
        retire(village.federation(), domain)


def test_a_router_keeps_two_domains_whoever_retires(village: Village) -> None:
    """The last but one cannot go, and nothing is written by the attempt."""
    round_of(village)
    retire(village.federation(), "law")
    entries = village.federation().ledger.verify()["entries"]
    with pytest.raises(InputError, match="two"):
        retire(village.federation(), "code")
    assert village.federation().ledger.verify()["entries"] == entries
    assert not (village.federation().folder / "releases" / "0003").exists()


# Removing


def never_had(tmp_path: Path, village: Village, name: str) -> Village:
    """A federation of the same holders that never heard of one of them."""
    other = village.copy(tmp_path / "without")
    other.federation().ledger.note("removed", name=name)
    del other.homes[name]
    return other


def test_removing_a_holder_gives_the_router_of_a_federation_that_never_had_it(village: Village, tmp_path: Path) -> None:
    """Byte for byte, without asking anybody; its sums are erased."""
    other = never_had(tmp_path, village, "medicine")
    round_of(village)
    assert len(sums_files(village)) == 3
    digest = village.federation().ledger.standing().contributions["medicine"].digest
    change = remove(village.federation(), "medicine")
    assert change.published is not None
    assert change.unbalanced == ()
    assert (change.published.number, change.published.domains) == (2, ("code", "law"))
    assert router(village, change.published) == router(other, round_of(other)[0])
    assert len(sums_files(village)) == 2
    assert digest not in sums_files(village)
    assert "medicine" not in village.federation().ledger.standing().roster
    village.federation().ledger.verify()


def sums_files(village: Village) -> set[str]:
    return {path.stem for path in (village.federation().folder / "contributions").glob("*.sums")}


def test_removing_one_of_two_holders_of_a_domain_says_whose_share_no_longer_fits(village: Village) -> None:
    """The next round gives the other its whole mass; then it is as if the removed one had never been."""
    village.settle("law-2", "law", own_texts("law-2", "law", 7))
    village.admit("law-2")
    round_of(village)
    change = remove(village.federation(), "law-2")
    assert change.unbalanced == ("law",)
    published, transport = round_of(village, ["code", "law", "medicine"])
    assert senders(transport) == ["law"]
    assert router(village, published) == by_hand(village, "code", "law", "medicine")


def test_removing_a_holder_of_a_retired_domain_takes_it_out_of_the_router(village: Village, tmp_path: Path) -> None:
    """Retiring drops a column; what the holder's text did to the others' is gone only once it is removed."""
    other = never_had(tmp_path, village, "medicine")
    round_of(village)
    retire(village.federation(), "medicine")
    change = remove(village.federation(), "medicine")
    assert change.published is not None
    assert router(village, change.published) == router(other, round_of(other)[0])
    assert len(sums_files(village)) == 2


def test_a_holder_that_sent_nothing_is_removed_without_a_release(village: Village) -> None:
    """There is nothing to subtract."""
    round_of(village, ["code", "law"])
    assert remove(village.federation(), "medicine").published is None
    assert set(village.federation().ledger.standing().roster) == {"code", "law"}


def test_only_somebody_on_the_roster_can_be_removed(village: Village) -> None:
    """The error says who is there."""
    with pytest.raises(InputError, match="no holder 'poetry' to remove; there are code, law, medicine"):
        remove(village.federation(), "poetry")


def test_one_of_the_last_two_is_removed_though_no_router_can_be_made_without_it(village: Village) -> None:
    """Its sums are erased all the same, and the operator is told that the newest release is as it was."""
    round_of(village)
    remove(village.federation(), "medicine")
    change = remove(village.federation(), "law")
    assert (change.published, change.names_it) == (None, True)
    assert set(village.federation().ledger.standing().roster) == {"code"}
    assert sums_files(village) == {village.federation().ledger.standing().contributions["code"].digest}
    village.federation().ledger.verify()


def test_removal_subtracts_what_the_release_was_made_of_whatever_came_since(village: Village, tmp_path: Path) -> None:
    """Sums that were accepted in a round that failed later are in no release, and do not come into one unseen."""
    other = never_had(tmp_path, village, "medicine")
    expected = router(other, round_of(other)[0])
    round_of(village)
    village.settle("law-2", "law", own_texts("law-2", "law", 7))
    village.admit("law-2")

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "added":
            raise Crash

    with pytest.raises(Crash):
        run_round(village.federation(), Direct(village), stop)
    change = remove(village.federation(), "medicine")
    assert change.published is not None
    assert router(village, change.published) == expected


def test_a_holder_that_is_admitted_for_another_domain_is_not_counted_for_the_one_before(village: Village) -> None:
    """What it sent for the old one is not used for the new one, though it is away and cannot send anew."""
    round_of(village)
    card = read_paper(village.homes["law"] / CARD, Card).model_copy(update={"domain": "poetry"})
    village.federation().ledger.admit("law", card, 1)
    published, _ = round_of(village, down=("law",))
    assert published.domains == ("code", "medicine")
    assert router(village, published) == by_hand(village, "code", "medicine")


def test_changes_and_rounds_do_not_run_at_once(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one runs, the others give up in words once their patience is over; nothing is half done."""
    monkeypatch.setattr(Federation, "alone", partialmethod(Federation.alone, patience=0.0))
    federation = village.federation()
    with federation.alone():
        for change in (lambda: retire(federation, "law"), lambda: remove(federation, "law"), lambda: round_of(village)):
            with pytest.raises(InputError, match="another change is running"):
                change()


# Releases on their way


def test_a_holder_that_was_away_gets_the_newest_release_when_it_is_back(village: Village) -> None:
    """Every byte of it, and only those who lack it."""
    round_of(village)
    published, _ = round_of(village, down=("law",))
    assert village.holder("law").newest == 1
    assert deliver_newest(village.federation(), Direct(village), no_watch) == {"law"}
    law = village.holder("law")
    assert law.newest == published.number
    assert contents(law.release_folder(2)) == contents(village.federation().release_folder(2))
    assert deliver_newest(village.federation(), Direct(village), no_watch) == set()
    assert village.federation().ledger.standing().delivered == dict.fromkeys(DOMAINS, 2)


def test_without_a_release_nothing_is_delivered(village: Village) -> None:
    """And nobody is asked."""
    transport = Direct(village)
    assert deliver_newest(village.federation(), transport, no_watch) == set()
    assert transport.replies == []


def delivery(village: Village, number: int, folder: Path, release: str, identity: Any = None) -> Packet:
    """A request to store the release that lies in a folder."""
    blobs = [(folder / name).read_bytes() for name in (MANIFEST, ROUTER, TOKENIZER)]
    signer = identity or village.federation().identity
    return seal_packet(Deliver(number=number, release=release), signer, round="0" * 32, blobs=blobs)


def refusal(village: Village, packet: Packet) -> str:
    message = open_packet(answer(village.holder("law"), packet)).message
    assert isinstance(message, Refusal)
    return message.code


def test_a_holder_refuses_an_older_release_and_another_one_under_a_number_it_has(village: Village) -> None:
    """Whoever replays what was once signed cannot turn a holder back; what it has stays as it is."""
    releases = [round_of(village, down=("law",))[0], round_of(village)[0]]
    folders = [village.federation().release_folder(each.number) for each in releases]
    stored = contents(village.holder("law").release_folder(2))
    assert refusal(village, delivery(village, 1, folders[0], releases[0].release)) == "old_release"
    sign_again(folders[1], village.federation().identity, {"evaluation": None})
    other = load_release(folders[1]).id
    assert refusal(village, delivery(village, 2, folders[1], other)) == "old_release"
    assert contents(village.holder("law").release_folder(2)) == stored
    assert [entry.facts["number"] for entry in village.holder("law").releases()] == [2]


def test_a_release_that_is_delivered_twice_is_acknowledged_twice_and_stored_once(village: Village) -> None:
    """A receipt may be lost on its way."""
    published, _ = round_of(village)
    packet = delivery(village, 1, village.federation().release_folder(1), published.release)
    assert open_packet(answer(village.holder("law"), packet)).message.kind == "receipt"
    assert len(village.holder("law").releases()) == 1


@pytest.mark.parametrize("forgery", ["signer", "weights", "number", "announced", "cut", "sender"])
def test_a_holder_refuses_a_forged_release(village: Village, forgery: str) -> None:
    """Signed by another, altered, under another number, not the one announced, cut off, or sent by another."""
    published, _ = round_of(village, down=("law",))
    folder, stranger = village.federation().release_folder(1), fixed_identity(9)
    number, release, sender = 1, published.release, None
    if forgery == "signer":
        sign_again(folder, stranger, {})
    elif forgery == "weights":
        content = bytearray((folder / ROUTER).read_bytes())
        content[-1] ^= 1
        (folder / ROUTER).write_bytes(content)
    elif forgery == "number":
        number = 2
    elif forgery == "announced":
        release = "0" * 64
    elif forgery == "cut":
        (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-9])
    else:
        sender = stranger
    code = "unknown_coordinator" if forgery == "sender" else "bad_release"
    assert refusal(village, delivery(village, number, folder, release, sender)) == code
    holder = village.holder("law")
    assert holder.newest == 0
    assert not holder.release_folder(1).exists()
    assert not holder.release_folder(2).exists()


def test_a_refused_release_leaves_no_trace_in_the_folder(village: Village) -> None:
    """Not even a hidden one."""
    round_of(village, down=("law",))
    holder = village.holder("law")
    with pytest.raises(Refused):
        holder.store_release(1, "0" * 64, [b"", b"", b""])
    assert not (holder.folder / "releases").exists() or not list((holder.folder / "releases").iterdir())
