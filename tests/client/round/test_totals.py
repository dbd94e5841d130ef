"""One total of an epoch: whatever a holder is asked to sign, in whatever order and sessions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.client.round.epochs import OPENED, SIGNED, SignedTotal, SignedTotals
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.journal import Journal
from ridgeway.common.protocol.messages import SumName
from tests.support.making import refusing

TOTAL = SignedTotal(
    "statistics",
    "terms",
    "mine",
    {"a": "1", "b": "2", "me": "mine"},
    {"a": 5, "b": 5, "me": 5},
)


@dataclass(frozen=True)
class Asked:
    """A request to sign, or to open what was signed last in a session."""

    kind: Literal["sign", "open"]
    session: str
    total: SignedTotal


members = st.frozensets(st.sampled_from("abcde"), min_size=1)


@st.composite
def drawn_totals(draw: st.DrawFn) -> SignedTotal:
    """Any total with this holder in it: of some members, shares and epochs, or counts for some
    router.
    """
    epoch = draw(st.sampled_from(("first", "second")))
    epochs = {**dict.fromkeys(draw(members), "theirs"), "me": epoch}
    if draw(st.booleans()):
        question = draw(st.sampled_from(("this router", "that router")))
        return SignedTotal("counts", "terms", epoch, epochs, question=question)
    shares = dict.fromkeys(epochs, draw(st.sampled_from((5, 10))))
    return SignedTotal("statistics", "terms", epoch, epochs, shares)


asked = st.builds(
    Asked,
    st.sampled_from(("sign", "sign", "open")),
    st.sampled_from("xyz"),
    drawn_totals(),
)


@given(requests=st.lists(asked, max_size=40))
def test_whatever_is_asked_one_total_of_an_epoch_and_lot_can_be_opened(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Asked]
) -> None:
    """A total can be opened once it was signed, until its session has signed a smaller one in its
    place.

    As masked_answers does, a session signs smaller and smaller totals, and opens the one that it
    signed last.
    """
    kept = SignedTotals(Journal(tmp_path_factory.mktemp("totals") / "journal.db"))
    last: dict[tuple[str, SumName, str], SignedTotal] = {}
    opened: set[tuple[str, SumName, str]] = set()
    for request in requests:
        total = request.total
        session = request.session, total.sum_name, total.epoch
        before = last.get(session)
        if request.kind == "open":
            if before is not None:
                kept.open(before, request.session, "round")
                opened.add(session)
            continue
        if session in opened or (before and not _is_smaller(total, before)):
            continue  # the session itself refuses these
        try:
            kept.sign(total, request.session, paid=False)
        except Refused as refused:
            assert refused.code == (
                "epoch_used" if total.sum_name == "statistics" else "already_counted"
            )
            continue
        last[session] = total
    can_be_opened = defaultdict(set)
    for (_, lot, epoch), total in last.items():
        can_be_opened[lot, epoch].add(total.id)
    assert all(len(totals) == 1 for totals in can_be_opened.values())


def _is_smaller(total: SignedTotal, before: SignedTotal) -> bool:
    """Fewer of the same members, with the same shares and the same question."""
    same = (
        total.question == before.question
        and total.shares.items() <= before.shares.items()
    )
    return same and total.epochs.items() <= before.epochs.items()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.db")


@pytest.fixture
def kept(journal: Journal) -> SignedTotals:
    return SignedTotals(journal)


@pytest.mark.parametrize(
    "other",
    [
        replace(TOTAL, terms="others"),
        replace(TOTAL, epochs={"a": "1", "me": "mine"}),
        replace(TOTAL, epochs={**TOTAL.epochs, "a": "changed"}),
        replace(TOTAL, shares={**TOTAL.shares, "me": 10}),
    ],
    ids=[
        "other terms",
        "one member fewer",
        "another epoch of a member",
        "another share",
    ],
)
def test_all_that_decides_the_bytes_of_a_total_is_in_its_name(
    kept: SignedTotals, other: SignedTotal
) -> None:
    """In another session it is another total, and refused; in the first one, too, once that was
    opened.
    """
    kept.sign(TOTAL, "x", paid=False)
    with pytest.raises(Refused):
        kept.sign(other, "y", paid=False)
    kept.open(TOTAL, "x", "round")
    with pytest.raises(Refused):
        kept.sign(other, "x", paid=False)


def test_the_same_total_may_be_signed_again_in_another_session(
    kept: SignedTotals,
    journal: Journal,
) -> None:
    """After one that failed, or that opened it: it shows nothing new."""
    for session in "xyz":
        kept.sign(TOTAL, session, paid=False)
        kept.open(TOTAL, session, session)
    assert len(journal.entries(SIGNED)) == len(journal.entries(OPENED)) == 3


def test_a_refused_total_leaves_no_trace(kept: SignedTotals, journal: Journal) -> None:
    """So it stands in nobody's way later."""
    kept.sign(TOTAL, "x", paid=False)
    with pytest.raises(Refused):
        kept.sign(replace(TOTAL, terms="others"), "y", paid=False)
    assert len(journal.entries()) == 1
    kept.sign(TOTAL, "z", paid=False)


def test_sums_and_counts_and_epochs_are_judged_apart(kept: SignedTotals) -> None:
    """Each lot of each epoch has its own one total."""
    kept.sign(TOTAL, "x", paid=False)
    assert kept.has_signed("statistics", "mine") and kept.epochs() == {"mine"}
    assert not kept.has_signed("counts", "mine") and not kept.has_signed(
        "statistics", "later"
    )
    kept.sign(
        SignedTotal("counts", "terms", "mine", TOTAL.epochs, question="this"),
        "x",
        paid=False,
    )
    kept.sign(
        replace(TOTAL, epoch="later", epochs={**TOTAL.epochs, "me": "later"}),
        "y",
        paid=False,
    )
    with refusing("already_counted"):
        kept.sign(
            SignedTotal("counts", "terms", "mine", TOTAL.epochs, question="that"),
            "y",
            paid=False,
        )


def test_two_totals_that_few_members_lie_between_are_a_notice(
    kept: SignedTotals,
) -> None:
    """For the owner: who came or went; none where many did, nor where it is the same total."""

    def opened(epoch: str, names: str, round_: str) -> None:
        total = SignedTotal(
            "statistics", "terms", epoch, {**dict.fromkeys(names, epoch), "me": epoch}
        )
        kept.open(total, round_, round_)

    opened("1", "abcde", "r1")
    opened("1", "abcde", "r2")
    assert kept.notices() == []
    opened("2", "abcd", "r3")
    opened("3", "fgh", "r4")
    assert kept.notices() == [{"before": "r2", "after": "r3", "members": ["e"]}]


def test_a_total_that_was_paid_for_and_is_not_in_the_journal_is_in_another_one(
    kept: SignedTotals,
) -> None:
    """The journal is an older copy: nobody here remembers which total the epoch is in."""
    with refusing("epoch_used"):
        kept.sign(TOTAL, "x", paid=True)
    kept.sign(TOTAL, "x", paid=False)
    kept.sign(TOTAL, "y", paid=True)
