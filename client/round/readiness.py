"""What would keep this holder from a round with a given cohort, found out before there is one.

It runs the very checks that a round runs. Only codes and keys of what it finds are told, and none
of them depends on the corpus.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from ridgeway.client.round.holder import Holder
from ridgeway.client.round.known_keys import check_members
from ridgeway.client.round.policy import check_cohort, check_members_of_sum, check_terms
from ridgeway.client.round.roster import load_roster
from ridgeway.common.base.errors import Refused
from ridgeway.common.protocol.cohort import Cohort
from ridgeway.common.protocol.messages import HeardOutputs
from ridgeway.common.statistics.sums import vector_size

SPARE_BYTES = 64 << 20
"""For the journal, the logs and a release, beside the sums, of which two are there while one
replaces the other.
"""


def problems(
    holder: Holder, cohort: Cohort, heard: Sequence[HeardOutputs] = ()
) -> list[Exception]:
    """What goes wrong in each check. Under terms that it has not agreed to, and of an older copy,
    nothing else is looked at.
    """
    try:
        check_terms(holder.settings.policy, cohort.terms)
        holder.check_record(heard)
        holder.encoder(cohort.terms)
    except Exception as error:
        return [error]
    found: list[Exception] = []
    for check in CHECKS if cohort.terms.uses_masks else CHECKS[:3]:
        try:
            check(holder, cohort)
        except Exception as error:
            found.append(error)
    return found


def _agrees(holder: Holder, cohort: Cohort) -> None:
    check_cohort(holder.settings.policy, cohort, holder.identity.public, holder.domain)


def _has_room(holder: Holder, cohort: Cohort) -> None:
    """Look for as much room as a round with this holder's own roster takes; the cohort does not
    change it.
    """
    domains = {place.domain for place in load_roster(holder.folder)} | {holder.domain}
    needed = 2 * 8 * vector_size(cohort.terms.features, len(domains)) + SPARE_BYTES
    if shutil.disk_usage(holder.folder).free < needed:
        raise Refused(
            "disk_full",
            "this holder has too little free disk space for a round",
        )


def _has_data(holder: Holder, cohort: Cohort) -> None:
    holder.epoch(cohort.terms)
    holder.check_affordable(cohort.terms)


def _knows_the_members(holder: Holder, cohort: Cohort) -> None:
    keys = {member.key for member in cohort.members}
    pinned = holder.pinned_keys
    check_members(holder.handovers, pinned, keys)
    if unknown := keys - pinned:
        raise Refused(
            "not_pinned",
            "members are not on this holder's pinned roster",
            unknown,
        )


def _would_sign(holder: Holder, cohort: Cohort) -> None:
    check_members_of_sum(
        holder.settings.policy, len(cohort.members), len(holder.pinned_keys)
    )


CHECKS: Sequence[Callable[[Holder, Cohort], None]] = (
    _agrees,
    _has_room,
    _has_data,
    _knows_the_members,
    _would_sign,
)
