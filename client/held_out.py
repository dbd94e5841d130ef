"""The documents that a holder evaluates on: a bounded sample of those kept out of the sums, as token ids.

The ids are kept in a private file beside the holder's own things, so that a corpus is read once. They never leave.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from client.corpus import Counters, find_sources
from client.parts import Stamp
from client.prepare import Job, held_out_documents
from client.scoring import HeldOut
from common.contextual import AnyEncoder, ContextualEncoder
from common.evaluation import MOST_HELD_OUT
from common.files import canonical_json, sha256, write_whole
from common.statistics import Integers
from common.tokenizer import Ids, first_tokens

MOST_CHARACTERS = 20_000
MOST_DOCUMENT_TOKENS = 512
MOST_STATES = 1 << 17
MOST_STATE_BYTES = 1 << 30
"""With a contextual encoder, documents are cut after so many tokens, and there are only as many of them as have so many
tokens together, or hidden states of so many bytes: a model must read them all."""
VERSION = 1


def held_out_sample(job: Job, encoder: AnyEncoder, folder: Path) -> HeldOut:
    """At most MOST_HELD_OUT held-out documents, each cut after MOST_CHARACTERS; the same until a file changes."""
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


def _tokenised(job: Job, encoder: AnyEncoder) -> HeldOut:
    texts = (text[:MOST_CHARACTERS] for text in held_out_documents(job, Counters()))
    chosen = heapq.nsmallest(MOST_HELD_OUT, texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    ids, lengths = encoder.tokenizer.encode_many(chosen) if chosen else (np.empty(0, np.int32), np.empty(0, np.int64))
    if isinstance(encoder, ContextualEncoder):
        kept = 4 * encoder.width  # bytes a token: 16 bits a feature, and as much again for beginnings
        ids, lengths = _few_tokens(ids, lengths, min(MOST_STATES, MOST_STATE_BYTES // kept))
    return HeldOut(ids.astype(np.int32), lengths.astype(np.int64))


def _few_tokens(ids: Ids, lengths: Integers, most: int) -> tuple[Ids, Integers]:
    """The beginnings of as many documents as a model shall read to score candidates: so many tokens at most."""
    ids, lengths = first_tokens(ids, lengths, MOST_DOCUMENT_TOKENS)
    kept = int(np.searchsorted(np.cumsum(lengths), most, side="right"))
    return ids[: int(lengths[:kept].sum())], lengths[:kept]


def _key(job: Job, encoder: AnyEncoder) -> str:
    stamps = [asdict(Stamp.of(source.path)) for source in find_sources(job.roots)[0]]
    rules = [VERSION, MOST_HELD_OUT, MOST_CHARACTERS, job.holdout, list(job.text_fields), encoder.fingerprint]
    return sha256(canonical_json(rules), repr(stamps).encode(errors="surrogateescape"))


def _read(path: Path) -> HeldOut | None:
    try:
        arrays = load_file(path)
        sample = HeldOut(arrays["ids"], arrays["lengths"])
        return sample if sample.lengths.sum() == len(sample.ids) else None
    except (FileNotFoundError, SafetensorError, KeyError, ValueError):
        return None
