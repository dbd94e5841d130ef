"""The sketch of words: what misspellings leave of it, and that nothing but the letters of words
counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from unicodedata import ucd_3_2_0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.text.characters import lower_case
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import shared_tokenizer
from ridgeway.common.text.word_sketch import (
    WORD_BEGIN,
    WORD_END,
    WordSketch,
    spelling,
)

LETTERS = "abcdefghij ,é"


def letters_sketch(shortest: int = 2, longest: int = 3) -> WordSketch:
    """A sketch over tokens of one, two or three letters, a blank before some of them."""
    pieces = sorted(
        {one + two for one in ["", *LETTERS] for two in LETTERS}
        | {"abc", " abc", "hij"}
    )
    vocabulary = [[piece.replace(" ", "▁"), 0.0] for piece in pieces]
    definition = {"model": {"type": "Unigram", "vocab": vocabulary}}
    return WordSketch(
        WordFeatures(64, shortest=shortest, longest=longest),
        spelling(json.dumps(definition).encode(), len(pieces)),
    )


def pieces_of(sketch: WordSketch) -> list[bytes]:
    starts, letters = sketch.spelling.starts.tolist(), sketch.spelling.letters.tobytes()
    return [letters[start:stop] for start, stop in pairwise(starts)]


SKETCH = letters_sketch()
PIECES = pieces_of(SKETCH)
TEXTS = st.lists(
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=12),
    min_size=1,
    max_size=5,
)


def counted_by_hand(
    text: bytes, width: int = 64, sizes: Iterable[int] = (2, 3)
) -> list[int]:
    """The definition, byte by byte, in Python's own numbers."""
    counts, words = [0] * width, [b""]
    for byte in text:
        if (chr(byte).isalnum() and byte < 128) or byte >= 128:
            words[-1] += bytes([byte])
        else:
            words.append(b"")
    for word in filter(None, words):
        framed = bytes([WORD_BEGIN]) + word + bytes([WORD_END])
        for size in sizes:
            for first in range(len(framed) - size + 1):
                gram = int.from_bytes(framed[first : first + size], "big")
                for multiplier in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93):
                    gram = gram * multiplier % 2**64
                    gram ^= gram >> 32
                counts[(gram >> 32) * width >> 32] += 2 * (gram & 1) - 1
    return counts


def in_one_row(texts: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Their ids, and where each begins and the last one ends."""
    ids = np.array([number for text in texts for number in text], dtype=np.int32)
    return ids, np.cumsum([0, *map(len, texts)])


@given(TEXTS, st.integers(2, 5), st.integers(0, 3))
def test_counts_are_the_definition_s_and_do_not_see_how_a_text_is_cut_into_tokens(
    texts: list[list[int]], shortest: int, more: int
) -> None:
    """A window's counts follow from its bytes alone, and from no other window's."""
    ids, bounds = in_one_row(texts)
    sketch = letters_sketch(shortest, min(5, shortest + more))
    expected = [
        counted_by_hand(
            b"".join(PIECES[number] for number in text), sizes=sketch.options.sizes
        )
        for text in texts
    ]
    assert sketch.window_counts(ids, bounds).tolist() == expected


@given(TEXTS)
def test_features_are_rounded_means_within_the_limit(texts: list[list[int]]) -> None:
    """⌊(2·amplitude·count + n) / 2n⌋, cut off at FEATURE_LIMIT."""
    ids, bounds = in_one_row(texts)
    amplitude = SKETCH.options.amplitude
    rows = SKETCH.window_features(ids, bounds).tolist()
    for text, features in zip(texts, rows, strict=True):
        counts = counted_by_hand(b"".join(PIECES[number] for number in text))
        n = len(text)
        means = [(2 * amplitude * count + n) // (2 * n) for count in counts]
        assert features == np.clip(means, -FEATURE_LIMIT, FEATURE_LIMIT).tolist()


def test_windows_that_leave_tokens_out_count_nothing_of_them() -> None:
    """Tokens before the first window and after the last belong to none."""
    ids = np.array([PIECES.index(word) for word in (b"abc", b"hij", b"abc")], np.int32)
    counts = SKETCH.window_counts(ids, np.array([1, 2])).tolist()
    assert counts == [counted_by_hand(b"hij")]


def test_tokens_that_stand_for_bytes_and_beginnings_of_words_are_spelt_as_they_are_written() -> (
    None
):
    """Sentence pieces, word pieces and byte-level tokens give the same spelling of the same
    text.
    """

    def spelt(definition: Mapping[str, object], rows: int) -> list[bytes]:
        return pieces_of(
            WordSketch(WordFeatures(), spelling(json.dumps(definition).encode(), rows))
        )

    byte_level = {
        "model": {"type": "BPE", "vocab": {"Ġhe": 0, "Ã©": 1}},
        "decoder": {"type": "ByteLevel"},
    }
    word_piece = {
        "model": {
            "type": "WordPiece",
            "vocab": {"he": 0, "##é": 1},
            "continuing_subword_prefix": "##",
        }
    }
    pieces = {
        "model": {"type": "Unigram", "vocab": [["▁he", 0], ["é", 0], ["<0x0A>", 0]]}
    }
    assert spelt(byte_level, 2) == spelt(word_piece, 2) == [b" he", "é".encode()]
    assert spelt(pieces, 4) == [b" he", "é".encode(), b"\n", b""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HELLO", "hello"),
        ("ÄÖ ЖЩ ΑΒ", "äö жщ αβ"),
        ("ΑΣ İX", "αΣ İx"),
        ("A🙂B \u1c90", "a🙂b \u1c90"),
        ("", ""),
    ],
)
def test_lower_case_changes_one_letter_for_one(text: str, expected: str) -> None:
    """Two odd letters, and those that are newer than the oldest tables, stay as they are."""
    assert lower_case(text) == expected


@pytest.mark.slow
@given(st.lists(st.text(st.characters()), max_size=3))
def test_texts_are_read_in_lower_case_by_either_encoder(
    smollm2: TableEncoder, texts: list[str]
) -> None:
    """The compiled one lowers letters as it reads; its ids are those of texts that were lowered
    before.
    """
    fast = shared_tokenizer(smollm2.definition, lower=True)
    plain = shared_tokenizer(smollm2.definition)
    fast.make_fast()
    ids, lengths = fast.encode_many(texts)
    lowered, sizes = plain.encode_many(list(map(lower_case, texts)))
    assert (ids.tolist(), lengths.tolist()) == (lowered.tolist(), sizes.tolist())


def test_every_letter_has_the_lower_case_of_the_oldest_tables() -> None:
    """Whatever this Python knows beyond them."""
    for letter in map(chr, range(sys.maxunicode + 1)):
        if letter.lower() != letter:
            known = ucd_3_2_0.category(letter) != "Cn" and letter not in "\u0130\u03a3"
            expected = letter.lower() if known else letter
            assert lower_case(letter) == expected, hex(ord(letter))


@given(st.text())
def test_lower_case_keeps_a_text_s_length_and_is_done_once(text: str) -> None:
    """So that places in the one are places in the other."""
    lower = lower_case(text)
    assert len(lower) == len(text)
    assert lower_case(lower) == lower
    assert lower == "".join(map(lower_case, text))


@given(TEXTS)
def test_a_sketch_of_few_tokens_counts_as_that_of_all(texts: list[list[int]]) -> None:
    """By their places among those that are used."""
    ids, bounds = in_one_row(texts)
    used, positions = np.unique(ids, return_inverse=True)
    counts = SKETCH.of_tokens(used).window_counts(positions.astype(np.int32), bounds)
    assert counts.tolist() == SKETCH.window_counts(ids, bounds).tolist()
