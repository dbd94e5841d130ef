"""The documents that a holder evaluates on: a bounded sample of those kept out of the sums, as
token ids.
"""

from __future__ import annotations

import hashlib
import heapq
import sys

import numpy as np

from ridgeway.client.sums.corpus import Counters
from ridgeway.client.sums.prepare import PrepareJob, held_out_documents
from ridgeway.common.base.settings import MAX_HELD_OUT_DOCUMENTS
from ridgeway.common.encoding.tokenizer import Ids, first_tokens
from ridgeway.common.encoding.transformer_encoder import AnyEncoder, ContextualEncoder
from ridgeway.common.statistics.sums import Integers

MAX_DOCUMENT_CHARACTERS = 20_000
MAX_WHOLE_CHARACTERS = 4_000
"""Where documents are bounded one by one all that are held out are counted, and the beginning of
each will do.
"""
_MAX_DOCUMENT_TOKENS = 512
MAX_STATES = 1 << 17
MAX_STATE_BYTES = 1 << 30
"""With a contextual encoder a model must read every document: each is cut after
MAX_DOCUMENT_TOKENS, and all together have at most MAX_STATES tokens, and hidden states of at most
MAX_STATE_BYTES.
"""


def held_out_sample(job: PrepareJob, encoder: AnyEncoder) -> tuple[Ids, Integers]:
    """A bounded number of held-out documents, each cut to a bounded length: token ids, and how many
    each has.
    """
    limit = MAX_WHOLE_CHARACTERS if job.whole else MAX_DOCUMENT_CHARACTERS
    texts = (text[:limit] for text in held_out_documents(job, Counters()))
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
    if isinstance(encoder, ContextualEncoder):
        # bytes a token: 16 bits a feature, and as much again for beginnings
        kept = 4 * encoder.width
        ids, lengths = _few_tokens(
            ids, lengths, min(MAX_STATES, MAX_STATE_BYTES // kept)
        )
    return ids.astype(np.int32), lengths.astype(np.int64)


def _few_tokens(ids: Ids, lengths: Integers, most: int) -> tuple[Ids, Integers]:
    """The beginnings of as many documents as a model reads to score candidates: `most` tokens at
    the most.
    """
    ids, lengths = first_tokens(ids, lengths, _MAX_DOCUMENT_TOKENS)
    kept = int(np.searchsorted(np.cumsum(lengths), most, side="right"))
    return ids[: int(lengths[:kept].sum())], lengths[:kept]
