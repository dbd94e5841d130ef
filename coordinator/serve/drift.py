"""How far today's prompts are from the text that the router was built on, and when that is too far.

Knows confidences. Holds no prompt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from coordinator.serve.live import Live

RECENT = 1000
FEWEST = 50
"""Fewer prompts raise no alarm."""


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """When prompts count as drifted.

    low:   a confidence below this is low.
    share: the alarm is raised if more than this share of recent prompts is of low confidence.
    """

    low: float = 0.5
    share: float = 0.25


class Drift:
    """The last prompts under the release in use; begun anew with each release."""

    def __init__(self, settings: DriftSettings) -> None:
        self._settings = settings
        self._release = ""
        self._low: deque[bool] = deque(maxlen=RECENT)
        self._count = 0

    def observe(self, live: Live, text: str, confidence: float) -> None:
        if live.id != self._release:
            self._release, self._count = live.id, 0
            self._low.clear()
        if len(self._low) == RECENT:
            self._count -= self._low[0]
        self._low.append(confidence < self._settings.low)
        self._count += self._low[-1]

    def to_json(self) -> dict[str, Any]:
        prompts = len(self._low)
        share = self._count / prompts if prompts else None
        alarm = prompts >= FEWEST and share is not None and share > self._settings.share
        return {
            "prompts": prompts,
            "low_confidence_share": share,
            "low_below": self._settings.low,
            "share_alarm": self._settings.share,
            "leverage": None,
            "leverage_alarm": None,
            "alarm": alarm,
        }
