"""A private corpus → the sums over its documents, each one row of bounded length, however long its
text.

They never leave as they are: noise is added by others.
"""

from __future__ import annotations

import hashlib
import heapq
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ridgeway.client.sums.corpus import Counters, cut, find_sources
from ridgeway.client.sums.part_store import stamped
from ridgeway.client.sums.prepare import (
    PrepareJob,
    Watch,
    batch_characters,
    check_text,
    corpus_documents,
    corpus_names,
    held_out_documents,
)
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.machine import one_blas_thread, serial_tokenizers
from ridgeway.common.base.settings import MAX_HELD_OUT_DOCUMENTS
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.noise import (
    DocumentSums,
    PrivacyMode,
    bounded_sums,
    empty_sums,
)
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.statistics import Integers
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Ids


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
    total = empty_sums(mode, encoder.document_width)

    def summed(texts: Sequence[str]) -> tuple[DocumentSums, int]:
        """The sums of some documents, and how many tokens they have."""
        pieces = [list(cut(text)) for text in texts]
        ids, lengths = encoder.tokenizer.encode_many(
            [piece for document in pieces for piece in document]
        )
        starts = np.cumsum([0, *map(len, pieces)])[:-1]
        whole = np.add.reduceat(lengths, starts)
        rows = document_vectors(prior, ids, whole, encoder.table, encoder.sentences)
        return bounded_sums(mode, rows), len(ids)

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


def held_out_sample(job: PrepareJob, encoder: TableEncoder) -> tuple[Ids, Integers]:
    """A bounded number of held-out documents, each cut to a bounded length: token ids, and how many
    each has.
    """
    limit = MAX_WHOLE_CHARACTERS if job.whole else MAX_DOCUMENT_CHARACTERS
    texts = (text[:limit] for text in held_out_documents(job))
    # of so many, one more would push another out
    most = sys.maxsize if job.whole else MAX_HELD_OUT_DOCUMENTS
    chosen = heapq.nsmallest(
        most, texts, key=lambda text: hashlib.sha256(text.encode()).digest()
    )
    ids, lengths = (
        encoder.tokenizer.encode_many(chosen)
        if chosen
        else (np.empty(0, np.int32), np.empty(0, np.int64))
    )
    return ids.astype(np.int32), lengths.astype(np.int64)
