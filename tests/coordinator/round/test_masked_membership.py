"""Masked totals beside joining, retiring, removing, crashes, members that lie: who waits, and what
totals tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.shares import SHARE_BYTES, pack_by_member, unpack_by_member
from ridgeway.common.protocol.messages import (
    ENVELOPE_BYTES,
    Confirmed,
    Envelopes,
    Message,
    Revealed,
    SealedSums,
)
from ridgeway.common.protocol.packet import (
    Blob,
    Opened,
    Packet,
    open_packet,
    seal_packet,
)
from ridgeway.coordinator.round.federation import Federation, PrivacySettings
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.masked_round import too_few_on_roster
from ridgeway.coordinator.round.membership import remove, retire
from tests.support.hostile import MEMBERS
from tests.support.rosters import unpin
from tests.support.simulated_federation import (
    Direct,
    Parties,
    found,
    names_of,
    populate,
    round_fails,
    round_of,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

LIAR = "law-1"


def round_of_active(parties: Parties) -> LedgerRelease:
    return round_of(parties, Direct(parties, parties.standing.active))


# Retiring and removing


@pytest.mark.parametrize("leave", [retire, remove])
def test_the_round_after_a_domain_has_left_waits_for_new_epochs(
    later: Parties, leave: Callable[[Federation, str], object]
) -> None:
    """Retired or removed: nothing that was in a total with it is in another."""
    leave(later.federation, "medicine")
    with round_fails("must open a new epoch"):
        round_of_active(later)
    later.new_epochs()
    published = round_of_active(later)
    assert published.domains == ("code", "law")
    assert names_of(published) == set(MEMBERS) - {"medicine"}
    totals = [
        {member["source"] for member in entry["members"]}
        for entry in later.entries("totalled")
    ]
    assert len(totals) == 2 and not totals[0] & totals[1]
    later.ledger.verify()


def test_removing_says_that_the_sums_are_hidden_and_makes_no_release(
    later: Parties,
) -> None:
    """Nobody can take one holder's sums out of a masked total; the total itself is kept no
    longer.
    """
    assert len(later.sums_files()) == 2
    change = remove(later.federation, "medicine")
    assert (change.published, change.hidden, change.names_it) == (None, True, True)
    assert later.sums_files() == set()
    assert [release.number for release in later.standing.releases] == [1]
    later.ledger.verify()


def test_members_that_left_still_count_on_rosters_until_they_are_unpinned(
    later: Parties,
) -> None:
    """More than two thirds of whoever a holder has pinned must be in what it signs: the owners
    unpin who has gone.
    """
    for name in ("medicine", "law-2"):
        remove(later.federation, name)
    later.new_epochs()
    with round_fails(
        r"0 of 3 members signed .*has pinned 5 members and opens sums of 4 or more"
    ):
        round_of_active(later)
    gone = [later.holder(name).identity.public for name in ("medicine", "law-2")]
    for name in ("code-1", "code-2", "law-1"):
        unpin(later.homes[name], gone)
        later.ready(name)
    assert len(round_of_active(later).members) == 3


def test_a_holder_that_was_in_no_total_is_removed_without_a_word_of_masks(
    later: Parties,
) -> None:
    """There is nothing of it anywhere."""
    later.admit("poetry")
    change = remove(later.federation, "poetry")
    assert (change.published, change.hidden, change.names_it) == (None, False, False)
    assert len(later.sums_files()) == 2


# Crashes of the coordinator


def test_a_total_whose_file_is_lost_is_asked_for_again(later: Parties) -> None:
    """It is the same sum of the same members, so holders open it once more."""
    for path in (later.federation.folder / "contributions").iterdir():
        path.unlink()
    transport = Direct(later, MEMBERS)
    assert round_of(later, transport).number == 1
    assert len(transport.senders(SealedSums, "statistics")) == 5
    later.ledger.verify()


# Members that lie


Lie = Callable[[Opened[Any]], tuple[Message, tuple[Blob, ...]]]


class Lying(Direct):
    """One member, with its own key, answers one kind of request with something of its own."""

    def __init__(self, parties: Parties, kind: type[Message], lie: Lie) -> None:
        super().__init__(parties, list(MEMBERS))
        self._kind, self._lie = kind, lie
        self._identity: Identity = parties.holder(LIAR).identity

    def answers(self, name: str, peer: int, packet: Packet) -> Iterator[Packet]:
        for reply in super().answers(name, peer, packet):
            opened = open_packet(reply)
            if name == LIAR and isinstance(opened.message, self._kind):
                message, blobs = self._lie(opened)
                yield seal_packet(
                    message,
                    self._identity,
                    round=opened.round,
                    reply_to=opened.reply_to,
                    blobs=blobs,
                )
            else:
                yield reply


def as_long(change: Callable[[bytes], bytes]) -> Lie:
    return lambda opened: (opened.message, (change(bytes(opened.blobs[0])),))


def each_part(content: bytes, size: int, change: Callable[[bytes], bytes]) -> bytes:
    parts = unpack_by_member(content, size)
    return pack_by_member({member: change(part) for member, part in parts.items()})


def test_a_member_that_seals_something_else_spoils_the_total_and_is_told_of_in_words(
    parties: Parties,
) -> None:
    """The masks hide who; the ledger holds, nothing is released, and the next round goes well."""
    lying = Lying(parties, SealedSums, as_long(lambda content: content[::-1]))
    with round_fails(r"a member sealed wrong sums or runs different code"):
        round_of(parties, lying)
    assert parties.federation.newest is None
    assert parties.entries("totalled") == []
    assert parties.sums_files() == set()
    parties.ledger.verify()
    assert round_of_active(parties).number == 1


def test_a_little_more_than_the_own_share_is_noticed(parties: Parties) -> None:
    """Each domain's mass must be the sum of its members' shares; one too many in the last is
    enough.
    """

    def more(content: bytes) -> bytes:
        last = (int.from_bytes(content[-8:], "little") + 1) % (1 << 64)
        return content[:-8] + last.to_bytes(8, "little")

    with round_fails("the opened total is not a valid sum of statistics"):
        round_of(parties, Lying(parties, SealedSums, as_long(more)))
    assert parties.federation.newest is None


@pytest.mark.parametrize(
    ("kind", "lie", "step", "code"),
    [
        (Envelopes, as_long(lambda content: content[:-1]), "share", "bad_envelope"),
        (SealedSums, as_long(lambda content: content[:-8]), "seal", "shape_mismatch"),
        (
            Envelopes,
            lambda opened: (Envelopes(session="0" * 64), opened.blobs),
            "share",
            "other_session",
        ),
        (
            SealedSums,
            lambda opened: (
                SealedSums(session="0" * 64, lot="statistics"),
                opened.blobs,
            ),
            "seal",
            "other_session",
        ),
        (
            Confirmed,
            lambda o: (o.message.model_copy(update={"signature": "0" * 128}), ()),
            "confirm_sum",
            "bad_confirmation",
        ),
        (Revealed, as_long(lambda content: content[:-1]), "open_sum", "shape_mismatch"),
    ],
)
def test_a_wrong_answer_at_any_step_is_refused_by_name_and_the_others_go_on(
    parties: Parties, kind: type[Message], lie: Lie, step: str, code: str
) -> None:
    """Where four of five are enough, one that answers wrongly costs nothing but its own part."""
    published = round_of(parties, Lying(parties, kind, lie))
    assert (LIAR, step, code) in parties.refusals()
    assert names_of(published) >= set(MEMBERS) - {LIAR}
    parties.ledger.verify()


def test_wrong_shares_of_one_member_are_survived(parties: Parties) -> None:
    """The others' are enough, and what they give is held against what was advertised."""
    lying = Lying(
        parties,
        Revealed,
        as_long(
            lambda content: each_part(
                content, SHARE_BYTES, lambda part: bytes(SHARE_BYTES)
            )
        ),
    )
    assert len(round_of(parties, lying).members) == 5
    assert [len(parties.entries(kind)) for kind in ("totalled", "counted")] == [1, 1]


def test_garbage_dealt_out_by_one_member_ends_the_round_and_names_it(
    parties: Parties,
) -> None:
    """Every other member refuses what it cannot open, and says whose it was."""
    lying = Lying(
        parties,
        Envelopes,
        as_long(
            lambda content: each_part(content, ENVELOPE_BYTES, lambda part: part[::-1])
        ),
    )
    index = sorted(parties.holder(name).identity.public for name in MEMBERS).index(
        parties.holder(LIAR).identity.public
    )
    with round_fails(f"the shares of member {index + 1} were changed in transit"):
        round_of(parties, lying)
    assert parties.entries("totalled") == []
    assert round_of_active(parties).number == 1


# What is known without asking anybody


def test_a_roster_that_is_too_small_is_said_to_be(tmp_path: Path, haste: None) -> None:
    """As long as there are fewer than three: masks need as many, and other holders insist on as
    many.
    """
    two = {"code": "code", "law": "law"}
    masked = found(tmp_path / "masked", mode="masked")
    for holders, count in (({}, 0), (two, 2)):
        words = f"{count} holders are on the roster; a round under masks needs 3"
        assert too_few_on_roster(populate(masked, holders).federation) == words
    plain = found(tmp_path / "clear")
    words = "0 holders are on the roster; a round needs 2"
    assert too_few_on_roster(plain.federation) == words
    lacking = str(too_few_on_roster(populate(plain, two).federation))
    assert "holders refuse rounds of fewer than 3 unless" in lacking
    populate(plain, {"medicine": "medicine"})
    assert too_few_on_roster(plain.federation) is None
    full = found(
        tmp_path / "full", mode="private", privacy=PrivacySettings(sums="full")
    )
    assert too_few_on_roster(full.federation) is not None
