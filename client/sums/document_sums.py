"""A private corpus → the sums over its documents, each one row of bounded length, however long its
text.

They never leave as they are: noise is added by others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ridgeway.client.sums.corpus import Counters, cut, find_sources
from ridgeway.client.sums.part_store import Stamp, stamped
from ridgeway.client.sums.prepare import (
    PrepareJob,
    Watch,
    batch_characters,
    check_text,
    corpus_documents,
)
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.threads import one_blas_thread, serial_tokenizers
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
    for sums, tokens in _summed_batches(job, prior, counters, watch):
        counters.tokens += tokens
        total = total + sums
    check_text(counters, _names(job))
    if job.stamps() != stamps:
        raise CorpusError("the corpus changed while it was read; run the command again")
    return total


def _summed_batches(
    job: DocumentJob, prior: PublicPrior, counters: Counters, watch: Watch | None
) -> Iterator[tuple[DocumentSums, int]]:
    """The sums of each batch of documents, and how many tokens it has."""

    def summed(texts: Sequence[str]) -> tuple[DocumentSums, int]:
        pieces = [list(cut(text)) for text in texts]
        ids, lengths = job.encoder.tokenizer.encode_many(
            [piece for each in pieces for piece in each]
        )
        starts = np.concatenate([[0], np.cumsum([len(each) for each in pieces])])[:-1]
        whole = np.add.reduceat(lengths, starts)
        rows = document_vectors(
            prior, ids, whole, job.encoder.table, job.encoder.sentences
        )
        return bounded_sums(job.mode, rows), len(ids)

    threads = job.corpus.threads
    pending: deque[Future[tuple[DocumentSums, int]]] = deque()
    with serial_tokenizers(), one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        try:
            for texts in _batches(job, counters, watch):
                pending.append(pool.submit(summed, texts))
                while len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _names(job: DocumentJob) -> str:
    return ", ".join(map(str, job.corpus.roots))


def _batches(
    job: DocumentJob, counters: Counters, watch: Watch | None
) -> Iterator[Sequence[str]]:
    """The documents that are summed, some at a time."""
    corpus = replace(job.corpus, whole=True)
    texts = list[str]()
    size = 0
    for text, held_out in corpus_documents(corpus, counters, watch):
        if held_out:
            continue
        texts.append(text)
        size += len(text)
        if size >= batch_characters(job.encoder):
            yield texts
            texts = []
            size = 0
    if texts:
        yield texts
