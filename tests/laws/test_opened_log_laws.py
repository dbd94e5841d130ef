"""The log of opened sums, whatever is in it: growth is taken, and every other head is told from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import Refused
from ridgeway.common.protocol import opened_log
from ridgeway.common.protocol.opened_log import (
    ForkedLog,
    LogStatement,
    OpenedSum,
    extend,
    hashes,
    read_statement,
    state_log,
)
from tests.support.making import fixed_identity

COORDINATOR, STRANGER = fixed_identity(1), fixed_identity(2)
digests = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")


@st.composite
def logs(draw: st.DrawFn, least: int = 0) -> tuple[OpenedSum, ...]:
    sums = draw(
        st.lists(
            st.builds(
                OpenedSum,
                number=st.just(0),
                lot=st.sampled_from(["statistics", "scores", "reliability"]),
                parts=st.lists(st.tuples(digests, digests, st.integers(1, 1 << 37)), max_size=3).map(tuple),
                round=digests,
                terms=digests,
                opened=digests,
            ),
            min_size=least,
            max_size=6,
        )
    )
    return tuple(each.model_copy(update={"number": place}) for place, each in enumerate(sums, start=1))


def told(log: tuple[OpenedSum, ...], after: int = 0) -> LogStatement:
    return state_log(log, after, COORDINATOR)


@given(logs(), st.data())
def test_a_log_that_has_grown_is_taken(log: tuple[OpenedSum, ...], data: st.DataObject) -> None:
    """From whichever entry on it is shown, up to the first that is not known."""
    known = data.draw(st.integers(0, len(log)))
    after = data.draw(st.integers(0, known))
    whole = extend(log[:known], told(log, after), {COORDINATOR.public})
    assert (whole.entries, whole.head.number) == (log, len(log))
    assert whole == LogStatement.model_validate_json(whole.to_bytes())


@given(logs(least=1), st.data())
def test_a_log_in_which_anything_known_is_another_is_a_fork(log: tuple[OpenedSum, ...], data: st.DataObject) -> None:
    """Whether the altered entry is shown again or lies before those that are shown."""
    known = data.draw(st.integers(1, len(log)))
    place = data.draw(st.integers(0, known - 1))
    change: dict[str, Any] = data.draw(
        st.sampled_from([{"opened": "e" * 64}, {"parts": ()}, {"round": "another"}, {"lot": "another"}])
    )
    altered = log[place].model_copy(update=change)
    if altered == log[place]:
        altered = altered.model_copy(update={"round": "another"})
    rewritten = (*log[:place], altered, *log[place + 1 :])
    after = data.draw(st.integers(0, known))
    with pytest.raises(ForkedLog):
        extend(log[:known], told(rewritten, after), {COORDINATOR.public})


@given(logs(least=1), st.data())
def test_a_log_that_is_shorter_than_before_is_a_fork(log: tuple[OpenedSum, ...], data: st.DataObject) -> None:
    left = log[: data.draw(st.integers(0, len(log) - 1))]
    with pytest.raises(ForkedLog):
        extend(log, told(left, data.draw(st.integers(0, len(left)))), {COORDINATOR.public})


@given(logs(least=2), st.data())
def test_what_proves_nothing_is_refused_and_is_no_fork(log: tuple[OpenedSum, ...], data: st.DataObject) -> None:
    """Entries that are kept back, a head that somebody else signed, entries that do not give the head."""
    after = data.draw(st.integers(1, len(log) - 1))
    known = log[: after - 1]
    honest = told(log, len(known))
    wrong = (
        told(log, after),
        state_log(log, len(known), STRANGER),
        honest.model_copy(update={"entries": honest.entries[:-1]}),
        honest.model_copy(update={"entries": honest.entries[::-1]}),
    )
    for each in wrong:
        with pytest.raises(Refused) as refused:
            extend(known, each, {COORDINATOR.public})
        assert refused.value.code == "bad_log"


@given(logs(least=1))
def test_the_first_log_that_is_shown_gives_its_head(log: tuple[OpenedSum, ...]) -> None:
    """Before anything is known nothing can be forked from it, and what does not fit together is not kept."""
    altered = (log[0].model_copy(update={"round": "another"}), *log[1:])
    with pytest.raises(Refused) as refused:
        extend((), told(log).model_copy(update={"entries": altered}), {COORDINATOR.public})
    assert refused.value.code == "bad_log"


@pytest.mark.parametrize(("most", "code"), [(1, "too_large"), (2, "malformed")])
def test_bytes_that_are_no_log_are_refused(monkeypatch: pytest.MonkeyPatch, most: int, code: str) -> None:
    """Those that are too many, before they are read."""
    monkeypatch.setattr(opened_log, "MAX_HISTORY_BYTES", most)
    with pytest.raises(Refused) as refused:
        read_statement(b"{}")
    assert refused.value.code == code


@given(logs(), logs())
def test_two_logs_have_one_hash_only_if_they_are_one(one: tuple[OpenedSum, ...], other: tuple[OpenedSum, ...]) -> None:
    assert (hashes(one) == hashes(other)) == (one == other)
