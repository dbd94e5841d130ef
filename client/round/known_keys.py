"""Which keys a holder knows to be one owner's: the hand-overs that it met, kept in its journal, the
first of each key.

What counts is what the owners of the keys have signed, whoever brings it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.identity import HandOver, HandOvers
from ridgeway.common.base.journal import Journal

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
    journal: Journal, told: Iterable[HandOver], concerned: Collection[str]
) -> HandOvers:
    """Write down what is new about the owners of some keys, and leave the rest; returns all that is
    known then.
    """
    known = known_handovers(journal)
    grown = known.merged_with(told)
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
    journal: Journal, pinned: str, sender: str, told: Iterable[HandOver] = ()
) -> HandOvers:
    """Raise Refused unless the sender is who the pinned key belongs to, under the key that it has
    now.

    told: the hand-overs that came with what was sent; they are taken in.
    """
    known = take_handovers(journal, told, {pinned})
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
