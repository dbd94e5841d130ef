"""What a hostile coordinator makes of an honest request: other terms, members, sets or weights.

Each change gives a message and its bulk, or nothing where the request has no such field. Knows the
names of kinds and fields alone, so that it holds for whatever requests there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.protocol.messages import KINDS
from ridgeway.common.protocol.packet import Blob, Opened, weights_blob

STRANGER = "ab" * 32
Matrix = NDArray[np.float64]


class Base(NamedTuple):
    """An honest request, and what is to be varied.

    power: how much, as a power of two. place: of whom or what.
    """

    opened: Opened[Any]
    encoder: TableEncoder
    power: float
    place: int

    @property
    def message(self) -> Any:
        return self.opened.message

    def with_(self, **changes: Any) -> Made:
        """The message with other values of fields; nothing if it does not have them all."""
        if any(getattr(self.message, name, None) is None for name in changes):
            return None
        return self.message.model_copy(update=changes), self.opened.blobs


Made = tuple[Any, Sequence[Blob]] | None
Make = Callable[[Base], Made]


def _terms(name: str, value: Callable[[Any, Base], Any]) -> Make:
    """Other terms, or a cohort under other terms."""

    def change(base: Base) -> Made:
        cohort: Any = getattr(base.message, "cohort", None)
        terms: Any = cohort.terms if cohort else getattr(base.message, "terms", None)
        if getattr(terms, name, None) is None:
            return None
        changed = terms.model_copy(update={name: value(getattr(terms, name), base)})
        return base.with_(cohort=cohort.model_copy(update={"terms": changed})) if cohort else base.with_(terms=changed)

    return change


def _members(base: Base) -> Made:
    """A cohort in which one member is missing, or has another key or domain."""
    if getattr(base.message, "cohort", None) is None:
        return None
    members = [*base.message.cohort.members]
    kind, place = divmod(base.place, len(members))
    member = members.pop(place)
    if kind < 2:
        members.append(member.model_copy(update=({"key": STRANGER}, {"domain": "another"})[kind]))
    members.sort(key=lambda each: (each.domain, each.key))
    return base.with_(cohort=base.message.cohort.model_copy(update={"members": tuple(members)}))


def _set(base: Base) -> Made:
    """Another set of members that have shared or sent: the bits of the place."""
    chosen = tuple(place + 1 for place in range(4) if base.place >> place & 1)
    return base.with_(sent=chosen) or base.with_(shared=chosen)


def _kind(base: Base) -> Made:
    """A request of another kind that has the same fields."""
    fields = dict(base.message)
    kinds = [kind for kind in KINDS.values() if set(kind.model_fields) == set(fields)]
    return kinds[base.place % len(kinds)].model_construct(**fields), base.opened.blobs


def _weights(craft: Callable[[Base, Matrix], Matrix | None]) -> Make:
    def change(base: Base) -> Made:
        made = craft(base, np.frombuffer(base.opened.blobs[0]).reshape(base.encoder.width + 1, -1))
        return None if made is None else (base.message, [weights_blob(made)] * len(base.opened.blobs))

    return change


def _one_weight(base: Base, honest: Matrix) -> Matrix:
    made = np.zeros_like(honest)
    made[base.place % len(made), 0] = 2.0**base.power
    return made


def _unit_of_logits(base: Base, honest: Matrix) -> Matrix | None:
    """A column so large that one token decides in which unit logits are counted, and one as large as the unit."""
    rows = base.encoder.table * base.encoder.scale
    token = int(base.place + 2 * base.power) % len(rows)
    along = rows @ rows[token]
    along -= 1.1 * along.min()
    highest, next_highest = along[token], np.delete(along, token).max()
    if highest <= next_highest:
        return None
    made = np.zeros_like(honest)
    factor = 2.0**30 / math.sqrt(highest * next_highest)
    made[:-1, -1] = -factor * rows[token]
    made[-1, -1] = 1.1 * factor * (rows @ rows[token]).min()
    made[-1, 1] = 0.6
    return made


class Change(NamedTuple):
    """A way to change requests that have one of these fields, or any. sized: whether it depends on the power."""

    make: Make
    fields: frozenset[str] = frozenset()
    sized: bool = False

    def fits(self, kind: str) -> bool:
        return not self.fields or bool(self.fields & set(KINDS[kind].model_fields))


def _of_terms(name: str, value: Callable[[Any, Base], Any]) -> Change:
    return Change(_terms(name, value), frozenset({"terms", "cohort"}), sized=True)


def _of_weights(craft: Callable[[Base, Matrix], Matrix | None]) -> Change:
    return Change(_weights(craft), frozenset({"domains"}), sized=True)


CHANGES = {
    "none": Change(lambda base: (base.message, base.opened.blobs)),
    "kind": Change(_kind),
    "bulk": Change(lambda base: (base.message, [bytes(blob)[: 8 * base.place] for blob in base.opened.blobs])),
    "session": Change(lambda base: base.with_(session=f"{base.place:064x}"), frozenset({"session"})),
    "total": Change(lambda base: base.with_(total=f"{base.place:064x}"), frozenset({"total"})),
    "set": Change(_set, frozenset({"sent", "shared"})),
    "members": Change(_members, frozenset({"cohort"})),
    "features": _of_terms("features", lambda now, base: int(2**base.power)),
    "ridges": _of_terms("ridges", lambda now, base: (2.0**-base.power,)),
    "mass": _of_terms("mass", lambda now, base: int(2**base.power)),
    "epsilon": _of_terms("privacy", lambda now, base: now.model_copy(update={"epsilon": 2.0**base.power})),
    "weights scaled": _of_weights(lambda base, honest: honest * 2.0**base.power),
    "one weight": _of_weights(_one_weight),
    "unit of logits": _of_weights(_unit_of_logits),
}
