"""Lower case that is the same on every machine, whatever Unicode its Python knows: one letter for
one letter.

Python's own lower case grows with Unicode, and knows two letters whose lower case is two letters or
depends on their neighbours. Those stay as they are, and so do letters that came after Unicode 3.2,
whose tables every Python carries.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import chain
from unicodedata import ucd_3_2_0

import numpy as np
from numpy.typing import NDArray

ODD_LETTERS = "\u0130\u03a3"
"""İ becomes two letters, and Σ one of two."""

ALPHABETS = (range(0x2500), range(0xFF00, 0x10000), range(0x10400, 0x10450))
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
    table = np.arange(sys.maxunicode + 1, dtype="<u4")
    for letter in map(chr, chain(*ALPHABETS)):
        if (
            letter not in ODD_LETTERS
            and letter.lower() != letter
            and ucd_3_2_0.category(letter) != "Cn"
        ):
            table[ord(letter)] = ord(letter.lower())
    return table


@lru_cache(maxsize=1)
def lower_table() -> memoryview:
    """The same as a view, which takes a microsecond less to hand on than an array."""
    return lower_letters().data
