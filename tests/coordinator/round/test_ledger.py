"""The ledger: who may be admitted, what is kept of what they send, and what is noticed when it is
tampered with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from ridgeway.common.base.errors import InputError, JournalError
from ridgeway.common.protocol.cohort import Card
from ridgeway.common.protocol.messages import HeldRelease
from ridgeway.common.statistics import Integers, Statistics
from ridgeway.coordinator.round.ledger import (
    Admitted,
    Contribution,
    Ledger,
    Totalled,
)
from tests.support.making import (
    drawn_samples,
    fixed_identity,
    one_domain,
    random_samples,
)

NODE = "ecdsa-sha2-nistp384 AAAA"
ROUND = "ab" * 16


def card(number: int = 1, domain: str = "law", node: str | None = None) -> Card:
    return Card(
        domain=domain, key=fixed_identity(number).public, node=node or f"{NODE}{number}"
    )


def given_by(name: str, domain: str = "law", share: int = 1 << 24) -> Contribution:
    return Contribution(name, domain, "5" * 64, share, "7" * 64, 0.05, "")


def own_sums(seed: int = 1) -> Statistics:
    return one_domain(random_samples(seed, 20, 5))


def contributed(ledger: Ledger, name: str, seed: int = 1) -> Contribution:
    return ledger.contribute(ROUND, given_by(name), own_sums(seed))


def files(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "contributions").iterdir()}


# Admission


def test_an_admitted_holder_stands_on_the_roster(tmp_path: Path) -> None:
    """For another process, too; the same again changes nothing, and of two domains the last word
    counts.
    """
    ledger = Ledger(tmp_path)
    holder = ledger.admit("law", card())
    assert holder == Admitted("law", "law", card().key, card().node)
    assert ledger.admit("law", card()) == holder
    assert Ledger(tmp_path).standing().roster == {"law": holder}
    assert ledger.journal.verify() == 1
    other = ledger.admit("law", card(1, "code"))
    assert Ledger(tmp_path).standing().roster == {"law": other}
    assert other.domain == "code"


@pytest.mark.parametrize(
    ("name", "paper", "words"),
    [
        ("law", card(2), "'law' is already on the roster with another key"),
        ("other", card(1), "this key is already on the roster as 'law'"),
        (
            "other",
            card(2, node=f"{NODE}1"),
            "this key is already on the roster as 'law'",
        ),
    ],
)
def test_a_name_or_a_key_that_is_taken_is_refused(
    tmp_path: Path, name: str, paper: Card, words: str
) -> None:
    """Each of the two keys, and the name; nothing is written."""
    ledger = Ledger(tmp_path)
    ledger.admit("law", card(1))
    with pytest.raises(InputError, match=words):
        ledger.admit(name, paper)
    assert ledger.journal.verify() == 1


@pytest.mark.parametrize("paper", [card(1), card(1, "code"), card(2, node=f"{NODE}1")])
def test_a_removed_holder_is_gone_for_good(tmp_path: Path, paper: Card) -> None:
    """Nothing of it is left, and neither of its keys comes back, under whatever name."""
    ledger = Ledger(tmp_path)
    ledger.admit("law", card(1))
    contributed(ledger, "law")
    ledger.note("removed", name="law")
    assert (ledger.standing().roster, ledger.standing().contributions) == ({}, {})
    for name in ("law", "other"):
        with pytest.raises(InputError, match="cannot be admitted again"):
            ledger.admit(name, paper)
    ledger.admit("law", card(3))


def test_a_supernode_may_come_with_another_key_under_the_holders_own(
    tmp_path: Path,
) -> None:
    """The card with the new one takes the place of the old, which does not come back, for
    nobody.
    """
    ledger = Ledger(tmp_path)
    ledger.admit("law", card(1))
    holder = ledger.admit("law", card(1, node=f"{NODE}9"))
    assert Ledger(tmp_path).standing().roster == {"law": holder}
    assert holder.node == f"{NODE}9"
    for name, paper in (("law", card(1)), ("other", card(2, node=f"{NODE}1"))):
        with pytest.raises(InputError, match="cannot be admitted again"):
            ledger.admit(name, paper)
    ledger.admit("code", card(3))
    with pytest.raises(InputError, match="as 'code'"):
        ledger.admit("law", card(1, node=f"{NODE}3"))


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("admitted", dict.fromkeys(("name", "domain", "key", "node", "weight"), "law")),
        ("counted", {"total": "0", "question": "1", "digest": "2"}),
        ("totalled", {"members": [], "domains": [], "terms": "0", "digest": "1"}),
        ("released", {"number": 1, "members": [], "domains": [], "terms": {}}),
    ],
)
def test_an_entry_of_an_earlier_version_is_refused_in_a_sentence(
    tmp_path: Path, kind: str, facts: dict[str, Any]
) -> None:
    """Whatever is missing in it, or too much; the entry is named."""
    ledger = Ledger(tmp_path)
    ledger.note(kind, **facts)
    words = rf"cannot read entry 1 of the ledger \({kind}\), which another version"
    with pytest.raises(JournalError, match=words):
        ledger.standing()


def test_epochs_in_opened_totals_are_known(tmp_path: Path) -> None:
    """Also when a total with them is kept no longer, because one of its members was removed."""
    ledger = Ledger(tmp_path)
    for number in (1, 2):
        ledger.note("opened", round=f"{number:032}", number=number, terms={})
        law = replace(given_by("law"), source=f"{number:064}")
        members = (law, given_by("code", "code"))
        total = Totalled(members, ("code", "law"), "7" * 64, "")
        ledger.keep_total(f"{number:032}", total, own_sums(number))
    ledger.note("removed", name="law")
    assert not ledger.standing().totals
    assert ledger.standing().totalled_epochs == {f"{1:064}", f"{2:064}", "5" * 64}


def test_holders_of_a_retired_domain_are_not_active_until_they_are_admitted_again(
    tmp_path: Path,
) -> None:
    """They stay on the roster, what they sent counts no more, and who comes later is not touched by
    it.
    """
    ledger = Ledger(tmp_path)
    for number, (name, domain) in enumerate({"law": "law", "code": "code"}.items(), 1):
        ledger.admit(name, card(number, domain))
        contributed(ledger, name, number)
    ledger.note("retired", domain="law")
    standing = ledger.standing()
    assert set(standing.roster) == {"law", "code"}
    assert set(standing.active) == set(standing.contributions) == {"code"}
    ledger.admit("law-2", card(3))
    assert set(ledger.standing().active) == {"law-2", "code"}
    ledger.admit("law", card(1))
    assert set(ledger.standing().active) == {"law", "law-2", "code"}


# Sums


@given(samples=drawn_samples(5))
def test_sums_are_read_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, samples: Integers
) -> None:
    """The column follows from the triangle."""
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    statistics = one_domain(samples)
    stored = ledger.contribute(ROUND, given_by("law"), statistics)
    assert ledger.sums(stored).equals(statistics)
    assert ledger.standing().contributions == {"law": stored}
    assert replace(stored, digest="") == given_by("law")


def test_what_a_holder_sends_takes_the_place_of_what_it_sent_before(
    tmp_path: Path,
) -> None:
    """The older sums are erased when they are asked to be, and only they."""
    ledger = Ledger(tmp_path)
    old, new = (contributed(ledger, "law", seed) for seed in (1, 2))
    other = contributed(ledger, "code", 3)
    assert ledger.standing().contributions == {"law": new, "code": other}
    assert files(tmp_path) == {old.digest, new.digest, other.digest}
    ledger.erase_outdated()
    assert files(tmp_path) == {new.digest, other.digest}
    assert ledger.sums(new).equals(own_sums(2))


def test_equal_sums_of_two_holders_are_kept_until_both_are_gone(tmp_path: Path) -> None:
    """They lie in one file."""
    ledger = Ledger(tmp_path)
    for number, name in enumerate(("law", "law-2"), 1):
        ledger.admit(name, card(number))
        first = contributed(ledger, name, seed=1)
    ledger.note("removed", name="law")
    ledger.erase_outdated()
    assert files(tmp_path) == {first.digest}
    ledger.note("removed", name="law-2")
    ledger.erase_outdated()
    assert files(tmp_path) == set()


def test_sums_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    """They are another's numbers."""
    contributed(Ledger(tmp_path), "law")
    [path] = (tmp_path / "contributions").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_whole_ledger_verifies_and_says_how_much_it_holds(tmp_path: Path) -> None:
    """Entries, and contributions that stand."""
    ledger = Ledger(tmp_path)
    ledger.admit("law", card())
    contributed(ledger, "law", 1)
    contributed(ledger, "law", 2)
    assert Ledger(tmp_path).verify() == {"entries": 3, "contributions": 1, "totals": 0}


@given(bit=st.integers(0), part=st.floats(0, 1, exclude_max=True))
def test_damaged_sums_are_noticed(
    tmp_path_factory: pytest.TempPathFactory, bit: int, part: float
) -> None:
    """Any bit of the numbers that flips, and a file that is cut off anywhere."""
    folder = tmp_path_factory.mktemp("ledger")
    stored = contributed(Ledger(folder), "law")
    path = folder / "contributions" / f"{stored.digest}.sums"
    content = bytearray(path.read_bytes())
    numbers = 8 * 15
    flipped = bit % (8 * numbers)
    content[len(content) - numbers + flipped // 8] ^= 1 << flipped % 8
    for damaged in (bytes(content), bytes(content[: int(part * len(content))])):
        path.write_bytes(damaged)
        with pytest.raises(JournalError, match="'law'"):
            Ledger(folder).verify()


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        save({"other": np.zeros(3, np.int64)}),
        save({"gram": np.zeros(15, np.float64)}),
        save({"gram": np.zeros(15, np.int32)}),
        save({"gram": np.zeros((3, 5), np.int64)}),
    ],
)
def test_sums_that_are_missing_or_of_another_form_are_noticed(
    tmp_path: Path, content: bytes | None
) -> None:
    """In a sentence that names the holder."""
    stored = contributed(Ledger(tmp_path), "law")
    path = tmp_path / "contributions" / f"{stored.digest}.sums"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(
        JournalError, match=r"the sums of 'law' (are missing or damaged|were altered)"
    ):
        Ledger(tmp_path).sums(stored)


def test_sums_that_were_damaged_are_asked_for_again_and_written_anew(
    tmp_path: Path,
) -> None:
    """A ledger does not believe that it has what it cannot read."""
    stored = contributed(Ledger(tmp_path), "law")
    path = tmp_path / "contributions" / f"{stored.digest}.sums"
    assert Ledger(tmp_path).has_sums(stored)
    path.write_bytes(b"damaged")
    assert not Ledger(tmp_path).has_sums(stored)
    contributed(Ledger(tmp_path), "law")
    assert Ledger(tmp_path).has_sums(stored)


def test_what_is_read_once_is_not_read_again_and_nothing_is_missed(
    tmp_path: Path,
) -> None:
    """A ledger that is kept open sees what another process adds."""
    ledger, other = Ledger(tmp_path), Ledger(tmp_path)
    assert ledger.standing().rounds == 0
    other.note("opened", round=ROUND, number=1, terms={})
    assert ledger.standing().rounds == 1
    other.note("opened", round=ROUND, number=2, terms={})
    assert ledger.standing().rounds == 2


@given(numbers=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_a_holder_has_what_it_said_last(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    """Also where that is less than before: its folder may be an older copy, and it is delivered to
    again.
    """
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    for number in numbers:
        ledger.note("delivered", name="law", number=number, release="0" * 64)
    assert ledger.standing().delivered == {
        "law": HeldRelease(number=numbers[-1], release="0" * 64)
    }
