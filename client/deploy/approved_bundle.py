"""The SuperExec of a holder: answers each message in a fork of itself, with a bundle that the holder has approved.

Without this a SuperNode runs whatever code the coordinator sends. The bundle's SHA-256 is checked before anything of
it is unpacked or imported; the allow-list comes from the holder's own process by environment, never from a message.
What fails is written to the holder's log in full, and the coordinator gets one clean sentence without path or text.
This process has imported Flower and nothing of any bundle, so that an answer starts at once; a fork imports the bundle,
gives one answer and ends. Tasks of any other kind are refused.

Knows the inside of Flower 1.41's `run_clientapp` and `run_superexec`, and refuses to start where they have changed. Run
as a file of its own; it imports nothing of Ridgeway, because the approved bundle brings its own copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

APPROVED = "RIDGEWAY_APPROVED_BUNDLES"
LOG = "RIDGEWAY_BUNDLE_LOG"
HOOKS = ("pull_task_input", "install_from_fab", "get_load_client_app_fn")
"""The names by which Flower's `run_clientapp` gets the bundle, unpacks it and imports from it, in this order."""

LOOP_HOOKS = ("get_executor", "time")
"""The names by which Flower's `run_superexec` starts tasks, and sleeps between its looks for one."""

CLIENT_APP = "flwr-clientapp"
LEAST_PAUSE_S = 0.1
MOST_PAUSE_S = 0.5
DIGEST = re.compile("[0-9a-f]{64}")

Note = Callable[[str], None]


class BundleRefused(Exception):
    """A bundle that the holder has not approved. Its text goes to the coordinator."""


class AppFailed(Exception):
    """The approved code failed. Its text goes to the coordinator; the cause stays in the holder's log."""


class BundleGuard:
    """Stands between Flower and a bundle: nothing is unpacked before it is approved, nothing loaded but that."""

    def __init__(self, approved: frozenset[str], note: Note, identify: Callable[[bytes], tuple[str, str]]) -> None:
        self._approved = approved
        self._note = note
        self._identify = identify
        self._run: Any = None
        self._fab: Any = None
        self._allowed: tuple[str, str, str] | None = None

    def pulling(self, pull: Callable[..., Any]) -> Callable[..., Any]:
        """Remember what was sent; it is judged when Flower wants to unpack it, so that a refusal gets its reply."""

        def pulled(*words: Any, **named: Any) -> Any:
            result = pull(*words, **named)
            _, _, self._run, self._fab = result
            return result

        return pulled

    def installing(self, install: Callable[..., Any]) -> Callable[..., Any]:
        def installed(content: Any, *words: Any, **named: Any) -> Any:
            self._allowed = self._judge(content)
            return self._cleanly(install, content, *words, **named)

        return installed

    def loading(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*words: Any, **named: Any) -> Callable[..., Any]:
            load = make(*words, **named)
            return lambda *identity: self._load(load, identity)

        return made

    def _judge(self, content: Any) -> tuple[str, str, str]:
        """The identity of an approved bundle; every name the coordinator gave it must agree with its content."""
        digest = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else "unreadable"
        if digest not in self._approved:
            self._refuse(f"this holder has not approved the bundle {digest}")
        if self._fab is None or self._fab.content != content:
            self._refuse("the bundle was exchanged on its way")
        if self._fab.hash_str != digest or self._run.fab_hash not in ("", digest):
            self._refuse(f"the bundle {digest} was sent under another hash")
        if (self._run.fab_id, self._run.fab_version) != self._identify(content):
            self._refuse(f"the bundle {digest} was sent under another name")
        self._note(f"run {self._run.run_id}: approved bundle {digest}")
        return self._run.fab_id, self._run.fab_version, digest

    def _load(self, load: Callable[..., Any], identity: tuple[Any, ...]) -> Callable[..., Any]:
        if self._allowed is None or identity != self._allowed:
            self._refuse("code was asked for that is not in the approved bundle")
        app = self._cleanly(load, *identity)
        return lambda *words, **named: self._cleanly(app, *words, **named)

    def _cleanly(self, work: Callable[..., Any], *words: Any, **named: Any) -> Any:
        """Do it; what goes wrong is told to the holder, and that it went wrong to the coordinator."""
        try:
            return work(*words, **named)
        except Exception:
            self._note("the approved code failed\n" + traceback.format_exc())
        raise AppFailed("the holder's code failed; the reason is in the holder's own log")

    def _refuse(self, reason: str) -> NoReturn:
        self._note(f"run {getattr(self._run, 'run_id', '?')}: refused, {reason}")
        raise BundleRefused(reason)


def guard(runtime: ModuleType, keeper: BundleGuard) -> None:
    """Put the guard into Flower's runtime; raises where Flower no longer calls what the guard stands before."""
    called = runtime.run_clientapp.__code__.co_names
    missing = [name for name in HOOKS if name not in called or not callable(getattr(runtime, name, None))]
    if missing:
        raise BundleRefused(f"this version of Flower does not call {', '.join(missing)}, so bundles cannot be checked")
    for name, wrapper in zip(HOOKS, (keeper.pulling, keeper.installing, keeper.loading), strict=True):
        setattr(runtime, name, wrapper(getattr(runtime, name)))


def approved_bundles(environment: Mapping[str, str]) -> frozenset[str]:
    """The holder's allow-list; a missing or malformed one approves nothing."""
    words = environment.get(APPROVED, "").split(",")
    return frozenset(words) if all(DIGEST.fullmatch(word) for word in words) else frozenset()


def note_in(path: str | None) -> Note:
    """Write to the holder's log, or to the standard error where none is named."""

    def note(text: str) -> None:
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n"
        if path is None:
            sys.stderr.write(line)
            return
        handle = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(line)

    return note


class Pace:
    """Stands in for the module `time` in one of Flower's loops: pauses are a tenth of the time without work.

    A loop that has just had work looks often for more; one that has had none for long looks seldom.
    """

    def __init__(self, least_s: float = LEAST_PAUSE_S, most_s: float = MOST_PAUSE_S) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._worked = time.monotonic()
        self._parent = os.getppid()

    def worked(self) -> None:
        self._worked = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Pause, however long Flower would; end where the process that started this one is gone."""
        if os.getppid() != self._parent:
            raise SystemExit(1)
        time.sleep(min(max((time.monotonic() - self._worked) / 10, self._least_s), self._most_s))


class ForkingExecutor:
    """Takes the place of Flower's executor: each ClientApp runs in a fork of this process, and nothing else does."""

    def __init__(self, answer: Callable[[Any], None], note: Note, pace: Pace) -> None:
        self._answer, self._note, self._pace = answer, note, pace

    def get_eligible_capacity(self, supported: set[Any], **named: Any) -> tuple[set[Any], set[str]]:
        return supported, set()

    def launch(self, spec: Any) -> Any:
        """Start one task. One that is refused gets no heartbeat, so the SuperNode gives it up."""
        from flwr.supercore.superexec.executor import LaunchResult

        if spec.task_type != CLIENT_APP:
            self._note(f"refused, the coordinator asked for {spec.task_type}; a holder runs nothing but a ClientApp")
            return LaunchResult.failed("refused")
        self._pace.worked()
        parent = os.getpid()
        if os.fork() == 0:
            self._answer_alone(spec, parent)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Let ended answers go."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                self._pace.worked()

    def close(self) -> None:
        """Answers end with this process, by the kernel's help."""

    def _answer_alone(self, spec: Any, parent: int) -> NoReturn:
        """In the fork: answer, and end without a look at what belongs to the process that was forked."""
        code = 1
        try:
            die_with(parent)
            self._answer(spec)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            self._note("an answer failed\n" + traceback.format_exc())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def die_with(parent: int) -> None:
    """Be killed when the SuperExec dies, in whatever computation this process may be. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit(1)


def check_loop(loop: ModuleType) -> None:
    """Raise where Flower's SuperExec no longer starts tasks and sleeps by the names that are replaced."""
    called = loop.run_superexec.__code__.co_names
    missing = [name for name in LOOP_HOOKS if name not in called]
    if missing:
        raise BundleRefused(f"this version of Flower does not call {', '.join(missing)}, so tasks cannot be checked")


def main(address: str, secret: str) -> None:
    """Answer the tasks of the SuperNode at this address, whose secret lies in the named file."""
    note = note_in(os.environ.get(LOG))
    try:
        import flwr.supercore.superexec.run_superexec as loop
        import flwr.supernode.runtime.run_clientapp as runtime
        from flwr.cli.config_utils import get_fab_metadata
        from flwr.supercore.exit import exit_handler
        from flwr.supercore.utils import disable_process_dumping

        guard(runtime, BundleGuard(approved_bundles(os.environ), note, get_fab_metadata))
        check_loop(loop)
    except Exception as error:
        note(f"refused, {error}")
        raise SystemExit(1) from error

    def answer(spec: Any) -> None:
        for number in exit_handler.SIGNAL_TO_EXIT_CODE:
            signal.signal(number, signal.SIG_DFL)
        exit_handler.registered_exit_handlers.clear()
        runtime.run_clientapp(spec.runtime_api_address, spec.token, spec.insecure)

    pace = Pace()
    executor = ForkingExecutor(answer, note, pace)
    loop.get_executor, loop.time = lambda *words, **named: executor, pace  # type: ignore[assignment]
    disable_process_dumping(strict=False)
    loop.run_superexec(address, insecure=True, superexec_auth_secret=Path(secret).read_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
