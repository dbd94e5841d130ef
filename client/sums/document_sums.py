"""A private corpus → the sums over its documents, each one row of bounded length, however long its
text.

They never leave as they are: noise is added by others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeway.client.sums.corpus import Counters, cut, find_sources
from ridgeway.client.sums.part_store import Stamp, stamped
from ridgeway.client.sums.prepare import (
    BATCH_CHARACTERS,
    PrepareJob,
    Watch,
    check_text,
    corpus_documents,
)
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.privacy.document_bound import (
    DocumentSums,
    PrivacyMode,
    bounded_sums,
    empty_sums,
)
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.public_prior import PublicPrior


@dataclass(frozen=True, slots=True, eq=False)
class DocumentJob:
    """Everything that decides what a corpus adds up to where documents are bounded, but for the
    prior.
    """

    corpus: PrepareJob
    encoder: TableEncoder
    mode: PrivacyMode

    def stamps(self) -> list[Stamp]:
        """Stand for the corpus as its files are now."""
        return list(stamped(find_sources(self.corpus.roots)[0]))


def sum_documents(
    job: DocumentJob, prior: PublicPrior, watch: Watch | None = None
) -> DocumentSums:
    """Read the corpus, and sum its documents."""
    stamps = job.stamps()
    if not stamps:
        raise CorpusError(f"{_names(job)} has no readable file")
    counters = Counters()
    total = empty_sums(job.mode, job.encoder.document_width)
    for texts in _batches(job.corpus, counters, watch):
        pieces = [list(cut(text)) for text in texts]
        ids, lengths = job.encoder.tokenizer.encode_many(
            [piece for each in pieces for piece in each]
        )
        starts = np.concatenate([[0], np.cumsum([len(each) for each in pieces])])[:-1]
        whole = np.add.reduceat(lengths, starts)
        counters.tokens += len(ids)
        rows = document_vectors(
            prior, ids, whole, job.encoder.table, job.encoder.sentences
        )
        total = total + bounded_sums(job.mode, rows)
    check_text(counters, _names(job))
    if job.stamps() != stamps:
        raise CorpusError("the corpus changed while it was read; run the command again")
    return total


def _names(job: DocumentJob) -> str:
    return ", ".join(map(str, job.corpus.roots))


def _batches(
    job: PrepareJob, counters: Counters, watch: Watch | None
) -> Iterator[Sequence[str]]:
    """The documents that are summed, some at a time."""
    texts = list[str]()
    size = 0
    for text, held_out in corpus_documents(replace(job, whole=True), counters, watch):
        if held_out:
            continue
        texts.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield texts
            texts = []
            size = 0
    if texts:
        yield texts
