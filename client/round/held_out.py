"""The documents that a holder evaluates on: a bounded sample of those kept out of the sums, as token ids.

The ids are kept in a private file beside the holder's own things, so that a corpus is read once. They never leave.
"""

from __future__ import annotations

import hashlib
import heapq
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ridgeway.client.round.scoring import HeldOut
from ridgeway.client.sums.corpus import Counters, find_sources
from ridgeway.client.sums.part_store import stamped
from ridgeway.client.sums.prepare import PrepareJob, held_out_documents
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.encoding.tokenizer import Ids, first_tokens
from ridgeway.common.encoding.transformer_encoder import AnyEncoder, ContextualEncoder
from ridgeway.common.routing.evaluation import MAX_HELD_OUT_DOCUMENTS
from ridgeway.common.statistics.sums import Integers

MAX_DOCUMENT_CHARACTERS = 20_000
MAX_WHOLE_CHARACTERS = 4_000
"""Where documents are bounded one by one all that are held out are counted, and the beginning of each will do."""
MAX_DOCUMENT_TOKENS = 512
MAX_STATES = 1 << 17
MAX_STATE_BYTES = 1 << 30
"""With a contextual encoder a model must read every document: each is cut after MAX_DOCUMENT_TOKENS, and all together
have at most MAX_STATES tokens, and hidden states of at most MAX_STATE_BYTES."""
VERSION = 1


def held_out_sample(job: PrepareJob, encoder: AnyEncoder, folder: Path) -> HeldOut:
    """A bounded number of held-out documents, each cut to a bounded length; the same until a file changes."""
    path = folder / f"{_key(job, encoder)}.ids"
    kept = _read(path)
    if kept is not None:
        return kept
    sample = _tokenised(job, encoder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in folder.glob("*.ids"):
        old.unlink(missing_ok=True)
    write_whole(path, save({"ids": sample.ids, "lengths": sample.lengths}), private=True)
    return sample


def _tokenised(job: PrepareJob, encoder: AnyEncoder) -> HeldOut:
    limit = MAX_WHOLE_CHARACTERS if job.whole else MAX_DOCUMENT_CHARACTERS
    texts = (text[:limit] for text in held_out_documents(job, Counters()))
    most = sys.maxsize if job.whole else MAX_HELD_OUT_DOCUMENTS  # of so many, one more would push another out
    chosen = heapq.nsmallest(most, texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    ids, lengths = encoder.tokenizer.encode_many(chosen) if chosen else (np.empty(0, np.int32), np.empty(0, np.int64))
    if isinstance(encoder, ContextualEncoder):
        kept = 4 * encoder.width  # bytes a token: 16 bits a feature, and as much again for beginnings
        ids, lengths = _few_tokens(ids, lengths, min(MAX_STATES, MAX_STATE_BYTES // kept))
    return HeldOut(ids.astype(np.int32), lengths.astype(np.int64))


def _few_tokens(ids: Ids, lengths: Integers, most: int) -> tuple[Ids, Integers]:
    """The beginnings of as many documents as a model reads to score candidates: `most` tokens at the most."""
    ids, lengths = first_tokens(ids, lengths, MAX_DOCUMENT_TOKENS)
    kept = int(np.searchsorted(np.cumsum(lengths), most, side="right"))
    return ids[: int(lengths[:kept].sum())], lengths[:kept]


def _key(job: PrepareJob, encoder: AnyEncoder) -> str:
    stamps = [asdict(stamp) for stamp in stamped(find_sources(job.roots)[0])]
    limits = [VERSION, MAX_HELD_OUT_DOCUMENTS, MAX_DOCUMENT_CHARACTERS]
    rules = [*limits, job.holdout, list(job.text_fields), encoder.fingerprint, *(["whole"] if job.whole else [])]
    return sha256(canonical_json(rules), repr(stamps).encode(errors="surrogateescape"))


def _read(path: Path) -> HeldOut | None:
    try:
        arrays = load_file(path)
        sample = HeldOut(arrays["ids"], arrays["lengths"])
        return sample if sample.lengths.sum() == len(sample.ids) else None
    except (FileNotFoundError, SafetensorError, KeyError, ValueError):
        return None
