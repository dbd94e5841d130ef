"""Masked totals beside retiring, removing, crashes, members that lie, words to operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.shares import SHARE_BYTES, pack_by_place, unpack_by_place
from ridgeway.common.protocol.messages import ENVELOPE_BYTES, LOTS, Confirmed, Envelopes, Message, Revealed, SealedSums
from ridgeway.common.protocol.packet import Blob, Opened, Packet, open_packet, seal_packet
from ridgeway.common.routing.release import ROUTER, load_release
from ridgeway.coordinator.round.ledger import Ledger, LedgerRelease, Standing
from ridgeway.coordinator.round.masked_round import _words_of_change, outlook
from ridgeway.coordinator.round.membership import remove, retire
from ridgeway.coordinator.round.round import run_round
from tests.support.faults import Crash, make_haste
from tests.support.hostile import MEMBERS
from tests.support.masked_oracle import alone
from tests.support.simulated_federation import Direct, Parties, found, no_watch, populate

LIAR = "law-1"


def round_of(parties: Parties, *without: str, transport: Direct | None = None) -> LedgerRelease:
    names = [name for name in parties.federation().ledger.standing().active if name not in without]
    return run_round(parties.federation(), transport or Direct(parties, names), no_watch)


def entries(parties: Parties, kind: str) -> list[Mapping[str, Any]]:
    return [entry.facts for entry in parties.federation().ledger.journal.entries() if entry.kind == kind]


def sealed_statistics(transport: Direct) -> list[str]:
    messages = [(name, open_packet(reply).message) for name, reply in transport.replies]
    return [name for name, each in messages if isinstance(each, SealedSums) and each.lot == "statistics"]


def sums(parties: Parties) -> set[str]:
    return {path.stem for path in (parties.federation().folder / "contributions").iterdir()}


# Retiring and removing


def test_retiring_a_domain_needs_no_round_and_opens_nothing(later: Parties) -> None:
    """Its column is dropped at once, the others stay as they are to the bit."""
    had = entries(later, "opened_sum")
    change = retire(later.federation(), "medicine")
    assert change.published is not None
    assert (change.published.number, change.published.domains) == (2, ("code", "law"))
    old, new = (load_release(later.federation().release_folder(number)) for number in (1, 2))
    assert new.weights.tobytes() == old.weights[:, :2].tobytes()
    assert entries(later, "opened_sum") == had
    later.federation().ledger.verify()


def test_the_round_after_one_holder_has_retired_waits_for_another_change(later: Parties) -> None:
    """Without it the new total would show what the retired one had; with another change it is opened."""
    retire(later.federation(), "medicine")
    with pytest.raises(RoundFailed, match=r"only medicine is missing: .*until then the newest release stands"):
        round_of(later)
    later.change_corpus("law-1")
    assert round_of(later).domains == ("code", "law")
    later.federation().ledger.verify()


def test_the_round_after_a_domain_of_two_has_retired_goes_well(later: Parties) -> None:
    """Two that leave at once hide each other."""
    retire(later.federation(), "law")
    published = round_of(later)
    assert (published.number, published.domains) == (3, ("code", "medicine"))
    assert {member.name for member in published.members} == {"code-1", "code-2", "medicine"}


def test_too_few_are_left_for_a_masked_round(later: Parties) -> None:
    """Retired down to two holders, the newest release stands, and the round says what it needs."""
    retire(later.federation(), "law")
    remove(later.federation(), "code-1")
    with pytest.raises(RoundFailed, match="2 holders can take part, and a masked round needs 3"):
        round_of(later)
    newest = later.federation().newest
    assert newest is not None
    assert newest.number == 2


def test_removing_says_that_the_sums_are_hidden_and_makes_no_release(later: Parties) -> None:
    """Nobody can take one holder's sums out of a masked total; the total itself is kept no longer."""
    assert len(sums(later)) == 3
    change = remove(later.federation(), "medicine")
    assert (change.published, change.hidden, change.names_it) == (None, True, True)
    assert sums(later) == set()
    newest = later.federation().newest
    assert newest is not None
    assert newest.number == 1
    later.federation().ledger.verify()


def test_after_two_were_removed_the_next_total_is_without_them(later: Parties) -> None:
    """One alone would be seen in the difference."""
    remove(later.federation(), "medicine")
    with pytest.raises(RoundFailed, match="is missing"):
        round_of(later)
    remove(later.federation(), "law-1")
    published = round_of(later)
    assert {member.name for member in published.members} == {"code-1", "code-2", "law-2"}


def test_a_holder_that_was_in_no_total_is_removed_without_a_word_of_masks(later: Parties) -> None:
    """There is nothing of it anywhere."""
    later.admit("poetry")
    change = remove(later.federation(), "poetry")
    assert (change.published, change.hidden, change.names_it) == (None, False, False)
    assert len(sums(later)) == 3


# Crashes of the coordinator


@pytest.mark.parametrize("afterwards", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["opened", "opened_sum", "totalled", "delivered"])
def test_a_coordinator_killed_at_an_entry_keeps_what_was_opened(
    parties: Parties, after_one: Parties, monkeypatch: pytest.MonkeyPatch, kind: str, afterwards: bool
) -> None:
    """Started again it comes to the same router, and asks for no total that its ledger has."""
    plain = Ledger.note

    def note(ledger: Ledger, written: str, **facts: Any) -> None:
        if afterwards or written != kind:
            plain(ledger, written, **facts)
        if written == kind:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "note", note)
        with pytest.raises(Crash):
            round_of(parties)
    had = len(entries(parties, "totalled"))
    transport = Direct(parties, list(MEMBERS))
    published = round_of(parties, transport=transport)
    assert len(sealed_statistics(transport)) == (0 if had else 5)
    assert len(entries(parties, "totalled")) == 1
    parties.federation().ledger.verify()
    assert router(parties, published.number) == router(after_one, 1)


def router(parties: Parties, number: int) -> bytes:
    return (parties.federation().release_folder(number) / ROUTER).read_bytes()


def test_a_total_whose_file_is_lost_is_asked_for_again(later: Parties) -> None:
    """It is the same sum of the same members, so holders open it once more."""
    for path in (later.federation().folder / "contributions").iterdir():
        path.unlink()
    transport = Direct(later, list(MEMBERS))
    assert round_of(later, transport=transport).number == 1
    assert len(sealed_statistics(transport)) == 5
    later.federation().ledger.verify()


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
                yield seal_packet(message, self._identity, round=opened.round, reply_to=opened.reply_to, blobs=blobs)
            else:
                yield reply


def refusals(parties: Parties) -> list[tuple[str, str, str]]:
    return [(each["name"], each["step"], each["code"]) for each in entries(parties, "refused")]


def as_long(change: Callable[[bytes], bytes]) -> Lie:
    return lambda opened: (opened.message, (change(bytes(opened.blobs[0])),))


def each_part(content: bytes, size: int, change: Callable[[bytes], bytes]) -> bytes:
    return pack_by_place({place: change(part) for place, part in unpack_by_place(content, size).items()})


def test_a_member_that_seals_something_else_spoils_the_total_and_is_told_of_in_words(parties: Parties) -> None:
    """The masks hide who; the ledger holds, nothing is released, and the next round goes well."""
    lying = Lying(parties, SealedSums, as_long(lambda content: content[::-1]))
    with pytest.raises(RoundFailed, match=r"a member sealed something else than its sums, or runs other code.*run the"):
        round_of(parties, transport=lying)
    assert parties.federation().newest is None
    assert entries(parties, "totalled") == []
    assert sums(parties) == set()
    parties.federation().ledger.verify()
    assert round_of(parties).number == 1


def test_a_little_more_than_the_own_share_is_noticed(parties: Parties) -> None:
    """Each domain's mass must be the sum of its members' shares; one too many in the last is enough."""

    def more(content: bytes) -> bytes:
        last = (int.from_bytes(content[-8:], "little") + 1) % (1 << 64)
        return content[:-8] + last.to_bytes(8, "little")

    with pytest.raises(RoundFailed, match="what was opened is no sum of statistics"):
        round_of(parties, transport=Lying(parties, SealedSums, as_long(more)))
    assert parties.federation().newest is None


@pytest.mark.parametrize("size", [0, 8, -8, -1])
def test_a_truncated_upload_is_refused_by_name_and_the_others_go_on(parties: Parties, size: int) -> None:
    """As if its sender had fallen away."""
    lying = Lying(parties, SealedSums, as_long(lambda content: content[:size]))
    published = round_of(parties, transport=lying)
    assert refusals(parties) == [(LIAR, "seal", "shape_mismatch")]
    assert {member.name for member in published.members} == set(MEMBERS) - {LIAR}


@pytest.mark.parametrize(
    ("kind", "lie", "step", "code"),
    [
        (Envelopes, as_long(lambda content: content[:-1]), "share", "bad_envelope"),
        (Envelopes, as_long(lambda content: b""), "share", "bad_envelope"),
        (Envelopes, lambda opened: (Envelopes(session="0" * 64), opened.blobs), "share", "other_session"),
        (
            SealedSums,
            lambda opened: (SealedSums(session="0" * 64, lot="statistics"), opened.blobs),
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
    published = round_of(parties, transport=Lying(parties, kind, lie))
    assert (LIAR, step, code) in refusals(parties)
    assert {member.name for member in published.members} >= set(MEMBERS) - {LIAR}
    parties.federation().ledger.verify()


def test_wrong_shares_of_one_member_are_survived(parties: Parties) -> None:
    """The others' are enough, and what they give is held against what was advertised."""
    lying = Lying(
        parties, Revealed, as_long(lambda content: each_part(content, SHARE_BYTES, lambda part: bytes(SHARE_BYTES)))
    )
    assert len(round_of(parties, transport=lying).members) == 5
    assert {each["lot"] for each in entries(parties, "opened_sum")} == {"statistics", "scores"}


def test_garbage_dealt_out_by_one_member_ends_the_round_and_names_it(parties: Parties) -> None:
    """Every other member refuses what it cannot open, and says whose it was."""
    lying = Lying(
        parties, Envelopes, as_long(lambda content: each_part(content, ENVELOPE_BYTES, lambda part: part[::-1]))
    )
    place = sorted(parties.holder(name).identity.public for name in MEMBERS).index(parties.holder(LIAR).identity.public)
    with pytest.raises(RoundFailed, match=f"the shares of member {place + 1} were changed on their way"):
        round_of(parties, transport=lying)
    assert entries(parties, "opened_sum") == []
    assert round_of(parties).number == 1


# What stands in the way, in words


def test_the_outlook_of_a_clear_federation_is_always_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to hide."""
    make_haste(monkeypatch)
    assert outlook(found(tmp_path).federation()) is None


def test_the_outlook_says_how_many_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there are fewer than three."""
    make_haste(monkeypatch)
    parties = found(tmp_path, mode="masked")
    assert outlook(parties.federation()) == "0 holders are on the roster, and a masked round needs 3"
    populate(parties, {"code": "code", "law": "law"})
    assert outlook(parties.federation()) == "2 holders are on the roster, and a masked round needs 3"


def test_the_outlook_is_good_before_a_first_round_and_after_it(parties: Parties) -> None:
    """As far as can be known: whether corpora have changed is not."""
    assert outlook(parties.federation()) is None
    round_of(parties)
    assert outlook(parties.federation()) is None


def test_the_outlook_names_the_one_that_stands_in_the_way_and_what_to_do(later: Parties) -> None:
    """One that has joined alone, one that was retired alone; two are no hindrance."""
    later.admit("poetry")
    words = outlook(later.federation())
    assert words is not None
    assert words.startswith("since an earlier masked total only poetry has joined: ")
    assert "Run the round again when another holder has joined, left or changed too" in words
    later.admit("law-3")
    assert outlook(later.federation()) is None


def test_the_outlook_names_one_that_is_missing(later: Parties) -> None:
    """Retired or removed, it is no longer there and was in the last total."""
    retire(later.federation(), "medicine")
    words = outlook(later.federation())
    assert words is not None
    assert "only medicine is missing" in words
    later.admit("poetry")
    assert outlook(later.federation()) is None


# What all rounds together tell


def test_rounds_open_a_total_where_two_have_changed_and_nothing_else(later: Parties) -> None:
    """Seven rounds, three totals: as many combinations of the holders' sums, of which none shows one holder."""

    def opened(lot: str) -> list[dict[str, tuple[str, int]]]:
        return [dict(each) for each in later.federation().ledger.standing().opened.get(lot, [])]

    assert len(opened("statistics")) == 1
    for _ in range(2):
        with suppress(RoundFailed):
            round_of(later)
    assert [len(opened(lot)) for lot in LOTS] == [1, 1, 0]
    later.change_corpus("law-1")
    with pytest.raises(RoundFailed, match="only law-1 has changed"):
        round_of(later)
    assert [len(opened(lot)) for lot in LOTS] == [1, 1, 0]
    later.change_corpus("law-2")
    round_of(later)
    later.change_corpus("code-1")
    later.change_corpus("code-2")
    round_of(later)
    assert len(opened("statistics")) == 3
    assert all(len(opened(lot)) <= 3 for lot in LOTS)
    assert alone(opened("statistics")) == set()


def test_a_first_total_that_one_holder_outweighs_is_foreseen_in_words() -> None:
    """Most of a domain has fallen away: there is no earlier total to compare with, and still a sentence."""
    light, heavy = ("light", 1), ("heavy", 100)
    words = _words_of_change(Standing(), [], {"a": light, "b": light, "c": heavy}, ["c"])
    assert words.startswith("together with all the masked totals so far this one would show of c")
