"""Attacks on private rounds that once succeeded, or were tried: refused, without effect, or within
the promise.

F1   counts under crafted weights        test_noninterference.py:
     test_a_document_is_routed_by_itself_alone; test_scoring.py:
     test_where_a_document_is_routed_depends_on_that_document_alone
F2   an ε that nobody has agreed to      A08 in test_attacks_on_rounds.py
F3   names and noise tell changes        test_noninterference.py:
     test_noise_that_is_drawn_again_tells_no_change
F4   a new folder, a second federation   test_f4_..., and test_corpus_spending.py
F5   exact rounds before private ones    test_f5_...; `evaluate --sign`: tests/common/cli
F6   shares of noise and colluders       tests/laws/test_privacy_laws.py:
     test_honest_members_of_a_sum_that_opens_have_all_the_noise
F7   refusals that depend on a corpus    test_noninterference.py, test_answers.py:
     test_a_corpus_that_is_gone_or_cannot_be_read_changes_no_answer
F11  sessions that break off are paid    A10 in test_attacks_on_rounds.py; test_private_sums.py
F12  sums that wrap around               tests/laws/test_privacy_laws.py:
     test_no_total_leaves_64_bits
sens2, repro_folders                     here, under their names
acct, noise, noise2, attack_sums, sens   tests/laws/test_privacy_laws.py
tokfuzz                                  tests/common/text
timing                                   how long an answer takes is not covered
                                         (docs/reference/privacy.md);
                                         no round reads the corpus:
                                         tests/common/deploy/test_bundle_rooms.py
A01 ... A20: test_attacks_on_rounds.py
"""

from __future__ import annotations

import contextlib
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.client.deploy.holder_folder import create_holder
from ridgeway.client.ready import open_epoch
from ridgeway.client.round import epochs
from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import PRIOR, Holder
from ridgeway.common.base.errors import InputError
from ridgeway.common.privacy.public_prior import LETTER_BUCKETS, Integers
from ridgeway.common.protocol.messages import (
    Announce,
    Collect,
    Evaluate,
)
from ridgeway.common.protocol.packet import Blob, Packet, open_packet, vector_blob
from ridgeway.common.text.sentence_network import SENTENCE_WIDTH
from tests.support.attackers import (
    settled_privately,
)
from tests.support.faults import make_haste
from tests.support.hostile import CONFIRM, SEAL, Hostile, code_of
from tests.support.simulated_federation import Parties, own_texts

pytestmark = pytest.mark.usefixtures("private_sentences")

MEMBERS = {"V": "law", "U": "medicine", "A": "code"}
DOMAINS = ("code", "law", "medicine")


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch, once=False)


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    """Three holders that allow an ε of 1 in all: one round of `columns`."""
    return settled_privately(tmp_path, MEMBERS, max_epsilon=1.0)


def question(coordinator: Hostile, **changes: Any) -> Evaluate:
    asked = Evaluate(
        terms=coordinator.terms,
        domains=DOMAINS,
        holders=DOMAINS,
        selector="average",
        k=10,
    )
    return asked.model_copy(update=changes)


def made_up_total(seed: int) -> Blob:
    numbers = 3 * (LETTER_BUCKETS + SENTENCE_WIDTH + 1)
    return vector_blob(
        np.random.default_rng(seed).integers(-1_000_000, 1_000_000, numbers)
    )


# Counts


# Sums


def test_sens2_a_document_is_summed_or_counted_and_a_copy_counts(
    tmp_path: Path,
) -> None:
    """A document is in one of the two parts; a copy of it is a document more
    (docs/reference/privacy.md says so).
    """
    texts = own_texts("V", "law", 400)
    parties = settled_privately(
        tmp_path, MEMBERS, texts={"V": texts, "U": [*texts, texts[0]]}
    )
    found_documents = {}
    for name in "VU":
        holder = parties.holder(name)
        epoch = holder.epoch(parties.terms)
        parts = (
            holder.epochs.document_sums(epoch).documents,
            len(holder.epochs.held_out(epoch).lengths),
        )
        found_documents[name] = sum(parts)
    assert found_documents == {"V": 400, "U": 401}


# Accounts


def second_folder(parties: Parties, name: str, other: Path, **changes: Any) -> Holder:
    """Another folder on a holder's corpus: a new key, the same user."""
    holder = parties.holder(name)
    settings = holder.settings.model_copy(update=changes)
    return create_holder(other, settings, {PRIOR: (holder.folder / PRIOR).read_bytes()})


def test_f4_another_folder_while_a_session_runs(tmp_path: Path) -> None:
    """What it pays before a total is signed counts, though there was enough when the round was
    announced.
    """
    parties = settled_privately(tmp_path, MEMBERS, "full", max_epsilon=1.0)
    coordinator = Hostile(parties, list(MEMBERS))
    coordinator.until(CONFIRM)
    account = second_folder(parties, "V", tmp_path / "other").account
    account.pay(
        account.expense(
            "e" * 64, "statistics", "private", coordinator.terms.privacy, 0.25
        )
    )
    assert coordinator.refused_sum("V", "statistics", MEMBERS) == "budget_spent"


def test_no_noise_is_drawn_anew_under_the_same_masks(tmp_path: Path) -> None:
    """Not even where the vector is lost: two under the same masks would show their difference."""
    parties = settled_privately(tmp_path, MEMBERS, "full")
    coordinator = Hostile(parties, list(MEMBERS))
    coordinator.until(CONFIRM)
    [kept] = parties.homes["V"].glob("epochs/*/statistics.noisy")
    kept.unlink()
    assert (
        coordinator.refused("V", coordinator.request(SEAL, "statistics", "V"))
        == "already_answered"
    )


@pytest.fixture
def both_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers that draw noise meet there, if they can."""
    meeting = threading.Barrier(2)
    plain = epochs.with_noise

    def drawn_together(*given: Any) -> Integers:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)
        return plain(*given)

    monkeypatch.setattr(epochs, "with_noise", drawn_together)


def at_once(*asked: tuple[Path, Packet]) -> list[Any]:
    """What holders answer to requests that arrive at the same time, as processes of their own
    would.
    """

    def answered(request: tuple[Path, Packet]) -> Any:
        home, packet = request
        return open_packet(answer(Holder(home), packet))

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(answered, asked))


@pytest.mark.usefixtures("both_at_once")
def test_repro_folders_sums_asked_for_twice_at_once(parties: Parties) -> None:
    """Noise is drawn once an epoch, also if two cohorts are asked for at the same time: no mean of
    draws is got.
    """
    coordinator = Hostile(parties, list(MEMBERS))
    packets = [
        coordinator.packet(Collect(cohort=coordinator.cohort(names)))
        for names in ("VUA", "VU")
    ]
    replies = at_once(*((parties.homes["V"], packet) for packet in packets))
    vectors = {bytes(reply.blobs[0]) for reply in replies if reply.blobs}
    assert len(vectors) == 1


@pytest.mark.usefixtures("both_at_once")
def test_repro_folders_two_questions_at_once(parties: Parties) -> None:
    """Of two questions that arrive at the same time one is answered."""
    coordinator = Hostile(parties, list(MEMBERS))
    packets = [
        coordinator.packet(question(coordinator), (made_up_total(seed),))
        for seed in (1, 2)
    ]
    replies = at_once(*((parties.homes["V"], packet) for packet in packets))
    assert sorted(reply.message.kind for reply in replies) == ["counted", "refusal"]


@pytest.mark.usefixtures("both_at_once")
def test_repro_folders_two_folders_at_once(parties: Parties, tmp_path: Path) -> None:
    """A budget for one round is spent once, also if two folders on one corpus are asked at the same
    time.
    """
    coordinator = Hostile(parties, list(MEMBERS))
    other = second_folder(parties, "V", tmp_path / "new")
    open_epoch(other, coordinator.terms)
    packets = [
        coordinator.packet(question(coordinator), (made_up_total(seed),))
        for seed in (1, 2)
    ]
    replies = at_once((parties.homes["V"], packets[0]), (other.folder, packets[1]))
    assert sorted(reply.message.kind for reply in replies) == ["counted", "refusal"]


def test_f5_exact_round_before(tmp_path: Path) -> None:
    """After exact sums have left, a corpus has an ε of infinity: no private epoch and no private
    answer.
    """
    parties = settled_privately(
        tmp_path, MEMBERS, modes=("private", "masked"), min_cohort=3
    )
    private, masked = (
        parties.terms,
        parties.federation.terms_in("masked"),
    )
    other = second_folder(parties, "V", tmp_path / "other")
    open_epoch(other, private)
    for name in MEMBERS:
        open_epoch(parties.holder(name), masked)
    coordinator = Hostile(parties, list(MEMBERS))
    coordinator.terms = masked
    coordinator.play("statistics")
    assert parties.holder("V").account.epsilon() == math.inf
    with pytest.raises(InputError, match="∞"):
        open_epoch(parties.holder("V"), private, new_epoch=True)
    for request in (
        Announce(terms=private),
        Collect(cohort=coordinator.cohort(terms=private)),
    ):
        assert coordinator.refusal("V", request) == "epoch_does_not_fit"
    announced = coordinator.packet(Announce(terms=private))
    assert code_of(open_packet(answer(other, announced))) == "budget_spent"
    asked = coordinator.packet(
        question(coordinator, terms=private), (made_up_total(1),)
    )
    assert code_of(open_packet(answer(other, asked))) == "budget_spent"
