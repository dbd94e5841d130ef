"""Characters as encoders read them, as typed and mistyped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, pairwise
from unicodedata import ucd_3_2_0

import numpy as np
from numpy.typing import NDArray

# Lower case that is the same on every machine, whatever Unicode its Python knows.
#
# Python's own lower case grows with Unicode, and knows two letters whose lower case is two letters
# or depends on their neighbours. Those stay as they are, and so do letters that came after Unicode
# 3.2, whose tables every Python carries.


CODE_POINTS = 0x110000

ODD_LETTERS = "\u0130\u03a3"
"""İ becomes two letters, and Σ one of two."""

_ALPHABETS = (range(0x2500), range(0xFF00, 0x10000), range(0x10400, 0x10450))
"""Where those tables have letters with a lower case."""


def lower_case(text: str) -> str:
    """The text in lower case; it is as long as before."""
    if text.isascii():
        return text.lower()
    letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return lower_letters().take(letters).tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=1)
def lower_letters() -> NDArray[np.uint32]:
    """What every code point becomes."""
    table = np.arange(CODE_POINTS, dtype="<u4")
    for letter in map(chr, chain(*_ALPHABETS)):
        if (
            letter not in ODD_LETTERS
            and letter.lower() != letter
            and ucd_3_2_0.category(letter) != "Cn"
        ):
            table[ord(letter)] = ord(letter.lower())
    return table


# Beginnings of texts with errors as people type them: the same for a text on every machine,
# whatever stands beside it.
#
# Everything follows from a hash of the beginning, in whole numbers.


MISTYPED_CHARACTERS = 240
"""How much of a text is copied."""

LEAST_PERCENT = 3
MOST_PERCENT = 25
"""How many characters have errors, at least and at most: each text has a rate of its own."""

CAPITALS_EVERY = 4
"""One text in this many is in capitals."""

_NAME = b"ridgeway.typing.1"
"""What is hashed with every text: another rule has another name."""

Codes = NDArray[np.uint32]
_Places = NDArray[np.int64]
Seeds = NDArray[np.uint64]

REPLACED, DROPPED, DOUBLED, SWAPPED = range(4)
"""What happens to a character: the last two have a letter after them, or change places with the one
before.
"""

_STEPS = np.arange(1, MISTYPED_CHARACTERS + 1, dtype=np.uint64) * np.uint64(
    0x9E3779B97F4A7C15
)
MIXERS = (
    (30, np.uint64(0xBF58476D1CE4E5B9)),
    (27, np.uint64(0x94D049BB133111EB)),
    (31, np.uint64(1)),
)
"""Of splitmix64, which has a number for every place of a text."""


def with_mistyped_copies(texts: Sequence[str]) -> list[str]:
    """The texts, and behind them as many mistyped beginnings, in the same order."""
    return [*texts, *mistyped(texts)]


def mistyped(texts: Sequence[str]) -> list[str]:
    """The beginning of each text, with errors."""
    begun = [text[:MISTYPED_CHARACTERS] for text in texts]
    coded = "".join(begun).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(coded, dtype="<u4").astype(np.uint32, copy=False)
    lengths = np.fromiter(map(len, begun), np.int64, len(begun))
    cuts = [0, *(4 * np.cumsum(lengths)).tolist()]
    digests = b"".join(
        [
            hashlib.sha256(_NAME + coded[start:stop]).digest()
            for start, stop in pairwise(cuts)
        ]
    )
    seeds = np.frombuffer(digests, dtype="<u8").reshape(-1, 4)[:, :2].astype(np.uint64)
    row, ends = mistypes(codes, lengths, seeds)
    whole = row.astype("<u4", copy=False).tobytes().decode("utf-32-le", "surrogatepass")
    return [whole[start:stop] for start, stop in pairwise([0, *ends.tolist()])]


def mistypes(codes: Codes, lengths: _Places, seeds: Seeds) -> tuple[Codes, _Places]:
    """What errors leave of texts that stand in one row, and where each ends there. seeds: two
    numbers a text.
    """
    ends = np.cumsum(lengths)
    # of each text: how many characters in a hundred have errors, and whether it is in capitals
    choices = seeds[:, 1]
    percents = LEAST_PERCENT + choices % np.uint64(MOST_PERCENT - LEAST_PERCENT + 1)
    capitals = choices >> np.uint64(32) & np.uint64(CAPITALS_EVERY - 1) == 0
    # a roll for every place: there is an error if its last 16 bits are below the rate
    rolls = _mixed(seeds[:, :1] + _STEPS)
    rates = (percents * np.uint64(1 << 16) + np.uint64(99)) // np.uint64(100)
    texts, positions = np.nonzero(rolls.astype(np.uint16) < rates[:, None])
    inside = positions < lengths[texts]
    texts = texts[inside]
    positions = positions[inside]
    struck = (ends - lengths)[texts] + positions
    written = _in_capitals(codes, np.repeat(capitals, lengths))
    return _with_errors(written, struck, rolls[texts, positions], positions > 0, ends)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, multiplier in MIXERS:
        values ^= values >> np.uint64(shift)
        values *= multiplier
    return values


def _in_capitals(codes: Codes, chosen: NDArray[np.bool_]) -> Codes:
    """ASCII's small letters as capitals where they are chosen."""
    return codes - np.uint32(32) * (chosen & (codes - np.uint32(ord("a")) < 26))


def _with_errors(
    codes: Codes,
    struck: _Places,
    rolls: NDArray[np.uint64],
    has_before: NDArray[np.bool_],
    ends: _Places,
) -> tuple[Codes, _Places]:
    """What errors at the places that are struck leave of the texts, and where each ends; they stand
    in one row.
    """
    kinds = rolls >> np.uint64(16) & np.uint64(3)
    fractions = rolls >> np.uint64(32)
    letters = ord("a") + (fractions * np.uint64(26) >> np.uint64(32)).astype(np.uint32)
    written = codes.copy()
    # of several swaps in a row, the first alone: pairs do not overlap
    swapped = kinds == SWAPPED
    second = struck[swapped]
    after_another = np.diff(second, prepend=-2) == 1
    second = second[~after_another & has_before[swapped]]
    written[second] = codes[second - 1]
    written[second - 1] = codes[second]
    replaced = kinds == REPLACED
    written[struck[replaced]] = letters[replaced]
    # how many characters each becomes; a doubled one has a letter behind it
    doubled = kinds == DOUBLED
    sizes = np.ones(len(codes), dtype=np.int64)
    sizes[struck[kinds == DROPPED]] = 0
    sizes[struck[doubled]] = 2
    stops = np.append(0, np.cumsum(sizes))
    row = np.repeat(written, sizes)
    row[stops[struck[doubled]] + 1] = letters[doubled]
    return row, stops[ends]
