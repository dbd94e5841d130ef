"""A whole deployment on loopback, in one temporary folder: the real `ridgeway` commands as
processes.

    encoder/  private/NAME.jsonl  coordinator/  holders/NAME/  words/ (what each command said)

Whatever is started carries a mark in its environment, by which it is found in /proc and ended at
the end, by its id.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from ridgeway.common.base.journal import Journal, JournalEntry
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.privacy.public_prior import PublicPrior, make_prior, write_prior
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.round.progress import Follower, no_watch
from tests.support.commands import (
    RIDGEWAY,
    Finished,
    Workshop,
    command_line,
    home_variables,
)
from tests.support.corpora_on_disk import write_jsonl
from tests.support.making import contents
from tests.support.waiting import PATIENCE_S, wait_for, wait_for_end

PROCESSES = [
    pytest.mark.deployment,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="looks into /proc"
    ),
]
"""The marks of a module that starts processes and finds them in /proc."""
DEPLOYED = [*PROCESSES, pytest.mark.usefixtures("show_logs")]
"""Those of a module that tells the story of a deployment."""
SECRET = "zyzzyva"
"""Stands in every private text, and nowhere else."""

ALPHABETS = {
    "code": "0123456789., ",
    "law": "abcdefgh \n",
    "medicine": "nopqrstuv ,",
    "music": "ijklm .",
    "chess": "wx12 ",
}
TEST = "RIDGEWAY_TEST_FOLDER"
RUNNER = "common/deploy/approved_bundle.py"
LINES = 8
STOP_S = 60.0
POLL_S = 0.1
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
WRITTEN = (
    "words/*",
    "coordinator/ledger.db*",
    "coordinator/progress/*",
    "holders/*/journal.db*",
)
NOT_COPIED = shutil.ignore_patterns("link", "flwr-home", "logs", "lock")


def texts(name: str, count: int = 60, size: int = 200, seed: int = 0) -> list[str]:
    """Texts in a domain's own letters, each with the secret word; the same on every call."""
    letters = random.Random(f"{name} {seed}")
    drawn = ("".join(letters.choices(ALPHABETS[name], k=size)) for _ in range(count))
    return [f"{SECRET} {seed}.{number} {text}" for number, text in enumerate(drawn)]


@dataclass(slots=True)
class Running:
    """A command that was started; what it says goes to two files."""

    name: str
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    written: Callable[[], int]
    tails: Callable[[], str]

    @property
    def said(self) -> str:
        """What it wrote to stderr so far."""
        return self.err.read_text()

    def has_said(self, verb: str, subject: str = "") -> bool:
        """Whether a step with this verb and subject was told."""
        return (
            re.search(
                rf"^({TIME}  )?{re.escape(verb)} +{re.escape(subject)}",
                self.said,
                re.MULTILINE,
            )
            is not None
        )

    def end(self, patience_s: float = PATIENCE_S) -> Finished:
        """Wait until it has ended by itself; as long as the deployment writes something, it may
        take its time.
        """
        code = wait_for_end(
            self.process,
            progress=self.written,
            patience_s=patience_s,
            details=self._last_words,
        )
        return Finished(code, self.out.read_text(), self.said)

    def stop(self) -> Finished:
        """Ask it to end, as an operator would, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        return self.end(STOP_S)

    def _last_words(self) -> str:
        return f"`{self.name}` said: {self.said}\n{self.tails()}"


class Deployment:
    """An operator and holders on one machine. Use it in a `with`: nothing that it started outlives
    it.
    """

    def __init__(
        self, folder: Path, encoder: TableEncoder, sentences: Path | None = None
    ) -> None:
        """sentences: a cache with the sentence encoder, which private rounds need."""
        self.encoder = encoder
        self.folder = folder.resolve()
        self.coordinator = self.folder / "coordinator"
        self.address = f"127.0.0.1:{free_port()}"
        self.running: dict[str, Running] = {}
        self._count = 0
        (self.folder / "words").mkdir()
        save_encoder(encoder, self.folder / "encoder")
        if sentences:
            (self.folder / "cache").mkdir()
            (self.folder / "cache" / "sentences").symlink_to(sentences / "sentences")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ask every command to end, all at once, then end by force whatever still carries the
        mark.
        """
        for running in self.running.values():
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_S
        for running in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(end - time.monotonic(), 0.1))
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for running in self.running.values():
            running.process.wait(STOP_S)

    # Commands

    @property
    def encoder_option(self) -> tuple[str, str]:
        return "--encoder", f"dir:{self.folder / 'encoder'}"

    @property
    def own_environment(self) -> dict[str, Any]:
        return {**home_variables(self.folder), TEST: str(self.folder)}

    @property
    def mode(self) -> str:
        """The mode of the federation's rounds."""
        return str(
            tomllib.loads((self.coordinator / "coordinator.toml").read_text())["mode"]
        )

    def start(
        self,
        name: str,
        *words: str | Path,
        program: str | Path = RIDGEWAY,
        cwd: Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Running:
        """Start `ridgeway WORDS...`, or another program; it is found in `running` under its name
        until another is.
        """
        self._count += 1
        place = self.folder / "words" / f"{self._count:03}-{name}"
        out, err = place.with_suffix(".out"), place.with_suffix(".err")
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                [program, *command_line(words)],
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                env={**environment, **self.own_environment},
                cwd=cwd or self.folder,
                start_new_session=True,
            )
        self.running[name] = Running(name, process, out, err, self.written, self.tails)
        return self.running[name]

    def run(self, *words: str | Path) -> Finished:
        """Run `ridgeway WORDS...` to its end, by its main function: a process for each would cost a
        second.
        """
        return Workshop(self.folder).call(*words, **self.own_environment)

    def do(self, *words: str | Path) -> Finished:
        """Run `ridgeway WORDS...` to its good end."""
        return self.run(*words).good

    def operator(self, command: str, *words: str) -> Any:
        """What a command of the operator says to programs."""
        return self.do(f"coordinator {command} --json", self.coordinator, *words).json

    def owner(self, name: str, command: str) -> Any:
        """What a command of a holder's owner says to programs."""
        return self.do(f"client {command} --json", self.holder(name)).json

    def wait_for(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait until something has happened, or fail with its description and what the logs say."""
        wait_for(
            what, reached, progress=self.written, poll_s=POLL_S, details=self.tails
        )

    # The operator

    def found(self, mode: str | None = None, **settings: float | str) -> None:
        """Make the coordinator's folder and an invitation, with some settings of its rounds
        changed.

        mode: as `coordinator init` has it if left out.
        """
        named = ("--mode", mode) if mode else ()
        where = ("coordinator init --listen", self.address, self.coordinator)
        self.do(*where, *self.encoder_option, *named)
        self.change(**settings)
        if not mode:
            write_prior(self.prior(), self.coordinator / "prior.safetensors")
        self.do("coordinator invite", self.coordinator)

    def prior(self) -> PublicPrior:
        """A public prior of this encoder's letters, which built-in text does not know."""
        public = [text[10:] for name in ALPHABETS for text in texts(name, seed=99)]
        return make_prior(self.encoder, public)

    def change(self, **settings: object) -> None:
        """Change settings of the coordinator."""
        self.amend(self.coordinator / "coordinator.toml", settings)

    def change_holder(self, name: str, **settings: object) -> None:
        """Change settings of a holder."""
        self.amend(self.holder(name) / "client.toml", settings)

    def amend(self, path: Path, settings: Mapping[str, object]) -> None:
        """Change settings that stand in a file, each on a line of its own, as a person with an
        editor would; of several of one name, the first.
        """
        content = path.read_text()
        for name, value in settings.items():
            content, times = re.subn(
                rf"(?m)^{name} = .*$", f"{name} = {value}", content, count=1
            )
            assert times == 1, f"{name} does not stand in {path}"
        path.write_text(content)

    def up(self) -> Running:
        """Start the coordinator, and wait until it says that it is up."""
        started = self.start("up", "coordinator up", self.coordinator)
        self.wait_for("the coordinator is up", lambda: self.reported(started, "up"))
        return started

    def round(self, *options: str) -> Running:
        """Start a round."""
        return self.start(
            "round", "coordinator round --json", self.coordinator, *options
        )

    def releases(self) -> list[str]:
        """The names of the releases that can be seen, in their order."""
        seen = (self.coordinator / "releases").iterdir()
        return sorted(
            path.name for path in seen if path.is_dir() and path.name != "latest"
        )

    def ledger(self, kind: str) -> list[JournalEntry]:
        return Journal(self.coordinator / "ledger.db").entries(kind)

    def noted(self, event: str, name: str) -> bool:
        """Whether the coordinator has noted an event of a holder, in any round so far."""
        events = (
            followed
            for path in (self.coordinator / "progress").glob("*.jsonl")
            for followed in Follower(path).events()
        )
        return any(
            followed.kind == event and getattr(followed, "name", None) == name
            for followed in events
        )

    # Holders

    def holder(self, name: str) -> Path:
        return self.folder / "holders" / name

    def corpus(self, name: str) -> Path:
        return self.folder / "private" / f"{name}.jsonl"

    def settle(self, name: str, *options: str) -> Path:
        """Make a holder of the domain of this name."""
        corpus = write_jsonl(self.corpus(name), texts(name))
        described = ("--domain", name, "--corpus", corpus, *self.encoder_option)
        known = ("client init --invite", self.coordinator / "invite")
        self.do(*known, self.holder(name), *described, *options)
        return self.holder(name)

    def ready(self, *names: str) -> None:
        """Open epochs, as owners do, on their explicit word."""
        for name in names:
            self.do("client ready --new-epoch", self.holder(name))

    def accept(self, *names: str) -> None:
        """Let holders take the terms of a new invitation."""
        self.do("coordinator invite", self.coordinator)
        for name in names:
            invite = ("client accept --invite", self.coordinator / "invite")
            self.do(*invite, self.holder(name))

    def admit(self, name: str) -> None:
        card = self.holder(name) / "holder.pub"
        self.do("coordinator admit --name", name, self.coordinator, card)

    def confirm(self, *names: str) -> None:
        """Let holders compare the members that they are shown, and confirm them."""
        shown = {name: self.owner(name, "members")["code"] for name in names}
        assert len(set(shown.values())) == 1
        for name, code in shown.items():
            self.do("client confirm", self.holder(name), code)

    def join(self, *names: str) -> None:
        """Start SuperNodes, all at once, and wait until each is connected."""
        started = [self.start(name, "client join", self.holder(name)) for name in names]
        for running in started:
            self.wait_for(
                f"{running.name} is connected",
                partial(self.reported, running, "note", "connected"),
            )

    def leave(self, name: str) -> None:
        """Stop a SuperNode as its owner would."""
        assert self.running[name].stop().code == 0, self.running[name].said

    def grow(self, name: str, seed: int) -> None:
        """Give a holder new documents, and let its owner open an epoch with them."""
        write_jsonl(self.corpus(name), [*texts(name), *texts(name, seed=seed)])
        self.ready(name)

    def sent(self, name: str, kind: str) -> int:
        """How many answers of a kind a holder has noted in its own journal."""
        return sum(entry.facts["kind"] == kind for entry in self._entries(name, "sent"))

    def newest(self, name: str) -> int:
        """The number of the newest release that a holder has stored."""
        entries = self._entries(name, "received")
        return max((int(entry.facts["number"]) for entry in entries), default=0)

    def _entries(self, name: str, kind: str) -> list[JournalEntry]:
        return Journal(self.holder(name) / "journal.db").entries(kind)

    # Processes

    def processes(self) -> dict[int, str]:
        """Every process that was started here, directly or not, with its command line."""
        mark = f"{TEST}={self.folder}".encode()
        below = set(
            _descendants(*(running.process.pid for running in self.running.values()))
        )
        commands = {}
        for pid in _all_processes():
            with contextlib.suppress(
                OSError
            ):  # where answers are given, only root may read the environment
                folder = Path(f"/proc/{pid}")
                if pid in below or mark in (folder / "environ").read_bytes().split(
                    b"\0"
                ):
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    commands[pid] = words.decode(errors="replace")
        return commands

    def process(self, word: str) -> int:
        """The one process whose command line has this word."""
        [pid] = [pid for pid, words in self.processes().items() if word in words]
        return pid

    def answering(self, name: str) -> list[int]:
        """The processes that answer for a holder: the one that starts answers, then its forks."""
        words = self.processes()
        return [
            pid
            for pid in _descendants(self.running[name].process.pid)
            if RUNNER in words.get(pid, "")
        ]

    def kill(self, name: str) -> None:
        """End a command and all that it has started with SIGKILL: a power cut."""
        running = self.running[name]
        below = _descendants(running.process.pid)
        for pid in (running.process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.process.wait(STOP_S)

    def reported(self, running: Running, verb: str, subject: str = "") -> bool:
        """Whether a command has reported a step; one that has ended without doing so never will."""
        if running.has_said(verb, subject):
            return True
        assert running.process.poll() is None, (
            f"`{running.name}` has ended: {running.said}\n{self.tails()}"
        )
        return running.has_said(verb, subject)

    def leaks(self) -> list[str]:
        """The operator's files that hold a text of a holder, or a path of one."""
        assert all(
            SECRET in path.read_text() for path in self.corpus("").parent.iterdir()
        )
        folders = (str(self.folder / name) for name in ("private", "holders"))
        private = [word.encode() for word in (SECRET, *folders)]
        return holding(self.coordinator.rglob("*"), private)

    # Progress, and what to read when there is none

    def written(self) -> int:
        """The bytes in all logs, journals and words of commands: while they grow, something
        moves.
        """
        written = (path for pattern in WRITTEN for path in self.folder.glob(pattern))
        return sum(map(_size, (*written, *self.logs())))

    def logs(self) -> Iterator[Path]:
        yield from sorted(self.coordinator.glob("link/logs/*.log"))
        yield from sorted(self.folder.glob("holders/*/logs/*.log"))

    def tails(self) -> str:
        """The end of every log, and what the last commands said."""
        last = sorted((self.folder / "words").glob("*.err"))[-8:]
        return "\n".join(
            f"--- {path.relative_to(self.folder)}\n{_tail(path)}"
            for path in (*self.logs(), *last)
        )


class Copy:
    """A federation's folders as they were at one moment, set aside to be played through in memory.

    What is spent there is not spent of the federation's own.
    """

    def __init__(
        self, deployment: Deployment, names: Collection[str], place: Path
    ) -> None:
        self._coordinator = place / "coordinator"
        self._holders = [place / "holders" / name for name in sorted(names)]
        shutil.copytree(
            deployment.coordinator, self._coordinator, symlinks=True, ignore=NOT_COPIED
        )
        for folder in self._holders:
            shutil.copytree(deployment.holder(folder.name), folder, ignore=NOT_COPIED)
            deployment.amend(
                folder / "client.toml",
                {"spending": f'"{place / "state" / "spending.jsonl"}"'},
            )

    def release(self) -> dict[str, bytes]:
        """Run a round over the copies in this very process, and return the files of its release."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, of click
            from ridgeway.client.client_app import app
            from ridgeway.coordinator.round.federation import Federation
            from ridgeway.coordinator.round.round import run_round
            from ridgeway.coordinator.server_app import GridTransport
            from ridgeway.simulations.local_grid import LocalGrid

        federation = Federation(self._coordinator)
        grid = LocalGrid(app, dict(enumerate(self._holders, start=1)))
        made = run_round(federation, GridTransport(grid, least_pause_s=0.0), no_watch)
        return contents(federation.release_folder(made.number))


def holding(paths: Iterable[Path], words: Sequence[bytes]) -> list[str]:
    """The files among these that hold one of the words, each with the word."""
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    return [
        f"{path}: {word!r}"
        for path in files
        for word in words
        if word in path.read_bytes()
    ]


def _size(path: Path) -> int:
    """The size of a file that may be gone by now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _tail(path: Path) -> str:
    lines = path.read_bytes()[-8000:].decode(errors="replace").splitlines()
    return "\n".join(lines[-LINES:])


def _all_processes() -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) != os.getpid()
    ]


def _descendants(*parents: int) -> list[int]:
    """The processes below these, also those in sessions of their own."""
    children: dict[int, list[int]] = {}
    for pid in _all_processes():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/stat").read_text()
            children.setdefault(int(status.rpartition(")")[2].split()[1]), []).append(
                pid
            )
    descendants: list[int] = []
    waiting = list(parents)
    while waiting:
        below = children.get(waiting.pop(), [])
        descendants += below
        waiting += below
    return descendants
