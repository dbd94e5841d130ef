"""What this holder agrees to, which is the last word, and the members that it knows.

Nothing here looks at a corpus.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from ridgeway.common.base.errors import FormatError, Refused
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.identity import HandOver, HandOvers
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import (
    Digest,
    Mode,
    PublicKey,
    Record,
    SamplingNumbers,
    record_json,
)
from ridgeway.common.base.settings import (
    DEFAULT_DELTA,
    EQUAL_MASS,
    MAX_LIFETIME_EPSILON,
    MAX_ROUND_EPSILON,
    Weighting,
)
from ridgeway.common.masking.agreement import SMALLEST_COHORT, threshold_for
from ridgeway.common.privacy.accountant import Delta, Privacy
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.protocol.cohort import Cohort, RosterMember, Terms, in_order

# What this holder agrees to: the last word is the holder's.
#
# Pure checks of public terms against the holder's own settings. Nothing here looks at a corpus.


Budget = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class Policy(Record):
    """The holder's conditions, as they stand in client.toml.

    coordinator: the key that requests and releases must be signed with, or one that it was handed
                 over to.
    encoders:    fingerprints of the encoders whose sums may leave.
    modes:       the modes of rounds that this holder takes part in.
    privacy:     how private rounds bound documents: "columns" or "full".
    max_round_epsilon: what one private round may cost a document, at a δ of `max_delta`.
    max_epsilon: what all that ever left may cost a document together; inf allows anything.
    min_cohort:  the fewest members of a cohort, and of a sum that this holder helps to open.
    mass:        the sample mass of every domain, where domains are weighted equally.
    share_scores: answer with the sums of the scores that `scores` in client.toml names; else with
                  none.
    sampling:    how text is sampled: so and no other way.
    """

    coordinator: PublicKey
    encoders: tuple[Digest, ...] = Field(min_length=1)
    modes: tuple[Mode, ...] = Field(default=("private",), min_length=1)
    privacy: PrivacyMode = "columns"
    max_round_epsilon: Budget = MAX_ROUND_EPSILON
    max_epsilon: Budget = MAX_LIFETIME_EPSILON
    max_delta: Delta = DEFAULT_DELTA
    weightings: tuple[Weighting, ...] = ("equal",)
    sampling: SamplingNumbers
    min_cohort: int = Field(default=SMALLEST_COHORT, ge=1)
    mass: int = Field(default=EQUAL_MASS, ge=1, le=1 << 37)
    share_scores: bool = True


def check_terms(policy: Policy, terms: Terms) -> None:
    """Raise Refused unless these terms are acceptable. What is named in a refusal is public
    anyway.
    """
    if terms.encoder not in policy.encoders:
        known = ", ".join(encoder[:12] for encoder in policy.encoders)
        raise Refused(
            "encoder_not_allowed",
            f"the round uses encoder {terms.encoder[:12]}; this holder allows {known}",
        )
    if terms.mode not in policy.modes:
        raise Refused(
            "mode_not_allowed",
            f"this holder allows {' and '.join(policy.modes)} rounds, not {terms.mode}"
            " ones",
        )
    if terms.privacy:
        _check_privacy(policy, terms.privacy)
    elif terms.weighting not in policy.weightings:
        raise Refused(
            "weighting_not_allowed",
            f"this holder does not allow {terms.weighting} weighting",
        )
    if terms.mass not in (0, policy.mass):
        raise Refused(
            "mass_not_allowed",
            f"this holder allows a mass of {policy.mass:,}, not {terms.mass:,}",
        )
    if terms.sampling != policy.sampling:
        raise Refused(
            "window_not_allowed",
            f"this holder allows {policy.sampling}, not {terms.sampling}",
        )


def _check_privacy(policy: Policy, asked: Privacy) -> None:
    conditions = (
        (
            asked.mode == policy.privacy,
            f"private rounds with {policy.privacy!r}, not {asked.mode!r}",
        ),
        (
            asked.epsilon <= policy.max_round_epsilon,
            f"an ε of {policy.max_round_epsilon:g} per round, not {asked.epsilon:g}",
        ),
        (
            asked.delta <= policy.max_delta,
            f"a δ of {policy.max_delta:g}, not {asked.delta:g}",
        ),
    )
    for is_met, words in conditions:
        if not is_met:
            raise Refused("privacy_not_allowed", f"this holder allows {words}")


def check_cohort(policy: Policy, cohort: Cohort, key: str, domain: str) -> None:
    """Raise Refused unless the holder is in the cohort, and agrees to it."""
    check_terms(policy, cohort.terms)
    member = cohort.member(key)
    if member is None:
        raise Refused("not_in_cohort", "this holder is not in the cohort")
    if member.domain != domain:
        raise Refused(
            "wrong_domain",
            f"the cohort lists this holder under {member.domain}; its domain is"
            f" {domain}",
        )
    if len(cohort.members) < policy.min_cohort:
        raise Refused(
            "cohort_too_small",
            f"this holder allows cohorts of {policy.min_cohort} or more members, not"
            f" {len(cohort.members)}",
        )


def check_roster(policy: Policy, pinned: Collection[str]) -> None:
    """Raise Refused if too few members are pinned to make a cohort under masks of."""
    least = max(policy.min_cohort, SMALLEST_COHORT)
    if len(pinned) < least:
        raise Refused(
            "roster_not_pinned",
            f"this holder has confirmed {len(pinned) - 1} other members, and a cohort"
            f" under masks needs {least}; its owner must confirm them with `ridgeway"
            " client members`",
        )


def check_members_of_sum(policy: Policy, members: int, pinned: int) -> None:
    """Raise Refused unless a sum has enough members, and more than two thirds of the pinned
    roster.
    """
    if members < policy.min_cohort:
        raise Refused(
            "cohort_too_small",
            f"this holder opens sums of {policy.min_cohort} or more members, not"
            f" {members}",
        )
    if members < threshold_for(pinned):
        raise Refused(
            "too_few_of_roster",
            f"this holder has pinned {pinned} members and opens sums of"
            f" {threshold_for(pinned)} or more, not {members}",
        )


# The members that a holder knows: keys met in rounds, and the signed list of all.


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
