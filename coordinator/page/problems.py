"""What stands in the way of the next round, as far as it can be told without asking anybody, and
what to do about it. Only a round itself finds out all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from ridgeway.common.base.errors import CertificateError, InputError
from ridgeway.coordinator.deploy.authority import (
    check_certificates,
    ending_certificates,
)
from ridgeway.coordinator.deploy.kept_bundles import chosen_bundle, kept_bundles
from ridgeway.coordinator.page.narrator import OLDER_COPY
from ridgeway.coordinator.page.round_history import LastRound, Outcome, RoundRecord
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.masked_round import too_few_on_roster
from ridgeway.coordinator.round.remedies import OTHER_RELEASE, REMEDIES

ADMIT = "admit more holders with `ridgeway coordinator admit`"


@dataclass(frozen=True, slots=True)
class RoundProblem:
    """stops: whether the next round would fail for it. names: the holders or domains that it is
    about.
    """

    stops: bool
    words: str
    remedy: str = ""
    names: tuple[str, ...] = ()


Problems = Iterator[RoundProblem]


def problems(
    federation: Federation,
    online: Collection[str] | None,
    last: LastRound | None,
    now: datetime,
) -> list[RoundProblem]:
    """All of them, those that stop a round first.

    online: the holders that are there, or None if the coordinator is down. last: the newest round
            and how it ended.
    """
    all_problems = [
        *_of_presence(federation, online),
        *_of_roster(federation),
        *(_of_round(federation, *last) if last else ()),
        *_of_releases(federation),
        *_of_bundle(federation),
        *_of_certificates(federation, now),
    ]
    return sorted(all_problems, key=lambda problem: not problem.stops)


def _of_roster(federation: Federation) -> Problems:
    active = federation.standing.active
    newest = federation.newest
    if lacking := too_few_on_roster(federation):
        settings = federation.settings
        stops = settings.uses_masks or len(active) < settings.round.min_holders
        yield RoundProblem(stops, lacking, ADMIT)
    if newest is not None and federation.settings.uses_masks:
        new = set(active) - {member.name for member in newest.members}
        if new:
            words = (
                "holders are new since the newest release; the others must confirm"
                " them before a round under masks"
            )
            remedy = "each holder runs `ridgeway client members`"
            yield RoundProblem(False, words, remedy, tuple(sorted(new)))


def _of_presence(federation: Federation, online: Collection[str] | None) -> Problems:
    if online is None:
        remedy = "run `ridgeway coordinator up` and keep it running"
        yield RoundProblem(True, "the coordinator is down", remedy)
        return
    standing = federation.standing
    active = standing.active
    newest = federation.newest
    away = set(active) - set(online)
    if away:
        remedy = "check that `ridgeway client join` is running there"
        yield RoundProblem(False, "holders are offline", remedy, tuple(sorted(away)))
    if newest is None:
        return
    there = {holder.domain for name, holder in active.items() if name in online}
    domain_of = standing.kept_domains
    gone = {domain_of[name] for name in away | standing.left} & set(newest.domains)
    lost = gone - there - set(federation.settings.round.may_lapse)
    if lost:
        words = (
            f"every holder of a domain of release {newest.number:04} is offline or has"
            " left"
        )
        remedy = (
            "wait for one of them, or drop the domain with `ridgeway coordinator"
            " round --allow-missing DOMAIN`"
        )
        yield RoundProblem(True, words, remedy, tuple(sorted(lost)))


def _of_round(
    federation: Federation, record: RoundRecord, outcome: Outcome
) -> Problems:
    if outcome == "running":
        return
    if outcome == "failed":
        yield RoundProblem(False, f"round {record.number} failed: {record.reason}")
    if outcome == "cut off":
        words = (
            f"round {record.number} was interrupted: its process ended. Accepted data"
            " is kept"
        )
        yield RoundProblem(False, words, "run `ridgeway coordinator round` again")
    active = federation.standing.active
    latest = {refusal.name: refusal for refusal in record.refusals}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, refusal in latest.items():
        if name in active:
            alike.setdefault((refusal.code, refusal.reason), []).append(name)
    for (code, reason), names in sorted(alike.items()):
        words = f"refused in round {record.number} ({code}): {reason}"
        yield _with_remedy(code, words, names)


def _with_remedy(code: str, words: str, names: list[str]) -> RoundProblem:
    return RoundProblem(False, words, REMEDIES.get(code, ""), tuple(sorted(names)))


def _of_releases(federation: Federation) -> Problems:
    standing = federation.standing
    ahead = standing.ahead
    newest = federation.newest
    if standing.rolled_back is not None:
        words = f"the router was rolled back to release {standing.rolled_back:04}"
        remedy = "end the rollback with `ridgeway coordinator round --end-rollback`"
        yield RoundProblem(True, words, remedy)
    if ahead and newest:
        words = OLDER_COPY.format(number=newest.number)
        yield _with_remedy(OTHER_RELEASE, words, list(ahead))


def _of_bundle(federation: Federation) -> Problems:
    kept = kept_bundles(federation.link)
    try:
        chosen = chosen_bundle(federation)
    except InputError as error:
        yield RoundProblem(True, str(error))
        return
    if kept and chosen != kept[0].sha256:
        words = (
            f"rounds run the bundle {chosen[:12]}, which coordinator.toml names, and"
            f" not the newest, {kept[0].sha256[:12]}"
        )
        yield RoundProblem(False, words)


def _of_certificates(federation: Federation, now: datetime) -> Problems:
    if not federation.link.exists():
        return
    try:
        check_certificates(federation.link, federation.settings.address, now)
    except CertificateError as error:
        yield RoundProblem(True, str(error))
        return
    for words in ending_certificates(federation.link, now):
        yield RoundProblem(False, words)
