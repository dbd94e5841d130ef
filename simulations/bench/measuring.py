"""How things are timed: in turns, so that a busy moment of the machine hits all contenders alike.

Knows clocks. Knows nothing of what is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Work = Callable[[], object]
Tick = Callable[[], None]
"""Called after each piece of long work, for a bar."""


@dataclass(frozen=True, slots=True)
class Result:
    """One ratio, the aim it is held against, and the two figures it is made of."""

    name: str
    ratio: float
    aim: str
    reached: bool
    ours: str
    theirs: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def at_least(name: str, ratio: float, aim: float, ours: str, theirs: str) -> Result:
    return Result(name, ratio, f"≥ {aim:g}", ratio >= aim, ours, theirs)


def at_most(name: str, ratio: float, aim: float, ours: str, theirs: str) -> Result:
    return Result(name, ratio, f"≤ {aim:g}", ratio <= aim, ours, theirs)


def exactly(name: str, ratio: float, aim: float, ours: str, theirs: str) -> Result:
    return Result(name, ratio, f"= {aim:g}", ratio == aim, ours, theirs)


def figure(name: str, ratio: float, ours: str, theirs: str) -> Result:
    """A figure that stands beside the others and is held against nothing."""
    return Result(name, ratio, "–", True, ours, theirs)


def seconds_in_turns(*contenders: Work, rounds: int = 5, tick: Tick = lambda: None, warm: bool = True) -> list[float]:
    """The median seconds of each contender over several rounds, one after another in each round."""
    times: list[list[float]] = [[] for _ in contenders]
    for work in contenders if warm else ():
        work()  # warm caches, once and untimed
        tick()
    for _ in range(rounds):
        for taken, work in zip(times, contenders, strict=True):
            started = time.perf_counter()
            work()
            taken.append(time.perf_counter() - started)
            tick()
    return [statistics.median(taken) for taken in times]


def once(work: Work) -> float:
    """The seconds of a single run: for work that is long enough to be steady."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
