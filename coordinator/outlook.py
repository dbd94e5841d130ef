"""What a masked round would show beside the totals that were opened before, in words for the operator.

Knows the ledger. Knows nothing of the network: sums of holders may have changed since they were last seen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from common.masking.agreement import SMALLEST_COHORT
from common.masking.differencing import Parts, set_apart
from coordinator.federation import Federation
from coordinator.gathering import cohort_of
from coordinator.ledger import Standing

UNSEEN = ""
"""Stands for sums that were never in a total."""


def words_of_change(standing: Standing, earlier: Sequence[Parts], new: Parts, found: Collection[str]) -> str:
    """Why a masked sum is not asked for, and what to do instead."""
    names = standing.names
    who = ", ".join(names.get(key, f"{key[:12]}…") for key in sorted(found))
    likest = min(earlier, key=lambda each: len(_differing(each, new)))
    if set(found) == _differing(likest, new):
        verbs = " or ".join(sorted({_verb(key, likest, new) for key in found}))
        why = f"since an earlier masked total only {who} {verbs}: the difference of the two totals would show"
    else:
        why = f"together with all the masked totals so far this one would show of {who}"
    return (
        f"{why} what it has alone, so holders refuse it. Run the round again when another holder has joined, left or "
        "changed too; until then the newest release stands, and `coordinator retire` drops a domain from it at once"
    )


def _differing(one: Parts, other: Parts) -> set[str]:
    return {key for key in {*one, *other} if one.get(key) != other.get(key)}


def _verb(key: str, before: Parts, new: Parts) -> str:
    if key not in before:
        return "has joined"
    return "has changed" if key in new else "is missing"


def outlook(federation: Federation) -> str | None:
    """What stands in the way of a masked round of everybody on the roster, as far as can be known without asking."""
    if federation.settings.mode != "masked":
        return None
    standing = federation.ledger.standing()
    active = standing.active
    if len(active) < SMALLEST_COHORT:
        return f"{len(active)} holders are on the roster, and a masked round needs {SMALLEST_COHORT}"
    earlier = standing.opened.get("statistics", [])
    if not earlier:
        return None
    cohort = cohort_of(federation.terms, active, set(active))
    last = earlier[-1]
    parts = {member.key: (last.get(member.key, (UNSEEN, 0))[0], member.share or 1) for member in cohort.members}
    found = set_apart(earlier, parts, federation.settings.round.min_difference)
    return words_of_change(standing, earlier, parts, found) if found else None
