"""Opening an epoch: the one moment in which a corpus is read, on its owner's word."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ridgeway.client.ready as ready
from ridgeway.client.deploy.holder_folder import create_holder
from ridgeway.client.ready import (
    ReadyReport,
    document_digests,
    open_epoch,
    prepare_job,
    sum_corpus_part,
)
from ridgeway.client.round.epochs import DIGESTS, Epoch, SignedTotal
from ridgeway.client.round.holder import PRIOR, Holder
from ridgeway.client.round.spending import overlap
from ridgeway.client.sums import corpus
from ridgeway.client.sums.prepare import PrepareOutcome, prepare
from ridgeway.common import statistics
from ridgeway.common.base.errors import (
    BoundExceeded,
    BrokenIdentity,
    CorpusError,
    InputError,
)
from ridgeway.common.base.journal import Journal
from ridgeway.common.privacy import noise
from ridgeway.common.statistics import Prepared, to_bytes
from tests.support.corpora_on_disk import write_jsonl
from tests.support.simulated_federation import Parties, found, found_private, own_texts

pytestmark = pytest.mark.usefixtures("private_sentences")

FEW = 20


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return found(tmp_path / "parties", mode="masked").with_law(FEW)


@pytest.fixture
def few_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of twenty documents is a large one here: five must change, or three tenths."""
    monkeypatch.setattr(ready, "MIN_CHANGED_DOCUMENTS", 5)
    monkeypatch.setattr(ready, "MIN_CHANGED_SHARE", 0.3)


def write(parties: Parties, texts: list[str]) -> None:
    write_jsonl(parties.folder / "corpora" / "law.jsonl", texts)


def opened(parties: Parties, **options: Any) -> ReadyReport:
    return open_epoch(parties.law, parties.terms, **options)


def refused(parties: Parties, words: str, **options: Any) -> None:
    """No epoch is opened, and one sentence says why."""
    with pytest.raises(InputError, match=words):
        opened(parties, **options)


def current(parties: Parties) -> Epoch:
    epoch = parties.law.epochs.current()
    assert epoch is not None
    return epoch


def use(parties: Parties) -> None:
    """Let the current epoch be in a total that was signed."""
    name = current(parties).name
    total = SignedTotal("statistics", parties.terms.id, name, {"me": name})
    parties.law.totals.sign(total, "s", paid=False)


def texts(count: int, since: str = "law") -> list[str]:
    return own_texts(since, "law", count)


# What the owner is told


def test_the_report_says_what_stands_ready(parties: Parties) -> None:
    """How many documents, how many are held out and how many have changed; exact sums cost
    infinity.
    """
    write(parties, [*texts(FEW)[3:], *texts(2, "new")])
    report = opened(parties)
    assert report.epoch == current(parties)
    assert (report.epoch.documents, report.changed) == (FEW - 1, 5)
    assert report.samples > 0 and 0 < report.held_out < FEW
    assert (report.spent, report.cost) == (0.0, math.inf)


def test_the_first_epoch_has_nothing_to_compare_with(parties: Parties) -> None:
    """So how many documents changed is not known; of the same corpus again, none did."""
    settings = parties.law.settings
    parties.homes["law"] = parties.folder / "holders" / "fresh"
    create_holder(parties.homes["law"], settings)
    assert opened(parties).changed is None
    assert opened(parties).changed == 0


def test_digests_are_of_documents_and_in_order(parties: Parties) -> None:
    """The order of a corpus does not count, one letter does."""
    job = prepare_job(parties.law, parties.terms)
    before = document_digests(job)
    write(parties, texts(FEW)[::-1])
    assert document_digests(job).tolist() == before.tolist() == sorted(before.tolist())
    write(parties, [*texts(FEW)[:-1], texts(FEW)[-1] + "x"])
    assert len(set(document_digests(job).tolist()) & set(before.tolist())) == FEW - 1


# What must have changed


@pytest.mark.usefixtures("few_changes")
def test_an_epoch_in_a_total_is_followed_by_one_with_many_changes(
    parties: Parties,
) -> None:
    """Fewer are refused with their number, and nothing is opened; as many as are needed are
    enough.
    """
    use(parties)
    before = current(parties)
    write(parties, [*texts(FEW)[2:], *texts(3, "new")])
    refused(parties, r"^5 documents changed .* and 7 are needed: .* --new-epoch$")
    assert current(parties) == before
    write(parties, [*texts(FEW)[3:], *texts(4, "new")])
    assert opened(parties).changed == 7


def test_the_usual_limits_are_five_hundred_documents_and_a_tenth() -> None:
    assert (ready.MIN_CHANGED_DOCUMENTS, ready.MIN_CHANGED_SHARE) == (500, 0.1)


@pytest.mark.usefixtures("few_changes")
def test_the_owners_explicit_word_is_enough(parties: Parties) -> None:
    """Also where nothing has changed at all."""
    use(parties)
    refused(parties, r"^0 documents changed")
    assert opened(parties, new_epoch=True).changed == 0


@pytest.mark.usefixtures("few_changes")
def test_changes_count_from_the_last_epoch_that_is_in_a_total(parties: Parties) -> None:
    """An epoch between that nobody used does not make two totals with nearly the same documents."""
    use(parties)
    write(parties, [*texts(FEW), *texts(12, "new")])
    between = opened(parties)
    assert between.changed == 12
    write(parties, [*texts(FEW), *texts(1, "new")])
    refused(parties, r"^1 documents changed since an epoch that is in an opened total")
    write(parties, [*texts(FEW), *texts(13, "new")])
    assert opened(parties).changed == 1


def test_a_corpus_below_the_smallest_size_opens_nothing(parties: Parties) -> None:
    """Nor does the owner's explicit word help: sums would be about single documents."""
    before = current(parties)
    write(parties, texts(9))
    refused(
        parties,
        "the corpus has 9 documents, and sums over fewer than 10",
        new_epoch=True,
    )
    assert current(parties) == before
    write(parties, texts(10))
    assert opened(parties).epoch.documents == 10


def test_where_digests_are_gone_nobody_knows_what_has_changed(parties: Parties) -> None:
    """So the owner's explicit word is needed."""
    use(parties)
    (parties.homes["law"] / "epochs" / current(parties).name / DIGESTS).unlink()
    refused(parties, r"^an unknown number of documents changed")
    assert opened(parties, new_epoch=True).changed is None


# Exact sums


def sums_of(parties: Parties) -> Prepared:
    holder = parties.law
    return holder.epochs.statistics(holder.epoch(parties.terms))


@pytest.mark.parametrize("there", [{1}, {3, 1}, {1, 2, 3}])
def test_parts_that_were_summed_before_change_no_byte_of_an_epoch(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, there: set[int]
) -> None:
    """Each in a copy of the folder, copied together, and all or some of them there."""
    monkeypatch.setattr(corpus, "PIECE_BYTES", 100)
    holder = parties.law
    whole = opened(parties)
    before = to_bytes(sums_of(parties))
    shutil.rmtree(holder.cache)
    for number in there:
        machine = parties.folder / f"machine{number}"
        shutil.copytree(holder.folder, machine)
        report = sum_corpus_part(Holder(machine), parties.terms, (number, 3))
        assert report.bytes_read > 0
    for number in there:
        shutil.copytree(
            parties.folder / f"machine{number}" / "cache",
            holder.cache,
            dirs_exist_ok=True,
        )
    parts = set(holder.cache.rglob("*.part"))
    again = opened(parties)
    assert to_bytes(sums_of(parties)) == before
    assert (again.samples, again.held_out, again.changed) == (
        whole.samples,
        whole.held_out,
        0,
    )
    assert parts <= set(holder.cache.rglob("*.part"))
    assert (parts == set(holder.cache.rglob("*.part"))) is (len(there) == 3)


def test_a_machine_that_sums_wrongly_opens_nothing(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own sums are looked at, too."""

    def erring(*given: Any, **more: Any) -> PrepareOutcome:
        outcome = prepare(*given, **more)
        outcome.prepared.statistics.gram[0, 0] = -5
        return outcome

    monkeypatch.setattr(ready, "prepare", erring)
    with pytest.raises(BrokenIdentity, match="gram has a negative diagonal"):
        opened(parties)


def test_sums_that_could_overflow_in_a_total_open_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and not in a round, where a refusal would tell their mass."""
    made = found(tmp_path / "parties", mode="masked", weighting="tokens")
    parties = made.with_law(FEW)
    monkeypatch.setattr(
        statistics,
        "SUM_BOUND",
        sums_of(parties).statistics.mass * statistics.MAX_SQUARE + 1,
    )
    with pytest.raises(BoundExceeded, match="could overflow 64 bits"):
        opened(parties)


# Private rounds


@pytest.fixture
def private(tmp_path: Path) -> Parties:
    return found_private(tmp_path / "parties").with_law(FEW, max_epsilon=1.3)


def spend(private: Parties) -> None:
    """Let the noisy sums of the current epoch leave."""
    privacy = private.terms.privacy
    assert privacy is not None
    private.law.noisy(current(private), privacy).column_sums()


def test_the_cost_is_told_before_anything_is_paid(private: Parties) -> None:
    """What a round will have brought the ε of a document to."""
    report = opened(private)
    assert report.spent == 0.0
    assert 0.99 < report.cost <= 1.0
    assert private.law.account.expenses() == []
    assert report.samples + report.held_out == report.epoch.documents == FEW


def test_a_corpus_without_text_opens_nothing(private: Parties) -> None:
    """The sentence counts what is empty."""
    write(private, [""] * FEW)
    with pytest.raises(CorpusError, match=rf"contains no text; empty documents: {FEW}"):
        opened(private)


def test_a_spent_budget_opens_nothing(private: Parties) -> None:
    """The present epoch stays as it is, with the vectors that were paid for."""
    before = current(private)
    spend(private)
    refused(
        private,
        r"would bring the ε of this corpus to 1\.4\d, and .* allows 1\.3",
        new_epoch=True,
    )
    assert current(private) == before


def test_a_corpus_too_large_for_a_total_of_all_members_opens_nothing(
    private: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its own sums fit."""
    private.settle("code", "code", own_texts("code", "code", FEW))
    private.pin_all()
    room = noise.EXACT_BOUND // noise.max_documents("columns")
    monkeypatch.setattr(noise, "EXACT_BOUND", (FEW + 1) * room)
    assert noise.max_documents("columns") >= FEW
    with pytest.raises(
        BoundExceeded, match="in a private round of 2 holders, each may sum 10"
    ):
        opened(private)


def test_a_new_epoch_brings_a_lost_shared_file_back(private: Parties) -> None:
    """So that no other folder on this corpus starts afresh."""
    private.rewrite("law", "max_epsilon = 1.3", "max_epsilon = 4.0")
    spend(private)
    spending = Path(str(private.law.settings.spending))
    before = spending.read_text()
    spending.unlink()
    opened(private)
    assert spending.read_text() == before


def test_documents_behind_links_are_charged_where_they_lie(
    private: Parties, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And have cost what was paid there. Many links into a folder stand for it; folders behind
    links are not read.
    """
    monkeypatch.setattr(corpus, "MAX_LINKED_PLACES", 2)
    folder, other = tmp_path / "corpus", tmp_path / "other"
    (other / "unread").mkdir(parents=True)
    folder.mkdir()
    (folder / "unread").symlink_to(other / "unread")
    write_jsonl(folder / "own.jsonl", texts(FEW))
    private.rewrite("law", private.law.settings.corpus[0], str(folder))
    privacy = private.terms.privacy
    assert privacy is not None

    def charged(*links: int) -> list[str]:
        for number in links:
            write_jsonl(other / f"{number}.jsonl", texts(3, f"linked{number}"))
            (folder / f"{number}.jsonl").symlink_to(other / f"{number}.jsonl")
        opened(private)
        account = private.law.account
        paths = [f"{number}.jsonl" for number in range(4)] + ["unread/text"]
        return [path for path in paths if overlap(account.corpus, [str(other / path)])]

    assert charged() == []
    assert charged(0) == ["0.jsonl"]
    spender = replace(
        private.law.account,
        journal=Journal(tmp_path / "j"),
        corpus=(str(other / "1.jsonl"),),
    )
    spender.pay(spender.expense("0" * 64, "statistics", "private", privacy, 0.25))
    opened(private)
    with pytest.raises(InputError, match="would bring the ε of this corpus"):
        charged(1)
    private.rewrite("law", "max_epsilon = 1.3", "max_epsilon = 4.0")
    assert charged(2) == [*(f"{number}.jsonl" for number in range(4)), "unread/text"]


def test_after_an_exact_output_no_private_epoch_is_opened(private: Parties) -> None:
    """Unless the owner allows anything."""
    holder = private.law
    holder.account.pay(holder.account.expense("e", "statistics", "clear", None, 0.25))
    refused(private, "ε of this corpus to ∞")
    private.rewrite("law", "max_epsilon = 1.3", "max_epsilon = inf")
    assert opened(private).cost == math.inf


def test_private_terms_need_the_prior_that_they_name(private: Parties) -> None:
    """One sentence says what to do."""
    (private.homes["law"] / PRIOR).unlink()
    refused(
        private, r"has not got the public prior .*; ask the operator for an invitation"
    )


def test_private_sums_are_not_made_in_parts(private: Parties) -> None:
    """They are summed at once, and the sentence says so before anything is read."""
    with pytest.raises(
        InputError,
        match="are not made in parts; use `ridgeway client ready` without --part",
    ):
        sum_corpus_part(private.law, private.terms, (1, 3))
    assert not private.law.cache.exists()
