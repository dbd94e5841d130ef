"""A text as a hurried hand would type it: neighbours swapped, characters dropped, doubled or hit one key beside.

Pure: the same text, rate and seed give the same errors. Knows nothing of tokens or routers.
"""

from __future__ import annotations

import random
from collections.abc import Callable

ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")

Slip = Callable[[list[str], int, random.Random], None]


def mistyped(text: str, rate: float, seed: int) -> str:
    """The text with one error for every 1/rate characters.

    Laws: rate 0 changes nothing; a text of n characters gets round(rate · n) errors, each at a place of its own.
    """
    chance = random.Random(f"{seed} {rate} {text}")
    letters = list(text)
    for place in places(len(text), rate, chance):
        chance.choice(SLIPS)(letters, place, chance)
    return "".join(letters)


def places(length: int, rate: float, chance: random.Random) -> list[int]:
    """Where errors are made, the last first, so that earlier places stay where they are."""
    return sorted(chance.sample(range(length), round(rate * length)), reverse=True)


def _swap(letters: list[str], place: int, chance: random.Random) -> None:
    letters[place : place + 2] = reversed(letters[place : place + 2])


def _drop(letters: list[str], place: int, chance: random.Random) -> None:
    del letters[place]


def _double(letters: list[str], place: int, chance: random.Random) -> None:
    letters.insert(place, letters[place])


def _miss(letters: list[str], place: int, chance: random.Random) -> None:
    """A key beside; what no key here writes is dropped."""
    beside = BESIDE.get(letters[place].lower())
    if beside is None:
        return _drop(letters, place, chance)
    key = chance.choice(beside)
    letters[place] = key.upper() if letters[place].isupper() else key
    return None


SLIPS: tuple[Slip, ...] = (_swap, _drop, _double, _miss)


def _beside() -> dict[str, str]:
    """Each key's neighbours: left and right in its row, and those above and below."""
    at = {(row, column): key for row, keys in enumerate(ROWS) for column, key in enumerate(keys)}
    steps = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, 0), (1, -1))
    return {
        key: "".join(at[row + down, column + along] for down, along in steps if (row + down, column + along) in at)
        for (row, column), key in at.items()
    }


BESIDE = _beside()
