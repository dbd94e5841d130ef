"""The sketch of words: nothing but the letters of a text counts, and runs belong to the tokens in
which they end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unicodedata import ucd_3_2_0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.base.machine import native
from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.text.characters import lower_case, lower_letters
from ridgeway.common.text.word_sketch import Runs, WordSketch
from tests.support.native import needs_native, without_native

WIDTH = 64
SKETCH = WordSketch(WordFeatures(WIDTH))

WELL_FORMED = st.text(
    st.sampled_from("aAbÉé Σ\n\t\0\x02\u3000日😀\U0010ffff"), max_size=9
)
BROKEN = st.lists(
    st.sampled_from([b"a", b" ", b"\n", "é".encode(), "😀".encode()])
    | st.sampled_from([b"\xe2", b"\x96\x81", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
    | st.sampled_from([b"\xc0\xaf", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xff"])
    | st.binary(max_size=3),
    max_size=6,
).map(b"".join)
TOKENS = st.lists(WELL_FORMED.map(str.encode) | BROKEN, max_size=5)
TEXTS = st.lists(TOKENS, max_size=4)


def in_one_row(
    texts: Sequence[Sequence[bytes]],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The letters of texts that are given token by token, and where those of each token end."""
    tokens = [token for text in texts for token in text]
    return (
        np.frombuffer(b"".join(tokens), np.uint8),
        np.cumsum(list(map(len, tokens)), dtype=np.int64),
        np.array(list(map(len, texts)), np.int64),
    )


def runs_of(texts: Sequence[Sequence[bytes]], sketch: WordSketch = SKETCH) -> Runs:
    return sketch.runs(*in_one_row(texts))


def by_token(runs: Runs) -> list[list[int]]:
    stops = [0, *runs.stops.tolist()]
    assert stops[-1] == len(runs.codes)
    return [runs.codes[start:stop].tolist() for start, stop in pairwise(stops)]


def by_hand(text: str, width: int = WIDTH) -> list[int]:
    """The definition, run by run, in Python's own numbers."""
    letters = map(ord, lower_case(text))
    symbols = [2, *(2 if code <= 32 and code != 10 else code for code in letters)]
    if symbols[-1] != 2:
        symbols.append(2)
    return [
        code_of(run, width)
        for end in range(1, len(symbols) + 1)
        for run in [symbols[end - size : end] for size in (1, 2, 3) if size <= end]
        if 2 not in run[1:-1] and set(run) != {2}
    ]


def code_of(run: Sequence[int], width: int) -> int:
    key = len(run)
    for symbol in run:
        key = (key * 0x9E3779B97F4A7C15 + symbol) % 2**64
    mixed = key * 0x9E3779B97F4A7C15 % 2**64
    mixed ^= mixed >> 32
    mixed = mixed * 0xD6E8FEB86659FD93 % 2**64
    return 2 * ((mixed >> 32) * width >> 32) + ((mixed ^ mixed >> 32) & 1)


@needs_native
@given(texts=TEXTS, width=st.sampled_from([1, 2, 768, 1 << 14]))
def test_the_compiled_module_gives_what_numpy_gives(
    texts: list[list[bytes]], width: int
) -> None:
    """Whatever the bytes, also where tokens cut characters, and of texts without tokens."""
    sketch = WordSketch(WordFeatures(width))
    compiled = runs_of(texts, sketch)
    with without_native():
        reference = runs_of(texts, sketch)
    assert by_token(compiled) == by_token(reference)
    assert compiled.codes.dtype == reference.codes.dtype == np.uint16
    assert compiled.stops.dtype == reference.stops.dtype == np.int64


@given(st.text(max_size=30) | WELL_FORMED)
def test_runs_are_those_of_the_definition(text: str) -> None:
    """One, two and three symbols, with borders at the ends of runs alone."""
    plain = text.encode("utf-8", "replace").decode()
    assert runs_of([[plain.encode()]]).codes.tolist() == by_hand(plain)


@given(st.lists(st.text("ab É\n日", max_size=4), min_size=1, max_size=4), st.data())
def test_the_runs_of_a_text_follow_from_its_letters_alone(
    parts: list[str], data: st.DataObject
) -> None:
    """However they are cut into tokens; a run belongs to the token in which its last byte lies."""
    text = "".join(parts).encode()
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
    tokens = [text[start:stop] for start, stop in pairwise([0, *cuts, len(text)])]
    cut = runs_of([tokens])
    assert cut.codes.tolist() == runs_of([[text]]).codes.tolist()
    # what follows a cut changes nothing before it, unless a character goes on
    for size in range(1, len(tokens)):
        alone = runs_of([[*tokens[:size], b" "]])
        if is_whole(b"".join(tokens[:size])):
            assert by_token(cut)[: size - 1] == by_token(alone)[: size - 1]


def is_whole(letters: bytes) -> bool:
    return letters.decode(errors="replace").encode() == letters


@given(texts=TEXTS)
def test_the_runs_of_a_text_do_not_depend_on_those_beside_it(
    texts: list[list[bytes]],
) -> None:
    """Those of many texts are those of each, one after the other."""
    together = by_token(runs_of(texts))
    apart = [row for text in texts for row in by_token(runs_of([text]))]
    assert together == apart


@given(st.text("abé", max_size=6), st.text("abé", max_size=6))
def test_a_blank_keeps_words_apart(one: str, other: str) -> None:
    """The runs of two words with a blank between them are those of each word; a line break is a
    letter.
    """
    together = runs_of([[f"{one} {other}".encode()]]).codes.tolist()
    words = [[one.encode()], [other.encode()]]
    assert together == runs_of(words).codes.tolist()
    assert together == runs_of([[f"\t{one}\0 {other} ".encode()]]).codes.tolist()
    joined = runs_of([[f"{one}\n{other}".encode()]]).codes
    assert joined.tolist() == by_hand(f"{one}\n{other}")


def test_letters_behind_the_last_token_and_empty_tokens_have_no_runs() -> None:
    """The border behind a text is its last token's, even if that has no letters."""
    letters = np.frombuffer(b"abc", np.uint8)
    runs = SKETCH.runs(letters, np.array([0, 2, 2, 2]), np.array([1, 3, 0]))
    assert runs.stops.tolist() == [0, 5, 5, 7]
    assert runs.codes.tolist() == by_hand("ab")


def wrong_runs() -> list[list[Any]]:
    """What does not fit together."""
    letters = b"ab \xe2"
    stops = np.array([1, 4])
    counts = np.array([1, 1])
    right = [letters, stops, counts, lower_letters(), 8]

    def changed(place: int, value: Any) -> list[Any]:
        return [*right[:place], value, *right[place + 1 :]]

    return [
        changed(0, b"ab "),
        changed(1, np.array([-1, 4])),
        changed(1, np.array([2, 1])),
        changed(1, np.array([1, 1 << 62])),
        changed(1, np.array([1])),
        changed(1, b"1234567"),
        changed(2, np.array([1])),
        changed(2, np.array([1, 2])),
        changed(2, np.array([3, -1])),
        changed(2, np.array([1 << 62, 1 << 62, 1 << 62, (1 << 62) + 2])),
        changed(2, b"1234567"),
        changed(3, lower_letters()[:-1]),
        changed(3, b""),
        changed(4, 0),
        changed(4, -1),
        changed(4, (1 << 14) + 1),
    ]


@needs_native
@pytest.mark.parametrize("operands", wrong_runs())
def test_letters_that_do_not_fit_are_refused(operands: list[Any]) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match="do not fit together"):
        native.letter_runs(*operands)


@needs_native
def test_a_table_of_lower_letters_may_have_any_numbers() -> None:
    """They go into keys alone."""
    table = np.full(0x110000, 0xFFFFFFFF, np.uint32)
    codes, stops = native.letter_runs(b"a \xff", np.array([3]), np.array([1]), table, 9)
    assert np.frombuffer(stops, np.int64).tolist() == [10]
    assert len(codes) == 20


# Features of windows


WINDOWS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), max_size=4)


@given(
    tokens=st.lists(WELL_FORMED.map(str.encode), min_size=6, max_size=6),
    windows=WINDOWS.filter(bool),
    amplitude=st.sampled_from([1, 1000, FEATURE_LIMIT]),
)
def test_features_are_rounded_means_within_the_limit(
    tokens: list[bytes], windows: list[list[int]], amplitude: int
) -> None:
    """⌊(2·amplitude·count + n) / 2n⌋, cut off at FEATURE_LIMIT, of the windows' tokens alone."""
    sketch = WordSketch(WordFeatures(WIDTH, amplitude))
    runs = runs_of([tokens], sketch)
    rows = by_token(runs)
    row = [0, *(token for window in windows for token in window), 5]
    bounds = np.cumsum([1, *map(len, windows)])
    made = sketch.window_features(runs, np.array(row, np.int32), bounds)
    for window, features in zip(windows, made.tolist(), strict=True):
        counts = [0] * WIDTH
        for code in (code for token in window for code in rows[token]):
            counts[code // 2] += 1 if code % 2 else -1
        n = len(window)
        means = [(2 * amplitude * count + n) // (2 * n) for count in counts]
        assert features == np.clip(means, -FEATURE_LIMIT, FEATURE_LIMIT).tolist()


# Lower case


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
