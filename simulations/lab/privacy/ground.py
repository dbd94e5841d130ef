"""What is attacked: the tokens of some domains, and an encoder that may be cut to fewer tokens and columns.

Knows text and encoders. Knows nothing of attacks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client.accumulate import accumulators
from client.corpus import is_held_out
from common.encoder import Encoder
from common.errors import CorpusError
from common.settings import DEFAULT, Sampling
from common.statistics import Integers, Statistics
from common.threads import cores
from common.tokenizer import Ids
from simulations.bench.drawn import DEFINITION
from simulations.lab.setting import Setting


class Row(NamedTuple):
    """Documents whose ids stand in one row, `lengths` of them each."""

    ids: Ids
    lengths: Integers

    def part(self, start: int, tokens: int) -> Row:
        """So many tokens from a place on; documents that reach over an edge are cut."""
        ends = np.clip(np.cumsum(self.lengths), start, start + tokens) - start
        lengths: Integers = np.diff(ends, prepend=0)
        return Row(self.ids[start : start + tokens], lengths[lengths > 0])

    def counts(self, rows: int) -> Integers:
        return np.bincount(self.ids, minlength=rows).astype(np.int64)

    def statistics(self, encoder: Encoder, sampling: Sampling) -> Statistics:
        """What a holder of these documents sums."""
        accumulator = accumulators(encoder.table, sampling)()
        accumulator.add(self.ids, self.lengths)
        return accumulator.statistics(accumulator.state(), cores())


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """domain: whose holder is attacked. rows: every domain's tokens. used: how many distinct ones there are."""

    encoder: Encoder
    domain: str
    rows: Mapping[str, Row]
    used: int

    def narrowed(self, width: int) -> Encoder:
        """The encoder with the first columns of its table alone."""
        return _unread(self.encoder, self.encoder.table[:, :width])


def lay_ground(
    setting: Setting, encoder: Encoder, *, domains: int, tokens: int, others: int, rows: int | None, seed: int
) -> Ground:
    """The domain with the least text of those that have `tokens`, and the next ones, `others` tokens of each.

    rows: how many tokens the table is cut to: those that are used, and as many more, drawn at random. None keeps all.
    """
    texts = {name: _tokens(setting.train[name], encoder, seed) for name in setting.domains}
    enough = [name for name in texts if len(texts[name].ids) >= tokens]
    domain = min(enough or texts, key=lambda name: (len(texts[name].ids) * (1 if enough else -1), name))
    beside = [name for name in sorted(texts) if name != domain][: domains - 1]
    cut = {domain: texts[domain].part(0, tokens), **{name: texts[name].part(0, others) for name in beside}}
    if not len(cut[domain].ids):
        raise CorpusError(f"the domain {domain!r} of {setting.name} holds no tokens; there is nothing to attack")
    used = np.unique(np.concatenate([row.ids for row in cut.values()]))
    kept = _kept(used, encoder.rows, rows, seed)
    places = np.full(encoder.rows, -1, dtype=np.int32)
    places[kept] = np.arange(len(kept), dtype=np.int32)
    placed = {name: Row(places[row.ids], row.lengths) for name, row in cut.items()}
    return Ground(_unread(encoder, encoder.table[kept]), domain, placed, len(used))


def _tokens(texts: Sequence[str], encoder: Encoder, seed: int) -> Row:
    """What is summed of some texts, in a random order."""
    summed = [text for text in texts if not is_held_out(text, DEFAULT.holdout)]
    random.Random(seed).shuffle(summed)
    ids, lengths = encoder.tokenizer.encode_many(summed)
    return Row(ids, np.asarray(lengths, dtype=np.int64))


def _kept(used: NDArray[np.int32], all_rows: int, rows: int | None, seed: int) -> Integers:
    if rows is None or rows >= all_rows:
        return np.arange(all_rows, dtype=np.int64)
    others = np.setdiff1d(np.arange(all_rows), used)
    drawn = np.random.default_rng(seed).choice(others, max(0, rows - len(used)), replace=False)
    kept: Integers = np.sort(np.concatenate([used, drawn])).astype(np.int64)
    return kept


def _unread(encoder: Encoder, table: NDArray[np.int16]) -> Encoder:
    """An encoder with another table, whose tokenizer is not asked any more."""
    return Encoder(encoder.name, json.dumps(DEFINITION).encode(), np.ascontiguousarray(table), encoder.scale)
