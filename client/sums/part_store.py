"""Parts: kept sums over stretches of a corpus, each with the files it covers, so that work is never
done twice.

They name private files, so they stay in a folder that only the holder can read. Runs on many
machines may share it, or have one each, which are copied together. How they divide a corpus depends
on its files' names, sizes and order alone, so that no run needs to know of another.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ridgeway.client.sums.corpus import MAX_PLACES, CorpusFile, Counters
from ridgeway.client.sums.corpus_places import (
    FileStatus,
    absolute,
    file_status,
    is_url,
    place_name,
)
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import canonical_json, sha256, write_whole
from ridgeway.common.statistics import Integers

_FORMAT = "ridgeway.part"
_VERSION = 1
_PART_WORD = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as it was when it was read, or a piece of it: if any of this differs, it is read
    again.
    """

    path: str
    size: int
    modified: int
    changed: int
    inode: int
    begin: int = 0
    end: int = -1

    @property
    def bytes(self) -> int:
        """The size of the piece."""
        return (self.size if self.end < 0 else self.end) - self.begin

    @property
    def status(self) -> FileStatus:
        return FileStatus(self.size, self.modified, self.changed, self.inode)

    @property
    def name(self) -> str:
        """The file as the holder named it."""
        return place_name(Path(self.path))


def stamped(sources: Iterable[CorpusFile]) -> dict[Stamp, CorpusFile]:
    """Files and pieces by what they are now. Each file is asked once, however many pieces it has:
    stores are far.
    """
    status = cache(file_status)
    stamps: dict[Stamp, CorpusFile] = {}
    for source in sources:
        path = absolute(source.path)
        stamps[Stamp(str(path), *status(path), source.begin, source.end)] = source
    return stamps


def part_numbers(word: str) -> tuple[int, int]:
    """`3/64` → 3 and 64."""
    match = _PART_WORD.fullmatch(word)
    if not match or int(match[1]) > int(match[2]):
        raise InputError(
            f"{word!r} is not a part of a corpus; use --part 3/64 for the third of 64 "
            "parts"
        )
    return int(match[1]), int(match[2])


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


def first_changed(stamps: Iterable[Stamp]) -> Stamp | None:
    """The first of them whose file is no longer as it was, or is gone. Raises InputError if a store
    cannot be asked.
    """
    status = cache(_status)
    return next((stamp for stamp in stamps if status(stamp.path) != stamp.status), None)


def _status(path: str) -> FileStatus | None:
    try:
        return file_status(Path(path))
    except OSError:  # it is gone
        return None


@dataclass(frozen=True, slots=True)
class Stretch:
    """The documents `start` ≤ n < `stop` of a file or a piece; `ends_file` if no more follow in
    it.
    """

    stamp: Stamp
    start: int
    stop: int
    ends_file: bool


@dataclass(frozen=True, slots=True, eq=False)
class StoredPart:
    """Sums over some stretches, and what was met in them. broken: the places of records that were
    passed over.
    """

    stretches: tuple[Stretch, ...]
    counters: Counters
    state: Mapping[str, Integers]
    broken: tuple[str, ...] = ()

    def __add__(self, other: StoredPart) -> StoredPart:
        """The part over the stretches of both, which must not overlap."""
        counters = replace(self.counters)
        counters.add(other.counters)
        state = {name: sums + other.state[name] for name, sums in self.state.items()}
        broken = (*self.broken, *other.broken)[:MAX_PLACES]
        return StoredPart((*self.stretches, *other.stretches), counters, state, broken)

    def to_bytes(self) -> bytes:
        header: dict[str, object] = {
            "format": _FORMAT,
            "version": _VERSION,
            "stretches": [
                [asdict(stretch.stamp), stretch.start, stretch.stop, stretch.ends_file]
                for stretch in self.stretches
            ],
            "counters": asdict(self.counters),
            "broken": list(self.broken),
        }
        header["digest"] = _digest(header, self.state)
        return save(dict(self.state), metadata={"ridgeway": json.dumps(header)})

    @classmethod
    def from_bytes(cls, content: bytes) -> StoredPart | None:
        """The inverse; None if it is damaged or of another version: it is then made again."""
        try:
            size = int.from_bytes(content[:8], "little")
            header = json.loads(
                json.loads(content[8 : 8 + size])["__metadata__"]["ridgeway"]
            )
            state = load(content)
            digest = header.pop("digest")
            if (
                header["format"] != _FORMAT
                or header["version"] != _VERSION
                or digest != _digest(header, state)
            ):
                return None
            stretches = tuple(
                Stretch(Stamp(**stamp), *rest) for stamp, *rest in header["stretches"]
            )
            return cls(
                stretches,
                Counters(**header["counters"]),
                state,
                tuple(header.get("broken", ())),
            )
        except (SafetensorError, KeyError, TypeError, ValueError):
            return None


class PartStore:
    """The parts of one way of summing: `terms` is everything, files apart, that the sums depend
    on.
    """

    def __init__(self, kept: Path, terms: Mapping[str, object]) -> None:
        self._folder = kept / "prepared" / sha256(canonical_json(terms))

    def save(self, part: StoredPart) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(
            self._folder / f"{time.time_ns():020}.part", part.to_bytes(), private=True
        )

    def usable(self, stamps: Set[Stamp]) -> list[StoredPart]:
        """The parts that lie within these files and do not overlap, oldest first. Outdated ones are
        removed.

        stamps: of files as they are now. Of other corpora's files, those on this machine are looked
                at; stores are not
        asked, which may be far or closed, so what was kept of theirs stays.
        """
        chosen: list[StoredPart] = []
        reached: dict[Stamp, int] = {}
        now: dict[str, FileStatus | None] = {
            stamp.path: stamp.status for stamp in stamps
        }
        for path in sorted(self._folder.glob("*.part")):
            part = _read(path)
            if part is None or any(
                _outdated(stretch.stamp, now) for stretch in part.stretches
            ):
                path.unlink(missing_ok=True)
            elif all(
                stretch.stamp in stamps
                and stretch.start == reached.get(stretch.stamp, 0)
                for stretch in part.stretches
            ):
                chosen.append(part)
                for stretch in part.stretches:
                    # nothing follows the end of a file
                    reached[stretch.stamp] = -1 if stretch.ends_file else stretch.stop
        return chosen

    def clear(self) -> None:
        """Forget every part."""
        for path in self._folder.glob("*.part"):
            path.unlink(missing_ok=True)


def _outdated(stamp: Stamp, now: dict[str, FileStatus | None]) -> bool:
    """now: what is known of files; gets what is found out."""
    if stamp.path not in now:
        if is_url(Path(stamp.path)):
            return False
        now[stamp.path] = _status(stamp.path)
    return now[stamp.path] != stamp.status


def _read(path: Path) -> StoredPart | None:
    try:
        return StoredPart.from_bytes(path.read_bytes())
    except OSError:
        return None


def _digest(header: Mapping[str, object], state: Mapping[str, Integers]) -> str:
    """Over all that a part says. Names of files need not be UTF-8, so the header is hashed and kept
    as ASCII.
    """
    words = json.dumps([header, sorted(state)], sort_keys=True).encode()
    return sha256(
        words,
        *(
            np.ascontiguousarray(state[name], dtype="<i8").data
            for name in sorted(state)
        ),
    )
