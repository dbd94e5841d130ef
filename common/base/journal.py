"""A journal: entries that are only ever added, each chained to the one before by its hash, in a
SQLite file.

Either all entries of an `append` are there after a crash or none. A journal that may not be
written, such as one in an archive, can be read.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import DiskFull, JournalError
from ridgeway.common.base.files import sha256, syncs
from ridgeway.common.base.records import record_json

START = "0" * 64
SCHEMA = """
create table if not exists entries (
    number integer primary key,
    time text not null,
    kind text not null,
    facts text not null,
    hash text not null
) strict
"""
BUSY_TIMEOUT_S = 30.0
NOT_WRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
"""What SQLite says where it may not write beside a file that it would read."""

Clock = Callable[[], datetime]
Row = tuple[int, str, str, str, str]
"""An entry as it lies in the file: its number, time, kind, facts in canonical JSON, and hash."""


def system_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Something that happened. hash: over the hash of the entry before and all that this one
    says.
    """

    number: int
    time: str
    kind: str
    facts: Mapping[str, Any]
    hash: str


class Journal:
    """Law: `verify` passes after any sequence of appends and crashes, and fails after any change to
    an entry.
    """

    def __init__(self, path: Path, clock: Clock = system_clock) -> None:
        self.path = path
        self._clock = clock
        self._opened: sqlite3.Connection | None = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, so that it may be moved."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def append(self, *events: tuple[str, Mapping[str, Any]]) -> list[JournalEntry]:
        """Add entries, all or none; they are on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as database:
            database.execute(SCHEMA)
            database.execute("begin immediate")
            last = database.execute(
                "select number, hash from entries order by number desc limit 1"
            ).fetchone()
            number, previous = last or (0, START)
            added = []
            for kind, facts in events:
                number += 1
                time = self._clock().isoformat(timespec="milliseconds")
                words = record_json(dict(facts)).decode()
                previous = _hash(number, time, kind, words, previous)
                added.append(JournalEntry(number, time, kind, facts, previous))
                database.execute(
                    "insert into entries values (?, ?, ?, ?, ?)",
                    (number, time, kind, words, previous),
                )
            database.execute("commit")
        return added

    def entries(self, *kinds: str, after: int = 0) -> list[JournalEntry]:
        """The entries from some number on, in their order; of some kinds only, if any are named."""
        return [self._decoded(*row) for row in self._rows(kinds, after)]

    def _rows(self, kinds: Sequence[str] = (), after: int = 0) -> list[Row]:
        if not self.path.exists():
            return []
        wanted = f" and kind in ({', '.join('?' * len(kinds))})" if kinds else ""
        query = (
            "select number, time, kind, facts, hash from entries where number >"
            f" ?{wanted} order by number"
        )
        with self._connected() as database:
            try:
                return database.execute(query, (after, *kinds)).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # nothing was ever added
                    return []
                raise

    def _decoded(
        self, number: int, time: str, kind: str, words: str, hash_: str
    ) -> JournalEntry:
        try:
            facts = json.loads(words)
            if isinstance(facts, dict):
                return JournalEntry(number, time, kind, facts, hash_)
        except (ValueError, RecursionError):
            pass
        raise JournalError(
            f"{self.path}: entry {number} was altered after it was written; restore "
            "the file from a backup"
        )

    def verify(self) -> int:
        """Walk the chain; raises at the first entry that is not what was written. Returns the
        number of entries.
        """
        previous = START
        rows = self._rows()
        for expected, (number, time, kind, words, hash_) in enumerate(rows, 1):
            if number != expected:
                raise JournalError(
                    f"{self.path}: entry {expected} is missing; restore the file from "
                    "a backup"
                )
            if (
                not words.endswith("\n")
                or _hash(number, time, kind, words, previous) != hash_
            ):
                raise JournalError(
                    f"{self.path}: entry {number} ({kind}) or the one before it was "
                    "modified after it was written; restore the file from a backup"
                )
            previous = hash_
        return len(rows)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._opened is None:
                self._opened = self._open()
            yield self._opened
        except sqlite3.OperationalError as error:
            kind: type[JournalError] = JournalError
            reason = str(error)
            if "disk" in reason:
                kind = DiskFull
                reason = (
                    "the disk may be full, or the file read-only; free some space and "
                    "try again"
                )
            raise kind(f"{self.path} is not available now: {reason}") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise JournalError(
                f"{self.path} is unusable ({error}); restore it from a backup"
            ) from error
        finally:
            if self._opened is not None and self._opened.in_transaction:
                self._opened.rollback()

    def _open(self) -> sqlite3.Connection:
        """A connection that is kept as long as the journal is in use."""
        database = self._connect(self.path)
        try:
            database.execute("pragma journal_mode = wal")
            database.execute("pragma fullfsync = on")  # as `flush` does on macOS
            database.execute(f"pragma synchronous = {'full' if syncs() else 'off'}")
        except sqlite3.OperationalError as error:
            if (
                error.sqlite_errorcode & 0xFF not in NOT_WRITABLE
                or not self.path.exists()
            ):
                raise
            return self._open_copy()
        return database

    def _open_copy(self) -> sqlite3.Connection:
        """A connection to a copy that is only read and ends with this journal: SQLite writes beside
        what it reads.
        """
        temporary = tempfile.TemporaryDirectory(prefix="ridgeway-journal-")
        weakref.finalize(self, temporary.cleanup)
        folder = Path(temporary.name)
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            if path.exists():
                shutil.copyfile(path, folder / path.name)
        database = self._connect(folder / self.path.name)
        database.execute("pragma query_only = on")
        return database

    def _connect(self, path: Path) -> sqlite3.Connection:
        # A journal is used by one thread at a time, but any thread's garbage collection may be what
        # closes it.
        database = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        weakref.finalize(self, database.close)
        return database


def _hash(number: int, time: str, kind: str, words: str, previous: str) -> str:
    """The hash of an entry: over the one before, and the canonical JSON of all that the entry says.

    words: its facts in canonical JSON, which stand in the entry's own as they are, but for one more
           space a line.
    """
    before, after = record_json(
        {"number": number, "time": time, "kind": kind, "facts": None}
    ).split(b"null", 1)
    facts = words.removesuffix("\n").replace("\n", "\n ").encode()
    return sha256(previous.encode(), before + facts + after)
