"""A piece of a corpus → batches of its documents, less those that are held out, and the samples of
a batch: all that is done before sums are taken, in whatever process.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ridgeway.client.sums.corpus import (
    CorpusFile,
    Counters,
    Position,
    documents,
    is_held_out,
)
from ridgeway.common.base.settings import Sampling
from ridgeway.common.encoding.mistyped_text import with_mistyped_copies
from ridgeway.common.encoding.tokenizer import Tokenizer
from ridgeway.common.encoding.windows import Layer, layers

BATCH_DOCUMENTS = 1024
SKIMMED_DOCUMENTS = 1024
"""So many documents that an earlier part covers are passed over between two batches without any."""


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How documents are read and sampled. characters: about how many a batch has."""

    text_fields: tuple[str, ...]
    holdout: float
    skip_broken: bool
    characters: int
    sampling: Sampling


class Samples(NamedTuple):
    """What the documents of a batch add to the sums. tokens: how many they have, mistyped copies
    apart.
    """

    tokens: int
    layers: list[Layer]


def samples_of(texts: list[str], tokenizer: Tokenizer, sampling: Sampling) -> Samples:
    """The samples of documents, and of their mistyped copies where those count."""
    ids, lengths = tokenizer.encode_many(
        with_mistyped_copies(texts) if sampling.mistyped else texts
    )
    samples = [layer for layer in layers(ids, lengths, sampling) if len(layer.ids)]
    return Samples(int(lengths[: len(texts)].sum()), samples)


class PieceBatch(NamedTuple):
    """Documents to sum.

    met, broken: what was met since the batch before, and the places of broken records among it.
    first:       how many documents of the piece lie before it, those included that are held out.
    place:       how many lie behind it.
    position:    how many of its bytes do, about.
    ends:        whether it is the piece's last batch.
    """

    texts: list[str]
    met: Counters
    broken: list[str]
    first: int
    place: int
    position: int
    ends: bool


def read_batches(
    source: CorpusFile, first: int, rules: ReadingRules
) -> Iterator[PieceBatch]:
    """The documents of a piece from number `first` on; there is always a last batch, if only an
    empty one.
    """
    met = Counters()
    counted = Counters()
    position = Position()
    skipped: list[str] | None = [] if rules.skip_broken else None
    texts = list[str]()
    size = 0
    place = 0
    behind = first

    def batch(ends: bool) -> PieceBatch:
        nonlocal texts, size, counted, behind
        since = copy.copy(met)
        broken = (skipped or [])[counted.broken :]
        since.add(counted, -1)
        counted = copy.copy(met)
        taken = texts
        begun = behind
        texts = []
        size = 0
        behind = place
        return PieceBatch(taken, since, broken, begun, place, position.bytes, ends)

    for text in documents(source, rules.text_fields, met, position, skipped):
        place += 1
        if place <= first:  # an earlier part covers it
            counted = copy.copy(met)
            if place % SKIMMED_DOCUMENTS == 0:
                yield PieceBatch(
                    [], Counters(), [], first, first, position.bytes, False
                )
            continue
        met.documents += 1
        if is_held_out(text, rules.holdout):
            met.held_out += 1
            continue
        texts.append(text)
        size += len(text)
        if size >= rules.characters or len(texts) >= BATCH_DOCUMENTS:
            yield batch(False)
    yield batch(True)
