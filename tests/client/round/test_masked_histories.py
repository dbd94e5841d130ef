"""What members tell each other of opened sums, so that a coordinator cannot play one cohort against another."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.round.roster import unpin
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.masking.history import (
    PastSum,
    history_bytes,
    pool_bytes,
    read_history,
    read_pool,
)
from ridgeway.common.masking.member import NO_HISTORY
from ridgeway.common.protocol.messages import Confirmed, Revealed
from tests.support.faults import make_haste
from tests.support.hostile import Hostile, code_of
from tests.support.simulated_federation import Parties, found, populate

PEOPLE = {"medicine": "medicine", "code-1": "code", "code-2": "code", "law-1": "law", "law-2": "law"}

digests = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
parts = st.dictionaries(digests, st.tuples(digests, st.integers(1, 2**37)), max_size=4)
sums = st.builds(PastSum.of, st.sampled_from(["statistics", "scores"]), parts)
histories = st.lists(sums, max_size=4).map(tuple)


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
    make_haste(monkeypatch)
    made = found(tmp_path, mode="masked")
    populate(made, PEOPLE)
    return made


def opened(parties: Parties, names: list[str], number: int) -> None:
    """A sum over these members, opened as an honest coordinator would."""
    session = Hostile(parties, names, f"{number:032x}")
    session.begin()
    session.seal()
    session.finish("statistics")


def sealed(parties: Parties, names: list[str], number: int) -> Hostile:
    session = Hostile(parties, names, f"{number:032x}")
    session.begin()
    session.seal()
    return session


def test_a_member_that_objects_is_joined_by_all_others(parties: Parties) -> None:
    """Three sums of which only one member knows the first two: the others have heard of them, so none confirms."""
    opened(parties, ["law-1", "code-1", "code-2"], 1)
    opened(parties, ["law-1", "law-2", "medicine"], 2)
    third = sealed(parties, list(PEOPLE), 3)
    for name in third.names:
        assert code_of(third.ask(name, third.confirm_request("statistics", third.names))) == "sets_apart"
    assert third.gave(Confirmed) == []


def test_a_combination_over_cohorts_that_nobody_was_in_together_is_refused(parties: Parties) -> None:
    """The one who would lie open is not even asked; those who are have heard of both earlier sums."""
    opened(parties, ["medicine", "code-1", "code-2"], 1)
    opened(parties, ["medicine", "law-1", "law-2"], 2)
    third = sealed(parties, ["code-1", "code-2", "law-1", "law-2"], 3)
    for name in third.names:
        assert code_of(third.ask(name, third.confirm_request("statistics", third.names))) == "sets_apart"
    assert third.gave(Revealed) == []


def test_what_was_heard_is_remembered(parties: Parties) -> None:
    """A sum that a holder knows by hearsay counts in later sessions too, and is passed on."""
    opened(parties, ["medicine", "code-1", "code-2"], 1)
    sealed(parties, ["code-1", "code-2", "law-1", "law-2"], 2)
    known = parties.holder("law-1").known_sums()
    assert [set(each.by_key()) for each in known] == [
        {_key(parties, name) for name in ("medicine", "code-1", "code-2")}
    ]
    third = Hostile(parties, ["law-1", "law-2", "medicine"], "3" * 32)
    third.announce()
    assert third.histories[1] == tuple(known)


def test_hearsay_counts_as_long_as_one_who_knows_it_is_pinned(parties: Parties) -> None:
    """A member that made a sum up can be got rid of, and what it said with it."""
    opened(parties, ["medicine", "code-1", "code-2"], 1)
    sealed(parties, ["code-1", "law-1", "law-2"], 2)
    assert len(parties.holder("law-1").known_sums()) == 1
    unpin(parties.homes["law-1"], [_key(parties, "code-1")])
    assert parties.holder("law-1").known_sums() == []


def test_a_history_that_is_kept_from_a_member_is_missed(parties: Parties) -> None:
    """The coordinator passes them on, and can leave none out: their digests are signed with the keys."""
    opened(parties, ["medicine", "code-1", "code-2"], 1)
    session = Hostile(parties, ["code-1", "code-2", "law-1", "law-2"], "2" * 32)
    session.announce()
    nothing = (pool_bytes([()]),)
    assert code_of(session.ask("law-1", session.share_request(), nothing)) == "history_withheld"
    assert code_of(session.ask("law-1", session.share_request(), (b"[",))) == "malformed"


def _key(parties: Parties, name: str) -> str:
    return parties.holder(name).identity.public


@given(history=histories)
def test_a_history_is_read_as_it_was_shown(history: tuple[PastSum, ...]) -> None:
    """Every sum once, whatever the order."""
    shown = history_bytes(history)
    assert set(read_history(shown)) == set(history)
    assert shown == history_bytes(reversed(history)) == history_bytes(read_history(shown))


@given(known=st.dictionaries(digests, histories, max_size=4))
def test_a_pool_holds_what_every_member_knows(known: dict[str, tuple[PastSum, ...]]) -> None:
    """And by whom it is known."""
    wanted = {key: sha256(history_bytes(history)) for key, history in known.items()}
    told = read_pool(pool_bytes(known.values()), wanted)
    assert told == {
        each: {key for key, history in known.items() if each in history}
        for history in known.values()
        for each in history
    }


def test_no_history_is_a_history_too() -> None:
    """The empty one, which a pool must hold like any other."""
    assert sha256(history_bytes(())) == NO_HISTORY
    assert read_pool(pool_bytes([()]), {"a": NO_HISTORY}) == {}
    with pytest.raises(Refused):
        read_pool(pool_bytes([]), {"a": NO_HISTORY})
