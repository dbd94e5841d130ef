"""A corpus divided among runs on any machines: who sums which pieces, and how the sums become one
file again.

The division depends on the files' names, sizes and order alone, so that no run needs to know of
another. The file that all parts add up to is, byte for byte, the one that a single run makes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

from ridgeway.client.sums.part_store import Stamp
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.statistics.statistics_file import CorpusPart, Prepared

PART_WORD = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


def part_numbers(word: str) -> tuple[int, int]:
    """`3/64` → 3 and 64."""
    found = PART_WORD.fullmatch(word)
    if not found or int(found[1]) > int(found[2]):
        raise InputError(
            f"{word!r} is not a part of a corpus; use --part 3/64 for the third of 64 "
            "parts"
        )
    return int(found[1]), int(found[2])


def pieces_of(stamps: Sequence[Stamp], number: int, of: int) -> list[Stamp]:
    """The pieces of a part: pieces stand in one row, which is divided by bytes."""
    total = sum(stamp.bytes for stamp in stamps)
    before = 0
    chosen = []
    for stamp in stamps:
        middle = 2 * before + stamp.bytes
        if min(of, 1 + middle * of // max(1, 2 * total)) == number:
            chosen.append(stamp)
        before += stamp.bytes
    return chosen


def corpus_digest(terms: Mapping[str, object], stamps: Iterable[Stamp]) -> str:
    """Equal in runs that sum the same files, unchanged, in the same way, wherever the files' folder
    is mounted.
    """
    each = list(stamps)
    above = os.path.commonpath([os.path.dirname(stamp.path) for stamp in each])  # noqa: PTH120
    files = [
        (os.path.relpath(one.path, above), one.size, one.modified, one.begin, one.end)
        for one in each
    ]
    return sha256(canonical_json(terms), repr(files).encode(errors="surrogateescape"))


def add_parts(files: Mapping[Path, Prepared]) -> tuple[Prepared, dict[str, int], float]:
    """The file of the whole corpus, what was met in it, and the share of its records that may be
    passed over.

    Raises InputError unless all parts of one corpus are there, once each.
    """
    parts = {path: _part(path, prepared) for path, prepared in files.items()}
    (first, model), *others = files.items()
    for path, prepared in others:
        for what, one, other in _compared(prepared, model, parts[path], parts[first]):
            if one != other:
                raise InputError(
                    f"mismatch: {path} has {what} {one}, and {first} has {other}; "
                    "parts of one corpus must agree"
                )
    _must_be_all(parts)
    met = {
        name: sum(part.met[name] for part in parts.values())
        for name in parts[first].met
    }
    total = reduce(add, (prepared.statistics for prepared in files.values()))
    return replace(model, statistics=total, part=None), met, parts[first].skip_broken


def _part(path: Path, prepared: Prepared) -> CorpusPart:
    if prepared.part is None:
        raise InputError(f"{path} contains a whole corpus, not a part; give parts only")
    return prepared.part


def _compared(
    one: Prepared, other: Prepared, part: CorpusPart, model: CorpusPart
) -> Iterable[tuple[str, str, str]]:
    yield "the domain", one.domain, other.domain
    yield (
        "the encoder",
        f"{one.encoder_name} {one.fingerprint[:12]}",
        f"{other.encoder_name} {other.fingerprint[:12]}",
    )
    yield "sampling in", str(one.sampling), str(other.sampling)
    yield "the held-out share", f"{one.holdout:g}", f"{other.holdout:g}"
    yield "a division by", str(part.of), str(model.of)
    yield (
        "the share of broken records",
        f"{part.skip_broken:g}",
        f"{model.skip_broken:g}",
    )
    yield (
        "the text fields, or files (they may have changed)",
        part.corpus[:12],
        model.corpus[:12],
    )


def _must_be_all(parts: Mapping[Path, CorpusPart]) -> None:
    found: dict[int, Path] = {}
    for path, part in parts.items():
        if part.number in found:
            raise InputError(
                f"{found[part.number]} and {path} both contain {part}; give each part "
                "once"
            )
        found[part.number] = path
    of = next(iter(parts.values())).of
    missing = [str(number) for number in range(1, of + 1) if number not in found]
    if missing:
        listed = ", ".join(missing[:8]) + (
            f" and {len(missing) - 8:,} more" if len(missing) > 8 else ""
        )
        are = "is" if len(missing) == 1 else "are"
        raise InputError(
            f"of {of} parts, {listed} {are} missing; sum them with `ridgeway client"
            " prepare --part`"
        )
