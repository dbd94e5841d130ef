"""Words by their letters: short runs of the letters of each word, hashed into a sketch that stands
beside token rows.

A misspelt word falls into other tokens, but keeps most of its runs of letters. How tokens are spelt
is public, so a text's sketch follows from its token ids, and nothing but ids needs to be handed on.
Everything is counted in integers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.text.fast_bpe import byte_letters
from ridgeway.common.text.tokenizer import Ids, Integers

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

    def spelt(self, ids: Ids) -> list[bytes]:
        """The bytes of each of these tokens."""
        bounds = zip(
            self.starts[ids].tolist(), self.starts[ids + 1].tolist(), strict=True
        )
        return [self.letters[first:last].tobytes() for first, last in bounds]


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
        return WordSketch(self.options, spelling_of(self.spelling.spelt(ids)))

    def grams(self, ids: Ids, bounds: Integers) -> Grams:
        """The runs of letters in windows of a row of ids; no word goes beyond its window."""
        # the bytes of all tokens in one row, and which token each is of
        starts = self.spelling.starts
        sizes = np.diff(starts)[ids]
        owners = np.repeat(np.arange(len(ids)), sizes)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        letters = self.spelling.letters[starts[ids][owners] + within]
        # those that words are made of
        windows = np.searchsorted(bounds, owners, side="right")
        in_window = (windows > 0) & (windows < len(bounds))
        inside = np.flatnonzero(WORD_BYTES[letters] & in_window)
        if not len(inside):
            return Grams(*np.zeros((3, 0), dtype=np.int64))
        letters = letters[inside]
        owners = owners[inside]
        # a word ends where a byte is left out, and with its window
        apart = (np.diff(inside) > 1) | (np.diff(windows[inside]) > 0)
        firsts = np.flatnonzero(np.append(True, apart))
        lasts = np.append(firsts[1:], len(inside)) - 1
        # each word with a border on both sides, all in one row
        words = np.cumsum(np.append(False, apart))
        positions = np.arange(len(inside)) + 2 * words + 1
        begins = positions[firsts] - 1
        ends = positions[lasts] + 1
        bordered = np.zeros(len(inside) + 2 * len(firsts), dtype=np.uint64)
        bordered[positions] = letters
        bordered[begins] = WORD_BEGIN
        bordered[ends] = WORD_END
        owner = np.zeros(len(bordered), dtype=np.int64)
        owner[positions] = owners
        owner[ends] = owners[lasts]
        since = np.arange(len(bordered)) - np.repeat(begins, ends - begins + 1)
        runs = [
            self._of_size(size, bordered, owner, since) for size in self.options.sizes
        ]
        return Grams(*map(np.concatenate, zip(*runs, strict=True)))

    def _of_size(
        self, size: int, letters: NDArray[np.uint64], owner: Integers, since: Integers
    ) -> Grams:
        """The runs of so many letters. since: how many letters of its word come before each."""
        ends = np.flatnonzero(since >= size - 1)
        packed = np.zeros(len(ends), dtype=np.uint64)
        for back in reversed(range(size)):
            packed = packed << np.uint64(8) | letters[ends - back]
        for multiplier in MULTIPLIERS:
            packed *= multiplier
            packed ^= packed >> np.uint64(32)
        # the upper half chooses the bucket, the last bit the sign
        upper = packed >> np.uint64(32)
        buckets = (upper * np.uint64(self.width) >> np.uint64(32)).astype(np.int64)
        signs = 2 * (packed & np.uint64(1)).astype(np.int64) - 1
        return Grams(owner[ends], buckets, signs)

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
        sums = self.options.amplitude * self.window_counts(ids, bounds)
        means = (2 * sums + tokens) // (2 * tokens)
        features: Integers = np.clip(means, -FEATURE_LIMIT, FEATURE_LIMIT)
        return features.astype(np.int16)


@lru_cache(maxsize=4)
def spelling(definition: bytes, rows: int) -> Spelling:
    """How a tokenizer's tokens are spelt; rows that stand for nothing have no letters."""
    spelt = [b""] * rows
    for number, letters in _spelt(json.loads(definition)):
        if number < rows:
            spelt[number] = letters
    return spelling_of(spelt)


def spelling_of(tokens: Sequence[bytes]) -> Spelling:
    starts = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    return Spelling(np.frombuffer(b"".join(tokens), dtype=np.uint8), starts)


def _spelt(definition: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Each token's number and its bytes. A token that begins a word begins with a blank, or follows
    one.
    """
    model = definition["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        numbered = [(number, word) for word, number in vocabulary.items()]
    else:
        numbered = [(number, piece[0]) for number, piece in enumerate(vocabulary)]
    prefix = model.get("continuing_subword_prefix")
    steps = json.dumps([definition.get("pre_tokenizer"), definition.get("decoder")])
    if '"ByteLevel"' in steps:
        letters = {letter: byte for byte, letter in byte_letters().items()}
        spelt = [
            (number, bytes(letters.get(letter, 0) for letter in word))
            for number, word in numbered
        ]
    elif prefix:
        spelt = [(number, _of_subword(word, prefix)) for number, word in numbered]
    else:
        spelt = [(number, _of_piece(word)) for number, word in numbered]
    added = [
        (token["id"], token["content"].encode())
        for token in definition.get("added_tokens", ())
    ]
    return spelt + added


def _of_subword(word: str, prefix: str) -> bytes:
    """The bytes of a piece of WordPiece: without the prefix it begins a word."""
    if word.startswith(prefix):
        return word.removeprefix(prefix).encode()
    return f" {word}".encode()


def _of_piece(word: str) -> bytes:
    """The bytes of a sentence piece: ▁ is a blank, and <0x0A> is one byte."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", word)
    if byte:
        return bytes.fromhex(byte[1])
    return word.replace("\u2581", " ").encode(errors="replace")
