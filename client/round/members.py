"""The members that a holder knows: keys met in rounds, and the signed list of all."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ridgeway.common.base.errors import FormatError, Refused
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.identity import HandOver, HandOvers
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import Record, record_json
from ridgeway.common.protocol.invitation import RosterMember, in_order

# Which keys a holder knows to be one owner's: the hand-overs that it met, kept in its journal, the
# first of each key.
#
# What counts is what the owners of the keys have signed, whoever brings it.


HANDED_OVER = "handed_over"
FORKED_KEY = "forked_key"
"""The kinds of a journal's entries: a key that was handed over, and one that was handed over once
more.
"""


def known_handovers(journal: Journal) -> HandOvers:
    noted = (
        HandOver.of(entry.facts) for entry in journal.entries(HANDED_OVER, FORKED_KEY)
    )
    return HandOvers().merged_with(noted, own_record=True)


def take_handovers(
    journal: Journal, links: Iterable[HandOver], concerned: Collection[str]
) -> HandOvers:
    """Write down what is new about the owners of some keys, and leave the rest; returns all that is
    known then.
    """
    known = known_handovers(journal)
    grown = known.merged_with(links)
    owners = {grown.owner(key) for key in concerned}
    new = [(HANDED_OVER, link) for link in grown.links[len(known.links) :]]
    new += [(FORKED_KEY, link) for link in grown.forks[len(known.forks) :]]
    events = [
        (kind, link.to_json())
        for kind, link in new
        if grown.owner(link.before) in owners
    ]
    if not events:
        return known
    journal.append(*events)
    return known_handovers(journal)


def check_coordinator(
    journal: Journal, pinned: str, sender: str, links: Iterable[HandOver] = ()
) -> HandOvers:
    """Raise Refused unless the sender is who the pinned key belongs to, under the key that it has
    now.

    links: the hand-overs that came with what was sent; they are taken in.
    """
    known = take_handovers(journal, links, {pinned})
    now = known.newest(pinned)
    if sender == now:
        return known
    if sender in known.keys(pinned):
        raise Refused(
            "key_handed_over",
            f"the coordinator handed its key {sender[:12]}… over to {now[:12]}…, so"
            " the old key is no longer valid; if the operator sent this, an old copy"
            " of its folder was restored",
        )
    if known.owner(sender) == known.owner(pinned):
        raise Refused(
            "forked_key",
            f"the coordinator's key was handed over twice: first to {now[:12]}…, which"
            f" is valid here, and then to {sender[:12]}…; someone else may have the"
            " old key: ask the operator over another channel",
        )
    raise Refused(
        "unknown_coordinator",
        f"this holder does not answer requests signed by {sender[:12]}…",
    )


def check_members(
    known: HandOvers, pinned: Collection[str], keys: Collection[str]
) -> None:
    """Raise Refused if a cohort has one holder in it twice, or one under a key that counts no more,
    or never did.
    """
    if len({known.owner(key) for key in keys}) < len(keys):
        raise Refused("repeated_holder", "the cohort lists one holder under two keys")
    if outdated := {key for key in keys if known.newest(key) != key}:
        raise Refused(
            "key_handed_over",
            "a member has handed this key over to a new one",
            outdated,
        )
    owners = {known.owner(key) for key in pinned}
    if forked := {
        key for key in keys if key not in pinned and known.owner(key) in owners
    }:
        raise Refused(
            "forked_key",
            "a member's key was handed over twice, first to another key",
            forked,
        )


# The roster that a holder has confirmed: the keys of the holders it takes part with under masks.
#
# A coordinator that could name the members would name itself many times, and see what is left. So
# its list counts for nothing before the holder's owner has compared its code with the other
# holders, by a way that does not lead through the coordinator, and has confirmed it.


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

    def names(self) -> dict[str, list[str]]:
        return {
            "added": [member.name for member in self.added],
            "removed": [member.name for member in self.removed],
        }


def roster_change(
    before: Iterable[RosterMember],
    after: Iterable[RosterMember],
    owner: Callable[[str], str],
) -> RosterChange:
    """owner: what stands for the owner of a key. A member whose key was handed over has stayed;
    one with another name or domain is another.
    """
    old, new = (
        {(owner(member.key), member.name, member.domain): member for member in members}
        for members in (before, after)
    )
    return RosterChange(
        tuple(member for name, member in new.items() if name not in old),
        tuple(member for name, member in old.items() if name not in new),
    )
