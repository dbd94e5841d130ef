"""The pinned roster: whom a holder takes part with, as functions and as the commands pin, unpin and roster."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import CARD
from ridgeway.client.round.roster import ROSTER, load_roster, pin, unpin
from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.identity import Identity
from ridgeway.common.protocol.invitation import INVITE, Card, Invite, Place, read_signed_json, write_signed_json
from ridgeway.common.protocol.messages import Announce, Refusal
from ridgeway.common.protocol.packet import open_packet, seal_packet
from tests.support.commands import Finished, Workshop
from tests.support.making import fixed_identity
from tests.support.simulated_federation import NO_BUNDLE, Parties, found, own_texts

OWN = "law"
OTHERS = ("code", "medicine")


def place(byte: int, name: str, domain: str = "code") -> Place:
    return Place(name=name, domain=domain, key=fixed_identity(byte).public)


# Functions


def test_what_is_pinned_stays_pinned_whatever_comes_after(tmp_path: Path) -> None:
    """In one order, however it was given, in a file that only its owner can read; nothing is pinned at first."""
    first, other = place(1, "b"), place(2, "a")
    assert load_roster(tmp_path) == ()
    assert pin(tmp_path, [first]) == (first,)
    assert pin(tmp_path, [other]) == (other, first) == load_roster(tmp_path)
    assert pin(tmp_path, []) == (other, first)
    assert stat.S_IMODE((tmp_path / ROSTER).stat().st_mode) == 0o600


def test_keys_count_and_names_do_not(tmp_path: Path) -> None:
    """A key is pinned once, under its newest name; two of one name are two; a key that is not there is not unpinned."""
    pin(tmp_path, [place(1, "old"), place(2, "same"), place(3, "same")])
    pinned = (place(2, "same"), place(3, "same"), place(1, "new", "law"))
    assert set(pin(tmp_path, [place(1, "new", "law")])) == set(pinned)
    assert set(unpin(tmp_path, ["0" * 64])) == set(pinned)
    assert set(unpin(tmp_path, [place(1, "new").key])) == set(pinned[:2]) == set(load_roster(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"members": [{"name": "a"}]}', b'{"other": []}'])
def test_a_damaged_roster_is_said_so_and_never_taken_for_an_empty_one(tmp_path: Path, content: bytes) -> None:
    """Neither read nor written over: what was pinned may be needed."""
    (tmp_path / ROSTER).write_bytes(content)
    works: list[Callable[[], object]] = [
        lambda: load_roster(tmp_path),
        lambda: pin(tmp_path, []),
        lambda: unpin(tmp_path, []),
    ]
    for work in works:
        with pytest.raises(FormatError, match=r"roster\.json is damaged; remove it, and pin the members again"):
            work()
    assert (tmp_path / ROSTER).read_bytes() == content


# Commands


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """Three holders that do not know each other yet."""
    parties = found(tmp_path_factory.mktemp("whole"), mode="masked")
    for name in (OWN, *OTHERS):
        parties.settle(name, name, own_texts(name, name, 12))
    return parties


class Desk:
    """A holder's folder, the papers that were handed over, and the command."""

    def __init__(self, parties: Parties) -> None:
        self.parties, self.home = parties, parties.homes[OWN]
        self.cards = {name: home / CARD for name, home in parties.homes.items()}
        self.keys = {name: read_signed_json(path, Card).key for name, path in self.cards.items()}
        self._workshop = Workshop(parties.folder)

    def __call__(self, command: str, *words: str | Path) -> Finished:
        return self._workshop.call("client", command, self.home, *words)

    def invitation(self, *names: str, identity: Identity | None = None) -> Path:
        """An invitation that names these holders."""
        federation = self.parties.federation()
        signer = identity or federation.identity
        roster = tuple(Place(name=f"{name}-1", domain=name, key=self.keys[name]) for name in names)
        paper = Invite(
            coordinator=signer.public,
            address="127.0.0.1:1",
            terms=federation.terms,
            bundle=NO_BUNDLE,
            authority=NO_BUNDLE,
            roster=roster,
        )
        write_signed_json(paper, signer, self.parties.folder / "invite" / INVITE)
        return self.parties.folder / "invite"

    @property
    def pinned(self) -> set[str]:
        return {each.key for each in load_roster(self.home)}


@pytest.fixture
def desk(whole: Parties, tmp_path: Path) -> Desk:
    parties = whole.copy(tmp_path / "parties")
    (parties.folder / "invite").mkdir()
    return Desk(parties)


def failed(done: Finished, words: str) -> None:
    """One sentence, no traceback, nothing on stdout."""
    assert done.code != 0
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_cards_are_pinned_under_their_domain_and_shown(desk: Desk) -> None:
    """One after another or many at once, in a table or as JSON; the own card is not pinned, and counts once."""
    done = desk("pin", desk.cards["code"])
    assert done.code == 0
    assert desk.pinned == {desk.keys["code"]}
    both = desk("pin", *(desk.cards[name] for name in OTHERS))
    assert desk.pinned == {desk.keys[name] for name in OTHERS}
    assert all(desk.keys[name] in both.stdout for name in OTHERS)
    assert "2 other holders" in both.stderr
    assert desk("pin").stdout == both.stdout
    expected = [{"name": name, "domain": name, "key": desk.keys[name]} for name in OTHERS]
    assert desk("pin", desk.cards[OWN], "--json").json == desk("pin", "--json").json == expected
    assert desk.parties.holder(OWN).pinned_keys == set(desk.keys.values())
    assert desk("pin", "--remove", desk.keys["code"], "--json").json == expected[1:]
    assert json.loads((desk.home / ROSTER).read_bytes())["members"] == expected[1:]


def test_an_invitation_pins_everybody_it_names_and_says_whose_word_that_is(desk: Desk) -> None:
    """The holder itself is left out; the keys are to be compared by another way."""
    done = desk("pin", "--invite", desk.invitation(OWN, *OTHERS))
    assert done.code == 0
    assert {each.name for each in load_roster(desk.home)} == {"code-1", "medicine-1"}
    assert "these keys come from the operator" in done.stderr
    quiet = desk("pin", "--invite", desk.invitation(OWN, *OTHERS), "--json")
    assert len(quiet.json) == 2


def test_an_invitation_that_cannot_be_used_pins_nobody(desk: Desk) -> None:
    """By another coordinator, for nobody, beside cards, changed, or not there: the error says what was expected."""
    words = f"the invitation is by {fixed_identity(9).public[:12]}…, not by"
    failed(desk("pin", "--invite", desk.invitation(*OTHERS, identity=fixed_identity(9))), words)
    failed(desk("pin", "--invite", desk.invitation()), "the invitation has no members yet")
    folder = desk.invitation(*OTHERS)
    words = "give either cards, --invite or --remove"
    failed(desk("pin", desk.cards["code"], "--invite", folder), words)
    text = (folder / INVITE).read_text()
    (folder / INVITE).write_text(text.replace(desk.keys["code"], desk.keys[OWN]))
    failed(desk("pin", "--invite", folder), "was changed after it was signed")
    failed(desk("pin", desk.home / "nobody.pub"), "there is no file")
    assert desk.pinned == set()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:-9], "is not a holder's card, is damaged"),
        (lambda text: text.replace('"code"', '"cade"'), "was changed after it was signed"),
        (lambda text: "", "is not a holder's card, is damaged"),
    ],
)
def test_a_damaged_card_pins_nobody(desk: Desk, change: Callable[[str], str], words: str) -> None:
    """Nor does any card beside it: all or none."""
    path = desk.cards["code"]
    path.write_text(change(path.read_text()))
    failed(desk("pin", desk.cards["medicine"], path), words)
    assert desk.pinned == set()


def test_a_member_is_unpinned_by_the_first_digits_of_its_key(desk: Desk) -> None:
    """In either case of letters; the others stay."""
    desk("pin", *(desk.cards[name] for name in OTHERS))
    assert desk("pin", "--remove", desk.keys["code"][:8].upper()).code == 0
    assert desk.pinned == {desk.keys["medicine"]}


def test_a_key_that_is_ambiguous_too_short_or_not_there_unpins_nobody(desk: Desk) -> None:
    """It must name one member, with eight digits at least."""
    twin = Place(name="twin", domain="code", key=desk.keys["code"][:10] + "0" * 54)
    desk("pin", desk.cards["code"])
    pin(desk.home, [twin])
    before = desk.pinned
    failed(
        desk("pin", "--remove", desk.keys["code"][:10]),
        "matches 2 pinned keys; give at least the first 8 digits of one",
    )
    failed(desk("pin", "--remove", desk.keys["code"][:7]), "names 2 pinned keys")
    failed(desk("pin", "--remove", "f" * 64), "names 0 pinned keys")
    failed(desk("pin", "--remove", ""), "names 2 pinned keys")
    assert desk.pinned == before
    assert desk("pin", "--remove", desk.keys["code"]).code == 0
    assert desk.pinned == {twin.key}


def test_a_folder_that_is_no_holders_is_said_so(desk: Desk) -> None:
    """By each of the commands."""
    desk.home = desk.parties.folder
    for words in (("pin",), ("pin", "--remove", "0" * 64), ("pin", desk.cards["code"])):
        failed(desk(*[str(word) for word in words]), "is not a holder's folder")


def test_a_damaged_roster_is_told_in_one_sentence(desk: Desk) -> None:
    """And a holder with one answers no announcement, rather than as if it had pinned nobody."""
    (desk.home / ROSTER).write_text("{")
    failed(desk("pin"), "is damaged; remove it, and pin the members again")
    federation = desk.parties.federation()
    request = seal_packet(Announce(terms=federation.terms), federation.identity, round="cd" * 16)
    refusal = open_packet(answer(desk.parties.holder(OWN), request)).message
    assert isinstance(refusal, Refusal)
    assert refusal.code == "failed"
