"""A whole round in the in-process engine: what the protocol costs beside tokenising, summing and solving.

Run as a module with a number of holders, it simulates one federation in a process of its own and prints the figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import client.holder
import coordinator.rounds
from client.scoring import Scorer
from common.cohort import Mode
from simulations.bench.measuring import Result, Tick, at_most
from simulations.simulate import simulate

FEW, SOME, MANY = 6, 50, 200
DROP_RATE = 0.2
WORK: dict[str, list[tuple[Any, str]]] = {
    "reading, tokenising and summing": [(client.holder, "prepare"), (client.holder, "held_out_sample")],
    "scoring": [(Scorer, "routed"), (Scorer, "reliability")],
    "solving": [(coordinator.rounds, "solve"), (coordinator.rounds, "compose")],
}


RUNS = 3


def bench_federation(tick: Tick) -> list[Result]:
    """Seconds and memory of a round, and the share of it that is neither summing nor solving; ticks after each run."""

    def measured(holders: int, mode: Mode, drop_rate: float = 0.0) -> dict[str, float]:
        figures = _measured(holders, mode, drop_rate)
        tick()
        return figures

    few, many = measured(FEW, "clear"), measured(MANY, "clear")
    some = measured(SOME, "masked", DROP_RATE)
    each = (many["overhead"] - few["overhead"]) / (MANY - FEW)
    whole = f"{many['round']:.1f} s in the round"
    return [
        at_most(
            f"{SOME} holders masked, {DROP_RATE:.0%} fall away, seconds",
            some["whole"],
            120,
            f"{some['whole']:.1f} s",
            f"{some['round']:.1f} s in the round, {some['memory']:.2f} GB",
        ),
        at_most(f"a federation of {MANY}, seconds", many["whole"], 60, f"{many['whole']:.1f} s", whole),
        at_most(f"a federation of {MANY}, memory in GB", many["memory"], 4, f"{many['memory']:.2f} GB", ""),
        at_most("what each holder adds to the protocol, seconds", each, 0.25, _parts(many), f"{MANY} holders"),
    ]


def _parts(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {figures[name]:.1f} s" for name in (*WORK, "overhead"))


def _measured(holders: int, mode: Mode, drop_rate: float) -> dict[str, float]:
    command = [sys.executable, "-m", "simulations.bench.federation", str(holders), mode, str(drop_rate)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures | {"whole": time.perf_counter() - started}


class Stopwatch:
    """Adds up the seconds that calls of some functions take; a call within a call counts once."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(WORK, 0.0)
        self._inside = False

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return function(*arguments, **options)
            self._inside, started = True, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._inside = False
                self.seconds[name] += time.perf_counter() - started

        return wrapped


@contextmanager
def watched() -> Iterator[Stopwatch]:
    """While this lasts, what is done of WORK is timed."""
    watch = Stopwatch()
    with ExitStack() as patches:
        for name, places in WORK.items():
            for module, function in places:
                timed = watch.timed(name, getattr(module, function))
                patches.enter_context(mock.patch.object(module, function, timed))
        yield watch


def main(holders: int, mode: Mode, drop_rate: float) -> None:
    with watched() as watch, tempfile.TemporaryDirectory() as work:
        done = simulate(Path(work), lambda event, facts: None, holders=holders, mode=mode, drop_rate=drop_rate)
    seconds = done.timings["round"]
    print(
        json.dumps(
            {**watch.seconds, "round": seconds, "overhead": seconds - sum(watch.seconds.values()), "memory": peak()}
        )
    )


def peak() -> float:
    """The largest resident size of this process in GB; getrusage would count in that of the process that started it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e9


if __name__ == "__main__":
    main(int(sys.argv[1]), "clear" if sys.argv[2] == "clear" else "masked", float(sys.argv[3]))
