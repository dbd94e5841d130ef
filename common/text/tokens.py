"""Texts → tokens in one row, and what stands beside each token: the runs of letters that end in it,
and the ids that a sentence encoder reads of its part of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.files import storable
from ridgeway.common.text.tokenizer import (
    Flags,
    Ids,
    Integers,
    Tokenizer,
    shared_tokenizer,
)
from ridgeway.common.text.unigram import PieceTokenizer
from ridgeway.common.text.word_sketch import Runs, WordSketch

AnyTokenizer = Tokenizer | PieceTokenizer
_Values = TypeVar("_Values", bound=NDArray[Any])


class Tokens(NamedTuple):
    """Texts as tokens that stand in one row.

    lengths: how many tokens each text has.
    runs:    the runs of letters of each token; none without features of words.
    sentence_ids, sentence_stops: what a sentence encoder reads, and where what belongs to each
             token ends; empty without a sentence encoder.
    """

    ids: Ids
    lengths: Integers
    runs: Runs
    sentence_ids: Ids
    sentence_stops: Integers

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Tokens:
        """As they were kept."""
        return cls(
            arrays["ids"],
            arrays["lengths"],
            Runs(arrays["codes"], arrays["stops"]),
            arrays["sentence_ids"],
            arrays["sentence_stops"],
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As they are kept."""
        kept = {**self._asdict(), **self.runs._asdict()}
        del kept["runs"]
        return kept

    def take(self, positions: Ids, lengths: Integers) -> Tokens:
        """The tokens at these places, as texts of so many each."""
        codes, stops = self.runs
        runs = Runs(*taken(codes, stops, positions)) if len(stops) else self.runs
        read = self.sentence_ids, self.sentence_stops
        if len(self.sentence_stops):
            read = taken(*read, positions)
        return Tokens(self.ids[positions], lengths, runs, *read)

    def first(self, limit: int) -> Tokens:
        """Each text's first `limit` tokens; 0 keeps all."""
        if not limit or self.lengths.max(initial=0) <= limit:
            return self
        starts = np.cumsum(self.lengths) - self.lengths
        within = np.arange(len(self.ids)) - np.repeat(starts, self.lengths)
        kept = np.flatnonzero(within < limit).astype(np.int32)
        return self.take(kept, np.minimum(self.lengths, limit))

    def of_texts(self, chosen: Flags) -> Tokens:
        """Those of the texts that are chosen."""
        positions = np.flatnonzero(np.repeat(chosen, self.lengths)).astype(np.int32)
        return self.take(positions, self.lengths[chosen])


def taken(values: _Values, stops: Integers, positions: Ids) -> tuple[_Values, Integers]:
    """The values of the things at some places, and where those of each end.

    stops: where the values of each thing end in their row.
    """
    begins = np.append(0, stops)[positions]
    sizes = stops[positions] - begins
    ends = np.cumsum(sizes)
    places = np.arange(int(sizes.sum())) + np.repeat(begins - ends + sizes, sizes)
    chosen: _Values = values[places]
    return chosen, ends


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextReader:
    """Reads texts for an encoder, or for a router that was made with it.

    words: counts runs of letters, if words have features.
    sentences: the tokenizer of the sentence encoder, if sentences have features.
    """

    tokenizer: AnyTokenizer
    words: WordSketch | None = None
    sentences: AnyTokenizer | None = None

    def read(self, texts: Sequence[str]) -> Tokens:
        if isinstance(self.tokenizer, PieceTokenizer) and self.words:
            ids, lengths, letters, stops = self.tokenizer.letters_many(texts)
            runs = self.words.runs(letters, stops, lengths)
        else:
            ids, lengths, runs = self._by_ends(texts)
        if self.sentences is None:
            return Tokens(ids, lengths, runs, ids[:0], lengths[:0])
        if self.sentences.fingerprint == self.tokenizer.fingerprint:
            stops = np.arange(1, len(ids) + 1)
            return Tokens(ids, lengths, runs, ids, stops)
        read = self._read_for_sentences(self.sentences, texts, lengths)
        return Tokens(ids, lengths, runs, *read)

    def _by_ends(self, texts: Sequence[str]) -> tuple[Ids, Integers, Runs]:
        """What there is of texts whose letters are those as they were typed."""
        if self.words is None:
            return *self.tokenizer.encode_many(texts), NO_RUNS
        ids, lengths, ends = self.tokenizer.encode_with_ends(texts)
        raw = [storable(text).encode() for text in texts]
        # what has no tokens has no letters
        letters = b"".join(
            text for text, length in zip(raw, lengths, strict=True) if length
        )
        starts = _starts(np.where(lengths, list(map(len, raw)), 0))
        stops = ends + np.repeat(starts, lengths)
        runs = self.words.runs(np.frombuffer(letters, np.uint8), stops, lengths)
        return ids, lengths, runs

    def _read_for_sentences(
        self, tokenizer: AnyTokenizer, texts: Sequence[str], lengths: Integers
    ) -> tuple[Ids, Integers]:
        """The ids of another tokenizer: each belongs to the token in whose part of the text it
        ends.
        """
        _, _, ends = self.tokenizer.encode_with_ends(texts)
        ids, sizes, id_ends = tokenizer.encode_with_ends(texts)
        # apart by a byte, since ids may end before the first one of their text
        starts = _starts(np.array([len(storable(text).encode()) + 1 for text in texts]))
        # what has no tokens is not read
        kept = np.repeat(lengths > 0, sizes)
        id_ends = (id_ends + np.repeat(starts, sizes))[kept]
        stops = np.searchsorted(id_ends, ends + np.repeat(starts, lengths), "right")
        return ids[kept], stops


NO_RUNS = Runs(np.zeros(0, np.uint16), np.zeros(0, np.int64))


def _starts(sizes: Integers) -> Integers:
    starts: Integers = np.cumsum(sizes) - sizes
    return starts


TOKENIZER_FILES = "tokenizer.json", "tokenizer.safetensors"
"""What a definition's file is called: that of the tokenizers library, that of pieces."""


def tokenizer_file(definition: bytes) -> str:
    return TOKENIZER_FILES[not definition.startswith(b"{")]


def tokenizer_of(definition: bytes) -> AnyTokenizer:
    """The tokenizer of a definition: a tokenizer.json, or the tables of pieces."""
    if definition.startswith(b"{"):
        return shared_tokenizer(definition)
    return _of_pieces(definition)


@lru_cache(maxsize=2)
def _of_pieces(definition: bytes) -> PieceTokenizer:
    return PieceTokenizer.of_definition(definition)
