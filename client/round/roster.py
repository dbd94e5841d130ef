"""The roster that a holder has confirmed: the keys of the holders it takes part with under masks.

A coordinator that could name the members would name itself many times, and see what is left. So its
list counts for nothing before the holder's owner has compared its code with the other holders, by a
way that does not lead through the coordinator, and has confirmed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.schema import Record, record_json
from ridgeway.common.protocol.invitation import RosterMember, in_order

ROSTER = "roster.json"


class ConfirmedRoster(Record):
    """The file roster.json."""

    members: tuple[RosterMember, ...] = ()


def load_roster(folder: Path) -> tuple[RosterMember, ...]:
    """The confirmed members; none where nothing was confirmed yet."""
    path = folder / ROSTER
    try:
        return ConfirmedRoster.model_validate_json(path.read_bytes()).members
    except FileNotFoundError:
        return ()
    except (ValidationError, json.JSONDecodeError):
        raise FormatError(
            f"{path} is damaged; remove it, and confirm the members again"
        ) from None


def write_roster(folder: Path, members: Iterable[RosterMember]) -> None:
    """Put exactly these members in the place of those before."""
    roster = ConfirmedRoster(members=in_order(members))
    content = record_json(roster.model_dump(mode="json"))
    write_whole(folder / ROSTER, content, private=True)


@dataclass(frozen=True, slots=True)
class RosterChange:
    """Who came and who went between two rosters."""

    added: tuple[RosterMember, ...]
    removed: tuple[RosterMember, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def roster_change(
    before: Iterable[RosterMember],
    after: Iterable[RosterMember],
    owner: Callable[[str], str],
) -> RosterChange:
    """owner: what stands for the owner of a key. A member whose key was handed over has stayed;
    one with another name or domain is another.
    """
    old = {(owner(member.key), member.name, member.domain): member for member in before}
    new = {(owner(member.key), member.name, member.domain): member for member in after}
    return RosterChange(
        tuple(place for name, place in new.items() if name not in old),
        tuple(place for name, place in old.items() if name not in new),
    )
