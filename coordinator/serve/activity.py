"""What happened in the last minutes, for the page: decisions by domain, abstentions, and how long deciding took.

Knows counts and times. Holds no prompt.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEP_S = 5
STEPS = 60
MOST_TIMES = 256
"""So many times of a step are kept; of more, the latest."""


@dataclass(slots=True)
class Step:
    """Five seconds."""

    number: int
    decisions: dict[str, int] = field(default_factory=dict)
    abstained: int = 0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))

    def to_json(self) -> dict[str, Any]:
        times = sorted(self.times)
        return {
            "start": self.number * STEP_S,
            "decisions": self.decisions,
            "abstained": self.abstained,
            "p50_ms": 1000 * times[len(times) // 2] if times else None,
            "p99_ms": 1000 * times[len(times) * 99 // 100] if times else None,
        }


class Activity:
    """A ring of steps; the oldest fall out."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._steps: deque[Step] = deque(maxlen=STEPS)

    def add(self, decisions: Mapping[str, int], abstained: int, seconds: float) -> None:
        """The decisions of one request, by domain, and how long they took together."""
        step = self._step()
        for domain, count in decisions.items():
            step.decisions[domain] = step.decisions.get(domain, 0) + count
        step.abstained += abstained
        step.times.append(seconds)

    def _step(self) -> Step:
        number = int(self._clock()) // STEP_S
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(Step(number))
        return self._steps[-1]

    def to_json(self) -> dict[str, Any]:
        oldest = int(self._clock()) // STEP_S - STEPS
        steps = [step.to_json() for step in self._steps if step.number > oldest]
        return {"now": self._clock(), "step_s": STEP_S, "steps": steps, "kept": STEPS}
