"""What stands in the way of the next round, as far as it can be told without asking anybody, and
what to do about it.

 Only a round itself finds out all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from ridgeway.common.base.errors import CertificateError
from ridgeway.coordinator.deploy.authority import (
    check_certificates,
    ending_certificates,
)
from ridgeway.coordinator.page.live_round import last_preflight
from ridgeway.coordinator.page.round_history import Outcome, RoundRecord
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.masked_round import too_few_on_roster
from ridgeway.coordinator.round.remedies import REMEDIES

BEGINNING = "1970-01-01T00:00:00+00:00"


@dataclass(frozen=True, slots=True)
class RoundProblem:
    """stops: whether the next round would fail for it. names: the holders or domains that it is
    about.
    """

    stops: bool
    words: str
    remedy: str = ""
    names: tuple[str, ...] = ()


def problems(
    federation: Federation,
    online: Collection[str] | None,
    last: tuple[RoundRecord, Outcome] | None,
    now: datetime,
) -> list[RoundProblem]:
    """All of them, those that stop a round first.

    online: the holders that are there, or None if the coordinator is down. last: the newest round
            and how it ended.
    """
    found = [
        *_of_link(federation, online),
        *_of_roster(federation),
        *_of_last_round(federation, last),
    ]
    found += _of_preflight(federation, last[0].began if last else BEGINNING)
    found += [] if online is None else _of_absence(federation, online)
    found += _of_certificates(federation, now)
    return sorted(found, key=lambda each: not each.stops)


def _of_link(
    federation: Federation, online: Collection[str] | None
) -> list[RoundProblem]:
    if online is not None:
        return []
    return [
        RoundProblem(
            True,
            "the coordinator is down",
            "run `ridgeway coordinator up` and keep it running",
        )
    ]


def _of_roster(federation: Federation) -> list[RoundProblem]:
    standing = federation.ledger.standing()
    newest = federation.newest
    wanted = federation.settings.round.min_holders
    found = list[RoundProblem]()
    if len(standing.active) < wanted:
        words = (
            f"{len(standing.active)} holders are on the roster, and a round needs"
            f" {wanted}"
        )
        found.append(
            RoundProblem(
                True, words, "admit more holders with `ridgeway coordinator admit`"
            )
        )
    elif lacking := too_few_on_roster(federation):
        found.append(
            RoundProblem(
                True, lacking, "admit more holders with `ridgeway coordinator admit`"
            )
        )
    if newest is not None:
        before = {member.name for member in newest.members}
        new = tuple(sorted(set(standing.active) - before))
        if new and federation.settings.uses_masks:
            words = (
                "holders are new since the newest release; the others refuse a sum with"
                " them until they pin them"
            )
            found.append(
                RoundProblem(
                    False, words, "each holder runs `ridgeway client pin`", new
                )
            )
    return found


def _of_absence(federation: Federation, online: Collection[str]) -> list[RoundProblem]:
    active = federation.ledger.standing().active
    newest = federation.newest
    away = sorted(set(active) - set(online))
    if not away:
        return []
    there = {active[name].domain for name in active if name in online}
    may_go = {*there, *federation.settings.round.may_lapse}
    lost = sorted(
        {active[name].domain for name in away}
        & set(newest.domains if newest else ()) - may_go
    )
    found = [
        RoundProblem(
            False,
            "holders are away",
            "see that `ridgeway client join` runs there",
            tuple(away),
        )
    ]
    if lost:
        words = (
            f"every holder of a domain of release {newest.number:04} is away"
            if newest
            else ""
        )
        remedy = (
            "wait for one of them, or let the domain go with `ridgeway coordinator"
            " round --allow-missing DOMAIN`"
        )
        found.append(RoundProblem(True, words, remedy, tuple(lost)))
    return found


def _of_last_round(
    federation: Federation, last: tuple[RoundRecord, Outcome] | None
) -> list[RoundProblem]:
    if last is None or last[1] == "running":
        return []
    record, outcome = last
    found = []
    if outcome == "failed":
        found.append(
            RoundProblem(False, f"round {record.number} failed: {record.reason}")
        )
    if outcome == "cut off":
        words = (
            f"round {record.number} was cut off: the process that ran it has ended."
            " What it accepted is kept"
        )
        found.append(
            RoundProblem(False, words, "run `ridgeway coordinator round` again")
        )
    active = federation.ledger.standing().active
    latest = {each.name: each for each in record.refusals if each.name in active}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, each in latest.items():
        alike.setdefault((each.code, each.reason), []).append(str(name))
    for (code, reason), names in sorted(alike.items()):
        words = f"refused in round {record.number} ({code}): {reason}"
        found.append(
            RoundProblem(False, words, REMEDIES.get(code, ""), tuple(sorted(names)))
        )
    return found


def _of_preflight(federation: Federation, after: str) -> list[RoundProblem]:
    """What holders said when they were asked, if no round was begun since."""
    alike: dict[str, list[str]] = {}
    for each in last_preflight(federation.folder, after):
        for code, _ in each.obstacles:
            alike.setdefault(code, []).append(each.name)
    return [
        RoundProblem(
            False,
            f"found by the last preflight: {code}",
            REMEDIES.get(code, ""),
            tuple(sorted(names)),
        )
        for code, names in sorted(alike.items())
    ]


def _of_certificates(federation: Federation, now: datetime) -> list[RoundProblem]:
    if not federation.link.exists():
        return []
    try:
        check_certificates(federation.link, federation.settings.address, now)
    except CertificateError as error:
        return [RoundProblem(True, str(error))]
    return [
        RoundProblem(False, words)
        for words in ending_certificates(federation.link, now)
    ]
