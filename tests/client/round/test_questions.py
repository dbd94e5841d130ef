"""A hostile coordinator that asks for counts: about documents that changed, with crafted questions, again and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.client.round import masked_answers
from ridgeway.client.round.roster import unpin
from ridgeway.client.round.scoring import Scorer
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.protocol.messages import Candidate, Confirmed, Evaluate, Lot, SealedSums
from ridgeway.common.protocol.packet import Blob, weights_blob
from ridgeway.common.routing.belonging import COUNTS_SHAPE
from ridgeway.common.routing.evaluation import CONFIDENCE_EDGES, unpaired
from tests.support.hostile import BEST, CONFIRM, MEMBERS, OPEN, OVER, SEAL, WEIGHTS, Hostile, code_of, nothing_revealed

VICTIM = "law-1"
ALL = list(MEMBERS)
COUNTED: tuple[Lot, ...] = ("scores", "reliability")
HOLDOUT = 0.25
At = Callable[..., Hostile]


def add_document(coordinator: Hostile, name: str, held_out: bool) -> None:
    """Let a holder get one more document, of which it is known whether it is held out."""
    [corpus] = coordinator.parties.holder(name).settings.corpus
    texts = (f"{name} has another {number}" for number in range(99))
    text = next(text for text in texts if is_held_out(text, HOLDOUT) == held_out)
    changed = Path(corpus).with_name(f"{name} {held_out}.jsonl")
    changed.write_text(Path(corpus).read_text() + json.dumps({"text": text}) + "\n")
    coordinator.parties.rewrite(name, f'"{corpus}"', f'"{changed}"')


def again(before: Hostile) -> Hostile:
    """A further round about the total that was opened before."""
    later = Hostile(before.parties, ALL, "ef" * 16)
    later.begin()
    later.hold()
    later.opened_total, later.weights = before.opened_total, before.weights
    return later


# Documents that changed


@pytest.mark.parametrize("lot", COUNTED)
def test_a_held_out_document_added_between_two_sums_of_counts_is_not_seen_in_their_difference(at: At, lot: Lot) -> None:
    """Two others have changed their sums, so there is a second total; of the documents, only one holder's have."""
    first = at(OVER, lot)
    add_document(first, VICTIM, held_out=True)
    for name in ("code-1", "medicine"):
        add_document(first, name, held_out=False)
    later = Hostile(first.parties, ALL, "ef" * 16)
    later.until(SEAL, "scores")
    later.count("scores")
    for name in ALL:
        assert code_of(later.ask(name, later.confirm_request("scores", ALL))) == "sets_apart"
    nothing_revealed(later, "scores")


def test_documents_that_changed_since_they_were_advertised_are_not_counted(at: At) -> None:
    """The others have judged by what was advertised whether the sum may be opened."""
    coordinator = at(SEAL, "scores")
    add_document(coordinator, VICTIM, held_out=True)
    assert code_of(coordinator.ask(VICTIM, *coordinator.question("scores"))) == "source_changed"


def test_counts_about_a_total_of_sums_that_have_changed_since_are_refused(at: At) -> None:
    """The weights could not be judged by them; the documents that would be counted are as they were."""
    coordinator = at(SEAL, "scores")
    add_document(coordinator, VICTIM, held_out=False)
    coordinator.parties.holder(VICTIM).ready(coordinator.terms)
    assert code_of(coordinator.ask(VICTIM, *coordinator.question("scores"))) == "source_changed"


def test_what_stands_for_documents_is_the_same_as_long_as_they_are_and_tests_no_guess(at: At) -> None:
    """It is signed, so that nobody else can make it of documents that it thinks of."""
    coordinator = at(SEAL)
    holder = coordinator.parties.holder(VICTIM)
    sample = holder.held_out(coordinator.terms)
    shown = coordinator.adverts[VICTIM].held_out
    assert holder.held_out_source(sample) == shown
    assert sample.content != shown
    assert coordinator.parties.holder("law-2").held_out_source(sample) != shown


# What is asked


def crafted(coordinator: Hostile, lot: Lot, blobs: tuple[Blob, ...] | None = None, **changes: Any) -> str:
    """The code with which a changed question is refused; what was meant to be asked is still answered."""
    question, weights = coordinator.question(lot)
    refused = coordinator.ask(VICTIM, question.model_copy(update=changes), weights if blobs is None else blobs)
    assert coordinator.gave(SealedSums, lot) == []
    return code_of(refused)


def test_a_total_with_a_member_that_was_unpinned_since_is_not_counted(at: At) -> None:
    """Its domain is not known any more."""
    coordinator = at(SEAL, "scores")
    unpin(coordinator.parties.homes[VICTIM], [coordinator.key_of["law-2"]])
    assert crafted(coordinator, "scores") == "forged_roster"


def test_more_counts_than_a_sum_may_have_are_refused(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their vector would fill the memory of everybody."""
    coordinator = at(SEAL, "scores")
    monkeypatch.setattr(masked_answers, "MAX_COUNTS", 3 * 3 - 1)
    assert crafted(coordinator, "scores") == "too_large"
    monkeypatch.setattr(masked_answers, "MAX_COUNTS", 3 * 3)
    coordinator.count("scores")


@pytest.mark.parametrize("lot", COUNTED)
@pytest.mark.parametrize(
    "domains",
    [("code", "law"), ("code", "law", "medicine", "x000"), ("law", "code", "medicine"), ("code", "law", "poetry")],
    ids=["fewer", "more", "another order", "another"],
)
def test_domains_that_are_not_those_of_the_total_are_refused(at: At, lot: Lot, domains: tuple[str, ...]) -> None:
    """Invented ones would make room for detectors."""
    coordinator = at(SEAL, lot)
    blobs = (weights_blob(np.eye(7, len(domains))),)
    assert crafted(coordinator, lot, blobs, domains=domains) == "wrong_domain"
    coordinator.count(lot)


def test_crafted_weights_are_refused(at: At) -> None:
    """Weights that answer to single letters, whatever they are called."""
    coordinator = at(SEAL, "scores")
    table = coordinator.parties.encoder.table.astype(np.float64) * coordinator.parties.encoder.scale
    letters = np.concatenate([50 * np.linalg.pinv(table)[:, 5:8], np.zeros((1, 3))])
    assert crafted(coordinator, "scores", (weights_blob(letters),)) == "foreign_weights"
    assert crafted(coordinator, "scores", (WEIGHTS,)) == "foreign_weights"
    coordinator.count("scores")


def test_more_weights_than_the_terms_have_penalties_are_refused(at: At) -> None:
    """However true each of them is."""
    coordinator = at(SEAL, "scores")
    assert crafted(coordinator, "scores", (*coordinator.weights, *coordinator.weights)) == "foreign_weights"
    coordinator.count("scores")


@pytest.mark.parametrize(
    "candidates",
    [(BEST, BEST), (BEST, BEST.model_copy(update={"k": 11})), (BEST.model_copy(update={"ridge": 1}),)],
    ids=["twice", "no setting names it", "no such weights"],
)
def test_candidates_that_no_settings_name_are_refused(at: At, candidates: tuple[Candidate, ...]) -> None:
    """They come from a small family, each once."""
    coordinator = at(SEAL, "scores")
    assert crafted(coordinator, "scores", candidates=candidates) in ("foreign_candidates", "malformed")
    coordinator.count("scores")


def test_a_calibration_is_of_what_was_evaluated(at: At) -> None:
    """Neither other weights nor another candidate."""
    coordinator = at(SEAL, "reliability")
    other = np.frombuffer(coordinator.weights[0]) * (1 + 1e-9)
    assert crafted(coordinator, "reliability", (other.tobytes(),)) == "foreign_weights"
    changed = BEST.model_copy(update={"normalise_columns": True})
    assert crafted(coordinator, "reliability", candidate=changed) == "foreign_weights"
    assert crafted(coordinator, "reliability", temperatures=(2.0, 1.0)) == "foreign_candidates"
    coordinator.count("reliability")


def test_a_calibration_before_any_evaluation_is_refused(at: At) -> None:
    """Its weights were never looked at."""
    assert crafted(at(SEAL, "scores"), "reliability") == "foreign_weights"


def joined(coordinator: Hostile, *others: Candidate) -> None:
    """Let everybody evaluate, and calibrate the first candidate as it does."""
    question, weights = coordinator.question("scores")
    more = {"candidates": (BEST, *others), "temperatures": (1.0, 2.0)}
    for name in ALL:
        coordinator._keep("scores", name, question.model_copy(update=more), weights)


def test_an_evaluation_calibrates_its_first_candidate_and_then_one_other_may_be(at: At) -> None:
    """What was calibrated is not so again, under whatever temperatures; and the other one is calibrated once."""
    coordinator = at(SEAL, "scores")
    other = BEST.model_copy(update={"normalise_columns": True})
    joined(coordinator, other)
    reliability = 2 * len(CONFIDENCE_EDGES) + prod(COUNTS_SHAPE) // 2  # in tests there is one curve; counts in pairs
    assert coordinator.finish("scores").size == 3 * (2 * 5 // 2) + reliability
    assert crafted(coordinator, "reliability") == "already_counted"
    assert crafted(coordinator, "reliability", temperatures=(4.0,)) == "already_counted"
    question, weights = coordinator.question("reliability")
    for name in ALL:
        coordinator._keep("reliability", name, question.model_copy(update={"candidate": other}), weights)
    assert coordinator.finish("reliability").sum() > 0
    later = again(coordinator)
    assert crafted(later, "reliability", candidate=other) == "already_counted"


def test_temperatures_of_an_evaluation_rise(at: At) -> None:
    """They are of the family that those of a calibration are of."""
    assert crafted(at(SEAL, "scores"), "scores", temperatures=(2.0, 1.0)) == "foreign_candidates"


def test_a_calibration_is_judged_beside_the_evaluations(at: At) -> None:
    """Counts of all and of all but one are not told apart by asking for them under two names."""
    first = at(SEAL, "scores")
    joined(first)
    first.finish("scores")
    for name in ("code-1", "medicine"):
        add_document(first, name, held_out=False)
    later = Hostile(first.parties, ALL, "ef" * 16)
    later.until(SEAL, "scores")
    other = BEST.model_copy(update={"normalise_columns": True})
    joined(later, other)
    later.finish("scores")
    question, weights = later.question("reliability")
    for name in ALL[1:]:
        later._keep("reliability", name, question.model_copy(update={"candidate": other}), weights)
    for name in ALL[1:]:
        assert code_of(later.ask(name, later.confirm_request("reliability", ALL[1:]))) == "sets_apart"
    nothing_revealed(later, "reliability")


def test_counts_about_a_total_that_was_not_opened_are_refused(at: At) -> None:
    """Statistics were sealed, and no more; nor is a total believed in that others tell of."""
    coordinator = at(CONFIRM)
    assert code_of(coordinator.ask(VICTIM, *coordinator.question("scores"))) == "unknown_total"
    coordinator.opened_total = "0" * 64
    assert code_of(coordinator.ask(VICTIM, *coordinator.question("scores"))) == "unknown_total"


# How often


@pytest.mark.parametrize("lot", COUNTED)
@pytest.mark.parametrize("step", [OPEN, OVER], ids=["signed for", "opened"])
@pytest.mark.parametrize("other", [False, True], ids=["the same", "another"])
def test_a_total_is_counted_once(at: At, lot: Lot, step: int, other: bool) -> None:
    """Whether the counts were opened or only signed for; in a later session not even the same question is answered."""
    later = again(at(step, lot))
    assert {code_of(later.ask(name, *later.question(lot, other))) for name in ALL} == {"already_counted"}


def test_another_total_of_the_same_data_is_not_counted_again(at: At) -> None:
    """Other shares make another total, as often as one likes; the documents are the same."""
    first = at(OVER, "scores")
    later = Hostile(first.parties, ALL, "ef" * 16)
    later.cohort = lambda *_, **__: changed  # type: ignore[method-assign]
    half = EQUAL_MASS // 2
    changed = Hostile.lopsided(first, {"law-1": half + 5, "law-2": half - 5})
    later.begin()
    later.seal()
    later.finish("statistics")
    assert later.opened_total != first.opened_total
    assert {code_of(later.ask(name, *later.question("scores"))) for name in ALL} == {"already_counted"}


@pytest.mark.parametrize("lot", COUNTED)
def test_counts_that_nobody_signed_for_may_be_asked_for_again(at: At, lot: Lot) -> None:
    """A session that ended early costs a total nothing."""
    later = again(at(CONFIRM, lot))
    later.count(lot)
    assert later.finish(lot).sum() > 0


def test_a_question_signed_for_in_one_session_is_not_signed_for_in_another(at: At) -> None:
    """Though its counts were sealed before: nobody is asked twice by two sessions that overlap."""
    first = at(CONFIRM, "scores")
    [question] = [entry.facts for entry in journal(first) if entry.kind == "asked"]
    first.parties.holder(VICTIM).journal.append(("counted", {**question, "request": "0" * 64}))
    asked = first.ask(VICTIM, first.confirm_request("scores", ALL))
    assert code_of(asked) == "already_counted"
    assert first.gave(Confirmed) == []


def test_counts_that_come_out_otherwise_are_not_sealed_under_the_same_masks(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the request is the same: another machine may round a score differently."""
    coordinator = at(CONFIRM, "scores")
    monkeypatch.setattr(Scorer, "routed", lambda *_: [[9] * 5])
    assert code_of(coordinator.ask(VICTIM, *coordinator.question("scores"))) == "already_answered"


def test_counts_of_a_question_that_the_journal_does_not_know_are_not_signed_for(at: At) -> None:
    """A journal that was lost in between does not let a question be forgotten."""
    coordinator = at(CONFIRM, "scores")
    (coordinator.parties.homes[VICTIM] / "journal.db").unlink()
    assert code_of(coordinator.ask(VICTIM, coordinator.confirm_request("scores", ALL))) == "not_sealed"


def journal(coordinator: Hostile) -> list[Any]:
    return coordinator.parties.holder(VICTIM).journal.entries()


def test_the_journal_has_every_question_that_was_signed_for(at: At) -> None:
    """The lot, the total, the candidates; those that were only sealed stand there as asked."""
    coordinator = at(OVER, "reliability")
    noted = [(entry.kind, entry.facts["lot"]) for entry in journal(coordinator) if entry.kind in ("asked", "counted")]
    assert noted == [(kind, lot) for lot in COUNTED for kind in ("asked", "counted")]
    [evaluation, _] = [entry.facts for entry in journal(coordinator) if entry.kind == "counted"]
    assert evaluation["total"] == coordinator.opened_total
    assert evaluation["candidates"] == [BEST.model_dump(mode="json")]


def test_an_evaluation_compares_with_the_own_copy_of_a_release_only(at: At) -> None:
    """A release that this holder does not have is not compared with, whatever it is called."""
    coordinator = at(SEAL, "scores")
    question, weights = coordinator.question("scores")
    assert isinstance(question, Evaluate)
    for name in ALL:
        coordinator._keep("scores", name, question.model_copy(update={"last": "0" * 64}), weights)
    pairs = coordinator.finish("scores").reshape(3, 3)
    assert not np.array([unpaired(row) for row in pairs])[:, 3:].any()
