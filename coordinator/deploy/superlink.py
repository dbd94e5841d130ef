"""The coordinator's processes: the SuperLink on loopback, the SuperExec that starts ServerApps, the
fleet proxy.

Knows the folder they share:

    ca.crt server.crt server.key   made by coordinator/deploy/authority.py
    notice.json                    what the gate tells holders
    secret                         by which the SuperExec proves itself to the SuperLink
    state.db                       the SuperLink's memory: nodes, runs, messages
    bundles.json bundles/          the bundles that it runs: deploy/coordinator_folder.py
    link.json                      where it listens and which bundles it runs, for other commands
    orders/                        the runs that a command asked for and that have not begun
    flwr-home/ logs/               what Flower keeps, what each process said

And who joins and leaves while they run.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from ridgeway.common.base.errors import LinkDown, LinkError, ProcessError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.base.identity import check_public_line
from ridgeway.common.deploy import approved_bundle, processes
from ridgeway.common.deploy.bundle import forget_apps
from ridgeway.common.deploy.flower_patches import SERVER_APP, control_messages
from ridgeway.common.deploy.processes import Child, Log, NewLines
from ridgeway.coordinator.deploy.coordinator_folder import kept_bundles
from ridgeway.coordinator.deploy.fleet_proxy import SECOND_LOG_IN, key_name
from ridgeway.coordinator.round.federation import NODES, Federation

# What the operator's commands ask of a running SuperLink: who is registered, submit a run, how is
# it.
#
# The SuperLink is reached over loopback and must show a certificate of the folder's authority.


CALL_TIMEOUT_S = 120.0
MEDIA_TYPE = "application/protobuf"
STATES = ("pending", "starting", "running", "finished")
KEY_IN_USE = "[code: 23]"


@dataclass(frozen=True, slots=True)
class Node:
    """A registered SuperNode."""

    node_id: int
    online: bool
    public_line: str
    name: str


class SuperLinkClient:
    """The SuperLink of a folder, as seen from any process of the operator's machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def port(self) -> int:
        return int(self._facts()["internal_port"])

    def _facts(self) -> dict[str, Any]:
        """What coordinator/deploy/superlink.py noted when it started."""
        try:
            noted = json.loads((self.folder / "link.json").read_bytes())
            return {"bundles": [], "internal_port": 0, **noted}
        except (OSError, ValueError, TypeError):
            raise LinkDown(
                f"no SuperLink was started for {self.folder}; run `ridgeway"
                " coordinator up` first"
            ) from None

    @functools.cached_property
    def _http(self) -> httpx.Client:
        """Connections are not kept: a SuperLink that stops would wait for an idle one to say
        goodbye.
        """
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(
            verify=context, trust_env=False, timeout=CALL_TIMEOUT_S, limits=limits
        )

    def is_up(self) -> bool:
        try:
            url = f"https://127.0.0.1:{self.port}/health"
            return self._http.get(url, timeout=3.0).status_code == 200
        except (LinkError, OSError, httpx.HTTPError):
            return False

    def register(self, public_line: str, name: str) -> int:
        """Let a SuperNode in whose key is not in yet, and return its id."""
        key = pem_key(check_public_line(public_line))
        try:
            return int(self._call("RegisterNode", public_key=key, name=name).node_id)
        except LinkError as error:
            if KEY_IN_USE not in str(error):
                raise
            raise LinkError(
                "this key was registered and removed before, which cannot be undone;"
                " the holder must create a new key"
            ) from error

    def unregister(self, node_id: int) -> None:
        """Shut a SuperNode out; its key cannot be registered again."""
        self._call("UnregisterNode", node_id=node_id)

    def nodes(self) -> list[Node]:
        return [
            Node(
                node.node_id,
                node.status == "online",
                _public_line(node.public_key),
                node.name,
            )
            for node in self._call("ListNodes").nodes_info
            if node.status not in ("unregistered", "deleted")
        ]

    def note_nodes(self) -> None:
        """Write down who is registered, for rounds."""
        facts = {
            str(node.node_id): {"public_line": node.public_line, "name": node.name}
            for node in self.nodes()
        }
        write_whole(self.folder / NODES, canonical_json(facts), private=True)

    def submit(self, bundle: bytes) -> int:
        digest = hashlib.sha256(bundle).hexdigest()
        if digest not in self._facts()["bundles"]:
            raise LinkError(
                "the running coordinator was started from different Ridgeway code;"
                " restart `coordinator up`"
            )
        fab = {"hash_str": digest, "content": bundle}
        return int(self._call("StartRun", fab=fab).run_id)

    def has_finished(self, run_id: int) -> bool:
        """Whether a run has come to its end, well or not."""
        runs = self._call("ListRuns", run_id=run_id).run_dict
        state = str(runs[run_id].status.status)
        if state not in STATES:
            raise LinkError(
                f"the SuperLink reports the unknown state {state!r}; check that Flower"
                " and Ridgeway are compatible"
            )
        return state == "finished"

    def stop_run(self, run_id: int) -> None:
        self._call("StopRun", run_id=run_id)

    def stop_runs(self) -> None:
        """Stop every run that has begun; holders would wait a minute for the rest of a message that
        was cut off.
        """
        for number, run in self._call("ListRuns").run_dict.items():
            if run.status.status in ("starting", "running"):
                with contextlib.suppress(LinkError):  # it ends by itself just now
                    self.stop_run(number)

    def _call(self, method: str, **fields: object) -> Any:
        """What the control API answers to a request; its failure is one clear error."""
        request, response = control_messages(method)
        path = re.sub("(?<!^)([A-Z])", r"-\1", method).lower()
        headers = {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE}
        url = f"https://127.0.0.1:{self.port}/v1/control/{path}"
        content = request(**fields).SerializeToString()
        try:
            answer = self._http.post(url, content=content, headers=headers)
        except httpx.TimeoutException:
            raise LinkError(
                f"the SuperLink did not answer {path} within {CALL_TIMEOUT_S:g} s; try"
                " again"
            ) from None
        except (OSError, httpx.HTTPError):
            raise LinkDown(
                f"the SuperLink of {self.folder} does not answer; start the coordinator"
                " and try again"
            ) from None
        if not answer.is_success:
            raise LinkError(f"the SuperLink refused {path}: {_reason(answer)}")
        return response.FromString(answer.content)


def pem_key(public_line: str) -> bytes:
    key = load_ssh_public_key(public_line.encode())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _public_line(key: bytes) -> str:
    return (
        load_pem_public_key(key)
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        .decode()
    )


def _reason(answer: httpx.Response) -> str:
    """Why a request was refused, with Flower's number for it where there is one."""
    try:
        said = answer.json()
        return f"[code: {said['code']}] {said['detail']} {said.get('extra') or ''}".rstrip()
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.text[:400]}"


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


# Who joins and leaves a running coordinator, and who logs in with the key of a holder that is
# connected already: told in words as it happens.


PRESENCE_INTERVAL_S = 5.0
_SECOND = re.compile(SECOND_LOG_IN.replace("%s", r"(\S+)"))


class PresenceLog:
    """Law: each join and each leaving is logged once, and a second log-in once an address while the
    holder is connected.
    """

    def __init__(self, federation: Federation, log: Log) -> None:
        self._federation = federation
        self._log = log
        self._look = 0.0
        self._online: set[str] = set()
        self._reported: set[tuple[str, str]] = set()
        self._gate = NewLines(federation.link / "logs" / "gate.log")

    def tick(self, client: SuperLinkClient) -> None:
        """Called again and again while the SuperLink runs."""
        if time.monotonic() < self._look:
            return
        self._look = time.monotonic() + PRESENCE_INTERVAL_S
        try:
            online = {node.name for node in client.nodes() if node.online}
        except LinkError:  # it is started again just now
            return
        for name in sorted(online - self._online):
            self._log(f"{name} has joined")
        for name in sorted(self._online - online):
            self._log(f"{name} has left")
        self._online = online
        self._reported = {
            (name, address) for name, address in self._reported if name in online
        }
        self._tell_log_ins()

    def _tell_log_ins(self) -> None:
        holders = self._federation.standing.roster.values()
        names = {
            # as the key stands in the head of a SuperNode's requests
            key_name(base64.b64encode(pem_key(holder.node))): holder.name
            for holder in holders
        }
        for key, address in _SECOND.findall(self._gate.read()):
            name = names.get(key)
            if name not in self._online or (name, address) in self._reported:
                continue
            self._reported.add((name, address))
            self._log(
                f"a client at {address} tried to log in with the key of {name}, which"
                " is connected, so the key was copied: its owner must run `ridgeway"
                " client renew DIR`"
            )
