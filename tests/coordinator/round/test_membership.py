"""Membership: who joins, changes, retires or is removed, and what that does to releases and to the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import CARD
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import EQUAL_MASS, Ridge
from ridgeway.common.protocol.cohort import Card, read_signed_json
from ridgeway.common.protocol.messages import (
    ClearStatistics,
    Deliver,
    HeldRelease,
    Refusal,
)
from ridgeway.common.protocol.packet import Packet, open_packet, seal_packet
from ridgeway.common.routing.release import (
    MANIFEST,
    ROUTER,
    load_release,
    release_files,
)
from ridgeway.common.statistics import Statistics
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.membership import remove, retire
from ridgeway.coordinator.round.progress import Event, TotalGathered
from ridgeway.coordinator.round.round import deliver_newest
from tests.support.corpora_on_disk import touch_later, write_jsonl
from tests.support.faults import Crash, router_bytes
from tests.support.making import contents, fixed_identity, sign_again
from tests.support.simulated_federation import (
    ONE_EACH,
    Direct,
    Parties,
    found,
    no_watch,
    own_texts,
    populate,
    round_fails,
    round_of,
)

ANY = (*ONE_EACH, "poetry")


pytestmark = pytest.mark.usefixtures("haste_with_changes")


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    """Three holders of three domains."""
    return populate(found(tmp_path / "parties"), ONE_EACH)


def round_with(
    parties: Parties,
    names: Sequence[str] | None = None,
    down: Sequence[str] = (),
    **wishes: Any,
) -> tuple[LedgerRelease, list[str]]:
    """A round with these holders there, whose router need not be counted for unless a test says
    otherwise; and who sent sums.
    """
    transport = Direct(parties, names, down)
    given: dict[str, Any] = {"accept_unevaluated": ANY, "accept_worse": ANY, **wishes}
    return round_of(parties, transport, **given), transport.senders(ClearStatistics)


def router(parties: Parties, published: LedgerRelease) -> bytes:
    return parties.router(published.number)


def own_sums(parties: Parties, *names: str) -> dict[str, Statistics]:
    terms = parties.federation.terms
    holders = {name: parties.holder(name) for name in names}
    return {
        name: holder.epochs.statistics(holder.epoch(terms)).statistics
        for name, holder in holders.items()
    }


def by_hand(parties: Parties, *names: str) -> bytes:
    """The router of these holders' raw sums, from the definition."""
    standing = parties.standing
    return router_bytes(
        own_sums(parties, *names), standing, parties.encoder, Ridge().value
    )


# Joining


def test_of_a_newcomer_only_the_newcomer_sends_anything(parties: Parties) -> None:
    """The others' sums are in the ledger; the release is that of all of them from the start. Who
    has counted for the router before does not count for this one until its next epoch.
    """
    first, senders = round_with(parties)
    assert senders == ["code", "law", "medicine"]
    parties.settle("poetry", "poetry", own_texts("poetry", "law", 11))
    parties.admit("poetry")
    with round_fails(
        r"no holder of code, law, medicine evaluated the router.*open the next epoch"
    ):
        round_with(parties, accept_unevaluated=())
    assert "poetry" not in parties.standing.contributions, (
        "nobody was asked for sums in vain"
    )
    second, senders = round_with(parties)
    assert senders == ["poetry"]
    assert (second.number, second.domains) == (first.number + 1, ANY)
    assert router(parties, second) == by_hand(parties, *ANY)


def test_an_unchanged_round_asks_nobody_for_sums_and_leaves_the_release(
    parties: Parties,
) -> None:
    """It says so, and no one need be there for it but to be counted; if another is wanted, it has
    the same router.
    """
    first, _ = round_with(parties)
    second, senders = round_with(parties, down=("law",))
    assert senders == []
    assert (second.number, second.release) == (first.number, first.release)
    assert parties.entries("closed")[-1]["reason"] == "nothing has changed"
    assert (parties.federation.folder / "releases" / "latest").resolve().name == "0001"
    third, _ = round_with(parties, even_unchanged=True)
    assert third.number == first.number + 1
    assert router(parties, third) == router(parties, first)


def test_two_holders_of_one_domain_share_its_mass(parties: Parties) -> None:
    """Shares add up to the mass, and the release is what the definition gives."""
    round_with(parties)
    parties.settle("law-2", "law", own_texts("law-2", "law", 11))
    parties.admit("law-2")
    published, senders = round_with(parties)
    assert sorted(senders) == ["law", "law-2"]
    shares = {name: sums.share for name, sums in parties.standing.contributions.items()}
    assert shares["law"] + shares["law-2"] == EQUAL_MASS
    assert shares["law-2"] in (EQUAL_MASS // 2, EQUAL_MASS // 2 + 1)
    assert published.domains == ("code", "law", "medicine")
    assert router(parties, published) == by_hand(
        parties, "code", "law", "law-2", "medicine"
    )


def test_a_corpus_that_changed_counts_from_its_next_epoch_on(parties: Parties) -> None:
    """Until then the release stands. Then its holder alone sends; the release is as if the old one
    had never been.
    """
    first, _ = round_with(parties)
    before = own_sums(parties, "law")["law"]
    corpus = write_jsonl(
        parties.folder / "corpora" / "law.jsonl", own_texts("changed", "law", 11)
    )
    touch_later(corpus)
    assert round_with(parties)[0].number == first.number
    parties.ready("law")
    second, senders = round_with(parties)
    assert senders == ["law"]
    assert not own_sums(parties, "law")["law"].equals(before)
    assert (
        router(parties, second)
        == by_hand(parties, "code", "law", "medicine")
        != router(parties, first)
    )


# Retiring


def test_retiring_a_domain_drops_its_column_at_once(parties: Parties) -> None:
    """The other columns stay as they are; no holder is asked; later rounds leave it out."""
    first, _ = round_with(parties)
    change = retire(parties.federation, "law")
    assert change.published is not None
    assert change.published.number == 2
    assert change.published.domains == ("code", "medicine")
    old, new = (load_release(parties.release_folder(number)) for number in (1, 2))
    assert new.weights.tobytes() == old.weights[:, [0, 2]].tobytes()
    assert (new.manifest["parent"], new.manifest["number"]) == (first.release, 2)
    third, senders = round_with(parties)
    assert third.domains == ("code", "medicine")
    assert senders == []
    assert router(parties, third) == by_hand(parties, "code", "medicine")
    parties.ledger.verify()


def test_a_domain_that_is_in_no_release_retires_without_one(parties: Parties) -> None:
    """It is left out of the first round."""
    assert retire(parties.federation, "law").published is None
    assert round_with(parties)[0].domains == ("code", "medicine")


@pytest.mark.parametrize("domain", ["poetry", "law"])
def test_only_an_active_domain_can_retire(parties: Parties, domain: str) -> None:
    """A second time is once too often; the error says which there are."""
    retire(parties.federation, "law")
    with pytest.raises(
        InputError, match=f"no domain '{domain}'; the domains are: code, medicine"
    ):
        retire(parties.federation, domain)


def test_a_router_keeps_two_domains_whoever_retires(parties: Parties) -> None:
    """The last but one cannot go, and nothing is written by the attempt."""
    round_with(parties)
    retire(parties.federation, "law")
    entries = parties.ledger.verify()["entries"]
    with pytest.raises(InputError, match="two"):
        retire(parties.federation, "code")
    assert parties.ledger.verify()["entries"] == entries
    assert not (parties.federation.folder / "releases" / "0003").exists()


# Removing


def never_had(tmp_path: Path, parties: Parties, name: str) -> Parties:
    """A federation of the same holders that never heard of one of them."""
    other = parties.copy(tmp_path / "without")
    other.ledger.note("removed", name=name)
    del other.homes[name]
    return other


def test_removing_a_holder_gives_the_router_of_a_federation_that_never_had_it(
    parties: Parties, tmp_path: Path
) -> None:
    """Byte for byte, without asking anybody; its sums are erased."""
    other = never_had(tmp_path, parties, "medicine")
    round_with(parties)
    assert len(parties.sums_files()) == 3
    digest = parties.standing.contributions["medicine"].digest
    change = remove(parties.federation, "medicine")
    assert change.published is not None
    assert change.unbalanced == ()
    assert (change.published.number, change.published.domains) == (2, ("code", "law"))
    round_with(other)
    assert parties.router(2) == other.router(1)
    assert len(parties.sums_files()) == 2
    assert digest not in parties.sums_files()
    assert "medicine" not in parties.standing.roster
    parties.ledger.verify()


def test_removing_one_of_two_holders_of_a_domain_says_whose_share_no_longer_fits(
    parties: Parties,
) -> None:
    """The next round gives the other its whole mass; then it is as if the removed one had never
    been.
    """
    parties.settle("law-2", "law", own_texts("law-2", "law", 11))
    parties.admit("law-2")
    round_with(parties)
    change = remove(parties.federation, "law-2")
    assert change.unbalanced == ("law",)
    published, senders = round_with(parties, ["code", "law", "medicine"])
    assert senders == ["law"]
    assert router(parties, published) == by_hand(parties, "code", "law", "medicine")


def test_removing_a_holder_of_a_retired_domain_takes_it_out_of_the_router(
    parties: Parties, tmp_path: Path
) -> None:
    """Retiring drops a column; what the holder's text did to the others' is gone only once it is
    removed.
    """
    other = never_had(tmp_path, parties, "medicine")
    round_with(parties)
    retire(parties.federation, "medicine")
    remove(parties.federation, "medicine")
    round_with(other)
    assert parties.router(3) == other.router(1)
    assert len(parties.sums_files()) == 2


def test_a_holder_that_sent_nothing_is_removed_without_a_release(
    parties: Parties,
) -> None:
    """There is nothing to subtract."""
    round_with(parties, ["code", "law"])
    assert remove(parties.federation, "medicine").published is None
    assert set(parties.standing.roster) == {"code", "law"}


def test_only_somebody_on_the_roster_can_be_removed(parties: Parties) -> None:
    """The error says who is there."""
    with pytest.raises(
        InputError, match="no holder 'poetry'; the holders are: code, law, medicine"
    ):
        remove(parties.federation, "poetry")


def test_one_of_the_last_two_is_removed_though_no_router_can_be_made_without_it(
    parties: Parties,
) -> None:
    """Its sums are erased all the same, and the operator is told that the newest release is as it
    was.
    """
    round_with(parties)
    remove(parties.federation, "medicine")
    change = remove(parties.federation, "law")
    assert (change.published, change.names_it) == (None, True)
    assert set(parties.standing.roster) == {"code"}
    assert parties.sums_files() == {parties.standing.contributions["code"].digest}
    parties.ledger.verify()


def test_removal_subtracts_what_the_release_was_made_of_whatever_came_since(
    parties: Parties, tmp_path: Path
) -> None:
    """Sums that were accepted in a round that failed later are in no release, and do not come into
    one unseen.
    """
    other = never_had(tmp_path, parties, "medicine")
    round_with(other)
    expected = other.router(1)
    round_with(parties)
    parties.settle("law-2", "law", own_texts("law-2", "law", 11))
    parties.admit("law-2")

    def stop(event: Event) -> None:
        if isinstance(event, TotalGathered):
            raise Crash

    with pytest.raises(Crash):
        round_of(parties, watch=stop, accept_unevaluated=ANY)
    remove(parties.federation, "medicine")
    assert parties.router(2) == expected


def test_a_holder_that_is_admitted_for_another_domain_is_not_counted_for_the_one_before(
    parties: Parties,
) -> None:
    """What it sent for the old one is not used for the new one, though it is away and cannot send
    anew.
    """
    round_with(parties)
    card = read_signed_json(parties.homes["law"] / CARD, Card).model_copy(
        update={"domain": "poetry"}
    )
    parties.ledger.admit("law", card)
    published, _ = round_with(parties, down=("law",))
    assert published.domains == ("code", "medicine")
    assert router(parties, published) == by_hand(parties, "code", "medicine")


def test_changes_and_rounds_do_not_run_at_once(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one runs, the others give up in words once their patience is over; nothing is half
    done.
    """
    monkeypatch.setattr(
        Federation,
        "exclusive_lock",
        partialmethod(Federation.exclusive_lock, patience=0.0),
    )
    federation = parties.federation
    with federation.exclusive_lock():
        for change in (
            lambda: retire(federation, "law"),
            lambda: remove(federation, "law"),
            lambda: round_with(parties),
        ):
            with pytest.raises(InputError, match="another change is running"):
                change()


# Releases on their way


def test_a_holder_that_was_away_gets_the_newest_release_when_it_is_back(
    parties: Parties,
) -> None:
    """Every byte of it, and only those who lack it."""
    round_with(parties)
    parties.change_corpus("code")
    published, _ = round_with(parties, down=("law",))
    assert parties.holder("law").newest == 1
    assert deliver_newest(parties.federation, Direct(parties), no_watch) == {"law"}
    law = parties.holder("law")
    assert law.newest == published.number
    assert contents(law.release_folder(2)) == contents(parties.release_folder(2))
    assert deliver_newest(parties.federation, Direct(parties), no_watch) == set()
    held = HeldRelease(number=2, release=published.release)
    assert parties.standing.delivered == dict.fromkeys(ONE_EACH, held)


def test_without_a_release_nothing_is_delivered(parties: Parties) -> None:
    """Those who are there are greeted, and that is all."""
    transport = Direct(parties)
    assert deliver_newest(parties.federation, transport, no_watch) == set()
    assert transport.reply_kinds == {"here"}


def delivery(
    parties: Parties, number: int, folder: Path, release: str, identity: Any = None
) -> Packet:
    """A request to store the release that lies in a folder."""
    signer = identity or parties.federation.identity
    return seal_packet(
        Deliver(number=number, release=release),
        signer,
        round="0" * 32,
        blobs=release_files(folder),
    )


def refusal(parties: Parties, packet: Packet) -> str:
    message = open_packet(answer(parties.holder("law"), packet)).message
    assert isinstance(message, Refusal)
    return message.code


def test_a_holder_refuses_an_older_release_and_another_one_under_a_number_it_has(
    parties: Parties,
) -> None:
    """Whoever replays what was once signed cannot turn a holder back; what it has stays as it
    is.
    """
    releases = [round_with(parties, down=("law",))[0], round_with(parties)[0]]
    folders = [parties.release_folder(release.number) for release in releases]
    stored = contents(parties.holder("law").release_folder(2))
    assert (
        refusal(parties, delivery(parties, 1, folders[0], releases[0].release))
        == "old_release"
    )
    sign_again(folders[1], parties.federation.identity, {"evaluation": None})
    other = load_release(folders[1]).id
    assert refusal(parties, delivery(parties, 2, folders[1], other)) == "old_release"
    assert contents(parties.holder("law").release_folder(2)) == stored
    assert [entry.facts["number"] for entry in parties.holder("law").releases()] == [2]


def test_a_release_that_is_delivered_twice_is_acknowledged_twice_and_stored_once(
    parties: Parties,
) -> None:
    """A receipt may be lost on its way."""
    published, _ = round_with(parties)
    packet = delivery(parties, 1, parties.release_folder(1), published.release)
    assert open_packet(answer(parties.holder("law"), packet)).message.kind == "receipt"
    assert len(parties.holder("law").releases()) == 1


@pytest.mark.parametrize(
    "forgery", ["signer", "weights", "number", "announced", "cut", "sender"]
)
def test_a_holder_refuses_a_forged_release(parties: Parties, forgery: str) -> None:
    """Signed by another, altered, under another number, not the one announced, cut off, or sent by
    another.
    """
    published, _ = round_with(parties, down=("law",))
    folder, stranger = parties.release_folder(1), fixed_identity(9)
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
    assert refusal(parties, delivery(parties, number, folder, release, sender)) == code
    holder = parties.holder("law")
    assert holder.newest == 0
    # not even a hidden folder is left
    assert not list(holder.folder.glob("releases/*"))
