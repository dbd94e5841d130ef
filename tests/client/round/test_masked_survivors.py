"""A hostile coordinator at the last steps: who has sent, what was asked, which sums lie side by
side once opened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from ridgeway.client.round import masked_answers
from ridgeway.client.round.epochs import OPENED, SIGNED
from ridgeway.client.round.session_store import SessionFile, SessionState
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.protocol.messages import (
    SUM_NAMES,
    Confirmed,
    Locked,
    Message,
    Refusal,
    SealedSums,
    Share,
    SumName,
)
from ridgeway.common.protocol.packet import Opened, weights_blob
from tests.support.hostile import (
    ALL,
    ANNOUNCE,
    CONFIRM,
    FEATURES,
    FEWER,
    LOCK,
    OPEN,
    OVER,
    SEAL,
    SHARE,
    VICTIM,
    WITHOUT,
    Hostile,
    nothing_revealed,
)
from tests.support.simulated_federation import Parties

At = Callable[..., Hostile]


def signed_for(
    coordinator: Hostile, name: str, lot: SumName, kind: str = SIGNED
) -> list[Mapping[str, Any]]:
    """What a holder's journal says of the totals of a lot that it has signed, or opened."""
    entries = coordinator.parties.holder(name).journal.entries(kind)
    return [entry.facts for entry in entries if entry.facts["lot"] == lot]


# Alive and dead


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_another_set_than_was_confirmed_is_not_opened(at: At, lot: SumName) -> None:
    """Shares of a member's seed for one set and of its mask key for another would unmask it."""
    coordinator = at(OPEN, lot)
    for sent in (WITHOUT["medicine"], WITHOUT["law-2"]):
        code = coordinator.refused_opening(VICTIM, lot, sent, coordinator.signatures)
        assert code == "two_survivor_sets"
    nothing_revealed(coordinator)
    coordinator.total(lot, ALL, coordinator.open(lot, ALL, ALL, coordinator.signatures))


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_what_was_not_confirmed_is_not_opened(at: At, lot: SumName) -> None:
    """The step cannot be left out, whatever the others have signed."""
    coordinator = at(CONFIRM, lot)
    signatures = coordinator.confirm(lot, WITHOUT[VICTIM], ALL)
    code = coordinator.refused_opening(VICTIM, lot, ALL, signatures)
    assert code == "two_survivor_sets"
    nothing_revealed(coordinator)


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_a_smaller_set_takes_the_place_of_a_larger_one_and_of_no_other(
    at: At, lot: SumName
) -> None:
    """Whoever signs it has given the larger one up, so that no two are ever opened."""
    coordinator = at(LOCK, lot)
    coordinator.confirm(lot, [VICTIM], FEWER)
    for names in (ALL, WITHOUT["code-1"]):
        assert coordinator.refused_sum(VICTIM, lot, names) == "two_survivor_sets"
    code = coordinator.refused_opening(VICTIM, lot, ALL, coordinator.signatures)
    assert code == "two_survivor_sets"
    nothing_revealed(coordinator)


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_after_its_shares_were_revealed_a_member_signs_nothing_more(
    at: At, lot: SumName
) -> None:
    """A smaller sum beside the larger one would show who is missing."""
    coordinator = at(OVER, lot)
    assert coordinator.refused_sum(VICTIM, lot, FEWER) == "already_answered"
    assert len(signed_for(coordinator, VICTIM, lot)) == 1


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_the_others_open_without_a_member_that_falls_away_before_it_signs(
    at: At, lot: SumName
) -> None:
    """And its vector, which has arrived, stays under its masks."""
    coordinator = at(CONFIRM, lot)
    coordinator.confirm(lot, FEWER, ALL)
    total = coordinator.finish(lot, FEWER)
    if lot == "statistics":
        assert (total == coordinator.plain_sum(FEWER)).all()
    for name in FEWER:
        [opened] = signed_for(coordinator, name, lot, OPENED)
        assert set(opened["members"]) == {
            coordinator.key_of[member] for member in FEWER
        }


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_a_sum_is_not_opened_unless_everybody_in_it_has_signed(
    at: At, lot: SumName
) -> None:
    """Not even by as many as hold enough shares: the one who did not sign would not remember the
    sum.
    """
    coordinator = at(CONFIRM, lot)
    signatures = coordinator.confirm(lot, FEWER, ALL)
    coordinator.locks = coordinator.lock(lot, FEWER, ALL)
    for name in FEWER:
        assert (
            coordinator.refused_opening(name, lot, ALL, signatures) == "not_confirmed"
        )
    nothing_revealed(coordinator)


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_a_set_without_the_member_that_has_sealed_is_not_confirmed_by_it(
    at: At, lot: SumName
) -> None:
    """It knows better."""
    coordinator = at(CONFIRM, lot)
    assert coordinator.refused_sum(VICTIM, lot, WITHOUT[VICTIM]) == "declared_dead"
    assert coordinator.gave(Confirmed) == []
    coordinator.finish(lot)


@pytest.mark.parametrize("lot", SUM_NAMES)
def test_a_set_with_a_member_that_has_not_sealed_is_not_confirmed_by_it(
    at: At, lot: SumName
) -> None:
    """Nor opened: a share of its seed would leave before the vector that it masks."""
    coordinator = at(SEAL, lot)
    coordinator.seal_lot(lot, WITHOUT[VICTIM])
    assert coordinator.refused_sum(VICTIM, lot, ALL) == "not_sealed"
    signatures = coordinator.confirm(lot, WITHOUT[VICTIM], ALL)
    assert coordinator.refused_opening(VICTIM, lot, ALL, signatures) == "not_sealed"
    nothing_revealed(coordinator)


def test_a_set_that_cannot_be_is_not_confirmed(at: At) -> None:
    """Fewer than the threshold, or with somebody who has not shared."""
    coordinator = at(SHARE)
    coordinator.share(WITHOUT["medicine"])
    coordinator.seal()
    for sent, code in ((ALL[:3], "too_few_survivors"), (ALL, "impossible_survivors")):
        assert coordinator.refused_sum(VICTIM, "statistics", sent) == code
    total = coordinator.finish("statistics", WITHOUT["medicine"])
    assert (total == coordinator.plain_sum(WITHOUT["medicine"])).all()


def test_confirmations_and_locks_of_one_sum_do_not_open_another(at: At) -> None:
    """Every signature names its sum."""
    coordinator = at(OPEN)
    coordinator.finish("statistics")
    coordinator.count()
    coordinator.confirm("counts", ALL)
    coordinator.lock("counts", ALL)
    code = coordinator.refused_opening(VICTIM, "counts", ALL, coordinator.signatures)
    assert code == "not_confirmed"
    nothing_revealed(coordinator, "counts")


def test_survivors_below_the_holders_own_minimum_are_not_confirmed(at: At) -> None:
    """A cohort that was large enough may have shrunk."""
    coordinator = at(SEAL)
    coordinator.parties.rewrite(VICTIM, "min_cohort = 3", "min_cohort = 5")
    coordinator.seal(WITHOUT["medicine"])
    code = coordinator.refused_sum(VICTIM, "statistics", WITHOUT["medicine"])
    assert code == "cohort_too_small"
    nothing_revealed(coordinator)
    coordinator.seal(["medicine"])
    coordinator.finish("statistics")


# What was asked


def test_different_questions_to_two_members_are_not_opened(at: At) -> None:
    """What stands for the question is signed: a router made to single one member out must be shown
    to all.
    """
    coordinator = at(SEAL, "counts")
    coordinator.count(WITHOUT[VICTIM])
    coordinator.count([VICTIM], other=True)
    signatures = coordinator.confirm("counts", ALL)
    coordinator.locks = coordinator.lock("counts", ALL)
    assert (
        coordinator.refused_opening(VICTIM, "counts", ALL, signatures)
        == "not_confirmed"
    )
    nothing_revealed(coordinator)
    code = coordinator.refused_opening(
        VICTIM,
        "counts",
        ALL,
        {index: signatures[index] for index in list(signatures)[:3]},
    )
    assert code == "not_confirmed"


def test_a_question_that_does_not_fit_the_session_is_refused(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terms that the holder agrees to, and the session is not under; a domain that no member holds;
    and more counts than a sum may have.
    """
    coordinator = at(SEAL, "counts")
    other = coordinator.allow_tokens()
    question, weights = coordinator.question()
    domains = (*question.domains, "poetry")
    for lie, blobs, code in (
        ({"terms": other}, weights, "other_session"),
        ({"domains": domains}, (weights_blob(np.eye(FEATURES, 4)),), "wrong_domain"),
    ):
        asked = question.model_copy(update=lie)
        assert coordinator.refusal(VICTIM, asked, blobs) == code
    monkeypatch.setattr(masked_answers, "MAX_COUNTS", 20)
    assert coordinator.refusal(VICTIM, question, weights) == "too_large"
    assert coordinator.gave(SealedSums) == []


def test_counts_before_the_others_shares_are_there_are_refused(at: At) -> None:
    """Nobody could take their masks off."""
    coordinator = at(SEAL)
    assert coordinator.refusal(VICTIM, *coordinator.question()) == "no_session"
    assert coordinator.gave(SealedSums) == []


@pytest.mark.parametrize("step", [SEAL, CONFIRM, LOCK, OPEN])
def test_no_step_is_taken_before_secrets_were_shared(at: At, step: int) -> None:
    """There are no masks yet."""
    coordinator = at(SHARE)
    coordinator.share(WITHOUT[VICTIM])
    assert coordinator.refused_step(step) == "no_session"


def test_no_second_question_is_answered_under_the_same_masks(at: At) -> None:
    """Two vectors under one mask show their difference."""
    coordinator = at(CONFIRM, "counts")
    assert (
        coordinator.refusal(VICTIM, *coordinator.question(other=True))
        == "already_answered"
    )
    coordinator.finish("counts")
    assert coordinator.refusal(VICTIM, *coordinator.question()) == "already_answered"


# The mass


def test_a_mass_with_which_a_sum_could_overflow_is_refused_before_anything_is_sealed(
    at: At,
) -> None:
    """Masks hide it: nobody could see it from the sum."""
    parties, mass = at(ANNOUNCE).parties, 1 << 37
    for name in ALL:
        parties.rewrite(name, f"\nmass = {EQUAL_MASS}\n", f"\nmass = {mass}\n")
    coordinator = Hostile(parties, ALL)
    coordinator.terms = coordinator.terms.model_copy(update={"mass": mass})
    coordinator.begin()
    assert coordinator.refused_step(SEAL) == "failed"
    assert coordinator.gave(SealedSums) == []


# Sums side by side


def second(
    parties: Parties, names: Collection[str], round_: str = "ef" * 16
) -> Hostile:
    """A further round of the same coordinator."""
    return Hostile(parties, list(names), round_)


def sealed(coordinator: Hostile) -> Hostile:
    coordinator.until(CONFIRM)
    return coordinator


def nobody_opens(
    coordinator: Hostile, sent: Collection[str], members: Collection[str]
) -> None:
    """None of these confirms the sum, nor opens it without."""
    for name in members:
        assert coordinator.refused_sum(name, "statistics", sent) == "epoch_used"
        assert (
            coordinator.refused_opening(name, "statistics", sent, {})
            == "two_survivor_sets"
        )
    nothing_revealed(coordinator)
    assert coordinator.gave(Confirmed) == []


@pytest.mark.parametrize(
    "members", [WITHOUT["medicine"], ALL], ids=["left out", "declared dead"]
)
def test_a_second_sum_without_one_member_is_refused_by_all_others(
    at: At, members: list[str]
) -> None:
    """The difference of the two would be that member's own, whether it was left out or is said to
    have fallen away.
    """
    names = WITHOUT["medicine"]
    nobody_opens(sealed(second(at(OVER).parties, members)), names, names)


@pytest.mark.parametrize(
    "changed", [["medicine"], ["medicine", "law-2"], WITHOUT[VICTIM]]
)
def test_a_second_sum_with_changed_members_is_refused_by_all_that_have_not_changed(
    at: At, changed: list[str]
) -> None:
    """It would show what has changed in their corpora: everybody's data is in one total, so all
    need new epochs.
    """
    parties = at(OVER).parties
    for name in changed:
        parties.change_corpus(name)
    nobody_opens(
        sealed(second(parties, ALL)), ALL, [name for name in ALL if name not in changed]
    )


def test_a_second_sum_with_one_that_has_joined_is_refused(at: At) -> None:
    """By those who were there before; the newcomer's own data is in no total yet."""
    parties = at(ANNOUNCE).parties
    second(parties, WITHOUT["medicine"], "ab" * 16).play("statistics")
    nobody_opens(sealed(second(parties, ALL)), ALL, WITHOUT["medicine"])


def test_the_same_sum_may_be_opened_again_and_one_of_new_epochs(at: At) -> None:
    """Nothing new is shown by the one; the other is what everybody's owner has opened an epoch
    for.
    """
    parties = at(OVER).parties
    sealed(second(parties, ALL)).finish("statistics")
    for name in ALL:
        parties.ready(name)
    sealed(second(parties, ALL, "ab" * 16)).finish("statistics")


def test_the_same_members_with_other_shares_are_another_sum(at: At) -> None:
    """In a cohort without law-2, law-1 has all of its domain's mass: beside the first sum its own
    would lie open.
    """
    coordinator = at(CONFIRM)
    names = WITHOUT["law-2"]
    coordinator.finish("statistics", names)
    other = sealed(second(coordinator.parties, names))
    assert (other.plain_sum(names) != coordinator.plain_sum(names)).any()
    nobody_opens(other, names, names)


def test_a_larger_sum_that_the_others_may_have_opened_is_not_forgotten(at: At) -> None:
    """A member has signed it, then signed a smaller one and locked that; the others open the larger
    without it.
    """
    coordinator = at(LOCK)
    coordinator.confirm("statistics", [VICTIM], FEWER)
    assert isinstance(
        coordinator.ask(VICTIM, coordinator.lock_request("statistics", FEWER)).message,
        Locked,
    )
    assert coordinator.open("statistics", WITHOUT[VICTIM], ALL, coordinator.signatures)
    later = sealed(second(coordinator.parties, FEWER))
    assert later.refused_sum(VICTIM, "statistics", FEWER) == "epoch_used"


def test_sums_of_few_of_the_pinned_roster_are_refused(at: At) -> None:
    """Three of five: two such sums with one member in common would not know of each other."""
    few = [VICTIM, "code-1", "code-2"]
    coordinator = sealed(second(at(ANNOUNCE).parties, few))
    for name in few:
        code = coordinator.refused_sum(name, "statistics", few)
        assert code == "too_few_of_roster"
    nothing_revealed(coordinator)
    assert coordinator.gave(Confirmed) == []


def test_counts_are_given_for_one_router_an_epoch(at: At) -> None:
    """In another session, too: who would be asked about many routers would tell its held-out
    documents.
    """
    coordinator = at(OVER, "counts")
    other = sealed(second(coordinator.parties, ALL))
    other.finish("statistics")
    other.count()
    other.finish("counts")
    third = sealed(second(coordinator.parties, ALL, "ab" * 16))
    third.finish("statistics")
    third.count(other=True)
    for name in ALL:
        assert third.refused_sum(name, "counts", ALL) == "already_counted"
    nothing_revealed(third, "counts")


# Two requests at once


@pytest.fixture
def both_read_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two answers at once both read the state before either writes it, unless something keeps them
    apart.
    """
    meeting = threading.Barrier(2)
    plain = SessionFile.load

    def load(file: SessionFile) -> SessionState | None:
        state = plain(file)
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.15)
        return state

    with monkeypatch.context() as patch:
        patch.setattr(SessionFile, "load", load)
        yield


def at_once(coordinator: Hostile, name: str, *requests: Message) -> list[Message]:
    """The answers of one holder to requests that arrive at the same time, each in a process of its
    own.
    """

    def send(request: Message) -> Opened[Message]:
        return coordinator.ask(name, request)

    with ThreadPoolExecutor(len(requests)) as pool:
        return [opened.message for opened in pool.map(send, requests)]


def one_and_a_refusal(answers: list[Message], kind: type[Message]) -> None:
    assert sorted(answer.kind for answer in answers) == sorted(
        (kind.kind, Refusal.kind)
    )
    [refusal] = [answer for answer in answers if isinstance(answer, Refusal)]
    assert refusal.code in ("already_answered", "two_survivor_sets")


@pytest.mark.usefixtures("both_read_first")
def test_of_two_sets_asked_to_be_confirmed_at_once_one_is(at: At) -> None:
    """The state of a session is locked from reading to writing."""
    coordinator = at(CONFIRM)
    requests = [
        coordinator.confirm_request("statistics", sent)
        for sent in (FEWER, WITHOUT["code-1"])
    ]
    one_and_a_refusal(at_once(coordinator, VICTIM, *requests), Confirmed)


@pytest.mark.usefixtures("both_read_first")
def test_of_two_cohorts_shown_at_once_one_is_given_envelopes(at: At) -> None:
    """Secrets are dealt out once."""
    coordinator = at(SHARE)
    fewer: Share = coordinator.share_request(coordinator.cohort(WITHOUT["medicine"]))
    answers = at_once(coordinator, VICTIM, coordinator.share_request(), fewer)
    assert [answer.code for answer in answers if isinstance(answer, Refusal)] == [
        "already_answered"
    ]
