"""Words by their letters: short runs of the letters of each word, hashed into a sketch that stands
beside token rows.

A misspelt word falls into other tokens, but keeps most of its runs of letters. How tokens are spelt
is public, so a text's sketch follows from its token ids, and nothing but ids needs to be handed on.
Everything is counted in integers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.encoding.fast_bpe import byte_letters
from ridgeway.common.encoding.tokenizer import Ids

Integers = NDArray[np.int64]

WORD_BEGIN = 2
WORD_END = 3
"""The bytes that stand for the borders of a word."""

WORD_BYTES = np.array([byte >= 128 or chr(byte).isalnum() for byte in range(256)])
"""The bytes that words are made of: ASCII's letters and digits, and all of other characters."""

MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Spelling:
    """The bytes that each token stands for: those of token t are letters[starts[t] : starts[t +
    1]].
    """

    letters: NDArray[np.uint8]
    starts: Integers


class Grams(NamedTuple):
    """Runs of letters in a row of ids. owners: the place of the id that each ends in; signs: +1 or
    −1.
    """

    owners: Integers
    buckets: Integers
    signs: Integers


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WordSketch:
    """What the words of a text add to its features.

    A run of letters adds its sign to one of `options.width` buckets. A window of n tokens has the
    features amplitude · bucket / n, rounded as the means of token rows are, and cut off at
    FEATURE_LIMIT.
    """

    options: WordFeatures
    spelling: Spelling

    @property
    def width(self) -> int:
        return self.options.width

    def of_tokens(self, ids: Ids) -> WordSketch:
        """The same sketch over these tokens alone, in their order."""
        starts = self.spelling.starts
        spelt = [
            self.spelling.letters[starts[number] : starts[number + 1]]
            for number in ids.tolist()
        ]
        ends = np.concatenate(
            ([0], np.cumsum([len(each) for each in spelt], dtype=np.int64))
        )
        letters = np.concatenate([*spelt, np.zeros(0, dtype=np.uint8)])
        return WordSketch(self.options, Spelling(letters, ends))

    def grams(self, ids: Ids, bounds: Integers) -> Grams:
        """The runs of letters in windows of a row of ids; no word goes beyond its window."""
        sizes = np.diff(self.spelling.starts)[ids]
        ends = np.cumsum(sizes)
        owners = np.repeat(np.arange(len(ids)), sizes)
        within = np.arange(len(owners)) - np.repeat(ends - sizes, sizes)
        letters = self.spelling.letters[self.spelling.starts[ids][owners] + within]
        windows = np.searchsorted(bounds, owners, side="right")
        inside = np.flatnonzero(
            WORD_BYTES[letters] & (windows > 0) & (windows < len(bounds))
        )
        if not len(inside):
            return Grams(*np.zeros((3, 0), dtype=np.int64))
        apart = (np.diff(inside) > 1) | (np.diff(windows[inside]) > 0)
        words = np.cumsum(np.concatenate(([0], apart)))
        firsts = np.flatnonzero(np.concatenate(([True], apart)))
        lasts = np.append(firsts[1:], len(inside)) - 1
        places = np.arange(len(inside)) + 2 * words + 1
        size = len(inside) + 2 * len(firsts)
        bytes_ = np.zeros(size, dtype=np.uint64)
        owner = np.zeros(size, dtype=np.int64)
        bytes_[places], owner[places] = letters[inside], owners[inside]
        begins = places[firsts] - 1
        stops = places[lasts] + 1
        bytes_[begins], bytes_[stops], owner[stops] = (
            WORD_BEGIN,
            WORD_END,
            owners[inside[lasts]],
        )
        since = np.arange(size) - np.repeat(begins, stops - begins + 1)
        found = [
            self._of_size(count, bytes_, owner, since) for count in self.options.sizes
        ]
        return Grams(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _of_size(
        self, count: int, letters: NDArray[np.uint64], owner: Integers, since: Integers
    ) -> Grams:
        ends = np.flatnonzero(since >= count - 1)
        packed = np.zeros(len(ends), dtype=np.uint64)
        for back in range(count - 1, -1, -1):
            packed = packed << np.uint64(8) | letters[ends - back]
        for multiplier in MULTIPLIERS:
            packed = packed * multiplier
            packed ^= packed >> np.uint64(32)
        buckets = (
            (packed >> np.uint64(32)) * np.uint64(self.width) >> np.uint64(32)
        ).astype(np.int64)
        return Grams(
            owner[ends], buckets, 2 * (packed & np.uint64(1)).astype(np.int64) - 1
        )

    def window_counts(self, ids: Ids, bounds: Integers) -> Integers:
        """The signed counts of every bucket in each window, N×width."""
        owners, buckets, signs = self.grams(ids, bounds)
        windows = np.searchsorted(bounds, owners, side="right") - 1
        flat = np.bincount(
            windows * self.width + buckets, signs, (len(bounds) - 1) * self.width
        )
        return flat.astype(np.int64).reshape(-1, self.width)

    def window_features(self, ids: Ids, bounds: Integers) -> NDArray[np.int16]:
        """The features of each window: ⌊(2·amplitude·count + n) / 2n⌋, none beyond
        FEATURE_LIMIT.
        """
        tokens = np.diff(bounds)[:, None]
        means = (
            2 * self.options.amplitude * self.window_counts(ids, bounds) + tokens
        ) // (2 * tokens)
        features: NDArray[np.int16] = np.clip(
            means, -FEATURE_LIMIT, FEATURE_LIMIT
        ).astype(np.int16)
        return features


@lru_cache(maxsize=4)
def spelling(definition: bytes, rows: int) -> Spelling:
    """How a tokenizer's tokens are spelt; rows that stand for nothing have no letters."""
    spelt = [b""] * rows
    for number, letters in _spelt(json.loads(definition)):
        if number < rows:
            spelt[number] = letters
    starts = np.concatenate(
        ([0], np.cumsum([len(each) for each in spelt], dtype=np.int64))
    )
    return Spelling(np.frombuffer(b"".join(spelt), dtype=np.uint8), starts)


def _spelt(definition: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Each token's number and its bytes. A token that begins a word begins with a blank, or follows
    one.
    """
    model = definition["model"]
    vocabulary = model["vocab"]
    numbered = (
        vocabulary.items()
        if isinstance(vocabulary, dict)
        else ((v[0], i) for i, v in enumerate(vocabulary))
    )
    added = [
        (token["id"], token["content"].encode())
        for token in definition.get("added_tokens", ())
    ]
    letters = {letter: byte for byte, letter in byte_letters().items()}
    if '"ByteLevel"' in json.dumps(
        [definition.get("pre_tokenizer"), definition.get("decoder")]
    ):
        own = [
            (number, bytes(letters.get(letter, 0) for letter in word))
            for word, number in numbered
        ]
    elif prefix := model.get("continuing_subword_prefix"):
        own = [
            (
                number,
                (
                    word.removeprefix(prefix) if word.startswith(prefix) else " " + word
                ).encode(),
            )
            for word, number in numbered
        ]
    else:
        own = [(number, _of_piece(word)) for word, number in numbered]
    return own + added


def _of_piece(word: str) -> bytes:
    """The bytes of a sentence piece: ▁ is a blank, and <0x0A> is one byte."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", word)
    return (
        bytes([int(byte[1], 16)])
        if byte
        else word.replace("\u2581", " ").encode(errors="replace")
    )
