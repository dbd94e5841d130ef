"""The one door to the outside: a TLS proxy that passes what SuperNodes need to the SuperLink, and
nothing else.

It hands out the coordinator's signed notice, and what this names: the roster and the bundles. It
keeps a member's signed word that it leaves until the coordinator has read it.

In Flower 1.41 the SuperNodes' API and the operator's API, by which anyone who reaches it can submit
code without a password, share one port. So the SuperLink listens on loopback, and holders reach
this proxy.

Bodies stream through in both directions. uvicorn (h11) parses what comes in, httpx makes what goes
out; nothing is copied from one to the other unparsed. No connection can be held for nothing:
SuperNodes ask every three seconds and wait thirty for an answer, so a head that is not there in ten
is nobody's. And no few addresses can hold them all: when all are open, the address with the most
loses one to an address with fewer, and one from which no SuperNode was let in loses it to one from
which one was. It never answers 401 or 403 itself: a SuperNode takes these as the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import socket
import ssl
import sys
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
)
from functools import partial
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.records import client_network
from ridgeway.common.deploy.flower_patches import ALREADY_THERE
from ridgeway.common.protocol.cohort import (
    ANNOUNCED_ROSTER,
    BUNDLE_PATH,
    LEAVE_PATH,
    MAX_LEAVE_BYTES,
    NOTICE,
    NOTICE_PATH,
    ROSTER_PATH,
    Leaving,
    Roster,
    check_signed_json,
)

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
_Headers = list[tuple[bytes, bytes]]

CALLS = (
    b"activate-node deactivate-node send-node-heartbeat pull-messages push-messages"
    b" get-run get-fab push-object pull-object confirm-message-received"
)
PATHS = frozenset(b"/v1/fleet/" + name for name in CALLS.split())
"""Not register-node and unregister-node: with authentication on, the operator alone registers."""

LOG_IN = b"/v1/fleet/activate-node"
HEARTBEAT = b"/v1/fleet/send-node-heartbeat"
NODE_KEY = b"flwr-public-key"
SECOND_LOG_IN = "a second log-in with key %s from %s"
"""What the log says once a SuperNode sends another heartbeat after a log-in with its key was
refused. One that was cut off, by a reboot for example, sends none before it has logged in again.
"""

HEALTH = b"/health"
"""What a monitor may ask, with GET; it is answered with a status and nothing else."""
_HEALTH_TIMEOUT_S = 5.0

PROOF = b"public-key signature timestamp package-name package-version component-name"
PASSED_UP = frozenset(
    (b"content-type", b"accept", *(b"flwr-" + name for name in PROOF.split()))
)
PASSED_DOWN = frozenset(
    (b"content-type", b"content-length", b"flwr-version-incompatibility-message")
)
MAX_BODY_BYTES = 16 * 1024**2
"""Arrays travel in pieces of 5 MiB; no other object of a round comes near this."""

_MAX_HEADER_BYTES = 16 * 1024
MAX_PATH_SHOWN = 80
_MAX_CONNECTIONS = 400
MAX_CONNECTIONS_PER_ADDRESS = 100
"""Open at a time, from the first packet on; a SuperNode needs two. Each may need another to the
SuperLink.
"""

MAX_LEAVING = 100
"""Connections that lost their place and are not closed yet: they still take a file each."""

MAX_WAITING = 2048
"""Connections that the system keeps until they are taken."""

MAX_TAKEN_AT_ONCE = 16
"""Before the loop turns to those that are open, and closes the ones that lost their place."""

ADMITTED_FOR_S = 7 * 86_400.0
MAX_ADMITTED = 10_000
"""How long, and of how many addresses, it is known that a SuperNode was let in from there."""

REFUSALS_LOGGED_EVERY_S = 1.0
LEAVING = "leaving"
"""The folder with what members have signed who leave."""

HANDSHAKE_TIMEOUT_S = 10.0
_HEAD_TIMEOUT_S = 10.0
"""From the handshake, or from the last answer, to the whole head of a request."""

IDLE_TIMEOUT_S = 60.0
"""A side that sends nothing, or reads nothing, for this long within a request is given up."""

_BODY_TIMEOUT_S = 600.0
"""And so is a body that is not whole by then: 16 MiB at 28 kB/s."""

log = logging.getLogger("ridgeway.fleet_proxy")


class Blocked(Exception):
    """A request that is not passed on, with the status that says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class FleetProxy:
    """The proxy as an ASGI application over an httpx client of the SuperLink.

    files: what it hands out itself, by the paths of requests.
    admit: is told the address of a SuperNode that the SuperLink has let in.
    leave: is given what somebody has signed who leaves; raises FormatError if it counts for
           nothing.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        files: Mapping[bytes, Path],
        admit: Callable[[str], None],
        leave: Callable[[bytes], None],
    ) -> None:
        self._client = client
        self._files = files
        self._admit = admit
        self._leave = leave
        self._refused_log_ins: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope["raw_path"]
        is_get = scope["method"] == "GET" and not scope["query_string"]
        try:
            if is_get and path == HEALTH:
                await answer(send, await self._health())
            elif is_get and path in self._files:
                await answer(send, 200, self._content(path))
            elif path == LEAVE_PATH.encode():
                await self._take_leave(scope, receive)
                await answer(send, 200)
            else:
                await self._pass(scope, check(scope), receive, send)
        except Blocked as refusal:
            log.warning("refused %s with %d", _described(scope), refusal.status)
            await answer(send, refusal.status)

    def _content(self, path: bytes) -> bytes:
        try:
            return self._files[path].read_bytes()
        except FileNotFoundError:
            raise Blocked(404) from None

    async def _take_leave(self, scope: Scope, receive: Receive) -> None:
        length = check(scope, {LEAVE_PATH.encode()}, MAX_LEAVE_BYTES)
        content = b"".join([piece async for piece in body(receive, length)])
        try:
            self._leave(content)
        except FormatError:
            raise Blocked(400) from None

    async def _live(self, receive: Receive, send: Send) -> None:
        """Close the connections to the SuperLink when the server stops."""
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _health(self) -> int:
        """Whether holders can be served: 200, or 503 while the SuperLink does not answer."""
        try:
            response = await self._client.get(
                HEALTH.decode(), timeout=_HEALTH_TIMEOUT_S
            )
        except (httpx.TransportError, ssl.SSLError):
            return 503
        return 200 if response.is_success else 503

    async def _pass(
        self, scope: Scope, length: int, receive: Receive, send: Send
    ) -> None:
        """Send the request on and stream the reply back; the SuperLink being away is a 502 or
        503.
        """
        path = scope["raw_path"].decode("ascii")
        headers = kept(scope["headers"], PASSED_UP)
        headers.append((b"content-length", b"%d" % length))
        request = self._client.build_request(
            "POST", path, headers=headers, content=body(receive, length)
        )
        try:
            response = await self._client.send(request, stream=True)
        except (httpx.TransportError, ssl.SSLError) as error:
            log.warning("the SuperLink did not answer: %s", type(error).__name__)
            is_away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            await answer(send, 503 if is_away else 502)
            return
        if response.is_success and scope.get("client"):
            # the SuperLink verifies a node's key at each of the paths
            self._admit(scope["client"][0])
        if response.is_error:
            status = response.status_code
            log.warning("the SuperLink refused %s with %d", _described(scope), status)
        self._watch_log_ins(scope, response.status_code)
        try:
            await stream(response, send)
        except httpx.TransportError as error:
            log.warning(
                "the SuperLink closed the connection during a reply: %s",
                type(error).__name__,
            )
        finally:
            await response.aclose()

    def _watch_log_ins(self, scope: Scope, status: int) -> None:
        """Log a refused log-in once the SuperNode that has its key proves to be there still."""
        path = scope["raw_path"]
        key = key_name(dict(scope["headers"]).get(NODE_KEY, b""))
        if path == LOG_IN and status == ALREADY_THERE:
            self._refused_log_ins[key] = _address(scope)
            if len(self._refused_log_ins) > MAX_ADMITTED:  # of strangers, too
                del self._refused_log_ins[next(iter(self._refused_log_ins))]
        elif path in (LOG_IN, HEARTBEAT) and status == HTTPStatus.OK:
            address = self._refused_log_ins.pop(key, None)
            if address is not None and path == HEARTBEAT:
                log.warning(SECOND_LOG_IN, key, address)


def _described(scope: Scope) -> str:
    """A request in a log: what was asked for, in characters that steer no terminal, and from
    where.
    """
    path = scope["raw_path"][:MAX_PATH_SHOWN]
    return f"{scope['method'][:16]} {path!r} from {_address(scope)}"


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("somewhere",))[0])


def key_name(header: bytes) -> str:
    """Stands for a SuperNode's key in a log."""
    return hashlib.sha256(header).hexdigest()[:16]


def check(
    scope: Scope, paths: Collection[bytes] = PATHS, most: int = MAX_BODY_BYTES
) -> int:
    """The length of a body that may pass; raises Blocked for any other request."""
    headers = scope["headers"]
    is_known = scope["method"] == "POST" and scope["raw_path"] in paths
    if not is_known or scope["query_string"]:
        raise Blocked(404)
    if sum(len(name) + len(value) for name, value in headers) > _MAX_HEADER_BYTES:
        raise Blocked(431)
    names = [name for name, _ in headers]
    if b"upgrade" in names:
        raise Blocked(404)
    lengths = [value for name, value in headers if name == b"content-length"]
    if b"transfer-encoding" in names or len(lengths) != 1 or not lengths[0].isdigit():
        raise Blocked(411)
    if len(lengths[0]) > 12 or int(lengths[0]) > most:
        raise Blocked(413)
    return int(lengths[0])


async def body(receive: Receive, length: int) -> AsyncIterator[bytes]:
    left = length
    end = time.monotonic() + _BODY_TIMEOUT_S
    while True:
        try:
            event = await asyncio.wait_for(
                receive(), min(IDLE_TIMEOUT_S, end - time.monotonic())
            )
        except TimeoutError:
            raise Blocked(408) from None
        if event["type"] == "http.disconnect":
            raise Blocked(400)
        piece = event.get("body", b"")
        left -= len(piece)
        if left < 0:
            raise Blocked(400)
        if piece:
            yield piece
        if not event.get("more_body", False):
            return


async def stream(response: httpx.Response, send: Send) -> None:
    await begin(send, response.status_code, kept(response.headers.raw, PASSED_DOWN))
    async for piece in response.aiter_raw():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def answer(send: Send, status: int, content: bytes = b"") -> None:
    """A reply of the proxy's own, after which the connection is closed; mostly a status alone."""
    headers = [(b"content-length", b"%d" % len(content)), (b"connection", b"close")]
    await begin(send, status, headers)
    await send({"type": "http.response.body", "body": content})


async def begin(send: Send, status: int, headers: _Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


def kept(headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]) -> _Headers:
    return [(name.lower(), value) for name, value in headers if name.lower() in names]


def superlink_client(port: int, authority: Path) -> httpx.AsyncClient:
    """A client of the SuperLink on loopback, which must show a certificate of the authority."""
    context = ssl.create_default_context(cafile=str(authority))
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{port}",
        verify=context,
        trust_env=False,
        headers={"accept-encoding": "identity"},
        timeout=httpx.Timeout(IDLE_TIMEOUT_S, connect=5.0),
        limits=httpx.Limits(
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=16,
            keepalive_expiry=2.0,
        ),
    )
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client


class ListeningSocket(socket.socket):
    """Takes connections up to the limits, in all and for one address; those beyond are closed at
    once.

    When all are open, one of the address with the most makes room, of those first from which no
    SuperNode was let in.

    Law: an address loses a connection only to one with fewer, or to one from which a SuperNode was
    let in while none was from it. So whoever has no key and n addresses leaves 400 / (n + 1)
    connections to any other address.
    """

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._open: dict[str, list[CountedSocket]] = {}
        self._leaving = 0
        self._admitted: dict[str, float] = {}
        self._logged = -math.inf

    def listen(self, backlog: int = MAX_WAITING) -> None:
        """The event loop names the number that it takes at once; that many may not be all that
        wait.
        """
        super().listen(MAX_WAITING)

    def admit(self, address: str) -> None:
        """A SuperNode at this address was let in."""
        network = client_network(address)
        self._admitted.pop(network, None)
        self._admitted[network] = time.monotonic()  # the last one is the latest
        if len(self._admitted) > MAX_ADMITTED:
            del self._admitted[next(iter(self._admitted))]

    def accept(self) -> tuple[socket.socket, Any]:
        plain, address = super().accept()
        network = client_network(address[0])
        connection = CountedSocket(fileno=plain.detach())
        if not self._has_room(network):
            connection.close()
            self._log_refusal(address[0])
            raise ConnectionAbortedError("too many connections")
        self._open.setdefault(network, []).append(connection)
        connection.on_close = lambda: self._forget(network, connection)
        return connection, address

    def _has_room(self, network: str) -> bool:
        """Whether an address can have one more; another may lose one for it."""
        if (
            len(self._open.get(network, ())) >= MAX_CONNECTIONS_PER_ADDRESS
            or self._leaving >= MAX_LEAVING
        ):
            return False
        if sum(map(len, self._open.values())) < _MAX_CONNECTIONS:
            return True
        last = max(self._open, key=self._rank)
        is_unknown, count = self._rank(network)
        if self._rank(last) <= (is_unknown, count + 1):
            return False
        self._end(last, self._open[last][0])
        return True

    def _rank(self, network: str) -> tuple[bool, int]:
        """The highest one makes room: of an address without a known SuperNode, and with the most
        connections.
        """
        admitted = self._admitted.get(network, -math.inf)
        is_unknown = admitted <= time.monotonic() - ADMITTED_FOR_S
        return is_unknown, len(self._open.get(network, ()))

    def _end(self, network: str, connection: CountedSocket) -> None:
        """Its two directions are shut; the event loop, which still uses it, sees that and closes
        it.
        """
        self._forget(network, connection)
        self._leaving += 1
        connection.on_close = self._left
        with contextlib.suppress(OSError):  # the other side may have been first
            connection.shutdown(socket.SHUT_RDWR)

    def _forget(self, network: str, connection: CountedSocket) -> None:
        self._open[network].remove(connection)
        if not self._open[network]:
            del self._open[network]

    def _left(self) -> None:
        self._leaving -= 1

    def _log_refusal(self, host: str) -> None:
        """Not each one: there may be thousands a second."""
        now = time.monotonic()
        if now - self._logged >= REFUSALS_LOGGED_EVERY_S:
            self._logged = now
            log.warning("refused a connection from %s: too many open connections", host)


class CountedSocket(socket.socket):
    """A connection that tells when it is closed."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        on_close = self.on_close
        self.on_close = None
        if on_close is not None:
            on_close()


class DeadlineLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers wait for a handshake, and for its end, no longer than they
    should.
    """

    async def create_server(self, *words: Any, **named: Any) -> asyncio.Server:
        return await super().create_server(
            *words,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=HANDSHAKE_TIMEOUT_S,
            **named,
        )


class FleetConnection(H11Protocol):
    """A connection that is cut off unless heads of requests come in time and answers are read."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start("head", _HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in tuple(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("head")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else the next request was there already
            self._start("head", _HEAD_TIMEOUT_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("unread", IDLE_TIMEOUT_S)

    def resume_writing(self) -> None:
        self._stop("unread")
        super().resume_writing()

    def _start(self, name: str, seconds: float) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()


def listen(host: str, port: int) -> ListeningSocket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    )[0]
    listener = ListeningSocket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    return listener


def keep_leaving(folder: Path, content: bytes) -> None:
    """Keep a member's word that it leaves; raises FormatError if it is nobody's on the roster."""
    signed = check_signed_json(content, Leaving, "what was sent")
    path = folder / ANNOUNCED_ROSTER
    keys = set[str]()
    if path.exists():
        roster = Roster.model_validate_json(path.read_bytes())
        keys = {member.key for member in roster.members}
    if signed.key not in keys:
        raise FormatError("the signer is not on the roster")
    write_whole(folder / LEAVING / f"{signed.key}.json", content)


def serve(folder: Path, host: str, port: int, internal_port: int) -> None:
    files = {
        NOTICE_PATH.encode(): folder / NOTICE,
        ROSTER_PATH.encode(): folder / ANNOUNCED_ROSTER,
    }
    for path in (folder / "bundles").glob("*.fab"):
        files[f"{BUNDLE_PATH}{path.stem}".encode()] = path
    listener = listen(host, port)
    config = uvicorn.Config(
        FleetProxy(
            superlink_client(internal_port, folder / "ca.crt"),
            files,
            listener.admit,
            partial(keep_leaving, folder),
        ),
        ssl_certfile=str(folder / "server.crt"),
        ssl_keyfile=str(folder / "server.key"),
        http=FleetConnection,
        backlog=MAX_TAKEN_AT_ONCE,
        ws="none",
        lifespan="on",
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_graceful_shutdown=3,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
    )
    log.info("listening on %s port %d for SuperNodes", host, port)
    with asyncio.Runner(loop_factory=DeadlineLoop) as runner:
        runner.run(uvicorn.Server(config).serve([listener]))


def main() -> None:
    """Listen as the command line says: the folder with ca.crt, server.crt and server.key, the host
    and port, and the SuperLink's port on loopback.
    """
    folder, host, port, internal_port = sys.argv[1:]
    # times are added to all its words
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    serve(Path(folder), host, int(port), int(internal_port))


if __name__ == "__main__":
    main()
