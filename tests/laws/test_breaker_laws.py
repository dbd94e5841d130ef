"""The circuit breaker under any order of requests, results and waits, held against a list of what
happened.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ridgeway.serving.expert_link import (
    MAX_FAILURES,
    PAUSE_S,
    CircuitBreaker,
)

results = st.sampled_from([True, False, None])


class BreakerMachine(RuleBasedStateMachine):
    """A model that only remembers: failures in a row since it was last up, when it went down, whose
    trial is on.
    """

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = CircuitBreaker(lambda: self.now)
        self.failures = 0
        self.down_since: float | None = None
        self.trial: int | None = None
        self.valid: set[int] = set()
        self.number = 0
        self.issued: dict[int, int] = {}

    @rule(target=tickets)
    def enter(self) -> int:
        """A number for what was let through; refused requests have none."""
        self.number += 1
        waited = self.down_since is None or self.now >= self.down_since + PAUSE_S
        expected = self.trial is None and waited
        ticket = self.breaker.enter()
        assert (ticket is not None) == expected
        if ticket is None:
            return 0
        self.issued[self.number] = ticket
        if self.down_since is not None:
            self.trial = self.number
        self.valid.add(self.number)
        return self.number

    @rule(number=consumes(tickets), good=results)
    def settle(self, number: int, good: bool | None) -> None:
        if number == 0:
            return
        self.breaker.settle(self.issued[number], good)
        if number not in self.valid:
            return
        self.valid.discard(number)
        if number == self.trial:
            self._trial_over(good)
        elif good:
            self.failures = 0
        elif good is False:
            self.failures += 1
            if self.failures == MAX_FAILURES:
                self._goes_down()

    @rule()
    def fail_again_and_again(self) -> None:
        """What chance would seldom do: as many failures in a row as it takes."""
        for _ in range(MAX_FAILURES):
            self.settle(self.enter(), False)

    @rule(number=tickets)
    def hear(self, number: int) -> None:
        """The head of an answer ends a trial; otherwise it changes nothing."""
        if number == 0:
            return
        self.breaker.answer_began(self.issued[number])
        if number == self.trial:
            self._trial_over(True)

    @rule(seconds=st.sampled_from([0.5, 3.0, PAUSE_S, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _trial_over(self, good: bool | None) -> None:
        self.trial = None
        self.valid.clear()
        if good:
            self.down_since = None
            self.failures = 0
        elif good is False:
            self._goes_down()

    def _goes_down(self) -> None:
        self.down_since = self.now
        self.failures = 0
        self.valid.clear()

    @invariant()
    def its_state_is_what_happened(self) -> None:
        expected = "down" if self.trial is None else "trying"
        assert self.breaker.state == ("up" if self.down_since is None else expected)

    @invariant()
    def it_says_how_long_it_will_wait(self) -> None:
        left = 0.0
        if self.down_since is not None and self.trial is None:
            left = max(0.0, self.down_since + PAUSE_S - self.now)
        assert self.breaker.wait_s() == left


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(stateful_step_count=40)


def state(breaker: CircuitBreaker) -> str:
    return breaker.state


def test_five_failures_in_a_row_and_one_trial_after_ten_seconds() -> None:
    """The numbers that the documentation gives."""
    now = 100.0
    breaker = CircuitBreaker(lambda: now)
    for _ in range(4):
        breaker.settle(breaker.enter() or 0, False)
    assert state(breaker) == "up"
    breaker.settle(breaker.enter() or 0, False)
    assert state(breaker) == "down"
    now = 109.9
    assert breaker.enter() is None
    now = 110.0
    trial = breaker.enter()
    assert trial is not None
    assert state(breaker) == "trying"
    assert breaker.enter() is None
    breaker.settle(trial, True)
    assert state(breaker) == "up"
    assert breaker.enter() is not None
