"""What two and more opened sums give away together: whether some members' part could be told apart from the others'.

Every opened sum is a linear combination of what its members put in. If a combination of the sums leaves the part of a
few members alone, those members' sums lie open, though no single sum shows them. Pure; knows nothing of keys or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

Part = tuple[str, int]
"""What a member put into a sum: what stands for its data, and the weight under which it was added."""

Parts = Mapping[str, Part]
"""The parts of one opened sum, by the members' keys."""


def set_apart(earlier: Sequence[Parts], new: Parts, least: int) -> tuple[str, ...]:
    """The members whose part could be told apart if `new` were opened beside the earlier sums; none is what is wanted.

    least: the fewest members whose parts, taken together, may be told apart from the rest.

    Found are any two sums that differ in fewer members than that, and any combination of all the sums, however made,
    that leaves one member alone. (Combinations that leave a few alone are as many as there are groups of members.)
    """
    if least < 2 or any(dict(each) == dict(new) for each in earlier):
        return ()
    for each in earlier:
        if len(found := differing(each, new)) < least:
            return tuple(sorted(found))
    found = _alone([*earlier, new])
    return tuple(sorted(found - _alone(earlier))) if found else ()


def differing(one: Parts, other: Parts) -> set[str]:
    """The members whose part is not the same in both sums."""
    return {key for key in {*one, *other} if one.get(key) != other.get(key)}


def _alone(sums: Sequence[Parts]) -> set[str]:
    """The members whose part is a combination of the sums, in exact arithmetic: weights can be far apart."""
    columns = sorted({(key, source) for each in sums for key, (source, _) in each.items()})
    rows = _reduced([[_weight(each, key, source) for key, source in columns] for each in sums])
    return {key for key in {columns[pivot][0] for pivot in rows} if _is_alone(rows, [own == key for own, _ in columns])}


def _weight(sum_: Parts, key: str, source: str) -> int:
    part = sum_.get(key)
    return part[1] if part is not None and part[0] == source else 0


def _is_alone(rows: Mapping[int, list[int]], own: Sequence[bool]) -> bool:
    """Whether the rows that begin at a member's own columns have a combination that is 0 at everybody else's."""
    begun = [[value for value, mine in zip(row, own, strict=True) if not mine] for at, row in rows.items() if own[at]]
    return len(_reduced(begun)) < len(begun)


def _reduced(rows: Sequence[list[int]]) -> dict[int, list[int]]:
    """Independent rows with the same span, by the columns where each has its pivot and all others have 0."""
    reduced: dict[int, list[int]] = {}
    for row in rows:
        for at, other in reduced.items():
            row = _cleared(row, other, at)
        pivot = next((at for at, value in enumerate(row) if value), None)
        if pivot is not None:
            reduced = {at: _cleared(other, row, pivot) for at, other in reduced.items()} | {pivot: row}
    return reduced


def _cleared(row: list[int], other: list[int], at: int) -> list[int]:
    """The row, or a multiple of it, less as much of the other as makes it 0 there; in whole numbers."""
    if not row[at]:
        return row
    made = [other[at] * value - row[at] * taken for value, taken in zip(row, other, strict=True)]
    common = gcd(*made) or 1
    return [value // common for value in made]
