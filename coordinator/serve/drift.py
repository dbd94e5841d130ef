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

from common.errors import InputError
from common.terminal import count
from coordinator.leverage import FEWEST_TOKENS, trimmed_mean
from coordinator.serve.live import Live

RECENT = 1000
RECENT_LEVERAGES = 200
FEWEST = 50
"""Fewer prompts raise no alarm."""

PAUSE_S = 0.1
"""Leverage is measured on ten prompts a second at most, since each is tokenised again for it."""
MOST_CHARACTERS = 2000
"""Of longer prompts the beginning is measured."""

LEAST_SHARE = 0.25
SPARE_SHARE = 0.15
FAR = 1.25
FARTHEST = 3.0
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

    def share_alarm(self, live: Live | None) -> float:
        """What was asked for, else a quarter, or more where the release itself is less certain than that."""
        if self.share is not None:
            return self.share
        expected = expected_share(live.release.manifest, self.low) if live is not None else 0.0
        return min(max(LEAST_SHARE, expected + SPARE_SHARE), 0.95)

    def leverage_alarm(self, live: Live | None) -> float | None:
        """What was asked for, else a quarter over held-out text, else what no text of a domain was seen to reach."""
        if live is None or live.leverage is None:
            return None
        if self.leverage is not None:
            return self.leverage
        return FARTHEST if math.isnan(live.leverage.usual) else FAR * live.leverage.usual


def expected_share(manifest: Mapping[str, Any], low: float) -> float:
    """The most prompts of low confidence that held-out accuracy explains, if confidence means what it says.

    A decision of confidence c is wrong in 1 − c of cases, so those below `low` are at most errors / (1 − low).
    """
    figures = manifest.get("evaluation")
    if not figures or not manifest["confidence"].get("calibrated"):
        return 0.0
    return float((1 - figures["accuracy"] / 100) / (1 - low))


class Drift:
    """The last prompts under the release in use; begun anew with each release."""

    def __init__(self, settings: DriftSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._live: Live | None = None
        self._low: deque[bool] = deque(maxlen=RECENT)
        self._leverages: deque[float] = deque(maxlen=RECENT_LEVERAGES)
        self._next = -math.inf

    def observe(self, live: Live, texts: Sequence[str], confidences: Sequence[float]) -> None:
        """Take note of the decisions of one request; now and then, of the leverage of a prompt of theirs."""
        if live is not self._live:
            if self._live is not None and live.since < self._live.since:
                return  # a late answer of the release before
            self._begin(live)
        low = self._settings.low
        self._low.extend([confidence < low for confidence in confidences])
        if live.leverage is not None and (now := self._clock()) >= self._next:
            self._next = now + PAUSE_S
            self._measure(live, texts[0])

    def _begin(self, live: Live) -> None:
        self._live = live
        self._low.clear()
        self._leverages.clear()

    def _measure(self, live: Live, text: str) -> None:
        ids = live.router.tokenizer.encode(text[:MOST_CHARACTERS])
        if live.leverage is not None and len(ids) >= FEWEST_TOKENS:
            self._leverages.append(live.leverage.of(ids))

    def to_json(self, live: Live | None = None) -> dict[str, Any]:
        """What is known of the release in use, which may be newer than the last prompt."""
        live = live or self._live
        fresh = live is not self._live
        prompts, measured = (0, []) if fresh else (len(self._low), list(self._leverages))
        share = sum(self._low) / prompts if prompts else None
        leverage = trimmed_mean(measured) if measured else None
        share_alarm, leverage_alarm = self._settings.share_alarm(live), self._settings.leverage_alarm(live)
        return {
            "prompts": prompts,
            "low_confidence_share": share,
            "low_below": self._settings.low,
            "share_alarm": share_alarm,
            "leverage": leverage,
            "leverage_alarm": leverage_alarm,
            "leverage_prompts": len(measured),
            "leverage_note": _note(live, len(measured)),
            "alarm": _above(share_alarm, share, prompts) or _above(leverage_alarm, leverage, len(measured)),
        }


def _above(limit: float | None, value: float | None, prompts: int) -> bool:
    return prompts >= FEWEST and limit is not None and value is not None and value > limit


def _note(live: Live | None, measured: int) -> str:
    if live is not None and live.leverage is None:
        return "not available with this release"
    if measured < FEWEST:
        return f"measured on {count(measured, 'prompt')} so far; an alarm takes {FEWEST}"
    return f"measured on the last {measured} prompts that were sampled"
