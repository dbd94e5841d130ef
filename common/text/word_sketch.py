"""Words by their letters: short runs of the letters of texts, hashed into a sketch that stands
beside token rows.

A misspelt word falls into other tokens, but keeps most of its runs of letters. A text's runs follow
from its letters alone; each belongs to the token in which it ends. Everything is counted in
integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.machine import native
from ridgeway.common.base.settings import FEATURE_LIMIT, WordFeatures
from ridgeway.common.text.characters import CODE_POINTS, lower_letters
from ridgeway.common.text.tokenizer import Integers

Letters = NDArray[np.uint8]
Symbols = NDArray[np.uint64]
Flags = NDArray[np.bool_]

BORDER = 2
"""The symbol of a blank or a control character, and of both ends of a text."""
REPLACEMENT = 0xFFFD
"""What a byte is read as that begins no valid character."""
LONGEST_RUN = 3

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
LAST_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)


class Runs(NamedTuple):
    """The runs of letters of tokens, and where those of each token end.

    codes: twice the bucket of a run, and one more if it counts +1 instead of −1.
    """

    codes: NDArray[np.uint16]
    stops: Integers


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WordSketch:
    """What the words of a text add to its features.

    A run of letters adds its sign to one of `options.width` buckets. A window of n tokens has the
    features amplitude · bucket / n, rounded as the means of token rows are, and cut off at
    FEATURE_LIMIT.
    """

    options: WordFeatures

    @property
    def width(self) -> int:
        return self.options.width

    def runs(self, letters: Letters, stops: Integers, lengths: Integers) -> Runs:
        """The runs of one, two and three letters in texts.

        A text is its characters in lower case. A blank or a control character is a border, except
        for line breaks, and so is either end of the text. A border begins or ends a run; it does
        not stand within one, and borders alone are none.

        letters: of all tokens in one row, in UTF-8.
        stops:   where in it those of each token end.
        lengths: how many tokens each text has.
        """
        if native is not None:
            made = native.letter_runs(
                np.ascontiguousarray(letters, np.uint8),
                np.ascontiguousarray(stops, np.int64),
                np.ascontiguousarray(lengths, np.int64),
                lower_letters(),
                self.width,
            )
            codes, run_stops = map(np.frombuffer, made, (np.uint16, np.int64))
            return Runs(codes, run_stops)
        return self.reference(letters, stops, lengths)

    def reference(self, letters: Letters, stops: Integers, lengths: Integers) -> Runs:
        """The same by numpy."""
        if not len(stops):
            return Runs(np.zeros(0, np.uint16), np.zeros(0, np.int64))
        symbols, owners = _symbols(letters[: stops[-1]], stops, lengths)
        is_letter = symbols != BORDER
        # the first symbol of all is a border, which ends no run
        after_letter = np.append(False, is_letter[:-1])
        counts = np.stack([is_letter, is_letter | after_letter, after_letter], axis=1)
        keys = np.stack(
            [_keys(symbols, size) for size in range(1, LONGEST_RUN + 1)], axis=1
        )
        places, _ = np.nonzero(counts)
        sizes = np.bincount(owners[places], minlength=len(stops))
        return Runs(_codes(keys[counts], self.width), np.cumsum(sizes))

    def window_features(
        self, runs: Runs, positions: NDArray[np.int32], bounds: Integers
    ) -> NDArray[np.int16]:
        """The features of each window: ⌊(2·amplitude·count + n) / 2n⌋, none beyond FEATURE_LIMIT.

        positions: the places of the windows' tokens among those that the runs are of, in one row.
        bounds:    where in it each window begins, and the last one ends.
        """
        first = bounds[0]
        last = bounds[-1]
        chosen = positions[first:last].astype(np.int64)
        starts = np.append(0, runs.stops)[chosen]
        sizes = runs.stops[chosen] - starts
        # the runs of all windows in one row, and the window of each
        ends = np.cumsum(sizes)
        within = np.arange(sizes.sum()) - np.repeat(ends - sizes, sizes)
        codes = runs.codes[np.repeat(starts, sizes) + within].astype(np.int64)
        windows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        cells = np.repeat(windows, sizes) * self.width + (codes >> 1)
        counts = np.bincount(cells, 2 * (codes & 1) - 1, (len(bounds) - 1) * self.width)
        tokens = np.diff(bounds)[:, None]
        sums = self.options.amplitude * counts.astype(np.int64).reshape(-1, self.width)
        means = (2 * sums + tokens) // (2 * tokens)
        features: Integers = np.clip(means, -FEATURE_LIMIT, FEATURE_LIMIT)
        return features.astype(np.int16)


def _symbols(
    letters: Letters, stops: Integers, lengths: Integers
) -> tuple[Symbols, Integers]:
    """The symbols of all texts that have tokens, each text between two borders, and the token of
    each symbol.
    """
    # a character is of the token in which its last byte lies
    last_tokens = np.cumsum(lengths) - 1
    text_of_token = np.repeat(np.arange(len(lengths)), lengths)
    token_of_byte = np.searchsorted(stops, np.arange(len(letters)), side="right")
    characters, ends = _characters(letters, text_of_token[token_of_byte])
    owners = token_of_byte[ends]
    lowered = lower_letters()[characters].astype(np.uint64)
    lowered[(lowered <= ord(" ")) & (lowered != ord("\n"))] = BORDER
    # a border on either side of each text
    filled = np.flatnonzero(lengths)
    first_tokens = last_tokens[filled] - lengths[filled] + 1
    begins = np.searchsorted(owners, first_tokens)
    stops_of_texts = np.append(begins[1:], len(owners))
    places = np.stack([begins, stops_of_texts], axis=1).ravel()
    tokens = np.stack([first_tokens, last_tokens[filled]], axis=1).ravel()
    return np.insert(lowered, places, BORDER), np.insert(owners, places, tokens)


def _characters(letters: Letters, texts: Integers) -> tuple[Integers, Integers]:
    """The code points of UTF-8, and the last byte of each. No character goes beyond a text; a byte
    that begins none is one of its own.

    texts: which text each byte is of.
    """
    count = len(letters)
    padded = np.append(letters, np.zeros(3, np.uint8)).astype(np.int64)
    firsts = padded[:count]
    text_behind = np.append(texts, np.full(3, -1))
    code_points = np.full(count, REPLACEMENT)
    code_points[firsts < 0x80] = firsts[firsts < 0x80]
    sizes = np.ones(count, np.int64)
    goes_on = np.ones(count, np.bool_)
    numbers = np.zeros(count, np.int64)
    for size, first, last, least in (
        (2, 0xC0, 0xDF, 0x80),
        (3, 0xE0, 0xEF, 0x800),
        (4, 0xF0, 0xF7, 0x10000),
    ):
        byte = padded[size - 1 :][:count]
        goes_on &= (byte & 0xC0 == 0x80) & (text_behind[size - 1 :][:count] == texts)
        numbers = numbers << 6 | byte & 0x3F
        whole = (firsts & 0x7F >> size) << 6 * (size - 1) | numbers
        valid = goes_on & (first <= firsts) & (firsts <= last)
        valid &= (
            (least <= whole) & (whole < CODE_POINTS) & (whole >> 11 != 0xD800 >> 11)
        )
        code_points[valid] = whole[valid]
        sizes[valid] = size
    inside = np.zeros(count + 3, np.bool_)
    for back in (1, 2, 3):
        inside[back : count + back] |= sizes > back
    starts = np.flatnonzero(~inside[:count])
    return code_points[starts], starts + sizes[starts] - 1


def _keys(symbols: Symbols, size: int) -> Symbols:
    """The key of the run of so many symbols that ends at each: ((size·M + s₁)·M + …)·M + sₙ,
    modulo 2⁶⁴, where M is MULTIPLIER. Where there are not so many symbols, it means nothing.
    """
    keys = np.full(len(symbols), size, np.uint64)
    for back in reversed(range(size)):
        keys = keys * MULTIPLIER + np.roll(symbols, back)
    return keys


def _codes(keys: Symbols, width: int) -> NDArray[np.uint16]:
    half = np.uint64(32)
    mixed = keys * MULTIPLIER
    mixed ^= mixed >> half
    mixed *= LAST_MULTIPLIER
    # the upper half chooses the bucket
    buckets = (mixed >> half) * np.uint64(width) >> half
    signs = (mixed ^ mixed >> half) & np.uint64(1)
    return (buckets << np.uint64(1) | signs).astype(np.uint16)
