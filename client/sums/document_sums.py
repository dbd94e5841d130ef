"""A private corpus → the sums over its documents, each one row of bounded length, however long its
text.

They never leave as they are: noise is added by others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeway.client.sums.corpus import (
    Counters,
    Position,
    cut,
    documents,
    find_sources,
    is_held_out,
)
from ridgeway.client.sums.part_store import Stamp, stamped
from ridgeway.client.sums.prepare import (
    BATCH_CHARACTERS,
    Interrupted,
    PrepareJob,
    Watch,
    check_readable,
    check_text,
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
    watch = watch or Watch()
    stamps = job.stamps()
    counters = Counters()
    total = empty_sums(job.mode, job.encoder.width)
    for texts in _batches(job.corpus, counters, watch):
        pieces = [list(cut(text)) for text in texts]
        ids, lengths = job.encoder.tokenizer.encode_many(
            [piece for each in pieces for piece in each]
        )
        starts = np.concatenate([[0], np.cumsum([len(each) for each in pieces])])[:-1]
        whole = np.add.reduceat(lengths, starts)
        counters.tokens += len(ids)
        total = total + bounded_sums(
            job.mode, document_vectors(prior, ids, whole, job.encoder.table)
        )
    check_text(counters, ", ".join(map(str, job.corpus.roots)))
    if job.stamps() != stamps:
        raise CorpusError(
            "the corpus changed while it was read; run the same command again"
        )
    return total


def _batches(
    job: PrepareJob, counters: Counters, watch: Watch
) -> Iterator[Sequence[str]]:
    """The documents that are summed, some at a time."""
    sources, _ = find_sources(job.roots)
    if not sources:
        raise CorpusError(
            f"{', '.join(map(str, job.roots))} has no file that can be read"
        )
    skipped: list[str] | None = [] if job.skip_broken else None
    size = sum(source.bytes for source in sources)
    done = 0
    texts = list[str]()
    held = 0
    for source in sources:
        position = Position()
        for text in documents(
            source, job.text_fields, counters, position, skipped, whole=True
        ):
            counters.documents += 1
            if is_held_out(text, job.holdout):
                counters.held_out += 1
                continue
            texts.append(text)
            held += len(text)
            if held >= BATCH_CHARACTERS:
                yield texts
                watch.progress(min(done + position.bytes, size), size)
                if watch.stopped():
                    raise Interrupted
                texts = []
                held = 0
        done += source.bytes
    if texts:
        yield texts
    check_readable(
        counters, job.skip_broken, f"the first is {skipped[0]}" if skipped else ""
    )
