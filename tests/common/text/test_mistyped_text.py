"""Copies with typing errors: the same everywhere, whatever stands beside a text, and as wrong as is
said of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.text.characters import (
    _NAME,
    MISTYPED_CHARACTERS,
    mistyped,
    with_mistyped_copies,
)

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "mistyped.json").read_text()
)
MASK = (1 << 64) - 1

texts = st.text(max_size=300) | st.text("abc XYZ", min_size=20, max_size=400)


def rolls(seed: int) -> Iterator[int]:
    """Splitmix64, in Python's own numbers."""
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        value = seed
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
        value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
        yield value ^ value >> 31


def mistyped_slowly(text: str) -> str:
    """The rule, one character after another."""
    begun = text[:MISTYPED_CHARACTERS]
    digest = hashlib.sha256(_NAME + begun.encode("utf-32-le", "surrogatepass")).digest()
    seed, more = (int.from_bytes(digest[at : at + 8], "little") for at in (0, 8))
    percent = 3 + more % 23
    if more >> 32 & 3 == 0:
        begun = "".join(
            letter.upper() if letter.isascii() else letter for letter in begun
        )
    drawn = [roll for roll, _ in zip(rolls(seed), begun, strict=False)]
    strikes = [(roll & 0xFFFF) * 100 < percent << 16 for roll in drawn]
    kinds = [
        roll >> 16 & 3 if struck else -1
        for roll, struck in zip(drawn, strikes, strict=True)
    ]
    row = list(begun)
    for position, kind in enumerate(kinds):
        if kind == 3 and position and kinds[position - 1] != 3:
            row[position - 1], row[position] = row[position], row[position - 1]
    written = ""
    for letter, kind, roll in zip(row, kinds, drawn, strict=True):
        other = chr(ord("a") + ((roll >> 32) * 26 >> 32))
        written += {0: other, 1: "", 2: letter + other}.get(kind, letter)
    return written


@given(st.lists(texts, max_size=6))
def test_copies_are_the_rule_s_whatever_stands_beside_them(given: list[str]) -> None:
    """One by one in Python, or all at once in numpy; lone surrogates and empty texts too."""
    assert mistyped(given) == [mistyped_slowly(text) for text in given]
    assert mistyped(given) == [copy for text in given for copy in mistyped([text])]
    assert with_mistyped_copies(given) == given + mistyped(given)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["text"][:12])
def test_copies_are_those_of_every_machine(vector: dict[str, str]) -> None:
    """Two holders of one text have the same samples of it, also years from now."""
    assert mistyped([vector["text"]]) == [vector["copy"]]
