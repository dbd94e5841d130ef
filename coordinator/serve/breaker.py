"""A circuit breaker: an expert that fails again and again is left alone for a while, then tried once at a time.

    up ──5 failures in a row──▶ down ──after 10 s, the next request──▶ trying ──success──▶ up
                                  ▲────────────────failure────────────────┘

Knows a clock. Knows nothing of requests: it hands out tickets and is told how each went.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

FAILURES = 5
PAUSE_S = 10.0

Clock = Callable[[], float]
State = Literal["up", "down", "trying"]


class Breaker:
    """Whether an expert may be asked now.

    Laws: while it is down nobody is let through before the pause is over, and then one at a time. What is reported of
    a ticket from before the state last changed is passed over: it says nothing about now.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._state: State = "up"
        self._failures = 0
        self._since = 0.0
        self._era = 0

    @property
    def state(self) -> State:
        return self._state

    def enter(self) -> int | None:
        """A ticket for one request, or None if it must not be made. Each ticket is to be settled."""
        if self._state == "down" and self.wait_s() <= 0:
            self._turn("trying")
            return self._era
        return self._era if self._state == "up" else None

    def wait_s(self) -> float:
        """How long it will surely let nobody through."""
        return max(0.0, self._since + PAUSE_S - self._clock()) if self._state == "down" else 0.0

    def heard(self, ticket: int) -> None:
        """An answer has begun: enough to end a trial, though not yet to forget earlier failures."""
        if ticket == self._era and self._state == "trying":
            self._turn("up")

    def settle(self, ticket: int, good: bool | None) -> None:
        """How a request went; None: nobody knows, since whoever asked has gone."""
        if ticket != self._era:
            return
        if self._state == "trying":
            self._end_trial(good)
        elif good:
            self._failures = 0
        elif good is not None:
            self._failures += 1
            if self._failures >= FAILURES:
                self._go_down()

    def _end_trial(self, good: bool | None) -> None:
        if good:
            self._turn("up")
        elif good is None:
            self._turn("down")  # the pause is over already: the next one may try
        else:
            self._go_down()

    def _go_down(self) -> None:
        self._since = self._clock()
        self._turn("down")

    def _turn(self, state: State) -> None:
        self._state = state
        self._failures = 0
        self._era += 1
