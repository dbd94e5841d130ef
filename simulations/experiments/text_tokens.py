"""Texts as token ids, cut and drawn in several ways, and the sums that a holder of them would have.

Knows the client's accumulators. Knows nothing of routers, rounds or attacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.common.base.settings import Sampling
from ridgeway.common.base.threads import cores
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.statistics.sums import Integers, Statistics

BATCH_TOKENS = 1 << 15
"""Tokens that are summed at a time, which bounds the memory that small windows take."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokens:
    """Texts as token ids in one row, `lengths` of them each."""

    ids: Ids
    lengths: Integers

    def part(self, start: int, tokens: int) -> Tokens:
        """This many tokens from a place on; texts that reach over an edge are cut."""
        lengths: Integers = np.diff(np.clip(np.cumsum(self.lengths), start, start + tokens) - start, prepend=0)
        return Tokens(self.ids[start : start + tokens], lengths[lengths > 0])

    def drawn(self, most: int, seed: str) -> Tokens:
        """Texts in an order that the seed decides, up to `most` tokens together: the last of them is cut.

        Law: what is drawn for fewer tokens stands first in what is drawn for more.
        """
        order = np.random.default_rng(list(seed.encode())).permutation(len(self.lengths))
        ends = np.cumsum(self.lengths)
        kept = order[: 1 + int(np.searchsorted(np.cumsum(self.lengths[order]), most))]
        parts = [self.ids[ends[place] - self.lengths[place] : ends[place]] for place in kept.tolist()]
        lengths = self.lengths[kept].copy()
        lengths[-1] -= max(0, int(lengths.sum()) - most)
        return Tokens(np.concatenate(parts)[:most], lengths)


DomainTokens = Mapping[str, Tokens]
"""Tokens by domain."""


def sums_of(encoder: TableEncoder, sampling: Sampling, library: DomainTokens) -> dict[str, Statistics]:
    """Each domain's raw sums, without mistyped copies, which are made of text."""
    make = accumulators(encoder.table, replace(sampling, mistyped=0), encoder.words, encoder.cosines)
    found = {}
    for name, own in library.items():
        accumulator = make()
        for batch in batches(own):
            accumulator.add(batch.ids, batch.lengths)
        found[name] = accumulator.statistics(accumulator.state(), cores())
    return found


def batches(tokens: Tokens) -> list[Tokens]:
    """The same texts in pieces of about BATCH_TOKENS tokens; none is cut."""
    ends = np.cumsum(tokens.lengths)
    cuts = np.flatnonzero(np.diff(ends // BATCH_TOKENS, append=-1))
    bounds = np.concatenate(([0], ends[cuts]))
    pieces = zip(np.split(tokens.lengths, cuts[:-1] + 1), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return [Tokens(tokens.ids[start:end], lengths) for lengths, start, end in pieces]
