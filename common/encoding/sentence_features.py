"""What an encoder knows of sentences: the sentence vector of a sample, and random features of it.

A sample is a row of token ids. How tokens are spelt is public, so its text follows from its ids,
and the sentence encoder reads that text. All of it is counted in integers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.sentence_encoder import SENTENCE_WIDTH, SentenceEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.encoding.word_sketch import Spelling

_Integers = NDArray[np.int64]

SENTENCE = "+sentence"
"""What an encoder's name ends in where it has features of sentences."""

MAX_READ_TOKENS = 1 << 8
"""Of a longer sample the sentence encoder reads the first so many tokens."""

RANDOM_FEATURES = 1 << 10
RANDOM_SHIFT = 6
"""A random feature is the positive part of a sum of ±vector entries, divided by 2 to this power:
with vectors of norm 2¹³, about 128 times a normal number.
"""
_SEED = b"ridgeway.random_features.1"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SentenceFeatures:
    """What the sentences of samples add to their features."""

    encoder: SentenceEncoder
    spelling: Spelling

    @property
    def width(self) -> int:
        return self.encoder.width + RANDOM_FEATURES

    def texts(self, ids: Ids, bounds: _Integers) -> list[str]:
        """The text of each window of a row of ids, as far as it is read."""
        starts = self.spelling.starts
        letters = self.spelling.letters
        sizes = np.diff(bounds)
        ends = bounds[:-1] + np.minimum(sizes, MAX_READ_TOKENS)
        found = []
        for begin, end in zip(bounds[:-1].tolist(), ends.tolist(), strict=True):
            own = ids[begin:end]
            spelt = [
                letters[first:last]
                for first, last in zip(
                    starts[own].tolist(), starts[own + 1].tolist(), strict=True
                )
            ]
            joined = np.concatenate(spelt) if spelt else letters[:0]
            found.append(joined.tobytes().decode(errors="replace"))
        return found

    def read(self, ids: Ids, bounds: _Integers) -> tuple[Ids, _Integers]:
        """The sentence encoder's own ids of each window in one row, and how many each has."""
        return self.encoder.encode_many(self.texts(ids, bounds))

    def window_features(self, ids: Ids, bounds: _Integers) -> NDArray[np.int16]:
        """The features of each window, N×width."""
        vectors = self.encoder.vectors(*self.read(ids, bounds))
        # partial sums stay below 2¹³ · √512, so float32 holds them exactly
        sums = vectors.astype(np.float32) @ random_signs()
        random = np.maximum(sums, 0).astype(np.int32) >> RANDOM_SHIFT
        return np.hstack([vectors, random.astype(np.int16)])

    def to_json(self) -> dict[str, Any]:
        """What cards, manifests and the fingerprint say of it."""
        return {
            "name": self.encoder.name,
            "fingerprint": self.encoder.fingerprint,
            "random": RANDOM_FEATURES,
        }


@lru_cache(maxsize=1)
def random_signs() -> NDArray[np.float32]:
    """The public signs of the random features, SENTENCE_WIDTH × RANDOM_FEATURES of ±1."""
    size = SENTENCE_WIDTH * RANDOM_FEATURES
    drawn = hashlib.shake_256(_SEED).digest(size // 8)
    bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8))
    signs: NDArray[np.float32] = 1 - 2 * bits.astype(np.float32)
    return signs.reshape(SENTENCE_WIDTH, RANDOM_FEATURES)
