"""The coordinator's processes: the SuperLink on loopback, the SuperExec that starts ServerApps, the
fleet proxy.

 Knows the folder they share:

    ca.crt server.crt server.key   made by coordinator/deploy/authority.py
    notice.json                    what the gate tells holders
    secret                         by which the SuperExec proves itself to the SuperLink
    state.db                       the SuperLink's memory: nodes, runs, messages
    bundles.json bundles/          the bundles that it runs, see coordinator/deploy/kept_bundles.py
    link.json                      where it listens and which bundles it runs, for other commands
    orders/                        the runs that a command asked for and that have not begun
    flwr-home/ logs/               what Flower keeps, what each process said
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from ridgeway.common.base.errors import LinkError, ProcessError
from ridgeway.common.base.files import IMPORT_ROOT, canonical_json, write_whole
from ridgeway.common.deploy import approved_bundle, flower_patches, processes
from ridgeway.common.deploy.processes import Child, Word
from ridgeway.coordinator.deploy.kept_bundles import kept_bundles
from ridgeway.coordinator.deploy.superlink_client import SuperLinkClient

FOLDER_VARIABLE = "RIDGEWAY_COORDINATOR"
"""Names the folder to the ServerApp, which inherits it; a run's configuration is seen by holders
and never holds it.
"""

START_TIMEOUT_S = 90.0
LOOP_PAUSE_S = 0.25


def run(
    folder: Path,
    outer: tuple[str, int],
    stopped: Callable[[], bool],
    started: Callable[[SuperLinkClient], None],
    tick: Callable[[SuperLinkClient], None],
    busy: Callable[[], bool],
    word: Word,
) -> None:
    """Keep the coordinator's processes running until `stopped()`; `tick` is called a few times a
    second.

    A certificate that is renewed meanwhile holds as soon as no round is running, which `busy`
    tells.

    outer: the host and port that the outside reaches: the fleet proxy's. The SuperLink's own is on
           loopback.
    """
    _check_certificates(folder)
    with processes.only_one(folder, "a coordinator"):
        processes.end_leftovers(folder, word)
        _check_outer_port(*outer)
        client = SuperLinkClient(folder)
        bundles = [each.sha256 for each in kept_bundles(folder)]
        internal = _internal_port(client, *outer, bundles)
        superlink, superexec, proxy = children = _children(
            folder.resolve(), *outer, internal, bundles
        )
        try:
            superlink.start()
            if not _answers(superlink, client.is_up, stopped):
                return
            client.stop_runs()  # whatever ran them has ended
            superexec.start()
            proxy.start()
            if not _answers(proxy, lambda: _listens(*outer), stopped):
                return
            started(client)
            shown = _certificate(folder)
            while not stopped():
                if _certificate(folder) != shown and not busy():
                    shown = _certificate(folder)
                    word(
                        "the certificate was renewed; the SuperLink and the gate start"
                        " again with it"
                    )
                    processes.stop_all([superexec, proxy, superlink])
                    client = SuperLinkClient(folder)
                processes.keep_running(children, word)
                tick(client)
                time.sleep(LOOP_PAUSE_S)
        finally:
            processes.stop_all([superexec, proxy, superlink])


def _answers(
    child: Child, ready: Callable[[], bool], stopped: Callable[[], bool]
) -> bool:
    """Wait until a child answers; False if told to stop meanwhile."""
    end = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if stopped():
            return False
        if not child.is_running() or time.monotonic() > end:
            said = processes.last_words(child.log)
            raise ProcessError(
                f"{child.name} did not start; its last words in {child.log} are: {said}"
            )
        time.sleep(0.1)
    return True


def _children(
    folder: Path, host: str, port: int, internal: int, bundles: Sequence[str]
) -> list[Child]:
    """SuperLink, SuperExec and fleet proxy, which logs call the gate, in the order in which they
    start.

    Flower's control API on loopback has no password, so the SuperExec runs nothing but the bundles
    that are kept here.
    """
    environment = processes.marked(
        processes.flower_environment(folder / "flwr-home"), folder
    )
    environment[FOLDER_VARIABLE] = str(folder)
    environment[approved_bundle.APPROVED] = ",".join(bundles)
    environment[approved_bundle.SERVER_CODE] = str(folder / "bundles")
    environment[approved_bundle.LOG] = str(folder / "logs/bundles.log")
    secret = str(_secret(folder))
    superlink = {
        "--host": "127.0.0.1",
        "--port": str(internal),
        "--ssl-ca-certfile": str(folder / "ca.crt"),
        "--ssl-certfile": str(folder / "server.crt"),
        "--ssl-keyfile": str(folder / "server.key"),
        "--database": str(folder / "state.db"),
        "--isolation": "process",
        "--superexec-auth-secret-file": secret,
    }
    runner = str(Path(approved_bundle.__file__).resolve())
    superexec = [
        flower_patches.SERVER_APP,
        f"127.0.0.1:{internal}",
        secret,
        str(folder / "ca.crt"),
    ]
    proxy = {
        "--folder": str(folder),
        "--host": host,
        "--port": str(port),
        "--internal-port": str(internal),
    }
    flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    # the fleet proxy is run from where this very module lies, in a checkout as in an installation
    path = f"import sys; sys.path.insert(0, {str(IMPORT_ROOT)!r}); "
    code = path + "from ridgeway.coordinator.deploy.fleet_proxy import main; main()"
    commands = {
        "superlink": [
            processes.script("flower-superlink"),
            *flags,
            *chain(*superlink.items()),
        ],
        "superexec": [sys.executable, "-P", runner, *superexec],
        "gate": [sys.executable, "-P", "-c", code, *chain(*proxy.items())],
    }
    return [
        Child(name, words, environment, folder / "logs" / f"{name}.log")
        for name, words in commands.items()
    ]


def _secret(folder: Path) -> Path:
    path = folder / "secret"
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
    return path


def _internal_port(
    client: SuperLinkClient, host: str, port: int, bundles: Sequence[str]
) -> int:
    """The SuperLink's port on loopback, noted in link.json: the last one if it is still free, else
    a free one.
    """
    internal = 0
    with contextlib.suppress(LinkError):
        internal = client.port
    internal = (
        internal if internal and processes.is_free(internal) else processes.free_port()
    )
    facts = {
        "host": host,
        "port": port,
        "internal_port": internal,
        "bundles": list(bundles),
    }
    write_whole(client.folder / "link.json", canonical_json(facts))
    return internal


def _check_certificates(folder: Path) -> None:
    missing = [
        name
        for name in ("ca.crt", "server.crt", "server.key")
        if not (folder / name).is_file()
    ]
    if missing:
        raise LinkError(
            f"{folder} has no {' and no '.join(missing)}; set up the coordinator's"
            " folder first"
        )


def _certificate(folder: Path) -> bytes:
    return (folder / "server.crt").read_bytes()


def _check_outer_port(host: str, port: int) -> None:
    """Raise unless the fleet proxy can listen where it should."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise ProcessError(
            f"nobody can listen on {host} port {port} ({error.strerror or error}); "
            "another program may hold it: choose another port or address"
        ) from None


def _listens(host: str, port: int) -> bool:
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        with socket.create_connection((near, port), timeout=2):
            return True
    except OSError:
        return False
