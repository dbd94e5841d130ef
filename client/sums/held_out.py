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
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.statistics.sums import Integers

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
    return ids.astype(np.int32), lengths.astype(np.int64)
