"""The compiled module `ridgeway._native`, or None where it is missing or turned off.

Every caller has a reference in Python, which gives the same and takes longer.
"""

from __future__ import annotations

import os
from array import array

__all__ = ["native", "why_not"]

_SWITCH = "RIDGEWAY_NATIVE"
"""Set to 0, this variable turns the module off."""

IDS = array("i", [0, 1, 1])
_TABLE = [-3, 4, 10, 5]
_LETTERS = b"ab c"
STARTS = array("q", [0, 3, 4])
_SIZES = 2, 3
"""Three tokens of a table of two rows, which are spelt `ab ` and `c`."""


def _agrees() -> bool:
    """Whether the module gives known results."""
    means = array("h", bytes(2 * 2 * (2 + 3)))
    spelling = _LETTERS, STARTS
    bounds = array("q", [0, 1, 3])
    native.row_means(
        array("h", _TABLE), 2, IDS, bounds, means, *spelling, 3, 7, *_SIZES
    )
    buckets = array("i", [1, 0, 0, 1, 2, 2])
    counts = array("q", [3])
    rows = array("i", _TABLE)
    sums = native.token_sums(IDS, counts, rows, 2, buckets, *spelling, *_SIZES)
    classes = b"\2" * 0x110000
    byte_ids = array("i", range(256))
    merge = array("I", [97, 98, 256])
    tables = classes, byte_ids.tobytes(), merge.tobytes(), b"", b"", b"", b""
    ids, _ = native.Encoder(0, *tables).encode_many(["aabc"])
    return (
        hasattr(native, "sentence_vectors")
        and means.tolist() == [-3, 4, 7, 7, -7, 10, 5, -3, -14, 0]
        and array("q", sums).tolist() == [15, 9]
        and array("I", ids).tolist() == [97, 256, 99]
    )


why_not = "turned off by RIDGEWAY_NATIVE=0" if os.environ.get(_SWITCH) == "0" else ""
"""Why there is no module; empty if there is."""

if not why_not:
    try:
        import ridgeway._native as native
    except ImportError:
        why_not = "not built: install a wheel, or install a C compiler before Ridgeway"
    else:
        why_not = "" if _agrees() else "wrong results: rebuild it"
if why_not:
    native = None  # type: ignore[assignment]
