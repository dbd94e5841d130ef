"""Which expert keeps which response: what goes on from one must be asked where it lies.

Knows names, numbers of addresses and the ids that answers give. Holds nothing of what they say. A process that has
started anew knows none.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import NamedTuple

MAX_OWNERS = 100_000
LOOKED_AT_BYTES = 65_536
RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp[^"\\]{1,200})"')


class Owner(NamedTuple):
    """An expert, and the number of its address."""

    expert: str
    address: int


class ResponseOwners:
    """Of more than MAX_OWNERS, those that were used last are known."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, Owner] = OrderedDict()

    def find(self, name: str | None) -> Owner | None:
        if name is None or name not in self._owners:
            return None
        self._owners.move_to_end(name)
        return self._owners[name]

    def note_answer(self, answer: bytes, owner: Owner, goes_on_from: str | None) -> None:
        """answer: a response, or how its stream begins."""
        found = RESPONSE_ID.search(answer[:LOOKED_AT_BYTES])
        for name in (goes_on_from, found[1].decode(errors="replace") if found else None):
            if name is not None:
                self._owners[name] = owner
                self._owners.move_to_end(name)
        while len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)
