"""What would stand in this holder's way in a round with a given cohort, found out before there is one.

It runs the very checks and the very work that a round begins with, so both come to the same; what it sums is kept. Only
codes and keys of what it finds are told. Knows the holder and its policy; knows nothing of messages.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from ridgeway.client.round.holder import Holder
from ridgeway.client.round.known_keys import check_members
from ridgeway.client.round.policy import check_cohort, check_terms
from ridgeway.common.base.errors import Refused
from ridgeway.common.masking.differencing import set_apart
from ridgeway.common.protocol.cohort import Cohort
from ridgeway.common.statistics.sums import vector_size

SPARE_BYTES = 64 << 20
"""For the journal, the logs and a release, beside the sums, of which two are there while one replaces the other."""


def obstacles(holder: Holder, cohort: Cohort) -> list[Exception]:
    """What goes wrong in each check; none is what is wanted. Under terms that it has not agreed to it does no work."""
    found: list[Exception] = []
    try:
        check_terms(holder.settings.policy, cohort.terms)
    except Refused as error:
        return [error]
    for check in CHECKS if cohort.terms.mode == "masked" else CLEAR_CHECKS:
        try:
            check(holder, cohort)
        except Exception as error:
            found.append(error)
    return found


def _agrees(holder: Holder, cohort: Cohort) -> None:
    check_cohort(holder.settings.policy, cohort, holder.identity.public, holder.domain)


def _has_room(holder: Holder, cohort: Cohort) -> None:
    needed = 2 * 8 * vector_size(cohort.terms.features, len(cohort.domains)) + SPARE_BYTES
    if shutil.disk_usage(holder.folder).free < needed:
        raise Refused("disk_full", "there is too little room on this holder's disk for its work in a round")


def _sums_its_corpus(holder: Holder, cohort: Cohort) -> None:
    if (privacy := cohort.terms.privacy) and holder.noisy.prior(privacy) is None:
        return  # it comes with the announcement
    holder.check_affordable(cohort.terms)
    holder.sums(cohort.terms)
    holder.held_out_source(holder.held_out(cohort.terms))


def _knows_the_members(holder: Holder, cohort: Cohort) -> None:
    keys, pinned = {member.key for member in cohort.members}, holder.pinned_keys
    check_members(holder.handovers, pinned, keys)
    if unknown := keys - pinned:
        raise Refused("forged_roster", "members are not on the roster that this holder has pinned", unknown)


def _would_sign(holder: Holder, cohort: Cohort) -> None:
    """Judge the total as it would be if nobody else's sums had changed since this holder last heard of them."""
    history, known = holder.memory.history(), holder.handovers
    own = [each for account in history.accounts for each in account.possible]
    earlier = [known.by_owner(each.by_key()) for each in (*history.heard, *own) if each.lot == "statistics"]
    sources = {key: source for each in earlier for key, (source, _) in each.items()}
    if (privacy := cohort.terms.privacy) and holder.noisy.prior(privacy) is None:
        return
    sources[known.owner(holder.identity.public)] = holder.source(holder.offered_sums(cohort.terms))
    members = known.by_owner({each.key: each.share or 1 for each in cohort.members})
    parts = {key: (sources.get(key, key), share) for key, share in members.items()}
    if found := set_apart(earlier, parts, holder.settings.policy.min_difference):
        raise Refused("sets_apart", "beside sums that were opened before, the total would show what few gave", found)


CLEAR_CHECKS: Sequence[Callable[[Holder, Cohort], None]] = (_agrees, _has_room, _sums_its_corpus)
CHECKS = (*CLEAR_CHECKS, _knows_the_members, _would_sign)
