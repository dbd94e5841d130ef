"""Releases as they are served: verified, with the experts checked, and ready to route."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ridgeway.common.base.settings import SentenceUse
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.release import Release, load_release
from ridgeway.common.routing.router import Router, router_of


@dataclass(frozen=True, slots=True, eq=False)
class ServedRelease:
    """A release that was verified and is ready to route.

    since:        when it was taken, in seconds since 1970.
    is_quick:     whether a short prompt is decided in less time than it takes to hand it to another
                  thread, unless its sentences have to be read.
    """

    release: Release
    router: Router
    folder: Path
    since: float
    id: str = field(init=False)
    is_quick: bool = field(init=False)

    def __post_init__(self) -> None:
        # what every request reads is worked out once
        object.__setattr__(self, "id", str(self.router.release))
        object.__setattr__(self, "is_quick", self.router.make_fast())

    @property
    def number(self) -> int:
        """Its number in its federation; 0 without one."""
        return self.release.number

    def card(self) -> dict[str, Any]:
        manifest = self.release.manifest
        return {
            "release": self.id,
            "signer": self.release.signer,
            "since": self.since,
            "domains": manifest["domains"],
            "masses": manifest["masses"],
            "manifest": {
                name: value for name, value in manifest.items() if name != "signature"
            },
        }


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """Where releases come from, and what is asked of them.

    key:          the public key that must have signed the first one; without one, whoever signed it
                  is trusted.
    check:        raises if a release cannot be used here, for a reason of its own.
    changes:      of the confidence that releases come with: threshold, fallback, scope.
    sentences:    which prompts a release's sentence encoder reads.
    """

    folder: Path
    key: str | None = None
    check: Callable[[Router], None] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    sentences: SentenceUse = "auto"

    def open(self, signer: str | None = None) -> ServedRelease:
        """Read and verify the release that is there now, and route a first prompt with it.

        signer: the newest key that is known of those who sign; an earlier one, also `key`, counts
                no more.
        """
        folder = self.folder.resolve()
        release = load_release(folder, key=signer or self.key, sentences=self.sentences)
        if self.changes:
            release = replace(
                release, confidence=release.confidence.abstaining(**self.changes)
            )
        router = router_of(release)
        if self.check is not None:
            self.check(router)
        router.route("Is it ready?")
        return ServedRelease(release, router, folder, time.time())


# How far today's prompts are from the text that the router was built on, and when that is too far.
#
# The signs are the shares of recent prompts of low confidence, and of those that belong to no
# domain. Holds no prompt.


MAX_RECENT_PROMPTS = 1000
LOW_BELOW = 0.5
MIN_PROMPTS_FOR_ALARM = 50

MIN_SHARE_ALARM = 0.25
SHARE_ALARM_MARGIN = 0.15
"""The usual alarms; docs/application/confidence.md says why."""


def share_alarm(served: ServedRelease, wanted: float | None) -> float:
    """What was asked for, else a quarter, or more where the release itself is less certain than
    that.
    """
    if wanted is not None:
        return wanted
    expected = expected_share(served.release.manifest)
    return min(max(MIN_SHARE_ALARM, expected + SHARE_ALARM_MARGIN), 0.95)


def expected_share(manifest: Mapping[str, Any]) -> float:
    """The most prompts of low confidence that held-out accuracy explains, if confidence means what
    it says.

    A decision of confidence c is wrong in 1 − c of cases, so those below LOW_BELOW are at
    most errors / (1 − LOW_BELOW).
    """
    figures = manifest.get("evaluation")
    if not figures or not manifest["confidence"].get("calibrated"):
        return 0.0
    return float((1 - figures["accuracy"] / 100) / (1 - LOW_BELOW))


class _Signs(NamedTuple):
    """What is kept of one prompt."""

    low_confidence: bool
    out_of_scope: bool


class DriftMonitor:
    """The last prompts under the release in use; begun anew with each release.

    share: the alarm is raised above this share of prompts of low confidence, or that belong to no
           domain; None: as fits the release.
    """

    def __init__(self, share: float | None = None) -> None:
        self._share_alarm = share
        self._served: ServedRelease | None = None
        self._recent: deque[_Signs] = deque(maxlen=MAX_RECENT_PROMPTS)

    def observe(self, served: ServedRelease, decisions: Sequence[Decision]) -> None:
        """Take note of the decisions of one request."""
        if served is not self._served:
            if self._served is not None and served.since < self._served.since:
                return  # a late answer of the release before
            self._served = served
            self._recent.clear()
        for decision in decisions:
            signs = _Signs(decision.confidence < LOW_BELOW, not decision.belongs)
            self._recent.append(signs)

    def to_json(self, served: ServedRelease) -> dict[str, Any]:
        """What is known of the release in use, which may be newer than the last prompt."""
        recent = list(self._recent) if served is self._served else []
        uncertain = _share([signs.low_confidence for signs in recent])
        outside = _share([signs.out_of_scope for signs in recent])
        limit = share_alarm(served, self._share_alarm)
        return {
            "prompts": len(recent),
            "low_confidence_share": uncertain,
            "out_of_scope_share": outside,
            "low_below": LOW_BELOW,
            "share_alarm": limit,
            "alarm": (
                len(recent) >= MIN_PROMPTS_FOR_ALARM
                and max(uncertain or 0, outside or 0) > limit
            ),
        }


def _share(signs: Sequence[bool]) -> float | None:
    return sum(signs) / len(signs) if signs else None
