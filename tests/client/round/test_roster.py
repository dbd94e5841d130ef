"""The confirmed roster: whom a holder takes part with, and the code by which holders compare what
they were shown.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeway.client.deploy.holder_folder import renew_identity
from ridgeway.client.deploy.notices import Gate, tell_unconfirmed
from ridgeway.client.round.answers import answer
from ridgeway.client.round.policy import (
    ROSTER,
    load_roster,
    roster_change,
    write_roster,
)
from ridgeway.common.base.errors import FormatError
from ridgeway.common.protocol.cohort import (
    ALPHABET,
    ANNOUNCED_ROSTER,
    NOTICE,
    Roster,
    RosterMember,
    is_same_code,
    roster_code,
)
from ridgeway.common.protocol.messages import Announce, Refusal
from ridgeway.common.protocol.packet import open_packet, seal_packet
from ridgeway.coordinator.deploy.authority import create_authority
from ridgeway.coordinator.deploy.supervisor import announce
from tests.support.commands import Finished, Workshop
from tests.support.making import fixed_identity
from tests.support.simulated_federation import Parties, found, own_texts

OWN = "law"
OTHERS = ("code", "medicine")
NEW = "code-2"


def member(byte: int, name: str, domain: str = "code") -> RosterMember:
    return RosterMember(name=name, domain=domain, key=fixed_identity(byte).public)


# Functions


def test_the_roster_holds_exactly_what_was_written_last(tmp_path: Path) -> None:
    """In one order, however it was given, in a file that only its owner can read; nobody is in it
    at first.
    """
    first, other = member(1, "b"), member(2, "a")
    assert load_roster(tmp_path) == ()
    write_roster(tmp_path, [first, other])
    assert load_roster(tmp_path) == (other, first)
    write_roster(tmp_path, [first])
    assert load_roster(tmp_path) == (first,)
    assert stat.S_IMODE((tmp_path / ROSTER).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b'{"members": [{"name": "a"}]}', b'{"other": []}'],
)
def test_a_damaged_roster_is_said_so_and_never_taken_for_an_empty_one(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / ROSTER).write_bytes(content)
    with pytest.raises(
        FormatError,
        match=r"roster\.json is damaged; remove it, and confirm the members again",
    ):
        load_roster(tmp_path)


def test_a_key_that_was_handed_over_changes_nothing_and_another_name_does() -> None:
    """Owners count, and what they are called."""
    before = [member(1, "a"), member(2, "b")]
    after = [member(3, "a"), member(2, "c")]
    change = roster_change(
        before, after, lambda key: before[0].key if key == after[0].key else key
    )
    assert (change.added, change.removed) == ((after[1],), (before[1],))
    assert not roster_change(before, reversed(before), str)


# The code

members = st.lists(
    st.builds(
        member,
        st.integers(0, 9),
        st.sampled_from(["a", "b", "ab"]),
        st.sampled_from(["code", "law"]),
    ),
    max_size=4,
    unique=True,
)


@settings(max_examples=8)
@given(one=members, other=members)
def test_two_rosters_have_one_code_only_if_they_are_the_same(
    one: list[RosterMember], other: list[RosterMember]
) -> None:
    """In whichever order; 24 letters, 120 bits."""
    code = roster_code(one)
    assert (code == roster_code(other)) == (set(one) == set(other))
    assert roster_code(one[::-1]) == code
    assert [len(group) for group in code.split("-")] == [4] * 6
    assert set(code) <= {*ALPHABET, "-"}


def test_the_code_of_a_known_roster_stays_the_same() -> None:
    """Holders of different versions compare it: computed here by other means."""
    import base64
    import hashlib

    member = RosterMember(name="law-1", domain="law", key="ab" * 32)
    content = (
        json.dumps(
            [["law-1", "law", "ab" * 32]], indent=1, separators=(",", ": ")
        ).encode()
        + b"\n"
    )
    digest = hashlib.scrypt(
        content, salt=b"ridgeway roster 1", n=32768, r=8, p=1, maxmem=2**26, dklen=15
    )
    usual = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
    letters = (
        base64.b32encode(digest).decode().translate(str.maketrans(usual, ALPHABET))
    )
    assert roster_code([member]).replace("-", "") == letters


def test_a_code_may_be_written_as_it_was_heard() -> None:
    assert is_same_code("0o1i-lABC", "00 11 1a-bc")
    assert not is_same_code("0000-0000", "0000-0001")


# Commands


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Three holders that are admitted and do not know each other yet, and a fourth that is not
    admitted.
    """
    parties = found(tmp_path_factory.mktemp("whole"), mode="masked")
    for name in (OWN, *OTHERS):
        parties.settle(name, name, own_texts(name, name, 12))
        parties.admit(name)
    parties.settle(NEW, "code", own_texts(NEW, "code", 12))
    create_authority(parties.federation.link, ["localhost"])
    announce(parties.federation)
    return parties


class Desk:
    """The holders' folders, what the operator hands over, and the command."""

    def __init__(self, parties: Parties) -> None:
        self.parties = parties
        self.home = parties.homes[OWN]
        self._workshop = Workshop(parties.folder)

    def __call__(self, command: str, *words: str | Path, name: str = OWN) -> Finished:
        home = self.parties.homes[name]
        return self._workshop.call(f"client {command}", home, *words)

    def remove(self, name: str) -> None:
        """What the operator does to let a holder go."""
        folder = self.parties.federation.folder
        self._workshop.do("coordinator remove", folder, name)

    def announce(self) -> None:
        announce(self.parties.federation)

    def members(self, *words: str, name: str = OWN) -> Finished:
        link = self.parties.federation.link
        return self("members", "--invite", link, *words, name=name)

    def unconfirmed(self) -> list[str]:
        """What `join` says of the members."""
        return tell_unconfirmed(
            self.parties.holder(OWN), Gate(self.home, "127.0.0.1:1")
        )

    def code(self, name: str = OWN) -> str:
        return str(self.members("--json", name=name).json["code"])


@pytest.fixture
def desk(whole: Parties, tmp_path: Path) -> Desk:
    return Desk(whole.copy(tmp_path / "parties"))


def failed(done: Finished, words: str) -> None:
    """One sentence, no traceback, nothing on stdout."""
    assert done.code != 0
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_all_holders_see_one_code_and_confirming_it_pins_exactly_the_others(
    desk: Desk,
) -> None:
    """Nothing is pinned before; the journal knows the code."""
    codes = {name: desk.code(name) for name in (OWN, *OTHERS)}
    [code] = set(codes.values())
    shown = desk.members()
    assert code in shown.stderr and "not confirmed" in shown.stderr
    assert load_roster(desk.home) == ()
    assert desk("confirm", *code.lower().split("-")).good
    keys = {name: desk.parties.holder(name).key for name in codes}
    assert {member.key for member in load_roster(desk.home)} == {
        keys[name] for name in OTHERS
    }
    assert desk.parties.holder(OWN).pinned_keys == set(keys.values())
    [entry] = desk.parties.holder(OWN).journal.entries("roster")
    assert entry.facts["code"] == code
    assert desk.members("--json").json["confirmed"]
    assert desk.unconfirmed() == []


def test_a_coordinator_that_shows_two_rosters_shows_two_codes(desk: Desk) -> None:
    """One made up for `law`, with a member of the coordinator's own: what `code` reads out is
    refused.
    """
    honest = desk.code("code")
    desk.parties.admit(NEW)
    desk.announce()
    other = desk.members("--json").json
    assert other["code"] != honest and NEW in other["added"]
    failed(
        desk("confirm", honest),
        f"have the code {other['code']}; whoever has another one was shown other members",
    )
    assert load_roster(desk.home) == ()


def test_a_changed_roster_shows_who_came_and_went_and_needs_a_new_code(
    desk: Desk,
) -> None:
    """Until then the confirmed members hold."""
    first = desk.code()
    assert desk("confirm", first).good
    desk.remove("code")
    desk.parties.admit(NEW)
    desk.announce()
    shown = desk.members("--json").json
    assert (shown["added"], shown["removed"], shown["confirmed"]) == (
        [NEW],
        ["code"],
        False,
    )
    assert {member.name for member in load_roster(desk.home)} == set(OTHERS)
    [unconfirmed] = desk.unconfirmed()
    assert "(1 more, 1 fewer)" in unconfirmed
    failed(desk("confirm", first), "was shown other members, or earlier ones")
    assert desk("confirm", shown["code"]).good
    assert {member.name for member in load_roster(desk.home)} == {NEW, "medicine"}


def test_a_renewed_key_needs_no_new_code(desk: Desk) -> None:
    """Its owner has signed for it with the key that was confirmed; whoever confirms later pins it
    as the same one.
    """
    assert desk("confirm", desk.code()).good
    renew_identity(desk.parties.homes["code"])
    desk.parties.admit("code")
    desk.announce()
    assert desk.members("--json").json["confirmed"]
    assert desk("confirm", desk.code("medicine"), name="medicine").good
    key = desk.parties.holder("code").key
    assert key in desk.parties.holder("medicine").pinned_keys


def test_what_cannot_be_used_is_said_and_confirms_nobody(desk: Desk) -> None:
    """Nothing shown yet, another coordinator's, a changed list, a list without this holder, an
    older notice.
    """
    link = desk.parties.federation.link
    failed(desk("confirm", "0" * 24), "no members were shown yet")
    failed(desk("members", "--invite", desk.home), f"has no {NOTICE}")
    whole = (link / ANNOUNCED_ROSTER).read_bytes()
    (link / ANNOUNCED_ROSTER).write_bytes(whole.replace(b'"code"', b'"cade"', 1))
    failed(desk.members(), "is not the one that the coordinator's notice names")
    (link / ANNOUNCED_ROSTER).write_bytes(whole)
    old = {name: (link / name).read_bytes() for name in (NOTICE, ANNOUNCED_ROSTER)}
    desk.remove("code")
    assert desk.members().good
    for name, content in old.items():
        (link / name).write_bytes(content)
    assert {member["name"] for member in desk.members("--json").json["members"]} == {
        OWN,
        "medicine",
    }
    desk.announce()
    desk.remove(OWN)
    failed(desk.members(), "has not got this holder's key")
    assert load_roster(desk.home) == ()


def test_a_list_with_one_owner_twice_is_not_confirmed(desk: Desk) -> None:
    """Under an earlier key and a later one: it would count as two."""
    link = renew_identity(desk.parties.homes["code"])
    desk.parties.admit("code")
    desk.announce()
    assert desk.members().good
    roster = Roster.model_validate_json((desk.home / ANNOUNCED_ROSTER).read_bytes())
    twice = (*roster.members, RosterMember(name="twin", domain="code", key=link.before))
    content = json.dumps(
        roster.model_copy(update={"members": twice}).model_dump(mode="json")
    )
    (desk.home / ANNOUNCED_ROSTER).write_text(content)
    failed(
        desk("confirm", roster_code(twice)),
        "the cohort lists one holder under two keys",
    )
    assert load_roster(desk.home) == ()


def test_a_folder_that_is_no_holders_is_said_so(desk: Desk) -> None:
    desk.parties.homes[OWN] = desk.parties.folder
    failed(desk.members(), "is not a holder's folder")
    failed(desk("confirm", "0" * 24), "is not a holder's folder")


def test_a_damaged_roster_is_told_in_one_sentence(desk: Desk) -> None:
    """And a holder with one answers no announcement, rather than as if it had confirmed nobody."""
    (desk.home / ROSTER).write_text("{")
    failed(desk.members(), "is damaged; remove it, and confirm the members again")
    federation = desk.parties.federation
    request = seal_packet(
        Announce(terms=federation.terms), federation.identity, round="cd" * 16
    )
    refusal = open_packet(answer(desk.parties.holder(OWN), request)).message
    assert isinstance(refusal, Refusal)
    assert refusal.code == "failed"
