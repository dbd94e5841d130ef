"""The service on a socket: connections that are held for nothing, TLS, ports in use, and what the
log says.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ridgeway.common.base.errors import InputError
from ridgeway.common.web import server
from ridgeway.common.web.api_keys import AccessRules, add_key, revoke_key
from ridgeway.common.web.guard import RequestGuard
from ridgeway.common.web.request_context import LineFormatter, LogFormat
from ridgeway.common.web.server import (
    MAX_HEAD_BYTES,
    MAX_UNPARSED_BYTES,
    Address,
    Certificate,
    HttpConnection,
    bind_sockets,
    find_certificate,
)
from ridgeway.serving.telemetry import Metrics
from tests.support.commands import Workshop
from tests.support.in_process import running
from tests.support.serving import SECRET, Serving
from tests.support.waiting import wait_for

SOON_S = 1.0
HEAD = b"POST /v1/echo HTTP/1.1\r\nhost: localhost\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body, with 64 MB if asked for much, or with an error."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    length, more = 0, True
    while more:
        event = await receive()
        length += len(event.get("body", b""))
        more = event.get("more_body", False)
    if scope["path"] == "/v1/error":
        raise RuntimeError(SECRET)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/v1/much":
        for _ in range(64):
            piece = {"body": bytes(1_000_000), "more_body": True}
            await send({"type": "http.response.body", **piece})
    await send({"type": "http.response.body", "body": b"%d" % length})


@contextlib.contextmanager
def serving(
    rules: AccessRules | None = None, certificate: Certificate | None = None
) -> Iterator[int]:
    """The port of a guarded echo."""
    with running(
        RequestGuard(echo, rules or AccessRules(), Metrics()), certificate
    ) as address:
        yield int(address.rpartition(":")[2])


def bound_anywhere() -> socket.socket:
    (listener,) = bind_sockets(Address("127.0.0.1", 0))
    return listener


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    connection.settimeout(10)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body)["error"]["code"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that waits for nothing long."""
    for name in ("_HEAD_TIMEOUT_S", "BODY_SILENCE_S", "UNREAD_TIMEOUT_S"):
        monkeypatch.setattr(server, name, SOON_S)
    monkeypatch.setattr(server, "_BODY_TIMEOUT_S", 3 * SOON_S)


@pytest.fixture
def port() -> Iterator[int]:
    with serving() as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


@pytest.fixture
def connection(port: int) -> Iterator[socket.socket]:
    with connect(port) as connection:
        yield connection


# Connections


@pytest.mark.usefixtures("hasty")
def test_a_head_that_does_not_come_is_given_up() -> None:
    """However much of it is there, and also if there is none."""
    with serving() as port, contextlib.ExitStack() as stack:
        connections = []
        for begun in (b"", b"\r\n", b"GET / HT", HEAD, HEAD + b"x: "):
            connections.append(stack.enter_context(connect(port)))
            connections[-1].sendall(begun)
        for connection in connections:
            status, headers, code = parsed(until_closed(connection))
            assert (status, code) == (408, "slow_request")
            assert headers["connection"] == "close"
            assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.usefixtures("hasty")
def test_a_head_that_comes_byte_by_byte_is_given_up(connection: socket.socket) -> None:
    """The time is that of the whole head, so that it cannot be drawn out."""
    connection.settimeout(SOON_S / 10)
    answer = b""
    for byte in HEAD * 10:
        with contextlib.suppress(TimeoutError):
            answer += connection.recv(65536)
        if answer:
            break
        connection.sendall(bytes([byte]))
    assert parsed(answer)[0] == 408


@pytest.mark.usefixtures("hasty")
def test_the_second_request_of_a_connection_is_waited_for_no_longer(
    connection: socket.socket,
) -> None:
    """A good request first does not buy time."""
    connection.sendall(HEAD + b"content-length: 2\r\n\r\nab")
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        answer += connection.recv(65536)
    connection.sendall(b"POST /v1/ec")
    assert b"200 OK" in answer and parsed(until_closed(connection))[0] == 408


@pytest.mark.usefixtures("hasty")
def test_a_body_that_stops_coming_is_given_up(connection: socket.socket) -> None:
    """With a proper answer, which comes though the body does not end."""
    connection.sendall(HEAD + b"content-length: 100\r\n\r\nhalf")
    answer = until_closed(connection)
    status, _, code = parsed(answer)
    assert (status, code) == (408, "slow_body")
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")


def test_half_sent_bodies_do_not_keep_the_bodies_of_others_out() -> None:
    """Where half of the memory is taken, a body that pauses is given up in a second, not in
    thirty.
    """
    rules = AccessRules(max_held_bytes=10_000)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving(rules))
        halves = [stack.enter_context(connect(port)) for _ in range(3)]
        for connection in halves:
            connection.sendall(HEAD + b"content-length: 4000\r\n\r\n" + b"x" * 3000)

        def status() -> int:
            with connect(port) as connection:
                connection.sendall(
                    HEAD
                    + b"connection: close\r\ncontent-length: 5000\r\n\r\n"
                    + b"x" * 5000
                )
                return int(until_closed(connection).split()[1])

        wait_for("bodies of others are kept out", lambda: status() == 503)
        wait_for("and let in again", lambda: status() == 200, patience_s=15)
        assert [parsed(until_closed(half))[0::2] for half in halves[:1]] == [
            (408, "slow_body")
        ]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_body_that_drips_is_given_up(connection: socket.socket) -> None:
    """A byte now and then keeps a body alive only for so long."""
    connection.sendall(HEAD + b"content-length: 1000\r\n\r\n")
    connection.settimeout(SOON_S / 3)
    answer = b""
    for _ in range(60):
        with contextlib.suppress(TimeoutError):
            answer = connection.recv(65536)
        if answer:
            break
        connection.sendall(b"x")
    assert parsed(answer)[0::2] == (408, "slow_body")


@pytest.mark.usefixtures("hasty")
def test_a_slow_body_that_does_come_is_taken(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the time, pauses do no harm, and the connection goes on."""
    monkeypatch.setattr(server, "_BODY_TIMEOUT_S", 60.0)
    connection.sendall(HEAD + b"content-length: 6\r\n\r\n")
    waits = threading.Event()
    for _ in range(6):
        waits.wait(SOON_S / 3)
        connection.sendall(b"x")
    connection.settimeout(10)
    assert b"200 OK" in connection.recv(65536)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_an_answer_that_nobody_reads_is_broken_off(connection: socket.socket) -> None:
    """A client that stops reading does not hold a request for ever."""
    connection.sendall(b"GET /v1/much HTTP/1.1\r\nhost: localhost\r\n\r\n")
    threading.Event().wait(4 * SOON_S)
    assert len(until_closed(connection)) < 64_000_000


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"x: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        HEAD
        + b"".join(
            b"x%d: 0123456789\r\n" % number for number in range(MAX_HEAD_BYTES // 10)
        )
        + b"\r\n",
        b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["one", "many", "address"],
)
def test_a_head_that_is_too_long_is_refused(
    connection: socket.socket, head: bytes
) -> None:
    """In one header, in many, or in the address."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(head)
    status, _, code = parsed(until_closed(connection))
    assert (status, code) == (431, "headers_too_long")


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"x: ", b"a" * 65536),
        (b"transfer-encoding: chunked\r\n\r\n1;", b"a" * 65536),
        (b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ", b"a" * 65536),
        (
            b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
            b"x: 0123456789\r\n" * 1000,
        ),
    ],
    ids=["header", "extension", "trailer", "trailers"],
)
def test_what_has_no_end_is_cut_off(
    connection: socket.socket, begun: bytes, more: bytes
) -> None:
    """A header, an extension of a chunk, a trailer or trailers that go on and on are not kept in
    memory.
    """
    with pytest.raises(ConnectionError):
        connection.sendall(HEAD + begun)
        for _ in range(1000):
            connection.sendall(more)


def test_a_long_body_in_small_chunks_is_taken(connection: socket.socket) -> None:
    """What is between the chunks does not count as a head."""
    count = MAX_UNPARSED_BYTES // 4
    connection.sendall(
        HEAD
        + b"transfer-encoding: chunked\r\n\r\n"
        + b"1\r\na\r\n" * count
        + b"0\r\n\r\n"
    )
    connection.settimeout(60)
    answer = b""
    while b"%d" % count not in answer:
        piece = connection.recv(65536)
        assert piece, answer
        answer += piece
    assert b"200 OK" in answer


def test_a_refused_body_is_let_go_by_and_the_answer_is_read(port: int) -> None:
    """A client that first sends all of its body, and then reads, finds the answer and can go on."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        assert client.post("/v1/echo", content=bytes(20_000_000)).status_code == 413
        pieces = (bytes(100_000) for _ in range(100))
        assert client.post("/v1/echo", content=pieces).status_code == 413
        assert client.post("/v1/echo", content=b"ab").text == "2"


@pytest.mark.usefixtures("hasty")
def test_a_refused_body_that_does_not_end_is_cut_off() -> None:
    """Nobody can go on sending into nothing."""
    with (
        serving(AccessRules(max_body_bytes=10)) as port,
        connect(port) as connection,
        pytest.raises(ConnectionError),
    ):
        connection.sendall(HEAD + b"content-length: 99999999999\r\n\r\n")
        while True:
            connection.sendall(b"a" * 65536)


def test_only_so_many_connections_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is told so and closed; when one goes, there is room again."""
    monkeypatch.setattr(HttpConnection, "max_open", 2)
    with serving() as port, contextlib.ExitStack() as held:
        first, _ = (held.enter_context(connect(port)) for _ in range(2))
        with connect(port) as third:
            assert parsed(until_closed(third))[0::2] == (503, "overloaded")
        first.close()

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(
                    f"http://127.0.0.1:{port}/", trust_env=False
                ).is_success
            return False

        wait_for("there is room again", answers)


@pytest.mark.parametrize(
    "junk",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_proper_error(
    connection: socket.socket, junk: bytes
) -> None:
    """Also TLS where there is none."""
    connection.sendall(junk)
    status, headers, code = parsed(until_closed(connection))
    assert (status, code, headers["cache-control"]) == (
        400,
        "invalid_http",
        "no-store",
    )


def test_a_websocket_is_an_ordinary_request(port: int) -> None:
    """There is nothing to upgrade to."""
    headers = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
    }
    answer = httpx.get(f"http://127.0.0.1:{port}/", headers=headers, trust_env=False)
    assert answer.status_code == 200 and "server" not in answer.headers


# Listening


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "no-such-name.invalid", "a..b", "300.1.1.1"]
)
def test_an_address_of_another_machine_is_one_sentence(host: str) -> None:
    """Or of none."""
    with pytest.raises(InputError, match=rf"^--host {host} is not an address"):
        bind_sockets(Address(host, 0))


# TLS


def make_certificate(folder: Path, name: str = "one") -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            False,
        )
        .sign(key, hashes.SHA256())
    )
    pair = folder / f"{name}.pem", folder / f"{name}.key"
    pair[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pair[1].write_bytes(as_pem(key, serialization.NoEncryption()))
    return pair


def as_pem(key: Any, lock: serialization.KeySerializationEncryption) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))


def shown(port: int) -> bytes:
    """The certificate that a server shows."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def test_a_client_that_knows_the_certificate_is_served_by_tls(tmp_path: Path) -> None:
    """And told to come by TLS in future; one that does not know it, or speaks no TLS, gets
    nothing.
    """
    pair = make_certificate(tmp_path)
    with serving(AccessRules(tls=True), find_certificate(*pair)) as port:
        known = ssl.create_default_context(cafile=str(pair[0]))
        answer = httpx.post(
            f"https://127.0.0.1:{port}/v1/echo",
            content=b"abc",
            verify=known,
            trust_env=False,
        )
        assert answer.text == "3" and "strict-transport-security" in answer.headers
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"https://127.0.0.1:{port}/", trust_env=False)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_is_not_spoken(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Version 1.2 is the least."""
    pair = make_certificate(tmp_path)
    with (
        serving(AccessRules(tls=True), find_certificate(*pair)) as port,
        connect(port) as connection,
    ):
        old = ssl.create_default_context(cafile=str(pair[0]))
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionError)):
            old.wrap_socket(connection, server_hostname="127.0.0.1").recv(1)


def test_a_renewed_certificate_is_taken_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    """Without a restart; the pair in use goes on until both files of a good one are there."""
    pair, other = make_certificate(tmp_path), make_certificate(tmp_path, "two")
    first, second = der(pair[0]), der(other[0])
    certificate = Certificate(*pair)
    with serving(AccessRules(tls=True), certificate) as port:
        assert shown(port) == first
        pair[0].write_bytes(other[0].read_bytes())
        certificate.watch()
        assert shown(port) == first
        pair[1].write_bytes(other[1].read_bytes())
        certificate.watch()
        assert shown(port) == second


def test_a_pair_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    """One without the other, files that are not there, that are of other pairs, that are no such
    files, or locked.
    """
    certificate, key = make_certificate(tmp_path)
    _, stranger = make_certificate(tmp_path, "two")
    junk, locked = tmp_path / "junk", tmp_path / "locked.key"
    junk.write_bytes(b"junk")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(as_pem(private, serialization.BestAvailableEncryption(b"word")))
    assert find_certificate(None, None) is None
    for first, second, words in (
        (certificate, None, "go together"),
        (None, key, "go together"),
        (certificate, tmp_path / "none", "cannot be read: no such file"),
        (tmp_path, key, "cannot be read: is a directory"),
        (certificate, stranger, "does not match the certificate"),
        (junk, key, "are not a certificate and its private key"),
        (certificate, junk, "are not a certificate and its private key"),
        (certificate, locked, "encrypted with a password"),
    ):
        with pytest.raises(InputError, match=words):
            find_certificate(first, second)


# What the log says


def test_a_line_of_the_log_holds_no_traceback() -> None:
    """What happened and of which kind it was; neither the error's words nor where the code is."""
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as error:
        about = (type(error), error, error.__traceback__)
    record = logging.LogRecord(
        "uvicorn.error", logging.ERROR, __file__, 1, "it failed\n<%s>", (SECRET,), about
    )
    for line in (LineFormatter(kind).format(record) for kind in get_args(LogFormat)):
        assert "it failed: RuntimeError" in line and "\n" not in line
        assert SECRET not in line and "connections.py" not in line


def test_nothing_starts_that_would_be_open_to_others(shop: Workshop) -> None:
    """The command says why in one sentence and ends with 2."""
    with contextlib.closing(bound_anywhere()) as taken:
        port = str(taken.getsockname()[1])
        for words, sentence in (
            (("--host", "0.0.0.0"), "keys are required"),
            (("--port", port), f"port {port} is in use on 127.0.0.1; stop the"),
            (("--tls-cert", "cert.pem"), "go together"),
            (("--keys", "none.toml"), "there is no keys file"),
            (("--config", "none.toml"), "there is no file"),
        ):
            done = shop.call("serve", shop.folder / "release", *words)
            assert done.code == 2 and done.stdout == "" and "serving" not in done.stderr
            [line] = re.findall("^ridgeway: .*", done.stderr, re.MULTILINE)
            assert sentence in line


@pytest.mark.slow
def test_the_running_service_forgets_a_revoked_key_and_logs_neither_key_nor_prompt(
    shop: Workshop, tmp_path: Path
) -> None:
    """Within seconds of `ridgeway keys revoke`; whatever was asked, the log holds nothing of it."""
    file = tmp_path / "keys.toml"
    (key, _), (other, _) = add_key(file, "app"), add_key(file, "other")
    with Serving(tmp_path, shop.folder / "release", "--keys", file, key=key) as served:

        def ask() -> int:
            return served.post("/v1/route", {"prompt": SECRET}).status_code

        def by_key(key: str, path: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return served.http.get(path, headers=headers).status_code

        assert ask() == 200
        assert served.post(f"/v1/{SECRET}", {}).status_code == 404
        assert by_key(SECRET, "/readyz") == 200
        assert served.post("/v1/route", {"prompt": SECRET * 10**6}).status_code == 413
        with connect(int(served.url.rpartition(":")[2])) as connection:
            connection.sendall(f"{SECRET}\r\n\r\n".encode())
            until_closed(connection)
        revoke_key(file, "app")
        wait_for("the key is refused", lambda: ask() == 401)
        assert by_key(other, "/metrics") == 200
        served.http.close()
        served.stop()
        for word in (SECRET, key, other, str(file), "Traceback"):
            assert word not in served.said
