"""Attacks on rounds that once succeeded, each played whole against real holders: refused, or
without effect.

What a mode does not protect from, by docs/reference/privacy.md, is shown as such: `named` is in the
test's name.

    A01 in restored folders, A03, A06, A08, A10, A12, A15, A18, and two that are older: here
    A01  a federation that is split        test_masked_survivors.py:
         test_sums_of_few_of_the_pinned_roster_are_refused,
         test_a_second_sum_without_one_member_is_refused_by_all_others
    A03  one changed document              tests/client/test_ready.py:
         test_an_epoch_in_a_total_is_followed_by_one_with_many_changes
    A04  words of an added document        the same; in private rounds
         tests/coordinator/round/test_private_rounds.py:
         test_the_noise_of_a_total_is_what_the_terms_say
    A05  columns by shares                 tests/laws/test_messages_laws.py:
         test_the_shares_of_a_domain_add_up_to_the_mass
    A02  one friend                        test_masked_survivors.py:
         test_a_second_sum_without_one_member_is_refused_by_all_others
    A06  many questions                    test_masked_survivors.py:
         test_counts_are_given_for_one_router_an_epoch
    A07  a member that lies                A15, and test_totals.py
    A09  epochs and noise tell changes     test_noninterference.py
    A11  refusals tell of a corpus         test_noninterference.py; in private rounds
         test_private_sums.py
    A13  older releases come back          tests/serving/test_current_release.py:
         test_a_release_with_a_lower_number_or_none_is_refused
    A14  redirects of a SuperNode          tests/client/deploy/test_supernode_process.py:
         test_a_redirect_is_not_followed
    A16  few addresses shut the gate       tests/coordinator/deploy/test_fleet_proxy.py:
         test_a_few_addresses_without_a_key_cannot_shut_the_gate
    A17  free disk                         test_noninterference.py:
         test_made_up_cohorts_do_not_measure_the_disk
    A19  flooded memory                    test_totals.py:
         test_whatever_is_asked_one_total_of_an_epoch_and_lot_can_be_opened
    A20  the signing key in `serve`        tests/test_packages.py:
         test_serve_of_the_compose_file_sees_the_releases_and_not_the_signing_key
         test_serve_of_the_chart_sees_the_releases_and_not_the_signing_key
    F1 ... F13: test_attacks_on_privacy.py
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.client.deploy.holder_folder import agreed_policy
from ridgeway.client.ready import open_epoch
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.masking.agreement import Agreement
from ridgeway.common.protocol.messages import (
    KINDS,
    Announce,
    Collect,
    Evaluate,
    Message,
    Revealed,
    Share,
)
from ridgeway.common.protocol.packet import Blob, vector_blob, weights_blob
from tests.support.attackers import (
    add_document,
    document,
    domains_of,
    opened,
    own_sums,
    rounds,
    settled,
    settled_privately,
)
from tests.support.faults import make_haste
from tests.support.hostile import CONFIRM, FEATURES, Hostile, nothing_revealed
from tests.support.rosters import unpin

pytestmark = pytest.mark.usefixtures("private_sentences")

MEMBERS = {"V": "law", "U": "medicine", "A": "code"}


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    make_haste(monkeypatch, once=False)


@pytest.fixture
def names() -> Iterator[str]:
    """Names of rounds."""
    return rounds()


# Several totals


def test_a01_in_folders_that_were_restored(
    tmp_path: Path, names: Iterator[str]
) -> None:
    """An older copy of a holder's folder does not sign another total of the same epoch: it takes
    part in nothing.
    """
    parties = settled(tmp_path, domains_of("ABCG"))
    for name in "ABC":
        shutil.copytree(parties.homes[name], tmp_path / "older" / name)
    opened(parties, "ABCG", next(names))
    for name in "ABC":
        shutil.rmtree(parties.homes[name])
        shutil.copytree(tmp_path / "older" / name, parties.homes[name])
    coordinator = Hostile(parties, "ABC", next(names))
    asked = Announce(terms=coordinator.terms)
    assert {coordinator.refusal(name, asked) for name in "ABC"} == {"older_copy"}


@pytest.mark.parametrize(
    "between", ["a private epoch", "600 other documents", "600 others in a total"]
)
def test_a03_changes_count_from_every_epoch_that_was_opened(
    tmp_path: Path, names: Iterator[str], between: str
) -> None:
    """An epoch in between, in a total or not, does not make one changed document enough."""
    domains = domains_of("ABC")
    parties = settled_privately(
        tmp_path,
        domains,
        modes=("private", "masked"),
        min_cohort=3,
        max_epsilon=float("inf"),
    )
    masked = parties.federation.terms_in("masked")
    for name in domains:
        open_epoch(parties.holder(name), masked)
    coordinator = Hostile(parties, list(domains), next(names))
    coordinator.terms = masked
    coordinator.play("statistics")
    [corpus] = map(Path, parties.holder("A").settings.corpus)
    before = corpus.read_text()
    if between == "a private epoch":
        open_epoch(parties.holder("A"), parties.terms)
    else:
        corpus.write_text(
            "".join(f'{{"text": "other text {number}"}}\n' for number in range(600))
        )
        open_epoch(parties.holder("A"), masked)
        if between == "600 others in a total":
            for name in "BC":
                open_epoch(parties.holder(name), masked, new_epoch=True)
            coordinator = Hostile(parties, list(domains), next(names))
            coordinator.terms = masked
            coordinator.play("statistics")
        corpus.write_text(before)
    add_document(parties, "A", document("a has signed a contract", held_out=False))
    with pytest.raises(InputError, match="changed since"):
        open_epoch(parties.holder("A"), masked)


def test_a03_named_who_leaves_between_two_epochs(
    tmp_path: Path, names: Iterator[str]
) -> None:
    """If all others open new epochs on their own word, two totals tell what changed, and who
    went.
    """
    parties = settled(tmp_path, domains_of("ABCD"))
    first = opened(parties, "ABCD", next(names))
    left, before = own_sums(parties, "A"), own_sums(parties, "B")
    add_document(parties, "B", document("b has signed a contract", held_out=False))
    for name in "BCD":
        parties.ready(name)
    second = opened(parties, "BCD", next(names))
    changed = own_sums(parties, "B").gram - before.gram
    np.testing.assert_array_equal(first.gram - second.gram, left.gram - changed)


def test_a18_unpinning_forgets_nothing(tmp_path: Path, names: Iterator[str]) -> None:
    """Whoever unpins members that have left still knows that its epoch is in a total."""
    parties = settled(tmp_path, domains_of("ABGPQR"))
    opened(parties, "ABPQR", next(names))
    gone = [parties.holder(name).key for name in "PQR"]
    for name in "ABG":
        unpin(parties.homes[name], gone)
    coordinator = Hostile(parties, "ABG", next(names))
    coordinator.until(CONFIRM)
    for name in "AB":
        assert coordinator.refused_sum(name, "statistics", "ABG") == "epoch_used"


# The words of a document that was added


# Questions, and what refusals tell


def evaluation(coordinator: Hostile, **changes: Any) -> Evaluate:
    asked, _ = coordinator.question()
    return asked.model_copy(update=changes)


def test_a06_a_question_names_each_domain_once(
    tmp_path: Path, names: Iterator[str]
) -> None:
    """One division of text is one into the domains: a domain that is named often would make it as
    fine as wanted.
    """
    parties = settled(tmp_path, MEMBERS)
    coordinator = Hostile(parties, "VUA", next(names))
    coordinator.until(CONFIRM)
    often = ("code", *["law"] * 200, "medicine")
    asked = {**dict(evaluation(coordinator)), "domains": often, "temperatures": ()}
    question = Evaluate.model_construct(**asked)
    weights = np.random.default_rng(1).standard_normal((FEATURES, len(often)))
    assert coordinator.refusal("V", question, (weights_blob(weights),)) == "malformed"


def test_old_held_out_document_between_two_evaluations(
    tmp_path: Path, names: Iterator[str]
) -> None:
    """A held-out document that was added is not counted before its owner opens an epoch, and then
    under masks.
    """
    parties = settled(tmp_path, MEMBERS)
    honest = Hostile(parties, "VUA", next(names))
    before = honest.play("statistics", "counts")["counts"]
    add_document(parties, "V", document("v was held out", held_out=True))
    again = Hostile(parties, "VUA", next(names), weights=honest.weights)
    again.begin()
    again.hold()
    again.count()
    np.testing.assert_array_equal(again.finish("counts"), before)


def test_old_held_out_document_after_counts_alone(
    tmp_path: Path, names: Iterator[str]
) -> None:
    """An epoch whose counts were opened is followed by another as one whose sums were: not for one
    document.
    """
    parties = settled(tmp_path, MEMBERS)
    coordinator = Hostile(parties, "VUA", next(names))
    coordinator.weights = weights_blob(
        np.random.default_rng(1).standard_normal((FEATURES, 3))
    )
    coordinator.begin()
    coordinator.hold()
    coordinator.count()
    coordinator.finish("counts")
    add_document(parties, "V", document("v was held out", held_out=True))
    with pytest.raises(InputError, match="1 documents changed"):
        open_epoch(parties.holder("V"), coordinator.terms)


# Budgets, names, and things that end rounds


def test_a08_epsilon_of_the_invitation(tmp_path: Path) -> None:
    """A holder that took an invitation up allows no ε of 8, whatever message brings it; nothing is
    spent.
    """
    parties = settled_privately(tmp_path, MEMBERS)
    terms = parties.terms
    agreed = agreed_policy(terms, parties.federation.identity.public)
    assert agreed.max_round_epsilon <= 1
    parties.rewrite(
        "V",
        "max_round_epsilon = 1.0",
        f"max_round_epsilon = {agreed.max_round_epsilon}",
    )
    coordinator = Hostile(parties, "VUA")
    assert terms.privacy is not None
    greedy = terms.model_copy(
        update={"privacy": terms.privacy.model_copy(update={"epsilon": 8.0})}
    )
    cohort = coordinator.cohort(terms=greedy)
    question = Evaluate(
        terms=greedy,
        domains=cohort.domains,
        holders=cohort.domains,
        selector="average",
        k=10,
    )
    blob = vector_blob(np.zeros(3 * terms.features, np.int64))
    requests: list[tuple[Message, tuple[Blob, ...]]] = [
        (Announce(terms=greedy), ()),
        (Collect(cohort=cohort), ()),
        (question, (blob,)),
    ]
    for request, blobs in requests:
        assert coordinator.refusal("V", request, blobs) == "privacy_not_allowed"
    assert parties.holder("V").account.epsilon() == 0


@pytest.mark.parametrize("mode", ["full", "masked"])
def test_a10_sessions_that_break_off_cost_nothing(
    tmp_path: Path, names: Iterator[str], mode: str
) -> None:
    """Sessions that end after sealing are paid by nobody, and the next one goes on to its total."""
    domains = domains_of("VABF")
    parties = (
        settled(tmp_path, domains)
        if mode == "masked"
        else settled_privately(tmp_path, domains, "full")
    )
    for _ in range(3):
        coordinator = Hostile(parties, "VABF", next(names))
        coordinator.begin()
        coordinator.seal("VAB")
        nothing_revealed(coordinator)
    for name in domains:
        assert parties.holder(name).account.expenses() == []
    last = Hostile(parties, "VABF", next(names))
    last.until(CONFIRM)
    signatures = last.confirm("statistics", last.shared)
    last.open("statistics", last.shared, last.shared, signatures)
    assert len(last.gave(Revealed)) == 4
    assert len(parties.holder("V").account.expenses()) == 1


def test_a12_time_bomb(tmp_path: Path, names: Iterator[str]) -> None:
    """After 600 epochs, each in a total, the next one is opened as the first was."""
    parties = settled(tmp_path, domains_of("ABC"))
    for name in "ABC":
        holder = parties.holder(name)
        members = sorted(parties.holder(name).key for name in "ABC")
        past: list[tuple[str, dict[str, Any]]] = []
        for number in range(600):
            facts: dict[str, Any] = {
                "lot": "statistics",
                "epoch": f"{number:064x}",
                "total": f"{number + 1000:064x}",
            }
            facts |= {"members": members, "session": f"{number:064x}"}
            past += [
                ("signed", facts),
                ("opened", {"round": f"{number + 1000:032x}", **facts}),
            ]
        holder.journal.append(*past)
    total = opened(parties, "ABC", next(names))
    assert total.mass == 3 * EQUAL_MASS


REQUEST_FIELDS = {
    "hello": set[str](),
    "announce": {"terms", "handovers", "heard"},
    "collect": {"cohort"},
    "share": {"cohort", "agreement"},
    "hold": {"session", "shared"},
    "seal": {"session", "shared"},
    "confirm_sum": {"session", "lot", "sent"},
    "lock_sum": {"session", "lot", "sent"},
    "open_sum": {"session", "lot", "sent", "confirmations", "locks"},
}
"""What a holder is told before it signs a sum; hand-overs, signatures and adverts are signed by
whom they are of. How much of a holder was heard is the coordinator's own word, can only make that
holder refuse, and is not written down.
"""


def test_a15_no_member_is_told_what_another_says(
    tmp_path: Path, names: Iterator[str]
) -> None:
    """No message carries a member's account of earlier sums, and what a member writes down concerns
    it alone.
    """
    for kind, fields in REQUEST_FIELDS.items():
        assert set(KINDS[kind].model_fields) == fields
    assert not Share.blob_count
    assert not Announce.blob_count
    assert set(Agreement.model_fields) == {
        "terms",
        "cohort",
        "round",
        "lots",
        "threshold",
        "adverts",
    }
    parties = settled(tmp_path, domains_of("ABCDF"))
    liar = parties.holder("F")
    lie: dict[str, Any] = {
        "lot": "statistics",
        "epoch": "0" * 64,
        "total": "0" * 64,
        "members": [],
    }
    lie |= {"session": "0" * 64, "round": "0" * 32}
    liar.journal.append(("learned", lie), ("signed", lie), ("opened", lie))
    for name in "ABCD":
        unpin(parties.homes[name], [liar.identity.public])
    assert opened(parties, "ABCD", next(names)).mass == 4 * EQUAL_MASS
