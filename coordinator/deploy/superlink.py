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

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ridgeway.common.base.errors import LinkError, ProcessError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.deploy import approved_bundle, processes
from ridgeway.common.deploy.bundle import forget_apps
from ridgeway.common.deploy.flower_patches import SERVER_APP
from ridgeway.common.deploy.processes import Child, Log
from ridgeway.coordinator.deploy.kept_bundles import kept_bundles
from ridgeway.coordinator.deploy.superlink_client import SuperLinkClient
from ridgeway.coordinator.round.federation import Federation

FOLDER_VARIABLE = "RIDGEWAY_COORDINATOR"
"""Names the folder to the ServerApp, which inherits it; a run's configuration is seen by holders
and never holds it.
"""

START_TIMEOUT_S = 90.0
_LOOP_PAUSE_S = 0.25


def run(
    federation: Federation,
    stopped: Callable[[], bool],
    started: Callable[[SuperLinkClient], None],
    tick: Callable[[SuperLinkClient], None],
    log: Log,
) -> None:
    """Keep the coordinator's processes running until `stopped()`; `tick` is called a few times a
    second.

    A certificate that is renewed meanwhile holds as soon as no round is running. Only the fleet
    proxy listens where the settings say; the SuperLink's own port is on loopback.
    """
    folder = federation.link
    host, _, port = federation.settings.listen.rpartition(":")
    outer = host.strip("[]"), int(port)
    if not (folder / "server.key").is_file():
        raise LinkError(
            f"{folder} has no server.key; set up the coordinator's folder first"
        )
    with processes.only_one(folder, "a coordinator"):
        processes.end_leftovers(folder, log)
        try:
            processes.bindable_port(*outer)
        except OSError as error:
            reason = error.strerror or error
            raise ProcessError(
                f"cannot listen on {outer[0]} port {outer[1]} ({reason}); choose another"
                " port or address"
            ) from None
        client = SuperLinkClient(folder)
        bundles = [bundle.sha256 for bundle in kept_bundles(folder)]
        forget_apps(folder / "flwr-home", bundles)
        internal = _internal_port(client, *outer, bundles)
        superlink, superexec, proxy = children = _children(
            folder, *outer, internal, bundles
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
                if _certificate(folder) != shown and not federation.is_busy():
                    shown = _certificate(folder)
                    log(
                        "the certificate was renewed; restarting the SuperLink and"
                        " the gate"
                    )
                    processes.stop_all([superexec, proxy, superlink])
                    client = SuperLinkClient(folder)
                processes.keep_running(children, log)
                tick(client)
                time.sleep(_LOOP_PAUSE_S)
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
                f"{child.name} did not start; {child.log} ends with: {said}"
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
    environment = {
        **processes.marked(processes.flower_environment(folder / "flwr-home"), folder),
        FOLDER_VARIABLE: str(folder),
        approved_bundle.APPROVED: ",".join(bundles),
        approved_bundle.SERVER_CODE: str(folder / "bundles"),
        approved_bundle.LOG: str(folder / "logs/bundles.log"),
    }
    secret = folder / "secret"
    write_whole(secret, secrets.token_bytes(32), private=True)
    superlink = {
        "--host": "127.0.0.1",
        "--port": internal,
        "--ssl-ca-certfile": folder / "ca.crt",
        "--ssl-certfile": folder / "server.crt",
        "--ssl-keyfile": folder / "server.key",
        "--database": folder / "state.db",
        "--isolation": "process",
        "--superexec-auth-secret-file": secret,
    }
    proxy = (folder, host, port, internal)
    commands = {
        "superlink": [
            processes.script("flower-superlink"),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *processes.option_words(superlink),
        ],
        "superexec": approved_bundle.command(
            SERVER_APP, internal, secret, folder / "ca.crt"
        ),
        "gate": processes.main_of("ridgeway.coordinator.deploy.fleet_proxy", *proxy),
    }
    return [
        Child(name, words, environment, folder / "logs" / f"{name}.log")
        for name, words in commands.items()
    ]


def _internal_port(
    client: SuperLinkClient, host: str, port: int, bundles: Sequence[str]
) -> int:
    """The SuperLink's port on loopback, noted in link.json: the last one if it is still free, else
    a free one.
    """
    try:
        internal = processes.bindable_port("127.0.0.1", client.port)
    except (LinkError, OSError):
        internal = processes.free_port()
    facts = {
        "host": host,
        "port": port,
        "internal_port": internal,
        "bundles": list(bundles),
    }
    write_whole(client.folder / "link.json", canonical_json(facts))
    return internal


def _certificate(folder: Path) -> bytes:
    return (folder / "server.crt").read_bytes()


def _listens(host: str, port: int) -> bool:
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        with socket.create_connection((near, port), timeout=2):
            return True
    except OSError:
        return False
