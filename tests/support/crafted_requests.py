"""What a hostile coordinator makes of an honest request: other terms, members, weights or totals.

Each change gives a message and its bulk, or nothing where the request has no such field. Knows the
names of kinds and fields alone, so that it holds for whatever requests there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.identity import Identity, hand_over
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import SelectorName
from ridgeway.common.protocol.cohort import Member
from ridgeway.common.protocol.messages import KINDS, SUM_NAMES
from ridgeway.common.protocol.packet import Blob, Opened, vector_blob, weights_blob
from ridgeway.common.statistics import Integers
from ridgeway.common.text.table_encoder import TableEncoder
from tests.support.making import fixed_identity

STRANGER = "ab" * 32
LARGEST_NUMBER = 1 << 62
Matrix = NDArray[np.float64]


class Base(NamedTuple):
    """An honest request, and what is to be varied.

    power: how much, mostly as a power of two. place: of whom or what. ally: a member that helps.
    """

    opened: Opened[Any]
    encoder: TableEncoder
    ally: Identity
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


def _terms(values: Callable[[Any, Base], Mapping[str, Any]]) -> Make:
    """Other terms, or a cohort under other terms."""

    def change(base: Base) -> Made:
        cohort: Any = getattr(base.message, "cohort", None)
        terms: Any = cohort.terms if cohort else getattr(base.message, "terms", None)
        if terms is None:
            return None
        terms = terms.model_copy(update=values(terms, base))
        if cohort is None:
            return base.with_(terms=terms)
        return base.with_(cohort=cohort.model_copy(update={"terms": terms}))

    return change


def _size(name: str) -> Make:
    return _terms(lambda now, base: {name: int(2**base.power)})


def _privacy(name: str) -> Make:
    def values(terms: Any, base: Base) -> Mapping[str, Any]:
        if terms.privacy is None:
            return {}
        return {"privacy": terms.privacy.model_copy(update={name: 2.0**base.power})}

    return _terms(values)


def _with_members(base: Base, members: Sequence[Member]) -> Made:
    in_order = tuple(sorted(members, key=lambda member: (member.domain, member.key)))
    return base.with_(
        cohort=base.message.cohort.model_copy(update={"members": in_order})
    )


def _members(base: Base) -> Made:
    """A cohort in which one member is missing, or has another key or domain."""
    if getattr(base.message, "cohort", None) is None:
        return None
    members = [*base.message.cohort.members]
    kind, place = divmod(base.place, len(members))
    member = members.pop(place)
    if kind < 2:
        change = ({"key": STRANGER}, {"domain": "another"})[kind]
        members.append(member.model_copy(update=change))
    return _with_members(base, members)


def _many_members(base: Base) -> Made:
    """A cohort with made-up members, in domains of their own or all in one that there is."""
    if getattr(base.message, "cohort", None) is None:
        return None
    domains = {0: "law", 1: "code"}
    made_up = [
        Member(key=f"{number:064x}", domain=domains.get(base.place % 3, f"d{number}"))
        for number in range(int(2**base.power))
    ]
    return _with_members(base, [*base.message.cohort.members, *made_up])


def _set(base: Base) -> Made:
    """Another set of members that have shared or sent: the bits of the place."""
    chosen = tuple(index + 1 for index in range(4) if base.place >> index & 1)
    return base.with_(sent=chosen) or base.with_(shared=chosen)


def _kind(base: Base) -> Made:
    """A request of another kind that has the same fields."""
    fields = dict(base.message)
    kinds = [kind for kind in KINDS.values() if set(kind.model_fields) == set(fields)]
    return kinds[base.place % len(kinds)].model_construct(**fields), base.opened.blobs


def _cut(base: Base) -> Made:
    return base.message, [bytes(blob)[: 8 * base.place] for blob in base.opened.blobs]


def _session(base: Base) -> Made:
    return base.with_(session=f"{base.place:064x}")


def _hand_over(base: Base) -> Made:
    """A member's key was handed over to another, or to two."""
    return base.with_(
        handovers=(hand_over(base.ally, fixed_identity(base.place + 1), base.place),)
    )


def _selector(base: Base) -> Made:
    names = get_args(SelectorName)
    return base.with_(selector=names[base.place % len(names)], k=int(2**base.power))


def _temperatures(base: Base) -> Made:
    sizes = sorted({10.0**base.power, 10.0 ** (base.power / 2), 10.0**-base.power})
    return base.with_(temperatures=tuple(sizes))


def _experts(base: Base) -> Made:
    return base.with_(experts=("large", "nobody's", "small")[base.place % 3 :])


# What stands in the bulk of a request to count


def _weights(craft: Callable[[Base, Matrix], Matrix | None]) -> Make:
    """Of an exact round, other weights."""

    def change(base: Base) -> Made:
        if base.message.terms.privacy:
            return None
        made = craft(
            base,
            np.frombuffer(base.opened.blobs[0]).reshape(base.encoder.width + 1, -1),
        )
        return None if made is None else (base.message, [weights_blob(made)])

    return change


def _total(craft: Callable[[Base, Integers], Integers]) -> Make:
    """Of a private round, another total, which holders solve."""

    def change(base: Base) -> Made:
        if not base.message.terms.privacy:
            return None
        return base.message, [
            vector_blob(craft(base, np.frombuffer(base.opened.blobs[0], "<i8")))
        ]

    return change


def _scaled_weights(base: Base, honest: Matrix) -> Matrix:
    made: Matrix = honest * 2.0**base.power
    return made


def _one_weight(base: Base, honest: Matrix) -> Matrix:
    made = np.zeros_like(honest)
    made[base.place % len(made), 0] = 2.0**base.power
    return made


def _unit_of_logits(base: Base, honest: Matrix) -> Matrix | None:
    """A column so large that one token decides the unit of logits, and one as large as the unit."""
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


def _scaled(base: Base, honest: Integers) -> Integers:
    limit = float(LARGEST_NUMBER)
    made: Integers = np.clip(honest * 2.0**base.power, -limit, limit).astype(np.int64)
    return made


def _one_number(base: Base, honest: Integers) -> Integers:
    made = np.zeros_like(honest)
    made[base.place % len(made)] = (-1) ** (base.place // 8) * int(2**base.power)
    return made


def _one_column(base: Base, honest: Integers) -> Integers:
    """The columns come last, a row for each feature."""
    made = honest.copy()
    made[-3 * (base.encoder.width + 1) + base.place % 3 :: 3] = int(2**base.power)
    return made


class Change(NamedTuple):
    """A way to change requests that have one of these fields, or any. powers: those to be tried."""

    make: Make
    fields: str = ""
    powers: Sequence[float] = ()

    def fits(self, kind: str) -> bool:
        return not self.fields or bool(
            {*self.fields.split()} & set(KINDS[kind].model_fields)
        )


IN_TERMS, IN_COHORT, IN_COUNTS = "terms cohort", "cohort", "domains"
SIZES = range(0, 17, 2)
THE_SAME = "the same"
"""The packet as it was sent before, in whichever round."""
CHANGES = {
    THE_SAME: Change(lambda base: None),
    "anew": Change(lambda base: (base.message, base.opened.blobs)),
    "kind": Change(_kind),
    "bulk": Change(_cut),
    "session": Change(_session, "session"),
    "lot": Change(lambda base: base.with_(lot=SUM_NAMES[base.place % 2]), "lot"),
    "set": Change(_set, "sent shared"),
    "hand-over": Change(_hand_over, "handovers"),
    "members": Change(_members, IN_COHORT),
    "many members": Change(_many_members, IN_COHORT, range(0, 11, 2)),
    "mode": Change(
        _terms(lambda now, base: {"mode": get_args(Mode)[base.place % 3]}), IN_TERMS
    ),
    "tokens": Change(
        _terms(lambda now, base: {"weighting": "tokens", "mass": 0}), IN_TERMS
    ),
    "mass": Change(_size("mass"), IN_TERMS, range(0, 38, 4)),
    "features": Change(_size("features"), IN_TERMS, SIZES),
    "epsilon": Change(_privacy("epsilon"), IN_TERMS, range(-16, 3, 2)),
    "delta": Change(_privacy("delta"), IN_TERMS, range(-40, 0, 5)),
    "selector": Change(_selector, IN_COUNTS, range(0, 21, 4)),
    "temperatures": Change(_temperatures, IN_COUNTS, range(-100, 101, 20)),
    "experts": Change(_experts, IN_COUNTS),
    "weights scaled": Change(_weights(_scaled_weights), IN_COUNTS, range(-30, 331, 30)),
    "one weight": Change(_weights(_one_weight), IN_COUNTS, range(-8, 331, 26)),
    "unit of logits": Change(_weights(_unit_of_logits), IN_COUNTS, SIZES),
    "total scaled": Change(_total(_scaled), IN_COUNTS, range(-20, 45, 8)),
    "one number": Change(_total(_one_number), IN_COUNTS, range(0, 63, 8)),
    "one column": Change(_total(_one_column), IN_COUNTS, range(0, 63, 8)),
}
