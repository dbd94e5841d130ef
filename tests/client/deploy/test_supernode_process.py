"""The SuperNode's waits and its connection: short in a round, Flower's own at rest, never broken
without need.
"""

from __future__ import annotations

import importlib
import os
import select
import ssl
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest

from ridgeway.client.deploy.notices import Gate
from ridgeway.common.base.errors import NodeError
from ridgeway.common.deploy import flower_patches
from ridgeway.common.deploy.approved_bundle import wake
from ridgeway.common.deploy.flower_patches import (
    _LEAST_PAUSE_S,
    HEARTBEAT_S,
    IDLE_S,
    REPLY_PAUSE_S,
    REPLY_S,
    TRIED,
    OtherFlower,
    Pace,
    lasting,
    quicken,
    stay_connected,
)
from ridgeway.coordinator.deploy.authority import (
    create_authority,
    renew_authority,
    renew_server_certificate,
)
from tests.support.quiet_server import Quiet, serving, tls_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, of click
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        ActivateNodeResponse,
        DeactivateNodeRequest,
        PullMessagesRequest,
    )
    from flwr.supernode.fleet_http_client import FleetHttpClient

LOOP = """
def start_client_internal():
    while True:
        if _pull_and_store_message(pull=pull) is None:
            time.sleep(3)
            continue
        _push_messages(replies=replies, send=pushed.append)

def _pull_and_store_message(pull):
    return pull()

def _push_messages(replies, send):
    time.sleep(0.5)
    send(next(replies))

def pull_objects(ids, *, initial_backoff=1):
    pass
"""


def loop(source: str = LOOP, **names: object) -> ModuleType:
    made = ModuleType("start_client_internal")
    made.__dict__.update(names)
    exec(source, made.__dict__)
    return made


def reply(run: int) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(run_id=run))


class Clock:
    """A clock that stands still but for those who sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(flower_patches, "time", made)
    return made


def test_at_rest_it_waits_as_long_as_flower_does(clock: Clock) -> None:
    Pace().sleep(IDLE_S)
    assert clock.slept == [IDLE_S]


def test_after_a_message_pauses_grow_from_short_ones_to_flowers(clock: Clock) -> None:
    """No wait is longer than a tenth of the time since the last message, or than the least
    pause.
    """
    pace = Pace()
    pace.sleep(REPLY_S)
    replied = clock.now - REPLY_PAUSE_S
    while clock.slept[-1] < IDLE_S:
        since = clock.now - replied
        pace.sleep(IDLE_S)
        assert clock.slept[-1] <= max(since / 10, _LEAST_PAUSE_S) + 1e-9
    assert clock.slept[0] == REPLY_PAUSE_S and clock.slept[1] == _LEAST_PAUSE_S
    assert len(clock.slept) < 100


def test_the_bell_rings_before_a_reply_is_awaited(tmp_path: Path, clock: Clock) -> None:
    """Whoever waits at the pipe learns of the task at once; a pipe that nobody has made does no
    harm.
    """
    replies = [reply(1), reply(2), reply(3)]
    pushed: list[object] = []
    made = loop(pull=iter([1, 2]).__next__, replies=iter(replies), pushed=pushed)
    quicken(made, partial(wake, str(tmp_path / "wakeup")))
    with pytest.raises(StopIteration):
        made.start_client_internal()
    assert pushed == replies[:2] and clock.slept == [REPLY_PAUSE_S] * 2
    os.mkfifo(tmp_path / "wakeup")
    pipe = os.open(tmp_path / "wakeup", os.O_RDONLY | os.O_NONBLOCK)
    try:
        made._push_messages(replies=iter([reply(2)]), send=pushed.append)
        assert select.select([pipe], [], [], 0)[0] == [pipe]
    finally:
        os.close(pipe)


def test_a_late_reply_of_a_run_that_was_cut_off_is_not_taken_for_the_reply_at_hand(
    clock: Clock,
) -> None:
    """It is passed on, and the reply to the message at hand is awaited: none stays behind for the
    message after it.
    """
    replies = [reply(9), reply(1), reply(9), reply(9), reply(2)]
    pushed: list[object] = []
    left: list[int] = []
    given = iter(replies)

    def pull() -> int:
        left.append(len(replies) - len(pushed))
        return next(messages)

    messages = iter([1, 2])
    made = loop(pull=pull, replies=given, pushed=pushed)
    quicken(made, lambda: None)
    with pytest.raises(StopIteration):
        made.start_client_internal()
    assert pushed == replies and left == [5, 3, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("sleep(3)", "sleep(5)"),
        lambda text: text.replace("sleep(0.5)", "sleep(0.6)"),
        lambda text: text.replace("        _push_messages(", "        other("),
        lambda text: text.replace("if _pull_and_store_message(", "if other("),
        lambda text: text.replace("initial_backoff", "backoff"),
    ],
    ids=["idle", "reply", "push", "pull", "parts"],
)
def test_another_flower_is_refused(change: Callable[[str], str]) -> None:
    with pytest.raises(OtherFlower, match=f"tried with flwr {TRIED}"):
        quicken(loop(change(LOOP)), lambda: None)


def test_the_installed_flower_is_the_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = pytest.importorskip("flwr.supernode.start_client_internal")
    for name in ("time", "_push_messages", "_pull_and_store_message"):
        monkeypatch.setattr(real, name, getattr(real, name))
    monkeypatch.setitem(real.pull_objects.__kwdefaults__, "initial_backoff", 1)
    quicken(real, lambda: None)
    assert isinstance(real.time, Pace)


class SuperLink(Quiet):
    """Answers as Flower's does to one SuperNode, which is connected from its activation to its
    deactivation.
    """

    online: ClassVar[list[int]] = []

    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers["content-length"]))
        status, content = 200, b""
        if self.path.endswith("/deactivate-node"):
            self.online.remove(DeactivateNodeRequest.FromString(body).node_id)
        elif self.path.endswith("/activate-node") and self.online:
            status = 412
        elif self.path.endswith("/activate-node"):
            self.online.append(7)
            content = ActivateNodeResponse(node_id=7).SerializeToString()
        self.reply(content, status)


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[tuple[ssl.SSLContext, int]]:
    create_authority(tmp_path, [])
    SuperLink.online = []
    context = tls_of(tmp_path)
    with serving(SuperLink, context) as port:
        yield context, port


def joined(folder: Path, port: int, held: int | None = None) -> Any:
    client = lasting(FleetHttpClient, folder / "ca.crt", held)
    return client.from_server_address(
        f"127.0.0.1:{port}", False, (folder / "ca.crt").read_bytes(), []
    )


def test_a_renewed_authority_holds_from_the_next_request_on(
    tmp_path: Path, superlink: tuple[ssl.SSLContext, int]
) -> None:
    """One client, no restart; a file that is no certificate changes nothing, and the old authority
    holds no longer.
    """
    context, port = superlink
    with joined(tmp_path, port) as client:
        assert client.ActivateNode(ActivateNodeRequest()).node_id == 7
        kept = (tmp_path / "ca.crt").read_bytes()
        (tmp_path / "ca.crt").write_bytes(b"half of a")
        client.DeactivateNode(DeactivateNodeRequest(node_id=7))
        (tmp_path / "ca.crt").write_bytes(kept)
        renew_authority(tmp_path, new_key=True)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            client.ActivateNode(ActivateNodeRequest())
        renew_server_certificate(tmp_path, [])
        context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
        assert client.ActivateNode(ActivateNodeRequest()).node_id == 7


def test_a_connection_left_without_goodbye_is_taken_back_by_its_owner_alone(
    tmp_path: Path, superlink: tuple[ssl.SSLContext, int]
) -> None:
    """A SuperNode that died is back at once; one whose starter has seen no other end is refused as
    before.
    """
    _, port = superlink
    for held in (None, 7):
        with joined(tmp_path, port, held) as client:
            assert client.ActivateNode(ActivateNodeRequest()).node_id == 7
    with (
        joined(tmp_path, port) as client,
        pytest.raises(httpx.HTTPStatusError, match="412"),
    ):
        client.ActivateNode(ActivateNodeRequest())
    assert SuperLink.online == [7]


class Inside(Quiet):
    """A service in the holder's own network, which notes what it is asked."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:  # noqa: N802
        self.asked.append(f"{self.command} {self.path}")
        self.reply()

    do_GET = do_POST  # noqa: N815


class Redirecting(Quiet):
    """A gate that answers everything with a redirect."""

    status: ClassVar[int] = 302
    location: ClassVar[str] = ""

    def do_POST(self) -> None:  # noqa: N802
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.reply(status=self.status, location=self.location)

    do_GET = do_POST  # noqa: N815


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("renewed", [False, True])
def test_a_redirect_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, renewed: bool
) -> None:
    """Neither by the client that Flower made, nor by that of a renewed authority, nor where notices
    are fetched.
    """
    create_authority(tmp_path, [])
    context = tls_of(tmp_path)
    monkeypatch.setattr(Inside, "asked", [])
    with serving(Inside) as inside, serving(Redirecting, context) as port:
        address = f"http://127.0.0.1:{inside}/latest/meta-data"
        assert httpx.get(address, trust_env=False).status_code == 200
        Inside.asked.clear()
        monkeypatch.setattr(Redirecting, "status", status)
        monkeypatch.setattr(Redirecting, "location", address)
        with joined(tmp_path, port) as client:
            first = client._client
            if renewed:
                os.utime(tmp_path / "ca.crt", ns=(1, 1))
            with pytest.raises(httpx.HTTPStatusError, match=str(status)):
                client.ActivateNode(ActivateNodeRequest())
            with pytest.raises(httpx.HTTPStatusError, match=str(status)):
                client.PullMessages(PullMessagesRequest())
            assert (client._client is not first) == renewed
        with pytest.raises(NodeError, match="did not hand over"):
            Gate(tmp_path, f"127.0.0.1:{port}").fetch("/v1/ridgeway/notice", 100)
    assert Inside.asked == []


def test_whoever_falls_silent_is_missed_after_two_short_heartbeats(
    tmp_path: Path,
) -> None:
    connection, heartbeat = (
        SimpleNamespace(HEARTBEAT_DEFAULT_INTERVAL=30, FleetHttpClient=FleetHttpClient)
        for _ in range(2)
    )
    stay_connected(connection, heartbeat, tmp_path, None)  # type: ignore[arg-type]
    assert (
        connection.HEARTBEAT_DEFAULT_INTERVAL
        == heartbeat.HEARTBEAT_DEFAULT_INTERVAL
        == HEARTBEAT_S
    )
    real: Any = importlib.import_module("flwr.supernode.fleet_http_connection")
    assert (
        real.FleetHttpClient is FleetHttpClient
        and real.HEARTBEAT_DEFAULT_INTERVAL > HEARTBEAT_S
    )
    with pytest.raises(OtherFlower, match=f"tried with flwr {TRIED}"):
        stay_connected(connection, SimpleNamespace(), tmp_path, None)  # type: ignore[arg-type]
