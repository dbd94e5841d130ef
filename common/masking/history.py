"""What members know of sums that were opened before, told to one another, so that all of them judge by the same.

A member sees only the sums that it took part in. Sums of different cohorts can be combined, so each member shows in a
session what it knows, signed by its advert, and every other takes it in. Pure; knows nothing of files or transport.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.base.schema import Digest, PublicKey, Record
from ridgeway.common.masking.differencing import Parts

MAX_HISTORY_BYTES = 1 << 26
Content = TypeVar("Content")
Weight = Annotated[int, Field(ge=1, le=1 << 37)]


class PastSum(Record):
    """A sum that was opened: of what, and what each member put in (its key, what stands for its data, the weight)."""

    lot: Annotated[str, Field(max_length=40)]
    parts: tuple[tuple[PublicKey, Digest, Weight], ...]

    @classmethod
    def of(cls, lot: str, parts: Parts) -> PastSum:
        return cls(lot=lot, parts=tuple((key, source, weight) for key, (source, weight) in sorted(parts.items())))

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> PastSum:
        """As a journal keeps it, perhaps among other facts."""
        return cls(lot=facts["lot"], parts=tuple((key, source, weight) for key, source, weight in facts["parts"]))

    @property
    def id(self) -> str:
        return sha256(canonical_json(self.model_dump(mode="json")))

    def by_key(self) -> dict[str, tuple[str, int]]:
        return {key: (source, weight) for key, source, weight in self.parts}


HISTORY = TypeAdapter(tuple[PastSum, ...])
POOL = TypeAdapter(tuple[tuple[PastSum, ...], ...])


def history_bytes(sums: Iterable[PastSum]) -> bytes:
    """A history as it is shown: every sum once, in one order."""
    distinct = {canonical_json(each.model_dump(mode="json")): each for each in sums}
    return canonical_json([each.model_dump(mode="json") for _, each in sorted(distinct.items())])


def read_history(content: bytes | memoryview) -> tuple[PastSum, ...]:
    return _read(HISTORY, content)


def pool_bytes(histories: Iterable[Collection[PastSum]]) -> bytes:
    """Several histories together, each that differs once."""
    distinct = {history_bytes(each): each for each in histories}
    return canonical_json([[one.model_dump(mode="json") for one in each] for _, each in sorted(distinct.items())])


def read_pool(content: bytes | memoryview, wanted: Mapping[str, str]) -> dict[PastSum, set[str]]:
    """What all members know, and which of them know it; raises Refused if a history is missing.

    wanted: the digest of each member's history, as it has signed it, by the member's key.
    """
    histories = {sha256(history_bytes(each)): each for each in _read(POOL, content)}
    known: dict[PastSum, set[str]] = {}
    for key, digest in wanted.items():
        if digest not in histories:
            raise Refused("history_withheld", "what a member knows of earlier sums was kept from this holder")
        for each in histories[digest]:
            known.setdefault(each, set()).add(key)
    return known


def _read(kind: TypeAdapter[Content], content: bytes | memoryview) -> Content:
    if memoryview(content).nbytes > MAX_HISTORY_BYTES:
        raise Refused("too_large", "a history of opened sums is larger than any that this version of Ridgeway sends")
    try:
        return kind.validate_json(bytes(content))
    except ValidationError:
        raise Refused("malformed", "a history of opened sums does not have the form of one") from None
