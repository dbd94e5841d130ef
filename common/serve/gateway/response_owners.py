"""Which expert keeps which response, and whose it is: what goes on from one must be asked where it
lies.

 Holds nothing of what they say. A service
that has started anew knows none; its workers know the same.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from ridgeway.common.serve.conversations import RecentNotes

LOOKED_AT_BYTES = 65_536
RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp[^"\\]{1,200})"')


class Owner(NamedTuple):
    """An expert, the number of its address, and the name of the key that the response was made
    with.
    """

    expert: str
    address: int
    key: str


class ResponseOwners:
    """Of too many, those that were used last are known."""

    def __init__(self, path: Path | None = None) -> None:
        self._notes = RecentNotes(path)

    def find(self, name: str | None) -> Owner | None:
        names = None if name is None else self._notes.find(_digest(name))
        return (
            None
            if names is None
            else Owner(str(names[0]), int(str(names[1])), str(names[2]))
        )

    def note_answer(
        self, answer: bytes, owner: Owner, goes_on_from: str | None
    ) -> None:
        """answer: a response, or how its stream begins."""
        found = RESPONSE_ID.search(answer[:LOOKED_AT_BYTES])
        for name in (
            goes_on_from,
            found[1].decode(errors="replace") if found else None,
        ):
            if name is not None:
                self._notes.note(
                    _digest(name), (owner.expert, str(owner.address), owner.key)
                )


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=16).digest()
