"""The fleet proxy before a SuperLink: ten paths pass, whole and unaltered, and nothing else does.

The proxy runs as the process that it is. A small real TLS server stands for the SuperLink and notes
what reaches it; requests are written byte by byte where their spelling matters.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from ridgeway.common.base.identity import Identity, create_node_key
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.protocol.cohort import (
    ANNOUNCED_ROSTER,
    LEAVE_PATH,
    NOTICE,
    NOTICE_PATH,
    Leaving,
    Roster,
    RosterMember,
    signed_json,
)
from ridgeway.coordinator.deploy import fleet_proxy
from ridgeway.coordinator.deploy.authority import create_authority
from ridgeway.coordinator.deploy.fleet_proxy import MAX_BODY_BYTES, PATHS
from tests.support.making import fixed_identity
from tests.support.quiet_server import Quiet, serving, tls_of
from tests.support.waiting import MAX_WAIT_S, wait_for

ROOT = Path(__file__).resolve().parents[3]
PATH = "/v1/fleet/push-object"
PROOF = {
    "flwr-public-key": "cHVibGlj",
    "flwr-signature": "c2lnbg==",
    "flwr-timestamp": "2026-01-01T00:00:00+00:00",
    "flwr-package-version": "1.41.0",
    "content-type": "application/x-protobuf",
}


@dataclass
class Upstream:
    """Stands for the SuperLink: what reached it, and how it is to answer."""

    seen: list[tuple[str, str, dict[str, str], str, int]] = field(default_factory=list)
    status: int = 200
    reply: bytes = b"pong"
    times: int = 1
    breaks_off: bool = False
    delay_s: float = 0.0


class Handler(Quiet):
    """Reads a request whole, notes it, answers as the upstream says."""

    upstream: Upstream

    def do_POST(self) -> None:  # noqa: N802
        left, digest = int(self.headers.get("content-length", 0)), hashlib.sha256()
        while left and (piece := self.rfile.read(min(left, 65536))):
            digest.update(piece)
            left -= len(piece)
        size = int(self.headers.get("content-length", 0)) - left
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.upstream.seen.append(
            (self.command, self.path, headers, digest.hexdigest(), size)
        )
        self._answer()

    do_GET = do_PUT = do_HEAD = do_CONNECT = do_OPTIONS = do_POST  # noqa: N815

    def _answer(self) -> None:
        upstream = self.upstream
        time.sleep(upstream.delay_s)
        self.send_response(upstream.status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("set-cookie", "inner=1")
        self.send_header("x-inner", "1")
        length = len(upstream.reply) * upstream.times + upstream.breaks_off
        self.send_header("content-length", str(length))
        self.end_headers()
        for _ in range(upstream.times):
            self.wfile.write(upstream.reply)
        self.close_connection = True


def superlink(
    upstream: Upstream, folder: Path, port: int
) -> AbstractContextManager[int]:
    return serving(
        type("Told", (Handler,), {"upstream": upstream}), tls_of(folder), port
    )


@dataclass(frozen=True)
class Gate:
    """A proxy that runs, what stands behind it, and how to reach it."""

    upstream: Upstream
    folder: Path
    port: int
    internal_port: int
    pid: int

    def client(self, address: str = "127.0.0.1") -> httpx.Client:
        """A client at one of the many addresses of loopback."""
        transport = httpx.HTTPTransport(verify=self._context(), local_address=address)
        return httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}",
            transport=transport,
            trust_env=False,
            timeout=30,
        )

    @contextmanager
    def connection(self) -> Iterator[ssl.SSLSocket]:
        with self.plain() as plain, self.secured(plain) as secure:
            yield secure

    def plain(self, address: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self.port), timeout=30, source_address=(address, 0)
        )

    def secured(self, plain: socket.socket) -> ssl.SSLSocket:
        return self._context().wrap_socket(plain, server_hostname="127.0.0.1")

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    def raw(self, request: bytes) -> bytes:
        """The first line of the reply to these very bytes."""
        with self.connection() as secure:
            secure.sendall(request)
            return secure.recv(4096).split(b"\r\n")[0]

    def peak_memory(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(peak) * 1024


def post(client: httpx.Client) -> int:
    """The status that a SuperNode gets for its request."""
    return client.post(PATH, content=b"x").status_code


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """The proxy as a process."""
    folder = tmp_path_factory.mktemp("authority")
    create_authority(folder, [])
    port, internal = free_port(), free_port()
    words = [str(folder), "127.0.0.1", str(port), str(internal)]
    command = [sys.executable, "-m", "ridgeway.coordinator.deploy.fleet_proxy", *words]
    with (
        (folder / "gate.log").open("wb") as said,
        subprocess.Popen(command, cwd=ROOT, stderr=said) as process,
    ):
        try:
            _wait_for(port, process)
            yield Gate(Upstream(), folder, port, internal, process.pid)
        finally:
            process.terminate()
            assert process.wait(timeout=MAX_WAIT_S) is not None


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert process.poll() is None
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
            return True
        except OSError:
            return False

    wait_for("the proxy listens", listens)


@pytest.fixture
def closed(running: Gate) -> Gate:
    """A proxy whose SuperLink is down."""
    return replace(running, upstream=Upstream())


@pytest.fixture
def gate(closed: Gate) -> Iterator[Gate]:
    """A proxy whose SuperLink is up."""
    with superlink(closed.upstream, closed.folder, closed.internal_port):
        yield closed


@pytest.mark.parametrize("path", sorted(PATHS))
def test_what_supernodes_need_passes_unaltered(gate: Gate, path: bytes) -> None:
    """Path, body and the headers that carry a SuperNode's proof arrive; the reply comes back."""
    with gate.client() as client:
        answer = client.post(path.decode(), content=b"ping", headers=PROOF)
    assert (answer.status_code, answer.content) == (200, b"pong")
    [(method, seen_path, headers, digest, size)] = gate.upstream.seen
    assert (method, seen_path, size) == ("POST", path.decode(), 4)
    assert digest == hashlib.sha256(b"ping").hexdigest()
    assert all(headers[name] == value for name, value in PROOF.items())


def test_a_monitor_learns_whether_holders_can_be_served_and_nothing_else(
    closed: Gate,
) -> None:
    """A status without a body: the gate asks the SuperLink behind it."""
    with closed.client() as client:
        assert client.get("/health").status_code == 503
        with superlink(closed.upstream, closed.folder, closed.internal_port):
            answer = client.get("/health")
            assert (answer.status_code, answer.content) == (200, b"")
            for path in ("/health?x=1", "/healthz"):
                assert client.get(path).status_code == 404
    [(method, path, *_)] = closed.upstream.seen
    assert (method, path) == ("GET", "/health")


TRICKS = [
    "/",
    "/health",
    "/docs",
    "/openapi.json",
    "/v1/control/start-run",
    "/v1/control/list-nodes",
    "/v1/runtime/acquire-task",
    "/v1/runtime/push-object",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet",
    "/v1/fleet/",
    "/v1/fleet/push-object/",
    "//v1/fleet/push-object",
    "/v1//fleet/push-object",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/push-object/../../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/..%2fcontrol%2fstart-run",
    "/v1/fleet/push%2dobject",
    "/%761/fleet/push-object",
    "/V1/fleet/push-object",
    "/v1/FLEET/push-object",
    "/v1/fleet/push-object?x=1",
    "/v1/fleet/push-object%00",
    "/v1/fleet/push-object%0d%0aX:1",
    "/v1/fleet/push-object;x",
    "/v1/fleet/push-object#x",
    "\\v1\\fleet\\push-object",
    "https://127.0.0.1/v1/fleet/push-object",
    "http://127.0.0.1:1/v1/control/start-run",
    "127.0.0.1:22",
    "*",
]


METHODS = "GET HEAD PUT DELETE OPTIONS PATCH TRACE CONNECT post".split()


@pytest.mark.parametrize(
    "request_line",
    [f"POST {target}" for target in TRICKS]
    + [f"{method} {PATH}" for method in METHODS],
)
def test_every_other_target_and_method_is_not_found(
    gate: Gate, request_line: str
) -> None:
    """Also other spellings of a path that passes: what is compared is the very bytes of the request
    line.
    """
    head = f"{request_line} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    assert gate.raw(head.encode()).split()[1] in (b"404", b"400")
    assert gate.upstream.seen == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (
            "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n",
            {b"404"},
        ),
        ("Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n", {b"404"}),
        ("Transfer-Encoding: chunked\r\n", {b"411"}),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", {b"411", b"400"}),
        ("Transfer-Encoding: xchunked\r\n", {b"411", b"400", b"501"}),
        ("", {b"411"}),
        ("Content-Length: 4\r\nContent-Length: 5\r\n", {b"400"}),
        ("Content-Length: -1\r\n", {b"400"}),
        ("Content-Length: +4\r\n", {b"400"}),
        ("Content-Length: 0x4\r\n", {b"400"}),
        (f"Content-Length: {MAX_BODY_BYTES + 1}\r\n", {b"413"}),
        ("Content-Length: 99999999999999999999\r\n", {b"413", b"400"}),
        (
            f"Content-Length: 0\r\nX: {'x' * 2 * fleet_proxy._MAX_HEADER_BYTES}\r\n",
            {b"431", b"400"},
        ),
    ],
)
def test_what_could_be_read_in_two_ways_or_is_too_large_does_not_pass(
    gate: Gate, headers: str, status: set[bytes]
) -> None:
    """One length, plainly written, within the limits: anything else ends here."""
    line = gate.raw(f"POST {PATH} HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode())
    assert line.split()[1] in status
    assert gate.upstream.seen == []


def test_headers_of_one_hop_and_of_the_inside_stay_where_they_are(gate: Gate) -> None:
    """Nothing but the named headers goes in, nothing but the named ones comes out, and no cookie is
    kept between.
    """
    sent = {
        **PROOF,
        "cookie": "a=1",
        "authorization": "b",
        "x-forwarded-for": "c",
        "te": "trailers",
        "forwarded": "d",
    }
    with gate.client() as client:
        client.post(PATH, content=b"", headers=sent)
        client.cookies.clear()
        answer = client.post(PATH, content=b"", headers=sent)
    _, (_, _, headers, _, _) = gate.upstream.seen
    passed = {name.decode() for name in fleet_proxy.PASSED_UP}
    assert set(headers) <= {
        *passed,
        "host",
        "content-length",
        "accept-encoding",
        "connection",
        "user-agent",
    }
    assert headers["host"] == f"127.0.0.1:{gate.internal_port}"
    assert set(answer.headers) <= {
        "content-type",
        "content-length",
        "transfer-encoding",
        "date",
        "server",
    }


@pytest.mark.parametrize("status", [401, 403, 404, 412, 413, 500, 503])
def test_a_status_of_the_superlink_comes_through(gate: Gate, status: int) -> None:
    """A SuperNode tells refusal, end of a run and outage apart by it."""
    gate.upstream.status = status
    with gate.client() as client:
        assert post(client) == status


def test_bodies_stream_through_whole(gate: Gate) -> None:
    """Fifteen megabytes up and a hundred down arrive as they were, and the proxy holds neither of
    them.
    """
    up = bytes(range(256)) * (15 * 4096)
    gate.upstream.reply, gate.upstream.times = bytes(reversed(range(256))) * 4096, 100
    before, digest = gate.peak_memory(), hashlib.sha256()
    with gate.client() as client, client.stream("POST", PATH, content=up) as answer:
        for part in answer.iter_raw():
            digest.update(part)
    assert gate.upstream.seen[0][3] == hashlib.sha256(up).hexdigest()
    assert digest.hexdigest() == hashlib.sha256(gate.upstream.reply * 100).hexdigest()
    assert gate.peak_memory() - before < 10e6


def test_a_superlink_that_is_down_is_an_outage_and_it_comes_back(closed: Gate) -> None:
    """503 while it is away, so that SuperNodes try again; the proxy itself stays up and needs no
    restart.
    """
    with closed.client() as client:
        assert post(client) == 503
        assert client.post("/v1/control/start-run", content=b"x").status_code == 404
        for _ in range(2):
            with superlink(closed.upstream, closed.folder, closed.internal_port):
                assert post(client) == 200
            assert post(client) in (502, 503)


def test_a_reply_that_breaks_off_is_not_taken_for_a_whole_one(gate: Gate) -> None:
    gate.upstream.breaks_off = True
    with gate.client() as client, pytest.raises(httpx.RemoteProtocolError):
        client.post(PATH, content=b"x")


def test_a_superlink_of_another_authority_is_not_trusted(
    closed: Gate, tmp_path: Path
) -> None:
    create_authority(tmp_path, [])
    with (
        superlink(closed.upstream, tmp_path, closed.internal_port),
        closed.client() as client,
    ):
        assert client.post(PATH, content=b"secret").status_code == 503
    assert closed.upstream.seen == []


def test_a_body_that_ends_early_reaches_nobody_whole(gate: Gate) -> None:
    """A client that goes away in mid-body leaves no request that looks complete."""
    with gate.connection() as secure:
        secure.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf".encode()
        )
    time.sleep(0.3)
    assert all(size != 1000 for *_, size in gate.upstream.seen)


# Connections that are held for nothing


HALF_A_HEAD = f"POST {PATH} HTTP/1.1\r\nHost: a\r\n".encode()
WHOLE_REQUEST = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()


def held(gate: Gate, kind: str) -> socket.socket | None:
    """A connection that was taken and asks for nothing more, or None if it was turned away."""
    try:
        plain = gate.plain()
        if kind == "no handshake":
            return plain
        secure = gate.secured(plain)
        if kind == "half a head":
            secure.sendall(HALF_A_HEAD)
        if kind == "half a second head":
            secure.sendall(WHOLE_REQUEST)
            left = len(gate.upstream.reply)
            while left > 0:
                left -= len(secure.recv(65536))
            secure.sendall(HALF_A_HEAD)
        return secure
    except OSError:
        return None


def is_cut_off(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, within the socket's own patience."""
    try:
        while connection.recv(4096):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.slow
def test_connections_that_ask_for_nothing_keep_nobody_out(gate: Gate) -> None:
    """Hundreds from one address, whatever stage they stop at: others are served at once, and soon
    this one too.

    Meanwhile a request whose answer takes longer than any head may is answered.
    """
    kinds = ["no handshake", "no head", "half a head", "half a second head"]
    gate.upstream.reply = bytes(1 << 20)  # large enough to be written in several pieces
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        idle = [held(gate, kind) for kind in [*kinds * 10, *kinds[:1] * 400]]
        kept = [stack.enter_context(taken) for taken in idle if taken is not None]
        assert None not in idle[:40]
        with gate.client("127.0.0.2") as holder:
            assert post(holder) == 200
        gate.upstream.delay_s = fleet_proxy._HEAD_TIMEOUT_S + 2
        patient = stack.enter_context(gate.client("127.0.0.3"))
        slow = pool.submit(lambda: post(patient))
        assert all(map(is_cut_off, kept))
        assert slow.result() == 200
        gate.upstream.delay_s = 0.0
        with gate.client() as holder:
            assert post(holder) == 200


def test_one_address_cannot_take_all_connections(gate: Gate) -> None:
    """Those beyond its share are closed as they come, and count again once others are closed."""
    share = fleet_proxy.MAX_CONNECTIONS_PER_ADDRESS
    with ExitStack() as stack:
        first = [stack.enter_context(gate.plain()) for _ in range(share)]
        assert is_cut_off(stack.enter_context(gate.plain()))
        for connection in first:
            connection.close()
        wait_for("closed connections count no more", lambda: _is_served(gate))


class Crowd:
    """Addresses without a key that hold as many connections as they get, and make one that is cut
    off again at once.
    """

    def __init__(self, gate: Gate, addresses: list[str]) -> None:
        self._gate = gate
        self._addresses = addresses
        self._watch = selectors.DefaultSelector()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._hold)
        self.made = 0

    def __enter__(self) -> Crowd:
        self._thread.start()
        share = fleet_proxy._MAX_CONNECTIONS
        wait_for(
            "the crowd has all connections",
            lambda: self.made > share + 2 * len(self._addresses),
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        for key in list(self._watch.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]

    def _hold(self) -> None:
        for _ in range(fleet_proxy._MAX_CONNECTIONS // len(self._addresses) + 10):
            for address in self._addresses:
                self._connect(address)
        while not self._stop.is_set():
            for key, _ in self._watch.select(0.05):
                self._watch.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                self._connect(key.data)

    def _connect(self, address: str) -> None:
        """Every tenth one goes on to a request whose body never comes."""
        self.made += 1
        try:
            taken = self._gate.plain(address)
            if self.made % 10 == 0:
                taken.settimeout(2)
                taken = self._gate.secured(taken)
                taken.sendall(WHOLE_REQUEST.replace(b"Length: 0", b"Length: 9"))
        except OSError:
            return
        self._watch.register(taken, selectors.EVENT_READ, address)


@pytest.mark.parametrize("count", [4, 64])
def test_a_few_addresses_without_a_key_cannot_shut_the_gate(
    gate: Gate, count: int
) -> None:
    """However they hold on, each request of a holder is answered, also of one that was never here
    before.
    """
    addresses = [f"127.1.{count}.{last}" for last in range(1, count + 1)]
    with Crowd(gate, addresses) as crowd:
        before = crowd.made
        for last in range(1, 31):
            with gate.client(f"127.2.{count}.{last}") as holder:
                assert post(holder) == 200
        wait_for(
            "the crowd has lost connections, and come back", lambda: crowd.made > before
        )


@contextmanager
def listener() -> Iterator[fleet_proxy.ListeningSocket]:
    with fleet_proxy.listen("127.0.0.1", 0) as made:
        made.listen()
        yield made


def reach(
    made: fleet_proxy.ListeningSocket, stack: ExitStack, address: str
) -> socket.socket | None:
    """The gate's end of a new connection from an address, or None if it was turned away."""
    plain = socket.create_connection(
        made.getsockname(), timeout=30, source_address=(address, 0)
    )
    stack.enter_context(plain)
    try:
        return stack.enter_context(made.accept()[0])
    except ConnectionAbortedError:
        assert is_cut_off(plain)
        return None


def test_addresses_beyond_counting_shut_out_strangers_and_no_known_holder() -> None:
    """One connection from each of 400 addresses; who was let in before takes the place of one that
    was not.
    """
    with listener() as made, ExitStack() as stack:
        made.admit("127.2.0.1")
        taken = [
            reach(made, stack, f"127.1.{number // 200}.{number % 200 + 1}")
            for number in range(fleet_proxy._MAX_CONNECTIONS)
        ]
        assert None not in taken
        assert reach(made, stack, "127.2.0.2") is None
        for lost in range(2):
            assert reach(made, stack, "127.2.0.1") is not None
            victim = taken[lost]
            assert victim is not None and is_cut_off(victim)
            victim.close()
        assert reach(made, stack, "127.2.0.2") is None


def test_an_address_loses_connections_down_to_the_share_of_others_and_its_oldest_first() -> (
    None
):
    """Nobody gains by making them again: whoever has as many as the others is turned away."""
    share = fleet_proxy.MAX_CONNECTIONS_PER_ADDRESS
    with listener() as made, ExitStack() as stack:
        crowd = {
            last: [reach(made, stack, f"127.1.0.{last}") for _ in range(share)]
            for last in range(1, 5)
        }
        assert all(None not in connections for connections in crowd.values())
        given = 0
        while (taken := reach(made, stack, "127.2.0.3")) is not None:
            given += 1
            [(of_one, ended)] = [
                (connections, connection)
                for connections in crowd.values()
                for connection in connections
                if connection is not None and _is_shut(connection)
            ]
            assert of_one.pop(0) is ended
            ended.close()
        assert given == fleet_proxy._MAX_CONNECTIONS // 5
        assert {len(connections) for connections in crowd.values()} == {given}
        assert taken is None and reach(made, stack, "127.1.0.1") is None


def _is_shut(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_connections_that_lost_their_place_and_are_not_closed_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They hold files open until the event loop has closed them."""
    monkeypatch.setattr(fleet_proxy, "_MAX_CONNECTIONS", 20)
    monkeypatch.setattr(fleet_proxy, "MAX_LEAVING", 3)
    with listener() as made, ExitStack() as stack:
        first, *_ = [reach(made, stack, "127.1.0.1") for _ in range(20)]
        for has_room in (True, True, True, False, False):
            assert (reach(made, stack, "127.2.0.4") is not None) == has_room
        assert first is not None
        first.close()
        assert reach(made, stack, "127.2.0.4") is not None


def test_that_a_holder_was_let_in_is_known_for_some_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And of a bounded number of addresses, the latest."""
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(fleet_proxy, "time", clock)
    monkeypatch.setattr(fleet_proxy, "_MAX_CONNECTIONS", 2)
    monkeypatch.setattr(fleet_proxy, "MAX_ADMITTED", 2)
    with listener() as made, ExitStack() as stack:
        for last in (1, 2, 3, 2):
            made.admit(f"127.2.0.{last}")
        assert reach(made, stack, "127.1.0.1") and reach(made, stack, "127.1.0.2")
        assert reach(made, stack, "127.2.0.1") is None
        assert reach(made, stack, "127.2.0.2") is not None
        now += fleet_proxy.ADMITTED_FOR_S
        assert reach(made, stack, "127.2.0.3") is None


@pytest.mark.parametrize("status", [200, 401, 412])
def test_only_whom_the_superlink_lets_in_is_known(gate: Gate, status: int) -> None:
    """A stranger's request, and one that asks for a notice, leave no mark."""
    admitted: list[str] = []
    gate.upstream.status = status

    async def ask() -> None:
        client = fleet_proxy.superlink_client(
            gate.internal_port, gate.folder / "ca.crt"
        )
        proxy = fleet_proxy.FleetProxy(
            client,
            {NOTICE_PATH.encode(): gate.folder / "ca.crt"},
            admitted.append,
            print,
        )

        async def receive() -> fleet_proxy.Event:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(event: fleet_proxy.Event) -> None:
            pass

        for method, path in (
            ("POST", PATH),
            ("GET", NOTICE_PATH),
            ("GET", "/health"),
            ("POST", "/v1/other"),
        ):
            scope = {
                "type": "http",
                "method": method,
                "raw_path": path.encode(),
                "query_string": b"",
            }
            await proxy(
                scope
                | {"headers": [(b"content-length", b"0")], "client": ("127.3.0.1", 9)},
                receive,
                send,
            )
        await client.aclose()

    asyncio.run(ask())
    assert admitted == (["127.3.0.1"] if status == 200 else [])


@pytest.mark.parametrize(
    ("then", "is_copied"),
    [
        (("send-node-heartbeat",), True),
        (("activate-node", "send-node-heartbeat"), False),
        (("deactivate-node", "activate-node", "send-node-heartbeat"), False),
    ],
    ids=["a copied key", "a reboot", "a restart"],
)
def test_a_second_log_in_is_logged_where_the_first_supernode_is_there_still(
    gate: Gate, then: tuple[str, ...], is_copied: bool
) -> None:
    """Who was cut off logs in again before its next heartbeat, and whose key was copied does not.

    `coordinator up` reads the log."""
    proof = {**PROOF, "flwr-public-key": " ".join(then)}
    gate.upstream.status = 412
    with gate.client() as client:
        client.post("/v1/fleet/activate-node", headers=proof, content=b"ping")
        gate.upstream.status = 200
        for path in then:
            client.post(f"/v1/fleet/{path}", headers=proof, content=b"ping")
    line = fleet_proxy.SECOND_LOG_IN % (
        fleet_proxy.key_name(proof["flwr-public-key"].encode()),
        "127.0.0.1",
    )
    assert (line.encode() in (gate.folder / "gate.log").read_bytes()) == is_copied


def test_a_start_and_every_refusal_is_logged_and_nothing_that_passed(
    gate: Gate,
) -> None:
    """What was asked for and from where, in characters that steer no terminal; who is let in is no
    news.
    """
    before = len((gate.folder / "gate.log").read_bytes())
    gate.raw(
        b"POST /v1/control/\x1b[2Jstart HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    )
    gate.raw(b"GET /admin HTTP/1.1\r\nHost: x\r\n\r\n")
    with gate.client() as client:
        assert post(client) == 200
        gate.upstream.status = 401
        client.post(PATH, content=b"x")
    log = (gate.folder / "gate.log").read_bytes()
    assert log.startswith(f"INFO listening on 127.0.0.1 port {gate.port}".encode())
    assert b"\x1b" not in log
    assert [
        line.partition("WARNING ")[2]
        for line in log[before:].decode().splitlines()
        if "WARNING" in line
    ][-2:] == [
        "refused GET b'/admin' from 127.0.0.1 with 404",
        f"the SuperLink refused POST {PATH.encode()!r} from 127.0.0.1 with 401",
    ]


def _is_served(gate: Gate) -> bool:
    try:
        with gate.client() as client:
            return post(client) == 200
    except httpx.TransportError:
        return False


def test_the_notice_is_handed_out_and_no_other_file(closed: Gate) -> None:
    """As it is now, whether the SuperLink is up or not; under one path, by one method."""
    with closed.client() as client:
        assert client.get(NOTICE_PATH).status_code == 404
        for content in (b"one", b"two"):
            (closed.folder / NOTICE).write_bytes(content)
            answer = client.get(NOTICE_PATH)
            assert (answer.status_code, answer.content) == (200, content)
        others = [
            f"{NOTICE_PATH}/",
            f"{NOTICE_PATH}?a",
            "/v1/ridgeway/server.key",
            "/v1/ridgeway/notice/../../server.key",
        ]
        assert {client.get(path).status_code for path in others} == {404}
        assert client.post(NOTICE_PATH, content=b"x").status_code == 404
    (closed.folder / NOTICE).unlink()


def test_a_members_word_that_it_leaves_is_kept_and_nobody_elses(closed: Gate) -> None:
    """Signed, by somebody on the roster, and not larger than it must be."""
    member, stranger = fixed_identity(1), fixed_identity(2)
    node = create_node_key(closed.folder / "node.key")

    def sent(who: Identity, change: Callable[[bytes], bytes] = bytes) -> int:
        leaving = Leaving(coordinator="0" * 64, key=who.public, node=node)
        content = change(signed_json(leaving, who))
        with closed.client() as client:
            return client.post(LEAVE_PATH, content=content).status_code

    assert sent(member) == 400
    law = RosterMember(name="law", domain="law", key=member.public)
    roster = Roster(members=(law,))
    (closed.folder / ANNOUNCED_ROSTER).write_text(roster.model_dump_json())
    assert sent(stranger) == 400
    end = node[-9:].encode()
    assert sent(member, lambda content: content.replace(end, b"AAAAAAAAA")) == 400
    assert sent(member, lambda content: content + 4096 * b" ") == 413
    assert not (closed.folder / "leaving").exists()
    assert sent(member) == 200
    [path] = (closed.folder / "leaving").iterdir()
    assert path.name == f"{member.public}.json"
    with closed.client() as client:
        assert client.get(LEAVE_PATH).status_code == 404
