"""Confirmed rosters, changed as no command does: member by member, without a code."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from ridgeway.client.round.policy import load_roster, write_roster
from ridgeway.common.protocol.cohort import RosterMember


def pin(folder: Path, members: Iterable[RosterMember]) -> None:
    """Add members; one that is there already, under this key, is replaced."""
    by_key = {member.key: member for member in (*load_roster(folder), *members)}
    write_roster(folder, by_key.values())


def unpin(folder: Path, keys: Collection[str]) -> None:
    write_roster(
        folder, [member for member in load_roster(folder) if member.key not in keys]
    )
