"""Opening an epoch: a holder's owner lets the present corpus stand ready for rounds.

Everything that depends on the corpus happens here, on the owner's word, and is told to the owner
alone. In `masked` rounds an epoch whose total was opened is followed by another only if many
documents have changed, or the owner says so: the difference of the two totals is the sum of what
changed.

And the sums over documents that private rounds are made of.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import secrets
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ridgeway.client.round.epochs import Digests, Epoch, EpochData, sums_id
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.scoring import own_scores
from ridgeway.client.round.spending import epsilon_words
from ridgeway.client.sums.corpus import Counters, cut, find_sources, real_places
from ridgeway.client.sums.part_store import stamped
from ridgeway.client.sums.prepare import (
    PrepareJob,
    PrepareReport,
    Watch,
    batch_characters,
    check_text,
    corpus_documents,
    corpus_names,
    held_out_documents,
    prepare,
    sum_part,
)
from ridgeway.common.base.errors import CorpusError, InputError, Refused
from ridgeway.common.base.files import field_names
from ridgeway.common.base.machine import chosen, one_blas_thread, serial_tokenizers
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import MAX_HELD_OUT_DOCUMENTS
from ridgeway.common.privacy.noise import (
    DocumentSums,
    PrivacyMode,
    bounded_sums,
    check_documents,
    document_vectors,
    empty_sums,
)
from ridgeway.common.privacy.public_prior import (
    PublicPrior,
    private_reader,
    private_width,
)
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.statistics import Prepared, check_bound
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokens import Tokens

# A private corpus → the sums over its documents, each one row of bounded length, however long its
# text.
#
# They never leave as they are: noise is added by others.


def sum_documents(
    job: PrepareJob,
    encoder: TableEncoder,
    mode: PrivacyMode,
    prior: PublicPrior,
    watch: Watch | None = None,
) -> DocumentSums:
    """Read the corpus, and sum its documents."""
    stamps = stamped(find_sources(job.roots)[0])
    if not stamps:
        raise CorpusError(f"{corpus_names(job)} has no readable file")
    counters = Counters()
    total = empty_sums(mode, private_width(encoder))

    def summed(texts: Sequence[str]) -> tuple[DocumentSums, int]:
        """The sums of some documents, and how many tokens they have."""
        pieces = [list(cut(text)) for text in texts]
        tokens = encoder.read([piece for document in pieces for piece in document])
        starts = np.cumsum([0, *map(len, pieces)])[:-1]
        whole = np.add.reduceat(tokens.lengths, starts)
        rows = document_vectors(prior, tokens._replace(lengths=whole), encoder)
        return bounded_sums(mode, rows), len(tokens.ids)

    pending: deque[Future[tuple[DocumentSums, int]]] = deque()

    def add_oldest() -> None:
        nonlocal total
        sums, tokens = pending.popleft().result()
        total = total + sums
        counters.tokens += tokens

    with (
        serial_tokenizers(),
        one_blas_thread(),
        ThreadPoolExecutor(job.threads) as pool,
    ):
        try:
            for texts in _batches(job, encoder, counters, watch):
                pending.append(pool.submit(summed, texts))
                while len(pending) > 2 * job.threads:
                    add_oldest()
            while pending:
                add_oldest()
        finally:
            pool.shutdown(cancel_futures=True)
    check_text(counters, job)
    if stamped(find_sources(job.roots)[0]) != stamps:
        raise CorpusError("the corpus changed while it was read; run the command again")
    return total


def _batches(
    job: PrepareJob, encoder: TableEncoder, counters: Counters, watch: Watch | None
) -> Iterator[Sequence[str]]:
    """The documents that are summed, some at a time."""
    texts = list[str]()
    size = 0
    for text, held_out in corpus_documents(job, counters, watch):
        if held_out:
            continue
        texts.append(text)
        size += len(text)
        if size >= batch_characters(encoder):
            yield texts
            texts = []
            size = 0
    if texts:
        yield texts


# The documents that a holder evaluates on: a bounded sample of those kept out of the sums, as token
# ids.


MAX_DOCUMENT_CHARACTERS = 20_000
MAX_WHOLE_CHARACTERS = 4_000
"""Where documents are bounded one by one all that are held out are counted, and the beginning of
each will do.
"""


def held_out_sample(job: PrepareJob, encoder: TableEncoder) -> Tokens:
    """A bounded number of held-out documents, each cut to a bounded length."""
    limit = MAX_WHOLE_CHARACTERS if job.whole else MAX_DOCUMENT_CHARACTERS
    texts = (text[:limit] for text in held_out_documents(job))
    # of so many, one more would push another out
    most = sys.maxsize if job.whole else MAX_HELD_OUT_DOCUMENTS
    chosen = heapq.nsmallest(
        most, texts, key=lambda text: hashlib.sha256(text.encode()).digest()
    )
    return encoder.read(chosen)


SMALLEST_CORPUS = 10
"""Sums over fewer documents than this are about single ones."""
MIN_CHANGED_DOCUMENTS = 500
MIN_CHANGED_SHARE = 0.1
"""What must have changed between two epochs whose exact totals are opened."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """What was opened, for the owner's eyes.

    samples: windows, or in private rounds documents. changed: documents that came, went or changed
             since
    the epoch before, where that is known. cost: the ε that a document has cost once a round used
    this.
    """

    epoch: Epoch
    samples: int
    held_out: int
    changed: int | None
    spent: float
    cost: float


def open_epoch(
    holder: Holder, terms: Terms, watch: Watch | None = None, *, new_epoch: bool = False
) -> ReadyReport:
    """Sum the corpus as it is now, and open an epoch with it. Raises InputError if the owner must
    say more.

    new_epoch: the owner's explicit word that another epoch is wanted, whatever has changed.
    """
    try:
        holder.check_record()
    except Refused as error:
        raise InputError(error.reason) from None
    before = holder.epochs.current()
    places = real_places(list(map(Path, holder.settings.corpus)))
    cost = _check_budget(holder, terms, places)
    job = prepare_job(holder, terms)
    made = _summed(holder, terms, job, watch)
    digests = document_digests(job)
    if len(digests) < SMALLEST_CORPUS:
        raise InputError(
            f"the corpus has {len(digests)} documents, and sums over fewer than"
            f" {SMALLEST_CORPUS} would be about single ones; add documents"
        )
    known = holder.epochs.digests_of(before.name) if before else None
    changed = _differing(known, digests)
    if not new_epoch and terms.mode == "masked":
        _check_changes(holder, digests)
    held_out = held_out_sample(job, holder.encoder(terms))
    settings = holder.settings
    epoch = Epoch(
        name=secrets.token_hex(32),
        sums=sums_id(terms),
        holdout=settings.holdout,
        documents=len(digests),
    )
    scores = None
    if settings.scores:
        scores = own_scores(Path(settings.scores), holder.domain)
    data = EpochData(made, held_out, digests, scores, places)
    holder.epochs.open(epoch, data, holder.totals.epochs())
    holder.account.carry()
    samples = made.statistics.mass if isinstance(made, Prepared) else made.documents
    spent = holder.account.epsilon()
    return ReadyReport(epoch, samples, len(held_out.lengths), changed, spent, cost)


def sum_corpus_part(
    holder: Holder, terms: Terms, part: tuple[int, int], watch: Watch | None = None
) -> PrepareReport:
    """Sum a part of the corpus, such as the third of 64, and keep it until `open_epoch` runs."""
    if terms.privacy:
        raise InputError(
            "the sums of private rounds bound single documents and are not made in"
            " parts; use `ridgeway client ready` without --part"
        )
    job = prepare_job(holder, terms)
    return sum_part(job, holder.encoder(terms), holder.cache, part, watch)


# What must hold


def _check_budget(holder: Holder, terms: Terms, places: tuple[str, ...]) -> float:
    """What a document will have cost after a round; raises InputError if that is more than is
    allowed.

    places: where the corpus lies now.
    """
    if not terms.privacy:
        return math.inf
    account = holder.account
    account = replace(account, corpus=(*account.corpus, *places))
    holdout = holder.settings.holdout
    cost = account.epsilon(account.private_round(terms.privacy, holdout))
    if cost > account.max_epsilon:
        raise InputError(
            "a round with another epoch would bring the ε of this corpus to"
            f" {epsilon_words(cost)}, and `max_epsilon` in client.toml allows"
            f" {account.max_epsilon:g}; the present epoch stays as it is"
        )
    return cost


def _differing(known: Digests | None, digests: Digests) -> int | None:
    """How many documents came, went or changed; None where that is not known."""
    if known is None:
        return None
    return int(np.setxor1d(known, digests).size)


def _check_changes(holder: Holder, digests: Digests) -> None:
    """Raise InputError if too little has changed since any epoch that is in an opened total."""
    # those that were charged for when the folder was restored are not known any more
    paid = {
        expense.epoch for expense in holder.account.noted() if expense.mode == "masked"
    }
    for name in holder.totals.epochs() | paid:
        known = holder.epochs.digests_of(name)
        changed = _differing(known, digests)
        documents = max(len(digests), 0 if known is None else len(known))
        needed = max(MIN_CHANGED_DOCUMENTS, math.ceil(MIN_CHANGED_SHARE * documents))
        if changed is None or changed < needed:
            seen = "an unknown number of" if changed is None else f"{changed:,}"
            raise InputError(
                f"{seen} documents changed since an epoch that is in an opened total, and"
                f" {needed:,} are needed: comparing that total with the next one would"
                " tell the sum of what changed. Wait, take part in private rounds, or"
                " say that this is wanted with --new-epoch"
            )


# What is summed


def _summed(
    holder: Holder, terms: Terms, job: PrepareJob, watch: Watch | None
) -> Prepared | DocumentSums:
    encoder = holder.encoder(terms)
    if not terms.privacy:
        outcome = prepare(
            job, encoder, holder.cache, watch, broken_list=holder.broken_list
        )
        outcome.prepared.statistics.check(summed_here=True)
        _check_mass(holder, terms, outcome.prepared)
        return outcome.prepared
    private_reader(encoder)
    prior = holder.prior(terms.privacy)
    if prior is None:
        raise InputError(
            f"this folder has not got the public prior {terms.privacy.prior[:12]} of"
            " these terms; ask the operator for an invitation, and take it with"
            " `ridgeway client accept`"
        )
    made = sum_documents(job, encoder, terms.privacy.mode, prior, watch)
    check_documents(made.mode, made.documents, len(holder.pinned_keys))
    return made


def _check_mass(holder: Holder, terms: Terms, made: Prepared) -> None:
    """Raise StatisticsError, here and not in a round, if sums are too large by any weighting that
    the owner allows: a round may ask for each of them.
    """
    policy = holder.policy
    if terms.mass or "equal" in policy.weightings:
        made.statistics.weighted(terms.mass or policy.mass)
    if not terms.mass or "tokens" in policy.weightings:
        check_bound(made.statistics.mass * max(len(holder.pinned_keys), 2))


def prepare_job(holder: Holder, terms: Terms) -> PrepareJob:
    settings = holder.settings
    return PrepareJob(
        whole=terms.privacy is not None,
        roots=tuple(map(Path, settings.corpus)),
        domain=holder.domain,
        sampling=terms.sampling,
        holdout=settings.holdout,
        text_fields=field_names(settings.text_field),
        threads=settings.threads or cores(),
        devices=chosen(settings.device),
        skip_broken=settings.skip_broken,
    )


def document_digests(job: PrepareJob) -> Digests:
    """The first eight bytes of each document's SHA-256, in order: by them changes are counted."""
    digests = [
        hashlib.sha256(text.encode()).digest()[:8]
        for text, _ in corpus_documents(job, Counters())
    ]
    return np.sort(np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64))
