"""What Linux has and macOS has not, or the reverse: each a function with a plain answer elsewhere.

Nothing else asks which system this is. Imports nothing of Ridgeway, as a SuperExec loads this file
by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path

IS_LINUX = sys.platform == "linux" and os.environ.get("RIDGEWAY_LINUX") != "0"
"""Whether what only Linux has is used. Tests turn it off, for their child processes too."""

_LIBC = ctypes.CDLL(None)
_SET_DEATH_SIGNAL = 1
"""Of prctl."""
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_MOST_FILES = 1 << 20
_MACOS_FILES = 10_240
"""OPEN_MAX: more may be refused although no limit is set."""
_END_WITH = "while kill -0 $2; do kill -0 $1 || kill -s KILL -- -$2; sleep 1; done"


def cores() -> int:
    """The cores this process may use, where the system tells, else all there are."""
    return len(os.sched_getaffinity(0)) if IS_LINUX else os.cpu_count() or 1


def may_fork() -> bool:
    """Whether a process that has used linear algebra, threads or the network may be forked.

    macOS's own libraries end such a fork; a new process has to import what it needs.
    """
    return IS_LINUX


def process_context() -> ForkContext | SpawnContext:
    """How multiprocessing starts processes for the work of this one."""
    return get_context("fork") if may_fork() else get_context("spawn")


def die_with(parent: int) -> None:
    """In a process just started: end if the one that started it is gone. Linux also kills it as
    soon as that one dies, in whatever computation it may be.
    """
    if IS_LINUX:
        _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)


def end_session_with(parent: int, session: int) -> None:
    """Kill the session of a process once `parent` has died, within a second: for where `die_with`
    cannot.
    """
    if not IS_LINUX:
        watch = f"({_END_WITH}) >/dev/null 2>&1 </dev/null &"
        words = ["/bin/sh", "-c", watch, "sh", str(parent), str(session)]
        subprocess.run(words, check=True, start_new_session=True)


def proc(*names: object) -> Path:
    """A file or folder below /proc. Raises OSError where that is not there."""
    path = Path("/proc", *map(str, names))
    if not IS_LINUX:
        raise OSError(errno.ENOTSUP, "only Linux shows this", str(path))
    return path


def flush(handle: int) -> None:
    """Let a file or a folder survive a power cut; macOS's fsync leaves it in the drive's memory."""
    with contextlib.suppress(OSError):  # a file system that cannot
        if _FULL_SYNC is not None:
            fcntl.fcntl(handle, _FULL_SYNC)
            return
    os.fsync(handle)


def most_open_files() -> int:
    """How many open files this process may have, after asking for as many as there may be."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most == resource.RLIM_INFINITY else most
    for files in (wanted, _MACOS_FILES):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
            return files
    return now
