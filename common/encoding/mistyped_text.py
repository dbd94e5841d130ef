"""Beginnings of texts with errors as people type them: the same for a text on every machine, whatever stands beside it.

Everything follows from a hash of the beginning, in whole numbers. Knows numpy. Knows nothing of tokens or sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MISTYPED_CHARACTERS = 240
"""How much of a text is copied."""

LEAST_PERCENT, MOST_PERCENT = 3, 25
"""How many characters have errors, at least and at most: each text has a rate of its own."""

CAPITALS_EVERY = 4
"""One text in this many is in capitals."""

NAME = b"ridgeway.typing.1"
"""What is hashed with every text: another rule has another name."""

Codes = NDArray[np.uint32]

KEPT, REPLACED, DROPPED, DOUBLED, SWAPPED = -1, 0, 1, 2, 3
"""What happens to a character: the last two have a letter after them, or change places with the one before."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIXERS = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)), (31, np.uint64(1)))
"""Of splitmix64."""


def with_mistyped_copies(texts: Sequence[str]) -> list[str]:
    """The texts, and behind them as many mistyped beginnings, in the same order."""
    return [*texts, *mistyped(texts)]


def mistyped(texts: Sequence[str]) -> list[str]:
    """The beginning of each text, with errors."""
    begun = [text[:MISTYPED_CHARACTERS] for text in texts]
    coded = "".join(begun).encode("utf-32-le", "surrogatepass")
    codes, lengths = np.frombuffer(coded, dtype="<u4"), np.fromiter(map(len, begun), np.int64, len(begun))
    ends = np.cumsum(lengths)
    cuts = [0, *(4 * ends).tolist()]
    digests = b"".join(hashlib.sha256(NAME + coded[start:stop]).digest()[:16] for start, stop in pairwise(cuts))
    seeds = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    percents = LEAST_PERCENT + seeds[:, 1] % np.uint64(MOST_PERCENT - LEAST_PERCENT + 1)
    capitals = seeds[:, 1] >> np.uint64(32) & np.uint64(CAPITALS_EVERY - 1) == 0
    owners = np.repeat(np.arange(len(texts)), lengths)
    places = np.arange(len(codes)) - (ends - lengths)[owners]
    rolls = _mixed(seeds[owners, 0] + (places + 1).astype(np.uint64) * GOLDEN)
    strikes = (rolls & np.uint64(0xFFFF)) * np.uint64(100) < percents[owners] << np.uint64(16)
    kinds = np.where(strikes, (rolls >> np.uint64(16) & np.uint64(3)).astype(np.int64), KEPT)
    letters = ord("a") + ((rolls >> np.uint64(32)) * np.uint64(26) >> np.uint64(32)).astype(np.uint32)
    return _written(_in_capitals(codes, capitals[owners]), kinds, letters, places, ends)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, multiplier in MIXERS:
        values = (values ^ values >> np.uint64(shift)) * multiplier
    return values


def _in_capitals(codes: Codes, chosen: NDArray[np.bool_]) -> Codes:
    """ASCII's small letters as capitals where they are chosen."""
    return np.where(chosen & (codes >= ord("a")) & (codes <= ord("z")), codes - 32, codes).astype("<u4")


def _written(
    codes: Codes, kinds: NDArray[np.int64], letters: Codes, places: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[str]:
    """What the errors leave of the texts, which stand in one row up to their ends."""
    swaps = kinds == SWAPPED
    swaps[1:] &= kinds[:-1] != SWAPPED  # of several in a row, the first alone: pairs do not overlap
    second = np.flatnonzero(swaps & (places > 0))
    written = codes.copy()
    written[second], written[second - 1] = codes[second - 1], codes[second]
    written[kinds == REPLACED] = letters[kinds == REPLACED]
    sizes = np.where(kinds == DROPPED, 0, np.where(kinds == DOUBLED, 2, 1))
    stops = np.append(0, np.cumsum(sizes))
    row = np.repeat(written, sizes)
    row[stops[1:][kinds == DOUBLED] - 1] = letters[kinds == DOUBLED]
    whole = row.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    return [whole[start:stop] for start, stop in pairwise([0, *stops[ends].tolist()])]
