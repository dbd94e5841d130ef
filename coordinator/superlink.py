"""The coordinator's processes: the SuperLink on loopback, the SuperExec that starts ServerApps, the gate in front.

Knows Flower's commands and starts them as processes; imports nothing of Flower. Knows the folder they share:

    ca.crt server.crt server.key   made by coordinator/authority.py
    secret                         by which the SuperExec proves itself to the SuperLink
    state.db                       the SuperLink's memory: nodes, runs, messages
    link.json                      where it listens, for other commands
    flwr-home/ logs/               what Flower keeps, what each process said
    app-*/                         the app, while it is submitted
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import LinkError, ProcessError
from common.files import canonical_json, write_whole
from common.processes import (
    Child,
    Word,
    end_leftovers,
    flower_environment,
    free_port,
    is_free,
    keep_running,
    last_words,
    marked,
    only_one,
    script,
    stop_all,
)
from coordinator.connection import Connection

FOLDER_VARIABLE = "RIDGEWAY_COORDINATOR"
"""Names the folder to the ServerApp, which inherits it; a run's configuration is seen by holders and never holds it."""

START_S = 90.0
PASS_S = 0.25


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Where the coordinator keeps its things and where it listens.

    host, port:     what the outside reaches: the gate.
    internal_port:  the SuperLink's, on loopback; 0 chooses a free one and keeps it.
    """

    folder: Path
    host: str
    port: int
    internal_port: int = 0


def run(
    settings: LinkSettings,
    stopped: Callable[[], bool],
    started: Callable[[Connection], None],
    tick: Callable[[Connection], None],
    word: Word,
) -> None:
    """Keep the coordinator's processes running until `stopped()`; `tick` is called a few times a second."""
    folder = settings.folder
    _check_certificates(folder)
    with only_one(folder, "a coordinator"):
        end_leftovers(folder, word)
        _check_outer_port(settings)
        connection = Connection(folder)
        internal = _remember_port(settings, connection)
        children = _children(settings, internal)
        try:
            if _start(children, connection, settings, stopped):
                started(connection)
                _watch(children, connection, stopped, tick, word)
        finally:
            stop_all([children[1], children[2], children[0]])


def _watch(
    children: Sequence[Child],
    connection: Connection,
    stopped: Callable[[], bool],
    tick: Callable[[Connection], None],
    word: Word,
) -> None:
    while not stopped():
        keep_running(children, word)
        tick(connection)
        time.sleep(PASS_S)


def _start(
    children: Sequence[Child], connection: Connection, settings: LinkSettings, stopped: Callable[[], bool]
) -> bool:
    """Start the SuperLink, then the others, each once its forerunner answers; False if told to stop meanwhile."""
    superlink, superexec, gate = children
    superlink.start()
    if not _answers(superlink, connection.is_up, stopped):
        return False
    superexec.start()
    gate.start()
    return _answers(gate, lambda: _listens(settings.host, settings.port), stopped)


def _answers(child: Child, ready: Callable[[], bool], stopped: Callable[[], bool]) -> bool:
    """Wait until a child answers; False if told to stop meanwhile."""
    end = time.monotonic() + START_S
    while not ready():
        if stopped():
            return False
        if not child.is_running() or time.monotonic() > end:
            said = last_words(child.log)
            raise ProcessError(f"{child.name} did not start; its last words in {child.log} are: {said}")
        time.sleep(0.1)
    return True


def _children(settings: LinkSettings, internal: int) -> list[Child]:
    """SuperLink, SuperExec and gate, in the order in which they start."""
    folder = settings.folder.resolve()
    environment = marked(flower_environment(folder / "flwr-home"), folder)
    environment[FOLDER_VARIABLE] = str(folder)
    environment["PATH"] = os.pathsep.join((str(Path(script("flwr-serverapp")).parent), environment.get("PATH", "")))
    commands = {
        "superlink": _superlink(folder, internal),
        "superexec": _superexec(folder, internal),
        "gate": _gate(folder, settings, internal),
    }
    return [Child(name, words, environment, folder / "logs" / f"{name}.log") for name, words in commands.items()]


def _superlink(folder: Path, port: int) -> list[str]:
    words = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--ssl-ca-certfile": str(folder / "ca.crt"),
        "--ssl-certfile": str(folder / "server.crt"),
        "--ssl-keyfile": str(folder / "server.key"),
        "--database": str(folder / "state.db"),
        "--isolation": "process",
        "--superexec-auth-secret-file": str(_secret(folder)),
    }
    flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    return [script("flower-superlink"), *flags, *(word for pair in words.items() for word in pair)]


def _superexec(folder: Path, port: int) -> list[str]:
    words = {
        "--runtime-api-address": f"127.0.0.1:{port}",
        "--root-certificates": str(folder / "ca.crt"),
        "--superexec-auth-secret-file": str(_secret(folder)),
        "--parent-pid": str(os.getpid()),
    }
    return [script("flower-superexec"), *(word for pair in words.items() for word in pair)]


def _gate(folder: Path, settings: LinkSettings, internal: int) -> list[str]:
    """The gate from where this very module lies, in a checkout as in an installation."""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r}); "
    words = {
        "--folder": str(folder),
        "--host": settings.host,
        "--port": str(settings.port),
        "--internal-port": str(internal),
    }
    code = start + "from coordinator.gate import main; main()"
    return [sys.executable, "-P", "-c", code, *(word for pair in words.items() for word in pair)]


def _secret(folder: Path) -> Path:
    path = folder / "secret"
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
    return path


def _remember_port(settings: LinkSettings, connection: Connection) -> int:
    """The SuperLink's port: the one asked for, else the last one if it is still free, else a free one."""
    port = settings.internal_port
    if not port:
        with contextlib.suppress(LinkError):
            port = connection.port
        port = port if port and is_free(port) else free_port()
    elif not is_free(port):
        raise ProcessError(f"port {port} on loopback is in use by another program; name another internal port")
    facts = {"host": settings.host, "port": settings.port, "internal_port": port}
    write_whole(settings.folder / "link.json", canonical_json(facts))
    return port


def _check_certificates(folder: Path) -> None:
    missing = [name for name in ("ca.crt", "server.crt", "server.key") if not (folder / name).is_file()]
    if missing:
        raise LinkError(f"{folder} has no {' and no '.join(missing)}; set up the coordinator's folder first")


def _check_outer_port(settings: LinkSettings) -> None:
    """Raise unless the gate can listen where it should."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise ProcessError(
            f"nobody can listen on {settings.host} port {settings.port} ({error.strerror or error}); "
            "another program may hold it: choose another port or address"
        ) from None


def _listens(host: str, port: int) -> bool:
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        with socket.create_connection((near, port), timeout=2):
            return True
    except OSError:
        return False
