"""A whole round in the in-process engine: what the protocol costs beside scoring and solving.

Holders sum their corpora before a round, so that is timed apart.

Run as a module with a number of holders, it simulates one federation in a process of its own and
prints the figures.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import ridgeway.coordinator.round.round
from ridgeway.client.round.scoring import Scorer
from ridgeway.common.cli.terminal import ticking
from ridgeway.simulations import engines
from ridgeway.simulations.bench.measuring import (
    Result,
    at_most,
    measured_apart,
    peak_gb,
)
from ridgeway.simulations.simulate import simulate

ENCODER = "smollm2"
"""Of 576 features, as the aims are."""
FEW_HOLDERS = 6
MANY_HOLDERS = 200
WORK: dict[str, list[tuple[Any, str]]] = {
    "scoring": [(Scorer, "routed"), (Scorer, "calibration")],
    "solving": [
        (ridgeway.coordinator.round.round, "solve"),
        (ridgeway.coordinator.round.round, "compose"),
    ],
}


def bench_federation() -> list[Result]:
    """Seconds and memory of a clear federation, and the part of its round that is neither scoring
    nor solving.
    """
    measured = []
    with ticking("federation", 2) as tick:
        for holders in (FEW_HOLDERS, MANY_HOLDERS):
            measured.append(_measured(holders))
            tick()
    few, many = measured
    each = (many["overhead"] - few["overhead"]) / (MANY_HOLDERS - FEW_HOLDERS)
    whole = f"{many['round']:.1f} s in the round"
    parts = ", ".join(
        f"{name} {many[name]:.1f} s" for name in ("summing", *WORK, "overhead")
    )
    return [
        at_most(
            f"a federation of {MANY_HOLDERS}, seconds",
            many["whole"],
            60,
            f"{many['whole']:.1f} s",
            whole,
        ),
        at_most(
            f"a federation of {MANY_HOLDERS}, memory in GB",
            many["memory"],
            4,
            f"{many['memory']:.2f} GB",
            "",
        ),
        at_most(
            "what each holder adds to the protocol, seconds",
            each,
            0.25,
            parts,
            f"{MANY_HOLDERS} holders",
        ),
    ]


def _measured(holders: int) -> dict[str, float]:
    started = time.perf_counter()
    figures: dict[str, float] = measured_apart(
        "ridgeway.simulations.bench.round_bench", holders
    )
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
            self._inside = True
            started = time.perf_counter()
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


def main(holders: int) -> None:
    # others would have stopwatches of their own
    in_one_process = mock.patch.object(engines, "cores", lambda: 1)
    with in_one_process, watched() as watch, tempfile.TemporaryDirectory() as work:
        done = simulate(
            Path(work),
            lambda event: None,
            holders=holders,
            mode="clear",
            encoder=ENCODER,
        )
    seconds = done.timings["round"]
    figures = {
        **watch.seconds,
        "summing": done.timings["summing"],
        "round": seconds,
        "overhead": seconds - sum(watch.seconds.values()),
        "memory": peak_gb(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]))
