"""The rows of a benchmark, and the clock.

Contenders take turns, so that a busy moment of the machine meets all of them alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.base.operating_system import proc
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.simulations.bench.provenance import Machine

ROW_HEADINGS = ("what", "ratio", "from – to", "aim", "met", "ours", "beside it")
START_SECONDS = 300.0
STOP_SECONDS = 60.0

Work = Callable[[], object]
SecondsClock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What is measured, and on what.

    work: a folder for files of this run.
    gpus: the GPU to measure on; empty for the CPU.
    text: a folder of DOMAIN.train.jsonl; None for the usual text.
    only: the part of `peers` to measure; empty for all.
    """

    work: Path
    gpus: tuple[str, ...] = ()
    encoder: str = "smollm2"
    text: Path | None = None
    only: str = ""

    def find_encoder(self, endings: str = "") -> TableEncoder:
        from ridgeway.common.encoding.encoder_sources import find_encoder

        return find_encoder(self.encoder + endings)


@dataclass(frozen=True, slots=True)
class Row:
    """Two figures, their ratio (or one figure), and the aim for it, such as `≥ 10` or `≤ 0.5`.

    ratio:  None where there is nothing to compare with.
    spread: the least and the largest ratio of the single runs; empty where there was one run.
    timed:  whether other work on the machine can change it.
    """

    name: str
    ours: str
    theirs: str
    ratio: float | None
    aim: str = ""
    spread: tuple[float, ...] = ()
    timed: bool = True

    @property
    def misses(self) -> bool:
        """Whether the aim is missed; a ratio that is not a number misses any."""
        if not self.aim:
            return False
        if self.ratio is None:
            return True
        sign, limit = self.aim.split()
        reached = (
            self.ratio >= float(limit) if sign == "≥" else self.ratio <= float(limit)
        )
        return not reached

    def verdict(self, machine: Machine) -> str:
        """A busy machine meets no aim: what it measures may be chance."""
        if self.misses:
            return "NO"
        if not self.aim:
            return ""
        return "not judged" if self.timed and machine.is_busy else "yes"

    def cells(self, machine: Machine) -> tuple[str, ...]:
        """Under ROW_HEADINGS."""
        spread = "–".join(f"{ratio:.3g}" for ratio in self.spread)
        verdict = self.verdict(machine)
        ratio = "–" if self.ratio is None else f"{self.ratio:.3g}"
        return self.name, ratio, spread, self.aim, verdict, self.ours, self.theirs


def runs_in_turns(
    *contenders: Work, rounds: int = 5, clock: SecondsClock = time.perf_counter
) -> list[list[float]]:
    """The seconds of each contender in each of several rounds, in turns, once untimed."""
    times: list[list[float]] = [[] for _ in contenders]
    for work in contenders:
        work()
    for _ in range(rounds):
        for taken, work in zip(times, contenders, strict=True):
            taken.append(once(work, clock))
    return times


def seconds_in_turns(
    *contenders: Work, rounds: int = 5, clock: SecondsClock = time.perf_counter
) -> list[float]:
    """The median seconds of each contender over several rounds."""
    times = runs_in_turns(*contenders, rounds=rounds, clock=clock)
    return [statistics.median(taken) for taken in times]


def spread_of(
    over: Sequence[float], under: Sequence[float], scale: float = 1.0
) -> tuple[float, float]:
    """The least and the largest ratio of runs that took turns."""
    ratios = [scale * a / b for a, b in zip(over, under, strict=True)]
    return min(ratios), max(ratios)


def once(work: Work, clock: SecondsClock = time.perf_counter) -> float:
    """The seconds of a single run."""
    started = clock()
    work()
    return clock() - started


def measured_apart(module: str, *words: object) -> Any:
    """What a module prints as JSON, run in a process of its own."""
    return json.loads(printed("-m", module, *words, cwd=IMPORT_ROOT))


def printed(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """What Python prints; raises ProcessError with its last words if it fails."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ProcessError(
            f"`{' '.join(command[1:])}` failed: {last}; run it by hand to see more"
        )
    return done.stdout


@contextmanager
def running(
    command: Sequence[str],
    word: str,
    log: Path,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[int]:
    """A command that runs within this block, from when it has printed a word; its process id."""
    from ridgeway.common.deploy.processes import Child, last_words

    child = Child(log.stem, command, environment, log)
    child.start()
    try:
        end = time.monotonic() + START_SECONDS
        while not (log.exists() and word in log.read_text(errors="replace")):
            if not child.is_running() or time.monotonic() > end:
                raise ProcessError(f"{child.name} did not start: {last_words(log)}")
            time.sleep(0.1)
        assert child.process is not None
        yield child.process.pid
    finally:
        child.stop(STOP_SECONDS)


def cpu_seconds(pid: int) -> float:
    """The time that all threads of a process have run so far."""
    threads = proc(pid, "task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def peak_gb(pid: int | str = "self") -> float:
    """The largest resident size of a process so far; 0 if it has just ended.

    getrusage would count in the size of the process that started it.
    """
    try:
        return resident_bytes("VmHWM", pid) / 1e9
    except OSError:
        return 0.0


def resident_bytes(which: str, pid: int | str = "self") -> int:
    """A process's resident size now (VmRSS), or the largest so far (VmHWM)."""
    lines = proc(pid, "status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))
