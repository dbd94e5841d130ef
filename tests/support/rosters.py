"""Confirmed rosters, changed as no command does: member by member, without a code."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from ridgeway.client.round.members import load_roster, write_roster
from ridgeway.common.protocol.invitation import RosterMember


def pin(folder: Path, places: Iterable[RosterMember]) -> None:
    """Add members; one that is there already, under this key, is replaced."""
    by_key = {place.key: place for place in (*load_roster(folder), *places)}
    write_roster(folder, by_key.values())


def unpin(folder: Path, keys: Collection[str]) -> None:
    write_roster(
        folder, [place for place in load_roster(folder) if place.key not in keys]
    )
