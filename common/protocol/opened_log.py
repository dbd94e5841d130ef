"""The log of opened sums: every masked sum that a coordinator opened, in a chain whose newest hash it signs.

Holders are shown the same log. One that is rewritten, cut off or told differently to two of them has two signed heads
that cannot both be of one log, which is proof. Pure; knows nothing of files or transport.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Annotated

from pydantic import Field, ValidationError

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.base.identity import Identity, is_signed_by
from ridgeway.common.base.journal import START
from ridgeway.common.base.schema import Digest, Record, record_json
from ridgeway.common.masking.agreement import Signature
from ridgeway.common.masking.history import MAX_HISTORY_BYTES, PastSum

Number = Annotated[int, Field(ge=0, le=1 << 53)]


class ForkedLog(Refused):
    """A signed head that does not extend the log that was shown before."""

    def __init__(self, reason: str) -> None:
        super().__init__("forked_log", reason)


class OpenedSum(PastSum):
    """An entry: a sum, the round it was opened in, the terms it was made under, and the digest of what it was."""

    number: Number
    round: Annotated[str, Field(max_length=64)]
    terms: Digest
    opened: Digest

    @property
    def past(self) -> PastSum:
        """The sum alone; it has the same id."""
        return PastSum(lot=self.lot, parts=self.parts)


class LogHead(Record):
    """What a coordinator signs: how many entries there are, and the hash of the last one, which covers all."""

    number: Number
    hash: Digest
    signature: Signature

    @property
    def words(self) -> bytes:
        return record_json({"ridgeway": "opened log", "number": self.number, "hash": self.hash})


class LogStatement(Record):
    """The newest entries, and the head of the whole log."""

    entries: tuple[OpenedSum, ...]
    head: LogHead

    def to_bytes(self) -> bytes:
        return record_json(self.model_dump(mode="json"))


def hashes(entries: Iterable[OpenedSum]) -> list[str]:
    """The hash of each entry of a log, from its beginning on: over the one before and all that the entry says."""
    written = (record_json(entry.model_dump(mode="json")) for entry in entries)
    return list(accumulate(written, lambda before, words: sha256(before.encode(), words), initial=START))[1:]


def state_log(entries: Sequence[OpenedSum], after: int, identity: Identity) -> LogStatement:
    """The whole log, of which the entries up to number `after` are left out."""
    last = (hashes(entries) or [START])[-1]
    unsigned = LogHead(number=len(entries), hash=last, signature="0" * 128)
    head = unsigned.model_copy(update={"signature": identity.sign(unsigned.words)})
    return LogStatement(entries=tuple(entries[after:]), head=head)


def read_statement(content: bytes | memoryview) -> LogStatement:
    if memoryview(content).nbytes > MAX_HISTORY_BYTES:
        raise Refused("too_large", "a log of opened sums is larger than any that this version of Ridgeway sends")
    try:
        return _statement(bytes(content))
    except ValidationError:
        raise Refused("malformed", "a log of opened sums does not have the form of one") from None


@lru_cache(maxsize=2)
def _statement(content: bytes) -> LogStatement:
    """Pure, so that where many holders run in one process it is read once for all of them."""
    return LogStatement.model_validate_json(content)


def extend(known: tuple[OpenedSum, ...], told: LogStatement, keys: Collection[str]) -> LogStatement:
    """The whole log, if what is told now extends the entries that are known.

    keys: those that a head may be signed with: the coordinator's own. Raises ForkedLog where it has signed something
    else, and Refused for what proves nothing.
    """
    head = told.head
    if not any(is_signed_by(key, head.signature, head.words) for key in keys):
        raise Refused("bad_log", "the log of opened sums is not signed by the coordinator's key")
    first = head.number - len(told.entries) + 1
    if [entry.number for entry in told.entries] != list(range(first, head.number + 1)):
        raise Refused("bad_log", "the entries of the log of opened sums do not lead up to its head")
    if first > len(known) + 1:
        raise Refused("bad_log", f"the log of opened sums was shown without its entry {len(known) + 1}")
    whole = (*known[: first - 1], *told.entries)
    if whole[: len(known)] == known and (hashes(whole) or [START])[-1] == head.hash:
        return LogStatement(entries=whole, head=head)
    if not known:
        raise Refused("bad_log", "the entries of the log of opened sums do not give the hash of its head")
    raise ForkedLog(f"the log of opened sums does not begin with the {len(known)} entries that it had before")
