"""Whole masked federations of growing size on this machine: seconds, memory, and one holder's own
work in the round.

A simulation reads and verifies once what many holders are sent alike. For the one holder that is
measured, all of that is forgotten before each of its answers, as if it were alone on its machine;
the encoder stays loaded.

Run as a module with a number of holders and the part of them that falls away, it simulates one
federation in a process of its own and prints the figures.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeway.client.round import holder, roster, scoring, session_store
from ridgeway.client.round.holder import Holder
from ridgeway.common.base import identity
from ridgeway.common.cli.terminal import ticking
from ridgeway.common.protocol import packet
from ridgeway.common.protocol.packet import Packet
from ridgeway.coordinator.round.progress import Event, ReleaseDelivered
from ridgeway.simulations.bench.measuring import (
    Result,
    at_most,
    figure,
    measured_apart,
    peak_gb,
)
from ridgeway.simulations.simulate import DropoutsChosen, FederationSettled, simulate

SLOPE = (50, 100, 200, 500, 1000)
ENCODER = "smollm2"
"""Of 576 features, as the aims are; those of words would be 384 more."""
MAX_SECONDS = {(200, 0.0): 60, (1000, 0.1): 360}
"""The aims for a whole federation, by its holders and the part of them that falls away."""
MAX_GB = 2
MAX_OWN_SECONDS = 1
MAX_OWN_BYTES = 3
"""The aims for the memory in all, for a holder's CPU seconds, and for its bytes up to those in a
cohort of BESIDE.
"""
BESIDE = 100
SHARED_READINGS: tuple[Any, ...] = (
    identity._verifies,
    packet._header,
    packet._message,
    packet._digest_of_request,
    scoring._compiled,
    holder._verified_release,
    session_store._agreed,
    roster._members,
)
"""What is done once for many holders in one process."""


@dataclass(frozen=True, slots=True)
class CohortFigures:
    """What one federation took. whole: with the start of Python. cpu: of all processes. gb: of all
    processes, the largest resident size of each. own: CPU seconds of one holder, by step. up: the
    bytes that it sent.
    """

    whole: float
    round: float
    cpu: float
    main_cpu: float
    gb: float
    own: dict[str, float]
    up: int


def bench_cohorts(holders: Sequence[int], drop_rate: float) -> list[Result]:
    results: list[Result] = []
    figures: dict[int, CohortFigures] = {}
    with ticking("cohorts", len(holders)) as tick:
        for members in holders:
            figures[members] = _measured(members, drop_rate)
            results += _results(
                members, drop_rate, figures[members], figures.get(BESIDE)
            )
            tick()
    return results


def _results(
    members: int, rate: float, found: CohortFigures, beside: CohortFigures | None
) -> list[Result]:
    fall = f", {rate:.0%} fall away" if rate else ""
    name = f"{members} holders masked{fall}"
    own = sum(found.own.values())
    words = (
        f"{found.round:.1f} s in the round",
        f"{found.cpu:.0f} CPU s, of the coordinator {found.main_cpu:.0f}",
    )
    seconds = MAX_SECONDS.get((members, rate))
    parts = ", ".join(f"{step} {each * 1e3:.0f} ms" for step, each in found.own.items())
    sent = f"{found.up / 1e6:.3f} MB up"
    return [
        (
            at_most(f"{name}: seconds", found.whole, seconds, *words)
            if seconds
            else figure(f"{name}: seconds", found.whole, *words)
        ),
        at_most(f"{name}: GB in all", found.gb, MAX_GB, f"{found.gb:.2f} GB", ""),
        at_most(
            f"one holder of {members}: CPU seconds",
            own,
            MAX_OWN_SECONDS,
            f"{own:.2f} s",
            parts,
        ),
        (
            at_most(
                f"one holder of {members}: bytes up, to {BESIDE} holders",
                found.up / beside.up,
                MAX_OWN_BYTES,
                sent,
                "",
            )
            if beside
            else figure(f"one holder of {members}: MB up", found.up / 1e6, sent, "")
        ),
    ]


def _measured(members: int, drop_rate: float) -> CohortFigures:
    started = time.perf_counter()
    figures = measured_apart(
        "ridgeway.simulations.bench.cohort_bench", members, drop_rate
    )
    return CohortFigures(whole=time.perf_counter() - started, **figures)


class _OwnWork:
    """The answers of one holder, measured in whichever process gives them, and written to a file
    line by line.

    It is the last of those that do not fall away: what a process loads for its first holder is
    there by then.
    """

    def __init__(self, path: Path, answer: Callable[[Holder, Packet], Packet]) -> None:
        self._path = path
        self._answer = answer
        self._holders = list[str]()
        self.gb = 0.0

    def watch(self, event: Event) -> None:
        if isinstance(event, FederationSettled):
            self._holders = sorted(event.holders)
        if isinstance(event, DropoutsChosen):
            self._holders = [name for name in self._holders if name not in event.names]
        if isinstance(event, ReleaseDelivered):
            self.gb = peak_gb() + sum(
                peak_gb(each.pid or 0) for each in multiprocessing.active_children()
            )

    def answer(self, holder: Holder, request: Packet) -> Packet:
        if holder.folder.name != self._holders[-1]:
            return self._answer(holder, request)
        for reading in SHARED_READINGS:
            reading.cache_clear()
        started = time.process_time()
        reply = self._answer(holder, request)
        seconds = time.process_time() - started
        sent = (
            len(reply.header)
            + len(reply.signature)
            + sum(memoryview(blob).nbytes for blob in reply.blobs)
        )
        facts = {
            "step": json.loads(request.header)["kind"],
            "seconds": seconds,
            "bytes": sent,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
        return reply


def main(holders: int, drop_rate: float) -> None:
    from ridgeway.client.client_app import holder_app
    from ridgeway.client.round.answers import answer

    with tempfile.TemporaryDirectory() as folder:
        work = _OwnWork(Path(folder) / "own-work.jsonl", answer)
        app = holder_app(work.answer)
        done = simulate(
            Path(folder) / "work",
            work.watch,
            holders=holders,
            drop_rate=drop_rate,
            encoder=ENCODER,
            app=app,
        )
        lines = [
            json.loads(line)
            for line in (Path(folder) / "own-work.jsonl").read_text().splitlines()
        ]
    own = dict.fromkeys(dict.fromkeys(line["step"] for line in lines), 0.0)
    for line in lines:
        own[line["step"]] += line["seconds"]
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_process = time.process_time()
    figures = {
        "round": done.timings["round"],
        "cpu": own_process + others.ru_utime + others.ru_stime,
        "main_cpu": own_process,
        "gb": work.gb,
        "own": own,
        "up": sum(line["bytes"] for line in lines),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
