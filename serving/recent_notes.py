"""Where conversations are and responses lie: notes under digests, of those that were heard last.

Kept are the digest, a domain and experts' names; no text. Workers share what they know.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import weakref
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing.conversations import digest
from ridgeway.common.web.key_budgets import open_shared

LOOKED_AT_BYTES = 65_536
RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp[^"\\]{1,200})"')
MAX_NOTES = 100_000
NOTE_WAIT_S = 0.02
"""For another worker that writes: every request of this process waits as long."""
MAX_UNWRITTEN = 1_000
_TABLE = (
    "CREATE TABLE IF NOT EXISTS notes (number INTEGER PRIMARY KEY, key BLOB UNIQUE,"
    " names TEXT)"
)

log = logging.getLogger("ridgeway.serve")

_Note = TypeVar("_Note")


class Assignment(NamedTuple):
    """Where a conversation is.

    domain:   None if the router abstained.
    answered: who gave the last answer, perhaps in the expert's place; tools that it asked for are
              its own.
    """

    domain: str | None
    expert: str
    answered: str


class RecentNotes(Generic[_Note]):
    """A note for each key; of more than MAX_NOTES and a thousandth, those that were noted last.

    kind: what a note is, made of its fields.
    path: a file that processes share; without one, they are this process's own. What cannot be
          written at once, because
    another process writes, is known here, and is written with the next note. Where the file cannot
    be used any more,
    what stands in it is not known.
    """

    def __init__(self, kind: type[_Note], path: Path | None = None) -> None:
        self._kind = kind
        try:
            self._file = (
                sqlite3.connect(
                    ":memory:", isolation_level=None, check_same_thread=False
                )
                if path is None
                else open_shared(path, NOTE_WAIT_S)
            )
            weakref.finalize(self, self._file.close)
            self._unwritten: dict[bytes, str] = {}
            self._noted = 0
            self._file.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            raise InputError(
                f"the file {path} that workers share cannot be made: {error}; give its"
                " folder room, or remove the file"
            ) from None

    def find(self, key: bytes) -> _Note | None:
        if key in self._unwritten:
            return self._kind(*json.loads(self._unwritten[key]))
        try:
            row = self._file.execute(
                "SELECT names FROM notes WHERE key = ?", (key,)
            ).fetchone()
        except sqlite3.Error as error:
            log.error("what was noted cannot be read: %s", error)
            return None
        return None if row is None else self._kind(*json.loads(row[0]))

    def note(self, key: bytes, note: _Note) -> None:
        """A key that is noted again has the highest number again."""
        self._unwritten.pop(key, None)
        self._unwritten[key] = json.dumps(note)
        try:
            put = (
                "INSERT OR REPLACE INTO notes SELECT coalesce(max(number), 0) + 1, ?, ?"
                " FROM notes"
            )
            while self._unwritten:
                oldest = next(iter(self._unwritten))
                self._file.execute(put, (oldest, self._unwritten[oldest]))
                del self._unwritten[oldest]
            self._noted += 1
            if self._noted >= MAX_NOTES // 1000:  # to look for old ones takes long
                self._noted = 0
                self._file.execute(
                    "DELETE FROM notes"
                    " WHERE number <= (SELECT max(number) FROM notes) - ?",
                    (MAX_NOTES,),
                )
        except sqlite3.Error as error:
            log.error("nothing can be noted: %s", error)
            if len(self._unwritten) > MAX_UNWRITTEN:
                del self._unwritten[next(iter(self._unwritten))]


class Owner(NamedTuple):
    """An expert, the number of its address, and the name of the key that the response was made
    with.
    """

    expert: str
    address: int
    key: str


class ResponseOwners:
    """Of too many, those that were used last are known.

    Where several keys let clients in, a response that is not known is refused (forwarding_plan.py):
    it may be another key's.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._notes = RecentNotes(Owner, path)

    def find(self, name: str | None) -> Owner | None:
        return None if name is None else self._notes.find(digest(name))

    def note_answer(
        self, answer: bytes, owner: Owner, goes_on_from: str | None
    ) -> None:
        """answer: a response, or how its stream begins."""
        if goes_on_from is not None:
            self._notes.note(digest(goes_on_from), owner)
        if match := RESPONSE_ID.search(answer[:LOOKED_AT_BYTES]):
            self._notes.note(digest(match[1].decode(errors="replace")), owner)
