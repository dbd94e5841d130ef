"""The roster that a holder has pinned: the keys of the holders it takes part with in masked rounds.

A coordinator that could name the members would name itself many times, and see what is left. So a
holder pins them, from cards that the other holders handed over themselves, or from the operator's
invitation after comparing the keys by another way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pydantic import ValidationError

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.schema import Record, record_json
from ridgeway.common.protocol.invitation import Place

ROSTER = "roster.json"


class Roster(Record):
    """The file roster.json."""

    members: tuple[Place, ...] = ()


def load_roster(folder: Path) -> tuple[Place, ...]:
    """The pinned members; none where nothing was pinned yet."""
    path = folder / ROSTER
    try:
        return _members(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (ValidationError, json.JSONDecodeError):
        raise FormatError(
            f"{path} is damaged; remove it, and pin the members again"
        ) from None


def _members(content: bytes) -> tuple[Place, ...]:
    return Roster.model_validate_json(content).members


def pin(
    folder: Path, places: Iterable[Place], owner: Callable[[str], str] = str
) -> tuple[Place, ...]:
    """Add members; one that is there already, under this key or another of the same owner, is
    replaced.

    owner: what stands for the owner of a key. Returns the whole roster.
    """
    by_owner = {owner(place.key): place for place in (*load_roster(folder), *places)}
    return _write(folder, by_owner.values())


def unpin(folder: Path, keys: Collection[str]) -> tuple[Place, ...]:
    kept = (place for place in load_roster(folder) if place.key not in keys)
    return _write(folder, kept)


def _write(folder: Path, places: Iterable[Place]) -> tuple[Place, ...]:
    in_order = sorted(places, key=lambda place: (place.domain, place.name, place.key))
    roster = Roster(members=tuple(in_order))
    content = record_json(roster.model_dump(mode="json"))
    write_whole(folder / ROSTER, content, private=True)
    return roster.members
