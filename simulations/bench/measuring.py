"""The rows of a benchmark, and the clock.

Contenders take turns, so that a busy moment of the machine meets all of them alike.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.base.machine import chosen
from ridgeway.common.base.operating_system import cores, proc
from ridgeway.common.base.settings import DEFAULT

if TYPE_CHECKING:
    from ridgeway.common.text.table_encoder import TableEncoder

# Where a figure comes from: command, commit, date, machine, and what else the machine did.


BUSY_LOAD_PER_CORE = 0.5
BUSY_OTHERS_PER_CORE = 0.25
_IDLE_FIELDS = (3, 4)
"""Of the first line of /proc/stat: idle, and waiting for a disk."""
_OUT = "--out"


@dataclass(frozen=True, slots=True)
class Machine:
    """The load of a machine on which something is measured.

    load:   the load average of the last minute, before the start.
    during: the highest one seen meanwhile, with the benchmark's own work.
    others: the cores that other programs kept busy meanwhile.
    """

    load: float
    cores: int
    during: float = 0.0
    others: float = 0.0

    @property
    def is_busy(self) -> bool:
        return (
            self.load > BUSY_LOAD_PER_CORE * self.cores
            or self.others > BUSY_OTHERS_PER_CORE * self.cores
        )

    def __str__(self) -> str:
        words = f"load {self.load:.1f} on {self.cores} cores before the start"
        if self.during:
            words += f", {self.during:.1f} during it"
            words += f", {self.others:.1f} cores taken by other programs"
        return f"not judged: {words}" if self.is_busy else words


class MachineWatch:
    """Watches a machine from when it is made."""

    def __init__(self) -> None:
        self._load = os.getloadavg()[0]
        self._during = 0.0
        self._busy = _busy_seconds()
        self._own = _own_seconds()
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def before(self) -> Machine:
        return Machine(self._load, cores())

    def machine(self) -> Machine:
        """What was seen until now; to be asked now and then."""
        self._during = max(self._during, os.getloadavg()[0])
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        rate = max(0.0, others) / max(self.seconds, 1.0)
        return Machine(self._load, cores(), self._during, rate)


def _busy_seconds() -> float:
    """CPU seconds of all programs since the machine started."""
    first = proc("stat").read_text(encoding="utf-8").splitlines()[0]
    ticks = [int(word) for word in first.split()[1:9]]
    busy = sum(ticks) - sum(ticks[field] for field in _IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def provenance(watch: MachineWatch, module: str, device: str) -> dict[str, Any]:
    """The facts that stand beside a figure; module: of the command."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(),
        "machine": machine_words(device),
        "load": asdict(watch.machine()),
        "seconds": round(watch.seconds, 1),
        "command": command_words(module, sys.argv[1:]),
    }


def command_words(module: str, words: Sequence[str]) -> str:
    """The command as anybody would type it: without its output folder, and paths by their names."""
    kept = []
    rest = iter(words)
    for word in rest:
        if word == _OUT:
            next(rest, None)
        elif not word.startswith(f"{_OUT}="):
            kept.append(Path(word).name if "/" in word else word)
    return " ".join(["python -m", module, *kept])


def commit() -> str:
    """Of this checkout; with a + where code has changed since."""
    named = _git("rev-parse", "--short=10", "HEAD")
    code = (".", ":!docs", ":!*.md")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return (named or "no checkout") + ("+" if changed else "")


def _git(*words: str) -> str:
    command = ["git", "-C", str(IMPORT_ROOT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def machine_words(device: str) -> str:
    """What seconds depend on."""
    usable, there = cores(), os.cpu_count() or 1
    share = f"{usable} cores" if usable == there else f"{usable} of {there} cores"
    words = [f"{share} of {_processor()}"]
    if devices := chosen(device):
        import torch

        words.append(torch.cuda.get_device_name(devices[0]))
    return ", ".join(words)


def _processor() -> str:
    lines = proc("cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    name = " ".join(names[0].split()) if names else "an unnamed processor"
    return f"{name} ({platform.machine()})"


ROW_HEADINGS = ("what", "ratio", "from – to", "aim", "met", "ours", "beside it")
START_SECONDS = 300.0
STOP_SECONDS = 60.0

Work = Callable[[], object]
USUAL_TABLE, *_ = DEFAULT.encoder.split("+")
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
    encoder: str = USUAL_TABLE
    text: Path | None = None
    only: str = ""

    def find_encoder(self, endings: str = "") -> TableEncoder:
        from ridgeway.common.text.encoder_files import find_encoder

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
