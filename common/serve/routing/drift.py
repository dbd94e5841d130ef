"""How far today's prompts are from the text that the router was built on, and when that is too far.

The signs are the shares of recent prompts of low confidence, and of those that belong to no domain.
Holds no prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ridgeway.common.routing.decision import Decision
from ridgeway.common.serve.routing.current_release import ServedRelease

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
