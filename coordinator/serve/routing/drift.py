"""How far today's prompts are from the text that the router was built on, and when that is too far.

Two signs: the share of recent prompts of low confidence, and the leverage of a sample of them under the total that the
release was made of, if its operator has kept what that takes. Knows confidences and leverages. Holds no prompt.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.terminal import count
from ridgeway.common.routing.drift_sketch import MIN_TOKENS, trimmed_mean
from ridgeway.coordinator.serve.routing.current_release import ServedRelease

MAX_RECENT_PROMPTS = 1000
MAX_RECENT_LEVERAGES = 200
MIN_PROMPTS_FOR_ALARM = 50

SAMPLE_INTERVAL_S = 0.1
"""Leverage is measured on ten prompts a second at most, since each is tokenised again for it."""
MAX_MEASURED_CHARACTERS = 2000
"""Of longer prompts the beginning is measured."""

MIN_SHARE_ALARM = 0.25
SHARE_ALARM_MARGIN = 0.15
LEVERAGE_ALARM_FACTOR = 1.25
DEFAULT_LEVERAGE_ALARM = 3.0
"""The usual alarms; docs/serving.md has the measurements behind them."""


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """When prompts count as drifted.

    low:      a confidence below this is low.
    share:    the alarm is raised above this share of prompts of low confidence; None: as fits the release.
    leverage: the alarm is raised above this mean leverage; None: as fits the release.
    """

    low: float = 0.5
    share: float | None = None
    leverage: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise InputError(f"--drift-share is a share between 0 and 1, not {self.share:g}")
        if self.leverage is not None and not 0 < self.leverage < math.inf:
            raise InputError(f"--drift-leverage is a positive number, not {self.leverage:g}")

    def share_alarm(self, served: ServedRelease | None) -> float:
        """What was asked for, else a quarter, or more where the release itself is less certain than that."""
        if self.share is not None:
            return self.share
        expected = expected_share(served.release.manifest, self.low) if served is not None else 0.0
        return min(max(MIN_SHARE_ALARM, expected + SHARE_ALARM_MARGIN), 0.95)

    def leverage_alarm(self, served: ServedRelease | None) -> float | None:
        """What was asked for, else a quarter over held-out text, else what no text of a domain was seen to reach."""
        if served is None or served.leverage is None:
            return None
        if self.leverage is not None:
            return self.leverage
        usual = served.leverage.usual
        return DEFAULT_LEVERAGE_ALARM if math.isnan(usual) else LEVERAGE_ALARM_FACTOR * usual


def expected_share(manifest: Mapping[str, Any], low: float) -> float:
    """The most prompts of low confidence that held-out accuracy explains, if confidence means what it says.

    A decision of confidence c is wrong in 1 − c of cases, so those below `low` are at most errors / (1 − low).
    """
    figures = manifest.get("evaluation")
    if not figures or not manifest["confidence"].get("calibrated"):
        return 0.0
    return float((1 - figures["accuracy"] / 100) / (1 - low))


class DriftMonitor:
    """The last prompts under the release in use; begun anew with each release."""

    def __init__(self, settings: DriftSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._served: ServedRelease | None = None
        self._low: deque[bool] = deque(maxlen=MAX_RECENT_PROMPTS)
        self._leverages: deque[float] = deque(maxlen=MAX_RECENT_LEVERAGES)
        self._next = -math.inf

    def observe(self, served: ServedRelease, texts: Sequence[str], confidences: Sequence[float]) -> None:
        """Take note of the decisions of one request; now and then, of the leverage of a prompt of theirs."""
        if served is not self._served:
            if self._served is not None and served.since < self._served.since:
                return  # a late answer of the release before
            self._served = served
            self._low.clear()
            self._leverages.clear()
        low = self._settings.low
        self._low.extend([confidence < low for confidence in confidences])
        if served.leverage is not None and (now := self._clock()) >= self._next:
            self._next = now + SAMPLE_INTERVAL_S
            ids = served.router.tokenizer.encode(texts[0][:MAX_MEASURED_CHARACTERS])
            if len(ids) >= MIN_TOKENS:
                self._leverages.append(served.leverage.of(ids))

    def to_json(self, served: ServedRelease | None = None) -> dict[str, Any]:
        """What is known of the release in use, which may be newer than the last prompt."""
        served = served or self._served
        fresh = served is not self._served
        prompts, measured = (0, []) if fresh else (len(self._low), list(self._leverages))
        share = sum(self._low) / prompts if prompts else None
        leverage = trimmed_mean(measured) if measured else None
        share_alarm, leverage_alarm = self._settings.share_alarm(served), self._settings.leverage_alarm(served)
        return {
            "prompts": prompts,
            "low_confidence_share": share,
            "low_below": self._settings.low,
            "share_alarm": share_alarm,
            "leverage": leverage,
            "leverage_alarm": leverage_alarm,
            "leverage_prompts": len(measured),
            "leverage_note": _note(served, len(measured)),
            "alarm": _above(share_alarm, share, prompts) or _above(leverage_alarm, leverage, len(measured)),
        }


def _above(limit: float | None, value: float | None, prompts: int) -> bool:
    return prompts >= MIN_PROMPTS_FOR_ALARM and limit is not None and value is not None and value > limit


def _note(served: ServedRelease | None, measured: int) -> str:
    if served is not None and served.leverage is None:
        return "not available with this release"
    if measured < MIN_PROMPTS_FOR_ALARM:
        return f"measured on {count(measured, 'prompt')} so far; an alarm takes {MIN_PROMPTS_FOR_ALARM}"
    return f"measured on the last {measured} prompts that were sampled"
