"""The gate before a SuperLink: ten paths pass, whole and unaltered, and nothing else does.

A small real TLS server stands for the SuperLink and notes what reaches it; requests are written byte by byte.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from common.processes import free_port
from coordinator import gate
from coordinator.authority import create_authority
from coordinator.gate import MAX_BODY, PATHS, Gate, superlink_client

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
    """Stands for the SuperLink: notes every request, answers as it is told."""

    seen: list[tuple[str, bytes, dict[bytes, bytes], str, int]] = field(default_factory=list)
    status: int = 200
    reply: Callable[[], Iterator[bytes]] = lambda: iter([b"pong"])
    breaks_off: bool = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        digest, size, more = hashlib.sha256(), 0, True
        while more:
            event = await receive()
            digest.update(event.get("body", b""))
            size += len(event.get("body", b""))
            more = event.get("more_body", False)
        self.seen.append((scope["method"], scope["raw_path"], dict(scope["headers"]), digest.hexdigest(), size))
        headers = [(b"content-type", b"application/x-protobuf"), (b"set-cookie", b"inner=1"), (b"x-inner", b"1")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for piece in self.reply():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not self.breaks_off:
            await send({"type": "http.response.body", "body": b""})


@contextmanager
def serving(app: Any, folder: Path, port: int, **more: Any) -> Iterator[None]:
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        ssl_certfile=str(folder / "server.crt"),
        ssl_keyfile=str(folder / "server.key"),
        http="h11",
        ws="none",
        lifespan="off",
        log_level="critical",
        timeout_graceful_shutdown=1,
        **more,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True)
class Place:
    """A gate that runs, what stands behind it, and how to reach it."""

    upstream: Upstream
    folder: Path
    port: int
    internal_port: int

    def client(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=context, trust_env=False, timeout=30)

    def raw(self, request: bytes) -> bytes:
        """The first line of the reply to these very bytes."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(request)
            return secure.recv(4096).split(b"\r\n")[0]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    create_authority(folder, [])
    return folder


@pytest.fixture
def closed(authority: Path) -> Iterator[Place]:
    """A gate whose SuperLink is down."""
    upstream, port, internal = Upstream(), free_port(), free_port()
    app = Gate(superlink_client(internal, authority / "ca.crt"))
    with serving(app, authority, port, h11_max_incomplete_event_size=gate.MAX_HEADERS):
        yield Place(upstream, authority, port, internal)


@pytest.fixture
def place(closed: Place) -> Iterator[Place]:
    """A gate whose SuperLink is up."""
    with serving(closed.upstream, closed.folder, closed.internal_port):
        yield closed


@pytest.mark.parametrize("path", sorted(PATHS))
def test_what_supernodes_need_passes_unaltered(place: Place, path: bytes) -> None:
    """Path, body and the headers that carry a SuperNode's proof arrive; the reply comes back."""
    with place.client() as client:
        answer = client.post(path.decode(), content=b"ping", headers=PROOF)
    assert (answer.status_code, answer.content) == (200, b"pong")
    [(method, seen_path, headers, digest, size)] = place.upstream.seen
    assert (method, seen_path, size) == ("POST", path, 4)
    assert digest == hashlib.sha256(b"ping").hexdigest()
    assert all(headers[name.encode()] == value.encode() for name, value in PROOF.items())


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


@pytest.mark.parametrize("target", TRICKS)
def test_every_other_target_is_not_found(place: Place, target: str) -> None:
    """Also other spellings of a path that passes: what is compared is the very bytes of the request line."""
    line = place.raw(f"POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
    assert line.split()[1] in (b"404", b"400")
    assert place.upstream.seen == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "post"])
def test_every_other_method_is_not_found(place: Place, method: str) -> None:
    line = place.raw(f"{method} {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
    assert line.split()[1] in (b"404", b"400")
    assert place.upstream.seen == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n", {b"404"}),
        ("Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n", {b"404"}),
        ("Transfer-Encoding: chunked\r\n", {b"411"}),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", {b"411", b"400"}),
        ("Transfer-Encoding: xchunked\r\n", {b"411", b"400", b"501"}),
        ("", {b"411"}),
        ("Content-Length: 4\r\nContent-Length: 5\r\n", {b"400"}),
        ("Content-Length: -1\r\n", {b"400"}),
        ("Content-Length: +4\r\n", {b"400"}),
        ("Content-Length: 0x4\r\n", {b"400"}),
        (f"Content-Length: {MAX_BODY + 1}\r\n", {b"413"}),
        ("Content-Length: 99999999999999999999\r\n", {b"413", b"400"}),
        (f"Content-Length: 0\r\nX: {'x' * 2 * gate.MAX_HEADERS}\r\n", {b"400"}),
    ],
)
def test_what_could_be_read_in_two_ways_or_is_too_large_does_not_pass(
    place: Place, headers: str, status: set[bytes]
) -> None:
    """One length, plainly written, within the limits: anything else ends here."""
    line = place.raw(f"POST {PATH} HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode())
    assert line.split()[1] in status
    assert place.upstream.seen == []


def test_headers_of_one_hop_and_of_the_inside_stay_where_they_are(place: Place) -> None:
    """Nothing but the named headers goes in, and nothing but the named ones comes out."""
    sent = {**PROOF, "cookie": "a=1", "authorization": "b", "x-forwarded-for": "c", "te": "trailers", "forwarded": "d"}
    with place.client() as client:
        answer = client.post(PATH, content=b"", headers=sent)
    [(_, _, headers, _, _)] = place.upstream.seen
    assert set(headers) <= {
        *gate.PASSED_UP,
        b"host",
        b"content-length",
        b"accept-encoding",
        b"connection",
        b"user-agent",
    }
    assert headers[b"host"] == f"127.0.0.1:{place.internal_port}".encode()
    assert set(answer.headers) <= {"content-type", "content-length", "transfer-encoding", "date", "server"}


@pytest.mark.parametrize("status", [401, 403, 404, 412, 413, 500, 503])
def test_a_status_of_the_superlink_comes_through(place: Place, status: int) -> None:
    """A SuperNode tells refusal, end of a run and outage apart by it."""
    place.upstream.status = status
    with place.client() as client:
        assert client.post(PATH, content=b"x").status_code == status


def test_bodies_stream_through_whole(place: Place) -> None:
    """Fifteen megabytes up and sixty down arrive as they were, and are never held whole."""
    up = bytes(range(256)) * (15 * 4096)
    piece = bytes(reversed(range(256))) * 4096
    place.upstream.reply = lambda: (piece for _ in range(60))
    tracemalloc.start()
    try:
        with place.client() as client, client.stream("POST", PATH, content=up) as answer:
            digest = hashlib.sha256()
            for part in answer.iter_raw():
                digest.update(part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert place.upstream.seen[0][3] == hashlib.sha256(up).hexdigest()
    assert digest.hexdigest() == hashlib.sha256(piece * 60).hexdigest()
    assert peak < 30e6


def test_a_superlink_that_is_down_is_an_outage_and_it_comes_back(closed: Place) -> None:
    """503 while it is away, so that SuperNodes try again; the gate itself stays up and needs no restart."""
    with closed.client() as client:
        assert client.post(PATH, content=b"x").status_code == 503
        assert client.post("/v1/control/start-run", content=b"x").status_code == 404
        for _ in range(2):
            with serving(closed.upstream, closed.folder, closed.internal_port):
                assert client.post(PATH, content=b"x").status_code == 200
            assert client.post(PATH, content=b"x").status_code in (502, 503)


def test_a_reply_that_breaks_off_is_not_taken_for_a_whole_one(place: Place) -> None:
    place.upstream.breaks_off = True
    with place.client() as client, pytest.raises(httpx.RemoteProtocolError):
        client.post(PATH, content=b"x")


def test_a_superlink_of_another_authority_is_not_trusted(closed: Place, tmp_path: Path) -> None:
    create_authority(tmp_path, [])
    with serving(closed.upstream, tmp_path, closed.internal_port), closed.client() as client:
        assert client.post(PATH, content=b"secret").status_code == 503
    assert closed.upstream.seen == []


def test_a_body_that_ends_early_reaches_nobody_whole(place: Place) -> None:
    """A client that goes away in mid-body leaves no request that looks complete."""
    context = ssl.create_default_context(cafile=str(place.folder / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", place.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf".encode())
    time.sleep(0.3)
    assert all(size != 1000 for *_, size in place.upstream.seen)
