"""Processes that are started, watched, started again, and surely ended with the one that started
them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Thread
from typing import IO

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.base.operating_system import die_with, end_session_with, proc
from ridgeway.common.base.records import toml_literal

Log = Callable[[str], None]
"""Takes a sentence for the owner."""
Value = str | int | float | bool

_MARK = "RIDGEWAY_PROCESS_OF"
"""Set to the folder in every process started for it, so that one left over from a killed run is
surely known.
"""

_MAX_LOG_BYTES = 10_000_000
"""A log that would grow beyond this is put aside as NAME.1, and what was there before is gone."""
MAX_LINE_BYTES = 1 << 16
LAST_WORDS_WAIT_S = 1.0
COLOURS = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")
"""What steers a terminal, and is noise in a file."""

DEATHS_WITHIN_S = 30.0
MAX_DEATHS = 5
RESTART_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def script(name: str) -> str:
    """The path of an installed command, beside this interpreter."""
    folders = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    path = shutil.which(name, path=os.pathsep.join(folders))
    if path is None:
        raise ProcessError(
            f"the command {name} is not beside {sys.executable}; install"
            " ridgeway[client] or ridgeway[coordinator] there"
        )
    return path


def main_of(module: str, *words: object) -> list[str]:
    """The command that runs `main` of a module from where this very module lies, in a checkout as
    in an installation.
    """
    code = (
        f"import sys; sys.path.insert(0, {str(IMPORT_ROOT)!r});"
        f" from {module} import main; main()"
    )
    return [sys.executable, "-P", "-c", code, *map(str, words)]


def option_words(options: Mapping[str, object]) -> list[str]:
    return [str(word) for option in options.items() for word in option]


def flower_environment(home: Path) -> dict[str, str]:
    """The environment of a Flower process: its own home, no telemetry, no downloads, none of the
    user's settings.
    """
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("FLWR_")
    }
    excepted = filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1,localhost"))
    loopback = ",".join(excepted)
    return {
        **inherited,
        **FLOWER,
        "FLWR_HOME": str(home),
        "NO_PROXY": loopback,
        "no_proxy": loopback,
    }


def bindable_port(host: str, port: int) -> int:
    """A TCP port that can be listened on, which is another one for 0; raises OSError if not."""
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    )[0]
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return int(listener.getsockname()[1])


def free_port() -> int:
    """A TCP port of loopback that nobody listens on."""
    return bindable_port("127.0.0.1", 0)


def toml(values: Mapping[str, Value]) -> str:
    """The values as a TOML file, which Flower's commands read without mangling quotes."""
    return "".join(
        f"{json.dumps(key)} = {toml_literal(value)}\n" for key, value in values.items()
    )


@contextlib.contextmanager
def only_one(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder's lock, which ends with this process; a second holder is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ProcessError(
                f"{what} runs already for {folder}; stop it first, or use another"
                " folder"
            ) from None
        yield


@dataclass(slots=True)
class Child:
    """One command to keep running: how to start it, and what became of it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    writer: Thread | None = None
    deaths: list[float] = field(default_factory=list)
    again_at: float = 0.0

    def start(self) -> None:
        """Start it in a session of its own, whose files are private, with its words added to the
        log, to die when this thread dies.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
            preexec_fn=lambda: die_with(parent),
        )
        end_session_with(parent, self.process.pid)
        words = self.process.stdout
        self.writer = Thread(target=write_log, args=(words, self.log), daemon=True)
        self.writer.start()

    def is_running(self) -> bool:
        """Whether it runs; once it does not, its last words are in the log."""
        if self.process is not None and self.process.poll() is None:
            return True
        if self.writer is not None:
            # what it has started may live on and hold the pipe
            self.writer.join(LAST_WORDS_WAIT_S)
            self.writer = None
        return False

    def is_idle(self) -> bool:
        """Whether nothing runs that it has started itself; taken for granted where that cannot be
        seen.
        """
        if self.process is not None:
            with contextlib.suppress(OSError):
                return not _has_children(self.process.pid)
        return True

    def rest(self, seconds: float) -> None:
        """Forget a process that has ended, without counting its death, and start again after a
        while.
        """
        self.process = None
        self.again_at = time.monotonic() + seconds

    def stop(self, grace_s: float) -> None:
        """Ask it to end, wait until it and what it started are gone, and end them when the time is
        over.
        """
        process = self.process
        if process is None:
            return

        def is_gone() -> bool:
            return process.poll() is not None and not _signal_group(process.pid, 0)

        process.terminate()
        if not _wait_until(is_gone, 2 * grace_s):
            _signal_group(process.pid, signal.SIGKILL)
            _wait_until(is_gone, 2.0)
        process.wait()
        self.process = None


class _OwnersLog(RotatingFileHandler):
    """A log that only its owner reads. What finds no room on a full disk is lost, and stops
    nothing.
    """

    def _open(self) -> TextIOWrapper:
        handle = os.open(
            self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        return os.fdopen(handle, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


def write_log(words: IO[bytes], path: Path) -> None:
    """Add every line to the log as it comes, with its time (UTC) and without colours, until no more
    can come.
    """
    log = _OwnersLog(
        path, maxBytes=_MAX_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
    )
    form = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    form.converter = time.gmtime
    log.setFormatter(form)
    with contextlib.closing(log), words:
        while line := words.readline(MAX_LINE_BYTES):
            text = COLOURS.sub("", line.decode(errors="replace")).rstrip()
            log.handle(logging.makeLogRecord({"msg": "%s", "args": (text,)}))


def keep_running(children: Sequence[Child], log: Log) -> None:
    """Start again what died, after a pause that grows; raise when one dies again and again.

    What the dead one had started ends by itself, in good order, as Flower's processes do.
    """
    now = time.monotonic()
    for child in children:
        if child.is_running():
            continue
        if child.process is None:
            if now >= child.again_at:
                child.start()
            continue
        code = child.process.returncode
        child.process = None
        child.deaths = [*(at for at in child.deaths if now - at < DEATHS_WITHIN_S), now]
        deaths = len(child.deaths)
        if deaths >= MAX_DEATHS:
            raise ProcessError(
                f"{child.name} died {deaths} times within {DEATHS_WITHIN_S:g} s, last"
                f" with code {code}; its own words are in {child.log}"
            )
        pause = RESTART_PAUSES_S[min(deaths, len(RESTART_PAUSES_S)) - 1]
        child.again_at = now + pause
        log(f"{child.name} ended with code {code}; it is started again in {pause:g} s")


def stop_all(children: Sequence[Child], grace_s: float = 5.0) -> None:
    """Stop the children in their order, all of them even if one resists."""
    with contextlib.ExitStack() as stack:
        for child in reversed(children):
            stack.callback(child.stop, grace_s)


def end_leftovers(folder: Path, log: Log) -> None:
    """End what an earlier, killed run for this folder left behind. Call while holding the folder's
    lock.
    """
    left = marked_processes(folder)
    if left:
        log(f"processes of an earlier run are ended first: {', '.join(map(str, left))}")
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: not {*left} & {*marked_processes(folder)}, 5.0)


def marked_processes(folder: Path) -> list[int]:
    """The others that carry this folder's mark, where the system shows it; one that may not be
    looked into is not ours.
    """
    mark = f"{_MARK}={folder.resolve()}".encode()
    marked_pids: list[int] = []
    try:
        processes = proc().glob("[0-9]*")
    except OSError:
        return []
    for path in processes:
        with contextlib.suppress(OSError):
            if mark in (path / "environ").read_bytes().split(b"\0"):
                marked_pids.append(int(path.name))
    return [pid for pid in marked_pids if pid != os.getpid()]


def _has_children(pid: int) -> bool:
    """Whether a process runs that this one has started."""
    for child in proc(pid, "task", pid, "children").read_text().split():
        with contextlib.suppress(OSError):
            status = proc(child, "stat").read_text(errors="replace")
            if status.rpartition(") ")[2][0] not in "ZX":
                return True
    return False


def marked(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    return {**environment, _MARK: str(folder.resolve())}


def last_words(log: Path) -> str:
    """The last lines of a log, on one line, for an error."""
    text = ""
    with contextlib.suppress(OSError):
        text = log.read_bytes()[-2000:].decode(errors="replace")
    lines = (line.strip() for line in text.splitlines())
    return " / ".join(filter(None, lines))[-600:] or "nothing"


def _signal_group(group: int, number: int) -> bool:
    """Signal a child's whole session; False when nobody is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _wait_until(done: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


class NewLines:
    """The whole lines that are added to a log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = self._size()

    def read(self) -> str:
        """Those since it was last asked, a megabyte at most."""
        size = self._size()
        if size < self._position:  # the log was put aside, and another one begun
            self._position = 0
        if size == self._position:
            return ""
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, end, _ = file.read(1 << 20).rpartition(b"\n")
        self._position += len(whole + end)
        return (whole + end).decode(errors="replace")

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0
