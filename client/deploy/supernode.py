"""The holder's side of a deployment: the SuperNode, and the SuperExec that starts approved bundles
for it.

Starts both as processes (client/deploy/supernode_process.py, common/deploy/approved_bundle.py);
imports nothing of Flower.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeway.client.deploy.supernode_process import (
    AUTHORITY_FILE,
    HELD_NODE,
    WAKEUP_PIPE,
)
from ridgeway.client.round.holder import CARD
from ridgeway.common.base.errors import NodeError, NodeRefused, RidgewayError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.identity import public_line
from ridgeway.common.deploy import approved_bundle
from ridgeway.common.deploy.bundle import forget_apps, installed_sha256
from ridgeway.common.deploy.flower_patches import CLIENT_APP, HEARTBEAT_S
from ridgeway.common.deploy.processes import (
    Child,
    Log,
    NewLines,
    Value,
    end_leftovers,
    flower_environment,
    free_port,
    keep_running,
    last_words,
    main_of,
    marked,
    only_one,
    option_words,
    stop_all,
    toml,
)

ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_LOOP_PAUSE_S = 0.25
_LOOK_INTERVAL_S = 5.0
STOP_GRACE_S = 5.0
HELD_CONNECTION_S = 2 * HEARTBEAT_S + 30.0
"""How long a coordinator may take a SuperNode that died without goodbye for still there: two missed
heartbeats, and the time to start it a few times.
"""
RETRY_PAUSE_S = 3.0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a holder joins.

    folder:     holds ca.crt (the operator's) and node.key; gets logs/ and Flower's own files.
    superlink:  HOST:PORT of the coordinator's fleet proxy.
    approved:   tells the SHA-256 of every bundle that may run here; asked again every few seconds.
    proxy:      the URL of a proxy through which to reach it.
    config:     what the ClientApp finds in `context.node_config`; it stays on this machine.
    """

    folder: Path
    superlink: str
    approved: Callable[[], tuple[str, ...]]
    proxy: str | None = None
    config: Mapping[str, Value] = field(default_factory=dict)


def run(
    settings: NodeSettings,
    stopped: Callable[[], bool],
    log: Log,
    news: Callable[[], Iterable[str]],
    tick: Callable[[], None],
) -> None:
    """Keep the SuperNode running until `stopped()`. Raises NodeRefused where trying again cannot
    help.

    A changed ca.crt holds at once, a changed list of approved bundles as soon as no answer is being
    given. `news` is asked for words to tell, and `tick` is called a few times a second.
    """
    _check(settings)
    with only_one(settings.folder, "a SuperNode"):
        end_leftovers(settings.folder, log)
        node, executor = _children(settings)
        tail = LogTail(node.log, settings.superlink, log)
        approved = settings.approved()
        forget_apps(settings.folder / "flwr-home", approved)
        look_at = 0.0
        try:
            while not stopped():
                tail.read()
                for words in news():
                    log(words)
                is_due = time.monotonic() >= look_at
                if is_due and executor.is_idle():
                    look_at = time.monotonic() + _LOOK_INTERVAL_S
                    approved = _taken_up(settings, approved, executor, log)
                if node.process is not None and not node.is_running():
                    _judge_end(tail, node, settings)
                    node.environment = {**node.environment, HELD_NODE: tail.node_id}
                keep_running((node, executor), log)
                tick()
                time.sleep(_LOOP_PAUSE_S)
        finally:
            stop_all((executor, node))


def _taken_up(
    settings: NodeSettings, used: tuple[str, ...], executor: Child, log: Log
) -> tuple[str, ...]:
    """Stop the SuperExec if it was started with another list than holds now; it is started again at
    once.
    """
    try:
        now = settings.approved()
    except (RidgewayError, OSError) as error:  # its owner may be writing it just now
        log(f"the settings cannot be read, so the earlier ones hold: {error}")
        return used
    if now != used:
        executor.stop(STOP_GRACE_S)
        executor.environment = {**executor.environment, **_approval(settings)}
        names = ", ".join(digest[:12] for digest in now)
        log(f"from now on these bundles may run here: {names}")
    return now


class LogTail:
    """Reads what a SuperNode adds to its log, and says the few things that a holder wants to
    know.
    """

    def __init__(self, path: Path, address: str, log: Log) -> None:
        self._lines = NewLines(path)
        self._address = address
        self._log = log
        self._away = False
        self._connected = path.with_name("connected")
        self._held_since: float | None = None
        self.said = ""
        self.node_id = ""
        self.has_connected = False

    def read(self) -> None:
        text = self._lines.read()
        self.said = (self.said + text)[-20_000:]
        for line in text.splitlines():
            self._tell(line)

    def may_be_held(self) -> bool:
        """Whether a coordinator that does not let this SuperNode in may only be waiting for an
        earlier one to fade.
        """
        known = self._connected
        if not known.exists() or known.read_bytes() != self._address.encode():
            return False
        if self._held_since is None:
            self._held_since = time.monotonic()
            self._log(
                f"{self._address} still holds the last connection or has shut this key"
                f" out; trying for {HELD_CONNECTION_S:g} s"
            )
        return time.monotonic() - self._held_since < HELD_CONNECTION_S

    def _tell(self, line: str) -> None:
        match = re.search(r"SuperNode ID: (\d+)", line)
        if match:
            self._away = False
            self._held_since = None
            self.has_connected = True
            self.node_id = match[1]
            write_whole(self._connected, self._address.encode())
            self._log(f"connected to {self._address} as node {match[1]}")
        elif "Connection attempt failed" in line and not self._away:
            self._away = True
            self._log(f"{self._address} does not answer; trying again until it does")
        elif "Connection successful" in line and self._away:
            self._away = False
            self._log(f"{self._address} answers again")


def _judge_end(tail: LogTail, node: Child, settings: NodeSettings) -> None:
    """Raise if the SuperNode ended because of something that stays as it is until a person changes
    it.
    """
    tail.read()
    said, tail.said = tail.said, ""
    has_connected, tail.has_connected = tail.has_connected, False
    if "[code: 2004]" in said:
        if not tail.may_be_held():
            raise NodeRefused(
                f"the coordinator at {settings.superlink} does not know this holder's"
                f" key, or it is in use on another machine; hand {settings.folder / CARD}"
                " to its operator, who admits it with `ridgeway coordinator admit`"
            )
        node.rest(RETRY_PAUSE_S)
    elif "UNEXPECTED_EOF" in said:  # the gate went away within a handshake
        return
    elif "SSL/TLS handshake error" in said or "CERTIFICATE_VERIFY_FAILED" in said:
        raise NodeRefused(
            f"the certificate of {settings.superlink} is not of the authority in ca.crt,"
            " or is for another name or time; compare the address with the operator; if"
            " the authority was renewed, ask for the new invitation and run: ridgeway"
            f" client accept {settings.folder} --invite invite/"
        )
    elif not has_connected and node.process and not node.process.returncode:
        raise NodeRefused(
            f"the coordinator at {settings.superlink} rejects this holder's signature; a"
            " clock that is wrong by more than 5 s is the likely cause: set both clocks"
        )
    elif "Exit Code:" in said:
        raise NodeError(
            f"the SuperNode cannot start; {node.log} ends with: {last_words(node.log)}"
        )


def _check(settings: NodeSettings) -> None:
    public_line(settings.folder / "node.key")
    if not (settings.folder / "ca.crt").is_file():
        raise NodeError(
            f"there is no {settings.folder / 'ca.crt'}; get the authority's certificate"
            " from the operator"
        )
    if not ADDRESS.fullmatch(settings.superlink):
        raise NodeError(
            f"{settings.superlink!r} is not an address; give the coordinator as"
            " HOST:PORT"
        )
    approved = settings.approved()
    if not approved or not all(map(approved_bundle.DIGEST.fullmatch, approved)):
        raise NodeError(
            "no bundle is approved, or a hash is not 64 small hexadecimal digits;"
            " approve the round's code"
        )


def _children(settings: NodeSettings) -> tuple[Child, Child]:
    folder = settings.folder.resolve()
    port = free_port()
    environment = marked(flower_environment(folder / "flwr-home"), folder)
    pipe = folder / "flwr-home" / "wakeup"
    pipe.parent.mkdir(parents=True, exist_ok=True)
    secret = folder / "secret"
    write_whole(secret, secrets.token_bytes(32), private=True)
    write_whole(folder / "node.toml", toml(settings.config).encode(), private=True)
    node_environment = {WAKEUP_PIPE: str(pipe), AUTHORITY_FILE: str(folder / "ca.crt")}
    if settings.proxy:
        node_environment |= {
            "HTTPS_PROXY": settings.proxy,
            "https_proxy": settings.proxy,
        }
    node = Child(
        "supernode",
        _supernode(folder, settings.superlink, port),
        environment | node_environment,
        folder / "logs/supernode.log",
    )
    executor = Child(
        "superexec",
        approved_bundle.command(CLIENT_APP, port, secret, pipe),
        environment | _approval(settings),
        folder / "logs/clientapps.log",
    )
    return node, executor


def _approval(settings: NodeSettings) -> dict[str, str]:
    return {
        approved_bundle.APPROVED: ",".join(settings.approved()),
        approved_bundle.INSTALLED: installed_sha256(),
        approved_bundle.LOG: str(settings.folder.resolve() / "logs/bundles.log"),
    }


def _supernode(folder: Path, superlink: str, port: int) -> list[str]:
    options = {
        "--superlink": superlink,
        "--root-certificates": folder / "ca.crt",
        "--auth-supernode-private-key": folder / "node.key",
        "--host": "127.0.0.1",
        "--port": port,
        "--isolation": "process",
        "--superexec-auth-secret-file": folder / "secret",
        "--node-config": folder / "node.toml",
    }
    words = option_words(options)
    return main_of("ridgeway.client.deploy.supernode_process", *words)
