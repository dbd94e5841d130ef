"""What several opened sums give away together: whether a few members' parts could be told apart from the others'.

Every opened sum is a linear combination of what its members put in, and whoever has the sums has all combinations of
them. A group of members is told apart if some combination leaves their parts alone, or nearly so. Judged are all
combinations at once: for every group G of fewer than `least` members, coefficients c are looked for with

    weight of g  =  Σ c[g, j] · weight of j   over all j outside G, in every sum,  and  Σ over g of |c[g, j]| ≤ 2·|G|.

Where they are found, the group's weight in any combination whatsoever is at most 2·|G| times the others', so a single
member never makes up more than two thirds of what can be computed (67.1 %, for the coefficients are looked for with a
tolerance of 2 %). Where they are not found, the sum is not opened.
Pure; knows nothing of keys or files.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import Refused

Part = tuple[str, int]
"""What a member put into a sum: what stands for its data, and the weight under which it was added."""

Parts = Mapping[str, Part]
"""The parts of one opened sum, by the members' keys."""
Items = tuple[tuple[str, Part], ...]

DOMINANCE = 2.0
"""How many times the weight of all others a member may have, at most: two thirds of the whole."""
MAX_SUMS = 512
MAX_GROUPS = 20_000
"""How many sums that hang together, and how many groups of members, are judged; more are refused."""
ATTEMPTS = 50
JUDGED = 8
"""How many sums are remembered as judged."""
DIVISORS = np.arange(3, 1 << 16, 2)
SMALL_DIVISORS = DIVISORS[:64]
"""Most numbers have one of these."""
SMALLEST_SPREAD = 1e-9
TOLERANCE = 0.02
"""How much larger coefficients may be than they should: those that are looked for are approached from above."""


def set_apart(earlier: Sequence[Parts], new: Parts, least: int) -> tuple[str, ...]:
    """Members whose parts could be told apart if `new` were opened beside the earlier sums; none is what is wanted.

    least: the fewest members whose parts, taken together, may be told apart from the rest; below 2 anything may.

    What the earlier sums alone give away already is not held against the new one. Raises Refused where there is more
    to judge than can be judged.
    """
    if least < 2 or any(dict(each) == dict(new) for each in earlier):
        return ()
    for each in earlier:
        if len(found := differing(each, new)) < least:
            return tuple(sorted(found))
    return _shown(
        tuple(tuple(sorted(each.items())) for each in _connected(earlier, new)), tuple(sorted(new.items())), least
    )


@lru_cache(maxsize=JUDGED)
def _shown(earlier: tuple[Items, ...], sum_: Items, least: int) -> tuple[str, ...]:
    """Pure, so that where many members run in one process a sum is judged once for all that know the same."""
    before, new = [dict(each) for each in earlier], dict(sum_)
    beside = _Combinations([*before, new])
    if not beside.can_be_judged:
        return tuple(sorted(new))
    shown = [group for group in beside.groups(least - 1) if beside.shows(group)]
    known = _Combinations(before) if shown and before else None
    return next((group for group in shown if known is None or beside.shows_more(group, known, new)), ())


def differing(one: Parts, other: Parts) -> set[str]:
    """The members whose part is not the same in both sums."""
    return {key for key in {*one, *other} if one.get(key) != other.get(key)}


def _connected(earlier: Sequence[Parts], new: Parts) -> list[Parts]:
    """The earlier sums that can be combined with the new one: those that share data with it, or with one that does."""
    left = {frozenset((key, source) for key, (source, _) in each.items()) for each in earlier}
    seen = {(key, source) for key, (source, _) in new.items()}
    while joined := {data for data in left if data & seen}:
        left -= joined
        seen.update(*joined)
    distinct = {tuple(sorted(each.items())): each for each in earlier}
    return [
        each for _, each in sorted(distinct.items()) if any((key, source) in seen for key, (source, _) in each.items())
    ]


class _Combinations:
    """All linear combinations of some sums. A column stands for one member's data in one version."""

    def __init__(self, sums: Sequence[Parts]) -> None:
        if len(sums) > MAX_SUMS:
            raise Refused("history_too_long", f"more than {MAX_SUMS} sums hang together, too many to be judged")
        self._at: dict[str, dict[str, int]] = {}
        for number, (key, source) in enumerate(
            sorted({(key, source) for each in sums for key, (source, _) in each.items()})
        ):
            self._at.setdefault(key, {})[source] = number
        columns = sum(map(len, self._at.values()))
        weights = np.zeros((len(sums), columns), dtype=np.int64)
        for row, each in zip(weights, sums, strict=True):
            for key, (source, weight) in each.items():
                row[self._at[key][source]] = weight
        self._usual = weights.sum(axis=0) / np.count_nonzero(weights, axis=0)
        self._weights = weights / np.linalg.norm(weights / np.sqrt(self._usual), axis=1, keepdims=True)
        _, spread, directions = np.linalg.svd(self._weights / np.sqrt(self._usual), full_matrices=False)
        rank = int((spread > SMALLEST_SPREAD * spread[0]).sum())
        self.can_be_judged = rank >= _rank(weights)
        self._reached = directions[:rank]

    def groups(self, most: int) -> list[tuple[str, ...]]:
        """The groups of this many members, but of those that differ only by members which are alike, one.

        Members are alike if their data is in the same sums with the same weights: most are, in most federations.
        """
        most = min(most, len(self._at))
        columns = [column.tobytes() for column in np.ascontiguousarray(self._weights.T)]
        alike: dict[tuple[bytes, ...], list[str]] = {}
        for key in sorted(self._at):
            alike.setdefault(tuple(sorted(columns[at] for at in self._at[key].values())), []).append(key)
        groups: list[tuple[str, ...]] = [()]
        for members in alike.values():
            groups = [
                (*group, *members[:taken])
                for group in groups
                for taken in range(min(most - len(group), len(members)) + 1)
            ]
            if len(groups) > MAX_GROUPS:
                raise Refused("too_many_to_judge", f"there are more than {MAX_GROUPS:,} groups of members to judge")
        return sorted(tuple(sorted(group)) for group in groups if len(group) == most)

    def shows_more(self, group: Sequence[str], before: _Combinations, new: Parts) -> bool:
        """Whether more of the group is shown than before `new`, or something of it that was in no sum before."""
        held = all(key not in new or new[key][0] in before._at.get(key, ()) for key in group)
        return not held or not before.shows(group) or self._open_directions(group) > before._open_directions(group)

    def _open_directions(self, group: Sequence[str]) -> int:
        """How many independent combinations of the group's own parts alone can be computed."""
        own = self._columns(group)
        return int((np.linalg.eigvalsh(self._left(own)[:, own]) < SMALLEST_SPREAD).sum())

    def _left(self, own: Sequence[int]) -> NDArray[np.float64]:
        """What no combination reaches, a row for each of these columns."""
        rows: NDArray[np.float64] = -(self._reached[:, own].T @ self._reached)
        rows[np.arange(len(own)), own] += 1
        return rows

    def _columns(self, group: Sequence[str]) -> list[int]:
        return [number for key in group for number in self._at.get(key, {}).values()]

    def shows(self, group: Sequence[str]) -> bool:
        """Whether the group's part can be told apart: whether no such coefficients were found."""
        own = self._columns(group)
        return bool(own) and self._seems_to_show(own, len(group)) and not self._found(own, DOMINANCE * len(group))

    def _seems_to_show(self, own: Sequence[int], members: int) -> bool:
        """Whether the coefficients of least squares are too large; mostly they are not, and then no others need be."""
        if len(own) == 1:
            return self._seems_alone(own[0])
        left = self._left(own)
        if np.linalg.eigvalsh(left[:, own])[0] < SMALLEST_SPREAD:
            return True
        coefficients = np.linalg.solve(left[:, own], left) / np.sqrt(self._usual)
        coefficients *= np.sqrt(self._usual[own])[:, None]
        coefficients[:, own] = 0.0
        return bool(np.abs(coefficients).sum(axis=0).max() > DOMINANCE * members)

    def _found(self, own: Sequence[int], largest: float) -> bool:
        """Whether coefficients up to a size are found: by least squares in which large ones count more each time."""
        target, beside = self._weights[:, own], np.delete(self._weights, own, axis=1)
        price = np.delete(self._usual, own)
        for _ in range(ATTEMPTS):
            coefficients = np.linalg.pinv(beside / np.sqrt(price)) @ target / np.sqrt(price)[:, None]
            if np.abs(beside @ coefficients - target).max(initial=0.0) > SMALLEST_SPREAD:
                return False
            load = np.abs(coefficients).sum(axis=1)
            if load.max(initial=0.0) <= largest * (1 + TOLERANCE):
                return True
            price *= load / load.max() + TOLERANCE
        return False

    def _seems_alone(self, own: int) -> bool:
        """The same for a single column, in a division less: most members are in all sums with the same data."""
        [left] = self._left([own])
        coefficients = np.abs(left) * np.sqrt(self._usual[own]) / np.sqrt(self._usual)
        coefficients[own] = 0.0
        return bool(left[own] < SMALLEST_SPREAD or coefficients.max() > DOMINANCE * left[own])


def _rank(weights: NDArray[np.int64]) -> int:
    """The rank in exact arithmetic, modulo a prime that nobody could foresee."""
    prime = _random_prime()
    rows = weights % prime
    rank = 0
    for column in range(rows.shape[1]):
        if rank == len(rows):
            break
        filled = np.flatnonzero(rows[rank:, column])
        if not len(filled):
            continue
        rows[[rank, rank + filled[0]]] = rows[[rank + filled[0], rank]]
        rows[rank] = rows[rank] * pow(int(rows[rank, column]), -1, prime) % prime
        below = rows[rank + 1 :]
        below -= below[:, column : column + 1] * rows[rank] % prime
        below %= prime
        rank += 1
    return rank


def _random_prime() -> int:
    """A prime below 2³¹, so that products of two remainders are whole numbers of 64 bits."""
    while True:
        number = secrets.randbits(30) | 1 << 30 | 1
        if (number % SMALL_DIVISORS).all() and (number % DIVISORS).all():
            return number
