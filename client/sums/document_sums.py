"""A private corpus → the sums over its documents, each of them one row of bounded length, however long its text.

What was summed is kept in a file that only the holder can read, so that an unchanged corpus is read once; it never
leaves as it is. Knows corpus, encoder and prior. Knows nothing of noise or of the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ridgeway.client.sums.corpus import Counters, Position, cut, documents, find_sources, is_held_out
from ridgeway.client.sums.part_store import stamped
from ridgeway.client.sums.prepare import BATCH_CHARACTERS, Interrupted, PrepareJob, Watch, check_readable, check_text
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.privacy.document_bound import DocumentSums, PrivacyMode, bounded_sums, empty_sums
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.public_prior import PublicPrior

VERSION = 3


@dataclass(frozen=True, slots=True, eq=False)
class DocumentJob:
    """Everything that decides what a corpus adds up to where documents are bounded."""

    corpus: PrepareJob
    encoder: TableEncoder
    prior: str
    mode: PrivacyMode

    @property
    def key(self) -> str:
        """Stands for the corpus, as its files are now, and for how it is summed."""
        sources, _ = find_sources(self.corpus.roots)
        stamps = [asdict(stamp) for stamp in stamped(sources)]
        read = [self.corpus.holdout, list(self.corpus.text_fields), self.corpus.skip_broken]
        rules = [VERSION, self.mode, self.prior, self.encoder.fingerprint, *read]
        return sha256(canonical_json(rules), repr(stamps).encode(errors="surrogateescape"))


def kept_sums(job: DocumentJob, path: Path) -> DocumentSums | None:
    """The sums of this very corpus, if they lie there whole."""
    try:
        arrays = load_file(path)
        sums = DocumentSums(job.mode, arrays["products"], arrays["column"])
        return sums if sha256(job.key.encode(), sums.content.encode()) == bytes(arrays["check"]).hex() else None
    except (FileNotFoundError, SafetensorError, KeyError):
        return None


def sum_documents(job: DocumentJob, prior: PublicPrior, path: Path, watch: Watch | None = None) -> DocumentSums:
    """Read the corpus, sum its documents, and keep the sums at `path`."""
    watch, key, counters = watch or Watch(), job.key, Counters()
    total = empty_sums(job.mode, job.encoder.width)
    for texts in _batches(job.corpus, counters, watch):
        pieces = [list(cut(text)) for text in texts]
        ids, lengths = job.encoder.tokenizer.encode_many([piece for each in pieces for piece in each])
        starts = np.concatenate([[0], np.cumsum([len(each) for each in pieces])])[:-1]
        whole = np.add.reduceat(lengths, starts)
        counters.tokens += len(ids)
        total = total + bounded_sums(job.mode, document_vectors(prior, ids, whole, job.encoder.table))
    check_text(counters, ", ".join(map(str, job.corpus.roots)))
    if job.key != key:
        raise CorpusError("the corpus changed while it was read; run the same command again")
    check = np.frombuffer(bytes.fromhex(sha256(key.encode(), total.content.encode())), np.uint8)
    write_whole(path, save({"products": total.products, "column": total.column, "check": check}), private=True)
    return total


def _batches(job: PrepareJob, counters: Counters, watch: Watch) -> Iterator[Sequence[str]]:
    """The documents that are summed, some at a time."""
    sources, _ = find_sources(job.roots)
    if not sources:
        raise CorpusError(f"{', '.join(map(str, job.roots))} has no file that can be read")
    skipped: list[str] | None = [] if job.skip_broken else None
    size, done, texts, held = sum(source.bytes for source in sources), 0, list[str](), 0
    for source in sources:
        position = Position()
        for text in documents(source, job.text_fields, counters, position, skipped, whole=True):
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
                texts, held = [], 0
        done += source.bytes
    if texts:
        yield texts
    check_readable(counters, job.skip_broken, f"the first is {skipped[0]}" if skipped else "")
