"""What an encoder knows of sentences: the sentence vector of a sample, and random features of it.

A sample is a row of token ids. How tokens are spelt is public, so its text follows from its ids,
and the sentence encoder reads that text. All of it is counted in integers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.sentence_encoder import SentenceEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.encoding.word_sketch import Spelling

_Integers = NDArray[np.int64]

SENTENCE = "+sentence"
"""What an encoder's name ends in where it has features of sentences."""

PIECE_TOKENS = 128
MAX_PIECES = 6
"""A longer sample is read in pieces of at most so many tokens, evenly spaced, whose features are
averaged.
"""

RANDOM_FEATURES = 1 << 10
RANDOM_SHIFT = 6
"""A random feature is the positive part of a sum of ±vector entries, divided by 2 to this power:
with vectors of norm 2¹³, about 128 times a normal number.
"""
_SEED = b"ridgeway.random_features.1"


class Pieces(NamedTuple):
    """What is read of windows in a row of ids.

    begins, ends: of each piece in the row.
    counts: how many pieces each window has, and `firsts` the number of its first one.
    """

    begins: _Integers
    ends: _Integers
    counts: _Integers
    firsts: _Integers


def pieces_of(bounds: _Integers) -> Pieces:
    """The pieces of windows: all of a short window in even parts, and of a long one some that are
    evenly spaced, its beginning and its end among them.
    """
    sizes = np.diff(bounds)
    counts = np.clip(-(-sizes // PIECE_TOKENS), 1, MAX_PIECES)
    firsts = np.cumsum(counts) - counts
    window = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(window)) - firsts[window]
    size = sizes[window]
    count = counts[window]
    parts = number * size // count
    spaced = number * (size - PIECE_TOKENS) // np.maximum(count - 1, 1)
    is_long = size > MAX_PIECES * PIECE_TOKENS
    begins = bounds[:-1][window] + np.where(is_long, spaced, parts)
    part_ends = bounds[:-1][window] + (number + 1) * size // count
    ends = np.where(is_long, begins + PIECE_TOKENS, part_ends)
    return Pieces(begins, ends, counts, firsts)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SentenceFeatures:
    """What the sentences of samples add to their features."""

    encoder: SentenceEncoder
    spelling: Spelling

    @property
    def width(self) -> int:
        return self.encoder.width + RANDOM_FEATURES

    def texts(self, ids: Ids, pieces: Pieces) -> list[str]:
        """The text of each piece of a row of ids."""
        bounds = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
        return [
            b"".join(self.spelling.spelt(ids[begin:end])).decode(errors="replace")
            for begin, end in bounds
        ]

    def read(self, ids: Ids, pieces: Pieces) -> tuple[Ids, _Integers]:
        """The sentence encoder's own ids of each piece in one row, and how many each has."""
        return self.encoder.encode_many(self.texts(ids, pieces))

    def window_features(self, ids: Ids, bounds: _Integers) -> NDArray[np.int16]:
        """The features of each window, N×width: the mean over its pieces, rounded half up."""
        if len(bounds) < 2:
            return np.zeros((0, self.width), dtype=np.int16)
        pieces = pieces_of(bounds)
        vectors = self.encoder.vectors(*self.read(ids, pieces))
        # partial sums stay below 2¹³ · √1024, so float32 holds them exactly
        sums = vectors.astype(np.float32) @ random_signs(self.encoder.width)
        random = np.maximum(sums, 0).astype(np.int32) >> RANDOM_SHIFT
        features = np.hstack([vectors, random])
        added = np.add.reduceat(features, pieces.firsts, axis=0, dtype=np.int64)
        counts = pieces.counts[:, None]
        means: NDArray[np.int16] = ((2 * added + counts) // (2 * counts)).astype(
            np.int16
        )
        return means

    def vector_sums(self, ids: Ids, lengths: _Integers) -> tuple[_Integers, _Integers]:
        """The sum of the vectors of each document's pieces, N×SENTENCE_WIDTH, and their number."""
        pieces = pieces_of(np.append(0, np.cumsum(lengths)))
        vectors = self.encoder.vectors(*self.read(ids, pieces))
        sums = np.add.reduceat(vectors, pieces.firsts, axis=0, dtype=np.int64)
        return sums, np.where(lengths, pieces.counts, 0)

    def to_json(self) -> dict[str, Any]:
        """What cards, manifests and the fingerprint say of it."""
        return {
            "name": self.encoder.name,
            "fingerprint": self.encoder.fingerprint,
            "random": RANDOM_FEATURES,
        }


@lru_cache(maxsize=2)
def random_signs(width: int) -> NDArray[np.float32]:
    """The public signs of the random features, width × RANDOM_FEATURES of ±1."""
    size = width * RANDOM_FEATURES
    drawn = hashlib.shake_256(_SEED).digest(size // 8)
    bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8))
    signs: NDArray[np.float32] = 1 - 2 * bits.astype(np.float32)
    return signs.reshape(width, RANDOM_FEATURES)
