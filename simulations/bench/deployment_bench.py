"""Rounds of a deployment on loopback: a coordinator and three holders, each with every process that
it has in earnest.

Starts `ridgeway` commands and reads what their processes have cost from /proc, so it runs on Linux.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.cli.terminal import ticking
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.simulations.bench.measuring import Result, at_most, figure, resident_bytes
from ridgeway.simulations.bench.random_corpus import word_encoder
from ridgeway.simulations.corpora import write_texts

LETTERS = {
    "type": "Split",
    "pattern": {"Regex": "[\\s\\S]"},
    "behavior": "Isolated",
    "invert": False,
}
ALPHABETS = {"code": "0123456789., ", "law": "abcdefgh ", "medicine": "nopqrstuv ,"}
DOCUMENTS = 60
DOCUMENT_CHARACTERS = 400
NARROW = 576
WIDE = 4096
MOST_SECONDS = {"masked": 30.0, "private": 15.0, f"masked, h = {WIDE}": 60.0}
MOST_EXCHANGE_SECONDS = 2.0
MOST_MEGABYTES = 2000.0
START_SECONDS = 300.0
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.2
COMMAND = [sys.executable, "-m", "ridgeway"]
TICKS = os.sysconf("SC_CLK_TCK")
PROCESSES = {
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "the round",
    "fleet_proxy": "gate",
    "supernode_process": "SuperNodes",
    "flwr-clientapp": "answers",
}
"""What a process is, by a word of its command line; the others watch over these."""


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """wall: from the command to its end, when holders have the release. cpu: seconds of all
    processes.

    exchanges: the seconds of each. spent: CPU seconds by what a process is. peaks: the most memory
               of one, in bytes.
    """

    wall: float
    cpu: float
    exchanges: tuple[float, ...]
    spent: dict[str, float]
    peaks: dict[str, int]


def bench_deployment() -> list[Result]:
    """Seconds of rounds, and of an exchange in them; the wide encoder is that of large models."""
    measured: dict[str, RoundFigures] = {}
    with ticking("deployment", len(MOST_SECONDS)) as tick:
        for width, mode in ((NARROW, "masked"), (NARROW, "private"), (WIDE, "masked")):
            with (
                tempfile.TemporaryDirectory() as work,
                loopback(Path(work), width, mode) as federation,
            ):
                measured[mode if width == NARROW else f"{mode}, h = {WIDE}"] = (
                    federation.round()
                )
                tick()
    return [
        result
        for name, figures in measured.items()
        for result in _results(name, figures)
    ]


def _results(name: str, figures: RoundFigures) -> list[Result]:
    middle = statistics.median(figures.exchanges)
    spent = ", ".join(
        f"{who} {seconds:.1f}"
        for who, seconds in figures.spent.items()
        if seconds >= 0.05
    )
    wall = f"{figures.wall:.1f} s"
    count = f"{len(figures.exchanges)} exchanges"
    each = ", ".join(f"{seconds:.1f}" for seconds in figures.exchanges)
    results = [
        at_most(
            f"a round of three, {name}, seconds",
            figures.wall,
            MOST_SECONDS[name],
            wall,
            count,
        ),
        figure(
            f"  its CPU seconds, {name}", figures.cpu, f"{figures.cpu:.1f} s", spent
        ),
    ]
    if name.endswith(str(WIDE)):
        most = max(figures.peaks.values()) / 1e6
        memory = (f"{who} {size / 1e6:.0f}" for who, size in figures.peaks.items())
        return [
            *results,
            figure(f"  its median exchange, {name}", middle, f"{middle:.1f} s", each),
            at_most(
                f"  its largest process, {name}, MB",
                most,
                MOST_MEGABYTES,
                f"{most:.0f} MB",
                ", ".join(memory),
            ),
        ]
    return [
        *results,
        at_most(
            f"  its median exchange, {name}",
            middle,
            MOST_EXCHANGE_SECONDS,
            f"{middle:.1f} s",
            each,
        ),
    ]


class LoopbackFederation:
    """A coordinator that is up and holders that are connected, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.coordinator = folder / "coordinator"
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **{
                f"RIDGEWAY_{name.upper()}": str(self.folder / name)
                for name in ("cache", "state")
            },
        }

    def call(self, *words: str | Path) -> bytes:
        """Run a command to its good end; raises ProcessError with its last words otherwise."""
        command = [*COMMAND, *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, env=self._environment, check=False
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise ProcessError(
                f"`ridgeway {' '.join(map(str, words[:2]))}` ended with"
                f" {done.returncode}: {' '.join(said)}"
            )
        return done.stdout

    def start(self, name: str, word: str, *words: str | Path) -> None:
        """Start a command that goes on, and wait until it has told of a step by this word."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as said:
            self._started[name] = subprocess.Popen(
                [*COMMAND, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._environment,
            )
        until = time.monotonic() + START_SECONDS
        while word not in log.read_text(errors="replace"):
            if self._started[name].poll() is not None or time.monotonic() > until:
                raise ProcessError(
                    f"{name} did not start: {log.read_text(errors='replace')[-500:]}"
                )
            time.sleep(LOOK_SECONDS)

    def round(self) -> RoundFigures:
        before = self._spent()
        own = _own_children()
        began = time.monotonic()
        with self._peaks() as peaks:
            told = json.loads(
                self.call("coordinator", "round", self.coordinator, "--json")
            )
        wall = time.monotonic() - began
        after = self._spent()
        spent = {"the command": _own_children() - own} | {
            who: after[who] - before.get(who, 0.0) for who in after
        }
        exchanges = tuple(float(each["seconds"]) for each in told["exchanges"])
        return RoundFigures(wall, sum(spent.values()), exchanges, spent, peaks)

    def _spent(self) -> dict[str, float]:
        """CPU seconds so far of all that was started here, by what it is; those that ended count
        with their parents.
        """
        spent: dict[str, float] = {}
        for who, place in self._processes():
            with contextlib.suppress(OSError):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                spent[who] = spent.get(who, 0.0) + sum(map(int, fields[11:15])) / TICKS
        return spent

    def _processes(self) -> Iterator[tuple[str, Path]]:
        """What each process below this one is, and where /proc tells of it."""
        below = _children()
        waiting = [process.pid for process in self._started.values()]
        while waiting:
            pid = waiting.pop()
            waiting += below.get(pid, [])
            place = Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                words = (place / "cmdline").read_text()
                yield (
                    next(
                        (name for mark, name in PROCESSES.items() if mark in words),
                        "supervisors",
                    ),
                    place,
                )

    @contextlib.contextmanager
    def _peaks(self) -> Iterator[dict[str, int]]:
        """The most memory that a process of each kind has had resident, looked at again and again
        within this block.
        """
        peaks: dict[str, int] = {}
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_SECONDS):
                for who, place in self._processes():
                    with contextlib.suppress(OSError):
                        peaks[who] = max(
                            peaks.get(who, 0), resident_bytes("VmHWM", place.name)
                        )

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield peaks
        finally:
            over.set()
            watcher.join()

    def stop(self) -> None:
        """Ask all to end, the holders first."""
        for process in reversed(self._started.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)


@contextlib.contextmanager
def loopback(folder: Path, width: int, mode: str) -> Iterator[LoopbackFederation]:
    """A federation of three holders whose epochs are open, up and connected."""
    federation = LoopbackFederation(folder)
    alphabet = sorted(set("".join(ALPHABETS.values())))
    save_encoder(word_encoder(alphabet, LETTERS, width), folder / "encoder")
    encoder = f"dir:{folder / 'encoder'}"
    coordinator = federation.coordinator
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    federation.call(
        "coordinator",
        "init",
        coordinator,
        *listen,
        "--encoder",
        encoder,
        "--mode",
        mode,
    )
    federation.call("coordinator", "invite", coordinator)
    invite = ("--invite", coordinator / "invite")
    for name, letters in ALPHABETS.items():
        corpus = folder / f"{name}.jsonl"
        home = folder / name
        write_texts(corpus, _texts(name, letters))
        about = ("--domain", name, "--corpus", corpus, "--encoder", encoder)
        federation.call("client", "init", home, *invite, *about, "--accept-mode", mode)
        federation.call(
            "coordinator", "admit", coordinator, home / "holder.pub", "--name", name
        )
    federation.call("coordinator", "invite", coordinator)
    for name in ALPHABETS:
        federation.call("client", "pin", folder / name, *invite)
        federation.call("client", "ready", folder / name)
    try:
        federation.start("up", "up ", "coordinator", "up", coordinator)
        for name in ALPHABETS:
            federation.start(name, "connected", "client", "join", folder / name)
        yield federation
    finally:
        federation.stop()


def _texts(name: str, letters: str) -> list[str]:
    dice = random.Random(name)
    return [
        "".join(dice.choices(letters, k=DOCUMENT_CHARACTERS)) for _ in range(DOCUMENTS)
    ]


def _children() -> dict[int, list[int]]:
    """Every process of the machine by its parent."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            found.setdefault(parent, []).append(int(entry.name))
    return found


def _own_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
