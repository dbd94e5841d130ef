"""The SuperExec of a holder and of a coordinator: runs each task in a fork, with a bundle that its
owner has approved.

Without this a SuperNode runs whatever code the coordinator sends, and a coordinator whatever a user
of its machine submits. The bundle's SHA-256 is checked before anything of it is unpacked or
imported; the allow-list comes from the owner's own process by environment, never from a message.
What fails is written to the owner's log in full, and the other side gets one clean sentence without
path or text.

    this process    has imported Flower and no bundle; refuses other kinds of tasks
    └── a task      unpacks and imports its bundle, runs it, ends

On the coordinator's machine a task is a ServerApp, and runs the coordinator's own code of the
bundle's version. Where Flower may not be forked (macOS), each task is a new process.

A bundle holds sources alone. Where it is, by its hash, the bundle of the very Ridgeway that is
installed here, its code also finds the compiled module that was installed with it; any other does
its work without, more slowly.

Run as a file of its own; of Ridgeway it imports two files alone, which import nothing of it,
because the approved bundle brings its own copy.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import re
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING or __package__:
    from ridgeway.common.base import operating_system as system
    from ridgeway.common.deploy import flower_patches as patches
else:  # run as a file: the modules lie where they do in a checkout

    def _module(path: str) -> ModuleType:
        file = Path(__file__).parents[1] / path
        spec = spec_from_file_location(file.stem, file)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    system = _module("base/operating_system.py")
    patches = _module("deploy/flower_patches.py")

APPROVED = "RIDGEWAY_APPROVED_BUNDLES"
INSTALLED = "RIDGEWAY_INSTALLED_BUNDLE"
"""The SHA-256 of the bundle of the Ridgeway that is installed here, which the owner's process has
computed.
"""
NATIVE = "ridgeway._native"
"""The compiled module."""
LOG = "RIDGEWAY_BUNDLE_LOG"
SERVER_CODE = "RIDGEWAY_SERVER_CODE"
"""The folder in which a coordinator keeps its own code, HASH.server for each bundle."""
SERVER_SUFFIX = ".server"
SERVER_MODULE = "ridgeway.coordinator.server_app"
LOOK_PAUSE_S = 1.0
"""How long to wait between two looks for a task, if the SuperNode does not wake it."""
LISTENER_PAUSE_S = 0.1
MAX_WORD_BYTES = 4096
"""What is written to a pipe at once arrives at once up to this size."""
ONE = "one"
DIGEST = re.compile("[0-9a-f]{64}")
_MAX_LOG_BYTES = 1_000_000
"""A log that has grown beyond this is put aside as NAME.1, and what was there before is gone."""

Note = Callable[[str], None]
Function = Callable[..., Any]
Identity = tuple[str, ...]
"""A bundle's name, version and SHA-256."""


class BundleRefused(Exception):
    """A bundle that this machine has not approved. Its text goes to the other side."""


class AppFailed(Exception):
    """The approved code failed. Its text goes to the other side; the cause stays in the owner's
    log.
    """


class NativeFinder:
    """Finds the compiled module that was installed with this file, or hides it, also where other
    finders know it.
    """

    def __init__(self, is_offered: bool) -> None:
        self._is_offered = is_offered

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != NATIVE:
            return None
        if not self._is_offered:
            raise ModuleNotFoundError(f"{name} is for the installed sources", name=name)
        # this file lies in the package, or in a checkout, of which the package is a folder
        root = Path(__file__).resolve().parents[2]
        for folder in (root / "ridgeway", root):
            for suffix in EXTENSION_SUFFIXES:
                file = folder / f"_native{suffix}"
                if file.is_file():
                    return spec_from_file_location(name, file)
        return None


def offer_native(digest: str) -> None:
    """Let a bundle find the installed compiled module, in this process, if it is made of the
    installed sources, and hide it from any other.
    """
    sys.meta_path.insert(0, NativeFinder(digest == os.environ.get(INSTALLED)))


def use_server_code(digest: str) -> None:
    """Import the ServerApp from the coordinator's own code beside a bundle; Flower takes a module
    that is imported already. A bundle of an earlier version holds its ServerApp itself.
    """
    folder = Path(os.environ.get(SERVER_CODE, "")) / f"{digest}{SERVER_SUFFIX}"
    if folder.is_dir():
        sys.path.insert(0, str(folder))
        importlib.import_module(SERVER_MODULE)


class BundleGuard:
    """Stands between Flower and a bundle: nothing is unpacked before it is approved, nothing loaded
    but that. Each method that HOOKS names is called in place of the function of Flower's that is
    its first argument.
    """

    def __init__(
        self,
        approved: frozenset[str],
        note: Note,
        identify: Callable[[bytes], tuple[str, str]],
    ) -> None:
        self._approved = approved
        self._note = note
        self._identify = identify
        self._run: Any = None
        self._fab: Any = None
        self._allowed: Identity | None = None

    def pulling(self, pull: Function, *words: Any, **named: Any) -> Any:
        """Remember what was sent; it is judged when Flower wants to unpack it, so that a refusal
        gets its reply.
        """
        result = pull(*words, **named)
        _, _, self._run, self._fab = result
        return result

    def noting_run(self, read: Function, *words: Any, **named: Any) -> Any:
        self._run = read(*words, **named)
        return self._run

    def noting_bundle(self, read: Function, *words: Any, **named: Any) -> Any:
        self._fab = read(*words, **named)
        return self._fab

    def installing(
        self, install: Function, content: Any, *words: Any, **named: Any
    ) -> Any:
        self._allowed = self._judge(content)
        return self._cleanly(install, content, *words, **named)

    def loading(self, make: Function, *words: Any, **named: Any) -> Function:
        return functools.partial(self._load, make(*words, **named))

    def running(self, run: Function, *words: Any, **named: Any) -> Any:
        if self._allowed is None:
            self._refuse("code was asked for that is not in the approved bundle")
        use_server_code(self._allowed[2])
        return self._cleanly(run, *words, **named)

    def _judge(self, content: Any) -> Identity:
        """The identity of an approved bundle; every name that it was sent under must agree with its
        content.
        """
        digest = "unreadable"
        if isinstance(content, bytes):
            digest = hashlib.sha256(content).hexdigest()
        if digest not in self._approved:
            self._refuse(f"this machine has not approved the bundle {digest}")
        if self._fab is None or self._fab.content != content:
            self._refuse("the bundle was exchanged on its way")
        if self._fab.hash_str != digest or self._run.fab_hash not in ("", digest):
            self._refuse(f"the bundle {digest} was sent under another hash")
        if (self._run.fab_id, self._run.fab_version) != self._identify(content):
            self._refuse(f"the bundle {digest} was sent under another name")
        self._note(f"run {self._run.run_id}: approved bundle {digest}")
        return self._run.fab_id, self._run.fab_version, digest

    def _load(self, load: Function, *identity: Any) -> Function:
        if self._allowed is None or identity != self._allowed:
            self._refuse("code was asked for that is not in the approved bundle")
        offer_native(self._allowed[2])
        app = self._cleanly(load, *identity)
        return functools.partial(self._cleanly, app)

    def _cleanly(self, work: Function, *words: Any, **named: Any) -> Any:
        """Do it. What goes wrong stands in the owner's log; the other side learns that it did."""
        try:
            return work(*words, **named)
        except Exception:
            self._note("the approved code failed\n" + traceback.format_exc())
        raise AppFailed(
            "the approved code failed; the reason is in the log of the machine that"
            " ran it"
        )

    def _refuse(self, reason: str) -> NoReturn:
        self._note(f"run {getattr(self._run, 'run_id', '?')}: refused, {reason}")
        raise BundleRefused(reason)


def approved_bundles(environment: Mapping[str, str]) -> frozenset[str]:
    """The owner's allow-list; a missing or malformed one approves nothing."""
    digests = environment.get(APPROVED, "").split(",")
    return frozenset(digests if all(map(DIGEST.fullmatch, digests)) else ())


def note_in(path: str | None) -> Note:
    """Write to the owner's log, or to the standard error where none is named."""

    def note(text: str) -> None:
        line = f"{datetime.now(UTC).isoformat(timespec='microseconds')} {text}\n"
        if path is None:
            sys.stderr.write(line)
            return
        with contextlib.suppress(FileNotFoundError):
            if Path(path).stat().st_size > _MAX_LOG_BYTES:
                Path(path).replace(f"{path}.1")
        handle = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(line)

    return note


class WakeupPipe:
    """Stands in for the module `time` in Flower's loop: sleeps until the SuperNode rings, or for a
    while.

    path: a pipe in the file system, which both open.
    """

    def __init__(self, path: str) -> None:
        self._parent = os.getppid()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def sleep(self, seconds: float) -> None:
        """Wait, however long Flower would; end where the process that started this one is gone."""
        if os.getppid() != self._parent:
            raise SystemExit(1)
        if select.select([self._pipe], [], [], LOOK_PAUSE_S)[0]:
            os.read(self._pipe, MAX_WORD_BYTES)


def wake(path: str) -> None:
    """Let the SuperExec look for a task now; one that is not there will look when it is."""
    with contextlib.suppress(OSError):
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b".")
        os.close(pipe)


def fork(work: Callable[[], None], note: Note) -> None:
    """Do something in a fork, which ends with it or with this process, without a look at what
    belongs to this one.
    """
    parent = os.getpid()
    if not os.fork():
        _end_with(work, note, parent)


def _end_with(work: Callable[[], None], note: Note, parent: int) -> NoReturn:
    """Do something as all that this process, started by `parent`, is for."""
    code = 1
    try:
        system.die_with(parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        note("a task failed\n" + traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def spawn(command: list[str], token: str) -> None:
    """Start a process for one task, which reads the task's token from its input."""
    far, near = os.pipe()
    here = [(os.POSIX_SPAWN_DUP2, far, 0)]
    os.posix_spawn(command[0], command, os.environ, file_actions=here)
    os.close(far)
    os.write(near, token.encode())
    os.close(near)


def reap() -> None:
    """Let forks go that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class ForkingExecutor:
    """Takes the place of Flower's executor: each task of one kind runs in a fork, and nothing else
    runs at all.

    answer: answers the task of a token, in a fork.
    """

    def __init__(
        self, answer: Callable[[str], None], note: Note, task: str = patches.CLIENT_APP
    ) -> None:
        self._note = note
        self._task = task
        self.begin: Callable[[str], None] = lambda token: fork(
            functools.partial(answer, token), note
        )
        """Begins the task of a token."""

    def get_eligible_capacity(
        self, supported: set[Any], **named: Any
    ) -> tuple[set[Any], set[str]]:
        return supported, set()

    def launch(self, spec: Any) -> Any:
        """Start one task. One that is refused gets no heartbeat, so the other side gives it up."""
        if spec.task_type != self._task:
            self._note(
                f"refused, {spec.task_type} was asked for; this machine runs"
                f" {self._task} and nothing else"
            )
            return patches.launched("refused")
        self.begin(spec.token)
        return patches.launched()

    def reconcile(self) -> None:
        """Between two looks for a task: let forks go that have ended."""
        reap()

    def close(self) -> None:
        """There is nothing to close."""


def await_listener(address: str) -> None:
    """Wait until somebody listens there: Flower's loop would wait longer after each attempt, up to
    half a minute.
    """
    host, _, port = address.rpartition(":")
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            socket.create_connection((host, int(port)), LISTENER_PAUSE_S).close()
        except OSError:
            time.sleep(LISTENER_PAUSE_S)
        else:
            return
    raise SystemExit(1)


def command(task: str, port: int, secret: Path, peer: Path) -> list[str]:
    """The command line of `main`, for a SuperNode or SuperLink on loopback."""
    return _command(task, f"127.0.0.1:{port}", secret, peer)


def _command(*words: object) -> list[str]:
    return [sys.executable, "-P", str(Path(__file__).resolve()), *map(str, words)]


def main(task: str, address: str, secret: str, peer: str, only: str = "") -> None:
    """Run the tasks of the SuperNode or SuperLink at this address, whose secret lies in the named
    file.

    peer: the wake-up pipe of a holder's SuperNode, or the certificate of the authority of a
          coordinator's SuperLink.
    only: ONE to run the single task whose token is read from the input.
    """
    note = note_in(os.environ.get(LOG))
    try:
        loop = patches.superexec()
        runtime = patches.runtime_of(task)
        reader = patches.metadata_reader()
        keeper = BundleGuard(approved_bundles(os.environ), note, reader)
        is_holder = task == patches.CLIENT_APP

        def answer(token: str) -> None:
            patches.forget_exit_handlers()
            if is_holder:
                runtime.run_clientapp(address, token, insecure=True)
            else:
                runtime.run_serverapp(
                    address,
                    Queue(),
                    token,
                    insecure=False,
                    certificates=Path(peer).read_bytes(),
                )

        patches.guard(runtime, keeper, task)
        executor = ForkingExecutor(answer, note, task)
        if not system.may_fork():
            words = (task, address, secret, peer, ONE)
            executor.begin = functools.partial(spawn, _command(*words))
        patches.replace_executor(
            loop, executor, WakeupPipe(peer) if is_holder else None
        )
    except Exception as error:
        if isinstance(error, ImportError):
            error = patches.other_flower(error)
        note(f"refused, {error}")
        raise SystemExit(1) from error
    patches.forbid_dumps()
    if only == ONE:
        _end_with(lambda: answer(sys.stdin.read()), note, os.getppid())
    await_listener(address)
    authority = None if is_holder else peer
    loop.run_superexec(
        address, is_holder, authority, superexec_auth_secret=Path(secret).read_bytes()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
