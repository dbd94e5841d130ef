"""What members tell each other of opened sums, so that a coordinator cannot play one cohort against another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.round.roster import unpin
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.masking import history as history_module
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.masking.history import (
    MAX_TOLD,
    Account,
    History,
    PastSum,
    history_bytes,
    pool_bytes,
    possible_sums,
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
accounts = st.builds(
    Account,
    session=digests,
    lot=st.just("statistics"),
    signed=st.lists(sums, min_size=1, max_size=2).map(tuple),
    away=st.lists(digests, max_size=2).map(tuple),
    locked=st.booleans(),
    opened=st.booleans(),
)
histories = st.builds(
    History,
    accounts=st.lists(accounts, max_size=3, unique_by=lambda each: each.session).map(tuple),
    heard=st.lists(sums, max_size=3, unique=True).map(tuple),
)


@pytest.fixture
def parties(dealing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parties:
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
    known = parties.holder("law-1").memory.sums("statistics")
    assert [set(each.by_key()) for each in known] == [
        {_key(parties, name) for name in ("medicine", "code-1", "code-2")}
    ]
    third = Hostile(parties, ["law-1", "law-2", "medicine"], "3" * 32)
    third.announce()
    assert third.histories[1].heard == tuple(known)


def test_hearsay_counts_as_long_as_one_who_knows_it_is_pinned(parties: Parties) -> None:
    """A member that made a sum up can be got rid of, and what it said with it."""
    opened(parties, ["medicine", "code-1", "code-2"], 1)
    sealed(parties, ["code-1", "law-1", "law-2"], 2)
    assert len(parties.holder("law-1").memory.sums("statistics")) == 1
    unpin(parties.homes["law-1"], [_key(parties, "code-1")])
    assert parties.holder("law-1").memory.sums("statistics") == []


def test_a_history_that_is_kept_from_a_member_is_missed(parties: Parties) -> None:
    """The coordinator passes them on, and can leave none out: their digests are signed with the keys."""
    opened(parties, ["medicine", "code-1", "code-2"], 1)
    session = Hostile(parties, ["code-1", "code-2", "law-1", "law-2"], "2" * 32)
    session.announce()
    nothing = (pool_bytes([History()]),)
    assert code_of(session.ask("law-1", session.share_request(), nothing)) == "history_withheld"
    assert code_of(session.ask("law-1", session.share_request(), (b"[",))) == "malformed"


def _key(parties: Parties, name: str) -> str:
    return parties.holder(name).identity.public


@given(history=histories)
def test_a_history_is_read_as_it_was_shown(history: History) -> None:
    """To the byte, for its digest is signed; whatever the reader knows already need not be shown."""
    assert read_history(pool_bytes([history])) == history
    sums = {each.id: each for each in (*history.heard, *(past for own in history.accounts for past in own.signed))}
    short = pool_bytes([history], sums)
    assert read_history(short, sums) == history
    assert history_bytes(read_history(short, sums)) == history_bytes(history)
    if sums:
        with pytest.raises(Refused):
            read_history(short)


@given(history=histories, other=sums)
def test_no_sum_passes_for_another(history: History, other: PastSum) -> None:
    """An id is the digest of a sum: a pool that shows another sum in its place lacks the one that was told."""
    content = json.loads(pool_bytes([history]))
    for place in range(len(content["sums"])):
        if content["sums"][place] != other.model_dump(mode="json"):
            forged = {**content, "sums": [*content["sums"]]}
            forged["sums"][place] = other.model_dump(mode="json")
            with pytest.raises(Refused, match="kept from"):
                read_pool(json.dumps(forged).encode(), {"a": sha256(history_bytes(history))})


@given(known=st.dictionaries(digests, histories, max_size=4))
def test_a_pool_holds_what_every_member_tells(known: dict[str, History]) -> None:
    """Those who tell the same are both heard."""
    wanted = {key: sha256(history_bytes(history)) for key, history in known.items()}
    assert read_pool(pool_bytes(known.values()), wanted) == known


def test_no_history_is_a_history_too() -> None:
    """The empty one, which a pool must hold like any other."""
    assert sha256(history_bytes(History())) == NO_HISTORY
    assert read_pool(pool_bytes([History()]), {"a": NO_HISTORY}) == {"a": History()}
    with pytest.raises(Refused):
        read_pool(pool_bytes([]), {"a": NO_HISTORY})


def made_up(number: int) -> PastSum:
    return PastSum.of("statistics", {f"{number:064x}": ("0" * 64, 1)})


def test_a_member_that_tells_too_much_is_refused() -> None:
    """And an honest one never does: it tells the newest, its own first."""
    much = tuple(map(made_up, range(MAX_TOLD + 1)))
    with pytest.raises(Refused) as refused:
        read_history(pool_bytes([History(heard=much)]))
    assert refused.value.code == "history_too_long"
    assert History(heard=much).told().heard == much[1:]
    own = tuple(Account(session=f"{at:064x}", lot="statistics", signed=(each,)) for at, each in enumerate(much))
    assert History(accounts=own, heard=much).told() == History(accounts=own[1:])


def test_a_member_tells_one_history() -> None:
    """Its digest is signed; with several it could not be said which."""
    with pytest.raises(Refused, match="one history"):
        read_history(pool_bytes([History(), History(heard=(made_up(1),))]))


@pytest.mark.parametrize(("most", "code"), [(1, "too_large"), (2, "malformed")])
def test_bytes_that_are_no_history_are_refused(monkeypatch: pytest.MonkeyPatch, most: int, code: str) -> None:
    """Those that are too many, before they are read."""
    monkeypatch.setattr(history_module, "MAX_HISTORY_BYTES", most)
    with pytest.raises(Refused) as refused:
        read_history(b"[]")
    assert refused.value.code == code


@pytest.mark.parametrize(
    "accounts",
    [
        [Account(session="0" * 64, lot="scores", opened=True)],
        [Account(session="0" * 64, lot="scores", locked=True)],
        [Account(session="0" * 64, lot="scores"), Account(session="0" * 64, lot="scores", signed=(made_up(1),))],
    ],
)
def test_a_member_speaks_once_of_a_sum_and_opens_what_it_signed(accounts: list[Account]) -> None:
    """One voice a member, else one liar could deny for many."""
    with pytest.raises(Refused):
        read_history(pool_bytes([History(accounts=tuple(accounts))]))


SESSION = "5" * 64


def over(names: set[int]) -> PastSum:
    return PastSum.of("statistics", {f"{name:064x}": ("0" * 64, 1) for name in names})


def said(
    names: set[int], size: int, *, opened: bool, signed: list[set[int]] | None = None, locked: bool = False
) -> History:
    """What a member says of a session of so many members in which it signed these sets, the last of them `names`."""
    sums = tuple(map(over, [*(signed or []), names]))
    away = tuple(f"{name:064x}" for name in range(size) if name not in names)
    account = Account(session=SESSION, lot="statistics", signed=sums, away=away, locked=locked, opened=opened)
    return History(accounts=(account,))


@given(data=st.data(), size=st.integers(3, 9), large=st.booleans())
def test_a_sum_that_was_opened_is_never_talked_away(data: st.DataObject, size: int, large: bool) -> None:
    """Whatever fewer than a third of the members say, and whoever of the others is there to speak.

    large: whether a threshold locked it, and any of them opened it; in a small cohort a threshold opened it. The others
    in it have locked, if anything, a smaller one that did not open.
    """
    threshold = threshold_for(size)
    liars = data.draw(st.sets(st.integers(0, size - 1), max_size=(size - 1) // 3))
    in_it = data.draw(st.sets(st.integers(0, size - 1), min_size=threshold))
    opened = over(in_it)
    revealers = data.draw(st.sets(st.sampled_from(sorted(in_it)), min_size=threshold))
    told: dict[str, History] = {}
    for name in range(size):
        if name in liars:
            told[f"{name:064x}"] = said({name, size}, size, opened=True)
        elif name in in_it:
            bound = name in revealers
            if bound or not data.draw(st.booleans()):
                opened_too = bound and (not large or data.draw(st.booleans()))
                told[f"{name:064x}"] = said(in_it, size, opened=opened_too, locked=bound and large)
            else:
                told[f"{name:064x}"] = said({name}, size, opened=False, signed=[in_it], locked=True)
        else:
            told[f"{name:064x}"] = History(accounts=(Account(session=SESSION, lot="statistics"),))
    present = data.draw(st.sets(st.sampled_from(sorted(in_it - liars)), min_size=1))
    others = data.draw(st.sets(st.sampled_from(sorted(range(size)))))
    heard = possible_sums({key: each for key, each in told.items() if int(key, 16) in present | others | liars})
    assert opened in heard


def test_a_sum_that_was_given_up_for_a_smaller_one_is_known_not_to_have_been_opened() -> None:
    """Four of five opened a sum without the fifth, which had signed the larger one and heard nothing more."""
    four, five = {0, 1, 2, 3}, {0, 1, 2, 3, 4}
    told = {f"{name:064x}": said(four, 5, opened=True, signed=[five]) for name in four}
    told[f"{4:064x}"] = said(five, 5, opened=False)
    assert set(possible_sums(told)) == {over(four)}
    alone = {key: told[key] for key in (f"{3:064x}", f"{4:064x}")}
    assert set(possible_sums(alone)) == {over(four), over(five)}


def test_who_has_locked_a_smaller_sum_still_tells_of_the_larger() -> None:
    """Others may not have signed the smaller one, and open the larger; whoever has opened the smaller knows better."""
    four, five = {0, 1, 2, 3}, {0, 1, 2, 3, 4}
    key = f"{0:064x}"
    assert set(possible_sums({key: said(four, 5, opened=False, signed=[five], locked=True)})) == {
        over(four),
        over(five),
    }
    assert set(possible_sums({key: said(four, 5, opened=True, signed=[five], locked=True)})) == {over(four)}


def test_a_sum_that_nobody_opened_is_forgotten_when_enough_say_so() -> None:
    """The coordinator fell away in the middle: two had signed, two had not been asked."""
    all_ = {0, 1, 2, 3}
    told = {f"{name:064x}": said(all_, 4, opened=False) for name in (0, 1)}
    silent = History(accounts=(Account(session=SESSION, lot="statistics"),))
    assert set(possible_sums(told)) == {over(all_)}
    assert set(possible_sums({**told, f"{2:064x}": silent})) == set()


def test_those_who_were_not_in_a_session_cannot_deny_its_sums() -> None:
    """Else friends in a large session could talk a small one's sum away."""
    told = {f"{name:064x}": said({0, 1, 2, 3}, 4, opened=False) for name in (0, 1)}
    strangers = {
        f"{name:064x}": History(accounts=(Account(session=SESSION, lot="statistics"),)) for name in range(10, 20)
    }
    assert set(possible_sums({**told, **strangers})) == {over({0, 1, 2, 3})}
