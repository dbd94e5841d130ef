"""Whether a round would lose a domain that the newest release has: it stops before anything is opened, and says why.

A router without a domain sends that domain's texts to wrong experts, with confidence. So a domain goes only if the
operator lets it go. Knows the ledger. Knows nothing of how a total is gathered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ridgeway.common.base.errors import RoundFailed
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.remedies import AWAY, why


def check_nothing_lost(
    federation: Federation, names: Collection[str], reasons: Mapping[str, tuple[str, str]], allowed: Collection[str]
) -> None:
    """Raise RoundFailed if the sums of these holders leave out a domain that the newest release has.

    reasons: code and words of whoever refused something in this round, by name. allowed: domains that may be lost.
    A domain that has no holder on the roster any more was let go before.
    """
    newest, active = federation.newest, federation.ledger.standing().active
    there = {active[name].domain for name in names}
    held = {holder.domain for holder in active.values()}
    may_go = {*allowed, *federation.settings.round.may_lapse}
    lost = [domain for domain in newest.domains if domain in held - there - may_go] if newest else []
    if newest is None or not lost:
        return
    missing = sorted(name for name, holder in active.items() if holder.domain in lost)
    each = why_missing(missing, reasons)
    named, flags = ", ".join(lost), " ".join(f"--allow-missing {domain}" for domain in lost)
    raise RoundFailed(
        f"the router would lose {named}, which release {newest.number:04} has: {each}. Nothing was opened and release "
        f"{newest.number:04} stands; run the round again when this is mended, or let the domain go with {flags}"
    )


def why_missing(names: Collection[str], reasons: Mapping[str, tuple[str, str]]) -> str:
    """Why these holders are not in a round, and what each has to do."""
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(why(*reasons.get(name, (AWAY, ""))), []).append(name)
    return "; ".join(f"{', '.join(those)} {words}" for words, those in alike.items())
