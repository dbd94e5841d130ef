"""How things are timed and held against aims, and how results are shown: as a table, as JSON, and
in a file.

Contenders take turns, so that a busy moment of the machine hits all of them alike.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.files import IMPORT_ROOT, write_whole
from ridgeway.common.cli.terminal import emit_json, step, table

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

    def cells(self) -> list[str]:
        reached = "–" if self.aim == "–" else "yes" if self.reached else "NO"
        return [
            self.name,
            f"{self.ratio:.3g}",
            self.aim,
            reached,
            self.ours,
            self.theirs,
        ]


def at_least(name: str, ratio: float, aim: float, ours: str, theirs: str) -> Result:
    return Result(name, ratio, f"≥ {aim:g}", ratio >= aim, ours, theirs)


def at_most(name: str, ratio: float, aim: float, ours: str, theirs: str) -> Result:
    return Result(name, ratio, f"≤ {aim:g}", ratio <= aim, ours, theirs)


def exactly(name: str, ratio: float, aim: float, ours: str, theirs: str) -> Result:
    return Result(name, ratio, f"= {aim:g}", ratio == aim, ours, theirs)


def figure(name: str, ratio: float, ours: str, theirs: str) -> Result:
    """A figure that stands beside the others and is held against nothing."""
    return Result(name, ratio, "–", True, ours, theirs)


@dataclass(slots=True)
class BenchReport:
    """The results of one benchmark so far, and what could not be measured here, with the reason."""

    name: str
    facts: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, what: str, reason: str) -> None:
        step("left out", what, reason)
        self.left_out.append(f"{what}: {reason}")

    def add(self, results: list[Result]) -> None:
        self.results.extend(results)

    @property
    def reached(self) -> bool:
        return all(result.reached for result in self.results)

    def to_json(self) -> dict[str, Any]:
        results = [result.to_json() for result in self.results]
        return {
            "name": self.name,
            **self.facts,
            "left_out": self.left_out,
            "reached": self.reached,
            "results": results,
        }

    def show(self, folder: Path, *, as_json: bool) -> None:
        if as_json:
            emit_json(self.to_json())
        else:
            headings = ["what", "ratio", "aim", "reached", "ours", "beside it"]
            table(headings, [result.cells() for result in self.results])
        path = folder / f"{self.name}.json"
        write_whole(path, json.dumps(self.to_json(), indent=2).encode())
        step("wrote", str(path))


def seconds_in_turns(
    *contenders: Work, rounds: int = 5, tick: Tick = lambda: None, warm: bool = True
) -> list[float]:
    """The median seconds of each contender over several rounds, one after another in each round."""
    times: list[list[float]] = [[] for _ in contenders]
    for work in contenders if warm else ():
        work()  # warm caches, once and untimed
        tick()
    for _ in range(rounds):
        for taken, work in zip(times, contenders, strict=True):
            taken.append(once(work))
            tick()
    return [statistics.median(taken) for taken in times]


def once(work: Work) -> float:
    """The seconds of a single run: for work that is long enough to be steady."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measured_apart(module: str, *words: object) -> Any:
    """What a module prints as JSON, run in a process of its own, so that memory and caches are its
    own too.
    """
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=IMPORT_ROOT)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ProcessError(
            f"`{' '.join(command[1:])}` failed: {last}; run it by hand to see more"
        )
    return json.loads(done.stdout)


def medians(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(statistics.median(column) for column in zip(*rows, strict=True))


def peak_gb(pid: int | str = "self") -> float:
    """The largest resident size of a process so far; 0 if it has just ended.

    getrusage would count in the size of the process that started it.
    """
    try:
        return resident_bytes("VmHWM", pid) / 1e9
    except OSError:
        return 0.0


def resident_bytes(which: str, pid: int | str = "self") -> int:
    """A process's resident size now (VmRSS), or the largest so far (VmHWM); a process that has
    ended has none.
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))
