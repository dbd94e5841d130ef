"""Where a figure comes from: command, commit, date, machine, and what else the machine did."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeway.common.base.devices import chosen
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.base.operating_system import cores, proc

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
    own, there = cores(), os.cpu_count() or 1
    share = f"{own} cores" if own == there else f"{own} of {there} cores"
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
