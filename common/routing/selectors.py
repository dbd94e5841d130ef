"""From the tokens of prompts to a tally over domains: average, entropy, all.

Everything is counted in integers, so that the order of tokens, the size of a batch and the machine do not matter.
Knows the compiled table. Knows nothing of text, confidence or names of domains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import Selector
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.routing.token_table import TokenTable

MAX_REDUCEAT_DOMAINS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """What the tokens of N prompts said.

    points: N×C, what decides: summed logits (`average`) or votes.
    sums:   N×C, the voters' summed logits, which decide between equals.
    voters: N, how many tokens took part.
    unit:   the value of one point of one voter: a prompt's score is points · unit / voters.
    """

    points: NDArray[np.int64]
    sums: NDArray[np.int64]
    voters: NDArray[np.int64]
    unit: float


def tally(compiled: TokenTable, selector: Selector, ids: Ids, lengths: NDArray[np.int64]) -> Tally:
    """Count over prompts whose ids stand in one row, `lengths` of them each."""
    if selector.name == "entropy":
        ids, lengths = most_certain(compiled, selector.k, ids, lengths)
    sums = _segment_sums(compiled.sums.take(ids, axis=0), lengths)
    if selector.name == "average":
        return Tally(sums, sums, lengths, compiled.step)
    votes = _segment_sums(compiled.ballots.take(ids, axis=0), lengths)
    return Tally(votes, sums, lengths, 1.0)


def winners(counted: Tally) -> NDArray[np.int64]:
    """The domain ahead in each prompt: by points, then by the voters' summed logits, then by order."""
    tied = counted.points == counted.points.max(axis=1, keepdims=True)
    best: NDArray[np.int64] = np.where(tied, counted.sums, np.iinfo(np.int64).min).argmax(axis=1)
    return best


def most_certain(compiled: TokenTable, k: int, ids: Ids, lengths: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
    """Of each prompt the k tokens of least entropy; of equals, those of the lower id."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((compiled.ranks[ids], owners))
    place = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return ids[order][place < k], np.minimum(lengths, k)


def _segment_sums(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(lengths) == 1:
        only: NDArray[np.int64] = np.add.reduce(rows, axis=0)
        return only[None, :]
    sums = np.zeros((len(lengths), rows.shape[1]), dtype=np.int64)
    filled = np.flatnonzero(lengths)
    ends = np.cumsum(lengths)[filled]
    starts = ends - lengths[filled]
    if rows.shape[1] <= MAX_REDUCEAT_DOMAINS and len(filled):
        sums[filled] = np.add.reduceat(rows, starts, axis=0)
    else:  # reduceat is slow over many columns
        for position, start, end in zip(filled.tolist(), starts.tolist(), ends.tolist(), strict=True):
            np.add.reduce(rows[start:end], axis=0, out=sums[position])
    return sums
