"""The door: who is let in, what is said to the others, and what every answer carries. Asked over
ASGI.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from ridgeway.common.base.errors import InputError
from ridgeway.common.web.api_keys import (
    AccessRules,
    KeyRing,
    add_key,
    make_rules,
    revoke_key,
)
from ridgeway.common.web.guard import (
    BODY_IS_SLOW,
    HAS_KEY,
    MAX_STRANGERS,
    SECURITY_HEADERS,
    STRANGER_RATE,
    RequestGuard,
)
from ridgeway.common.web.http_errors import add_error_handlers
from ridgeway.serving.telemetry import Metrics

SECRET = "zyzzyva"
HOST = {"host": "localhost:8080"}
JSON = {"content-type": "application/json"}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    pieces: list[bytes]

    @property
    def refusal(self) -> tuple[int, str]:
        return self.status, self.error["code"]

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@dataclass
class Door:
    """A guarded application, and a client at any address."""

    rules: AccessRules
    now: float = 1000.0
    metrics: Metrics = field(default_factory=Metrics)
    seen: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.guard = RequestGuard(
            self._watched(application()), self.rules, self.metrics, lambda: self.now
        )

    def _watched(self, app: Any) -> Any:
        async def watched(scope: Any, receive: Any, send: Any) -> None:
            self.seen.append(scope)
            await app(scope, receive, send)

        return watched

    def ask(self, path: str = "/v1/echo", **options: Any) -> Reply:
        return asyncio.run(self.asking(path, **options))

    async def asking(
        self,
        path: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: Sequence[bytes] | None = None,
        client: str = "10.0.0.1",
        receive: Callable[[], Any] | None = None,
    ) -> Reply:
        sent_headers = {**HOST, **(headers or {})}
        if body is not None and "content-length" not in sent_headers:
            sent_headers["transfer-encoding"] = "chunked"
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (name.encode(), value.encode()) for name, value in sent_headers.items()
            ],
            "client": (client, 5000),
            "server": ("127.0.0.1", 8080),
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        await self.guard(scope, receive or pieces(body or [b""]), send)
        start, *rest = sent
        parts = [event.get("body", b"") for event in rest]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert len(headers) == len(start["headers"]), "a header stands there twice"
        return Reply(start["status"], headers, b"".join(parts), parts)

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def pieces(body: Sequence[bytes]) -> Callable[[], Any]:
    left = list(body)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


def application() -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None)
    add_error_handlers(app)

    @app.get("/v1/echo")
    @app.get("/")
    @app.get("/docs")
    @app.get("/page/{name}")
    @app.get("/healthz")
    @app.get("/readyz")
    async def hello() -> str:
        return "hello"

    @app.post("/v1/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.get("/v1/models/{name}")
    async def model(name: str) -> str:
        return name

    @app.get("/v1/broken")
    async def broken() -> None:
        raise RuntimeError(SECRET)

    @app.get("/v1/number/{number}")
    async def number(number: int) -> int:
        return number

    @app.get("/v1/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(
            words(),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )

    @app.get("/v1/loose")
    async def loose() -> Response:
        return Response(
            headers={
                "content-security-policy": "default-src *",
                "access-control-allow-origin": "*",
            }
        )

    @app.get("/v1/torn")
    async def torn() -> StreamingResponse:
        return StreamingResponse(words(torn=True), media_type="text/event-stream")

    return app


async def words(torn: bool = False) -> AsyncIterator[bytes]:
    yield b"data: one\n\n"
    if torn:
        raise RuntimeError(SECRET)
    yield b"data: two\n\n"


@dataclass
class Keyed:
    door: Door
    file: Path
    key: str

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    file = tmp_path / "keys.toml"
    key, _ = add_key(file, "app")
    return Keyed(Door(AccessRules(keys=KeyRing(file))), file, key)


# What every answer carries


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/v1/echo", {}, 200),
        ("/nowhere", {}, 404),
        ("/v1/echo", {"method": "DELETE"}, 405),
        ("/v1/number/x", {}, 400),
        ("/v1/broken", {}, 500),
        ("/v1/stream", {}, 200),
        ("/v1/echo", {"headers": {"origin": "https://evil.example"}}, 403),
        (
            "/v1/echo",
            {"method": "POST", "headers": {"content-length": "99999999"}},
            413,
        ),
    ],
)
def test_every_answer_carries_the_headers_that_keep_browsers_safe(
    path: str, options: dict[str, Any], status: int
) -> None:
    """An error, a refusal and a stream as well as an answer; nothing of it is kept unless the
    application says so.
    """
    reply = Door(AccessRules()).ask(path, **options)
    assert reply.status == status
    for name, value in SECURITY_HEADERS:
        assert reply.headers[name.decode()] == value.decode()
    assert reply.headers["cache-control"] == (
        "no-cache" if path == "/v1/stream" else "no-store"
    )
    assert "strict-transport-security" not in reply.headers
    assert not [name for name in reply.headers if name.startswith("access-control")]
    if status >= 400:
        assert reply.error["message"] and SECRET not in reply.body.decode()


def test_an_answer_cannot_loosen_them() -> None:
    """What an expert or the application says of its own accord is not passed on beside ours."""
    reply = Door(AccessRules()).ask("/v1/loose")
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    assert "access-control-allow-origin" not in reply.headers


def test_where_there_is_tls_browsers_come_by_tls() -> None:
    """They are told to, and a page without it is another site's: whoever can forge it must not ask
    as ours.
    """
    door = Door(AccessRules(tls=True))
    assert "max-age" in door.ask().headers["strict-transport-security"]
    assert door.ask(headers={"origin": "http://localhost:8080"}).status == 403


def test_a_stream_passes_piece_by_piece() -> None:
    """What the application sends in pieces arrives in these pieces."""
    reply = Door(AccessRules()).ask("/v1/stream")
    assert [piece for piece in reply.pieces if piece] == [
        b"data: one\n\n",
        b"data: two\n\n",
    ]


def test_a_mistake_tells_the_client_nothing_and_the_log_its_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No traceback leaves the guard, neither to the client nor to the server, which would write it
    down.
    """
    door = Door(AccessRules())
    with caplog.at_level(logging.DEBUG):
        assert door.ask("/v1/broken").error["code"] == "internal_error"
        # and the server closes the connection, for the answer has no end
        assert door.ask("/v1/torn").status == 200
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text and "Traceback" not in caplog.text


# Hosts and origins


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST.", "127.0.0.1:1", "[::1]", "[::1]:8080"],
)
def test_on_loopback_the_usual_names_are_taken(host: str) -> None:
    """With any port, for there may be a tunnel."""
    rules = make_rules("127.0.0.1")
    assert Door(rules).ask(headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "127.0.0.1.evil.example",
    ],
)
@pytest.mark.parametrize("path", ["/v1/echo", "/", "/healthz", "/nowhere"])
def test_on_loopback_another_name_is_refused(host: str, path: str) -> None:
    """A site whose name leads to 127.0.0.1 cannot read what is served there."""
    door = Door(make_rules("127.0.0.1"))
    reply = door.ask(path, headers={"host": host})
    assert reply.refusal == (403, "host_not_allowed") and door.seen == []
    assert door.counted("ridgeway_refusals_total", reason="host") == 1


def test_elsewhere_any_name_is_taken_unless_some_are_given(keyed: Keyed) -> None:
    """Keys guard the service there; allow_host narrows it further."""
    rules = make_rules("0.0.0.0", keyed.file)
    assert Door(rules).ask("/", headers={"host": "any.example"}).status == 200
    rules = make_rules("0.0.0.0", keyed.file, hosts=["Ours.Example", "::2"])
    asked = [
        Door(rules).ask("/", headers={"host": host}).status
        for host in ("ours.example:1", "[::2]", "localhost")
    ]
    assert asked == [200, 200, 403]


@pytest.mark.parametrize("origin", ["http://localhost:8080", "https://localhost:8080"])
def test_the_services_own_page_may_ask(origin: str) -> None:
    """Also if a proxy speaks TLS for the service."""
    asked: Any = {"method": "POST", "headers": {"origin": origin}, "body": [b"x"]}
    assert Door(AccessRules()).ask(**asked).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://evil.example",
        "http://localhost",
        "http://localhost:80801",
        "http://localhost:8080.evil",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_page_of_another_site_may_not_ask(origin: str, method: str) -> None:
    """Closed by default, before the application sees anything."""
    door = Door(AccessRules())
    asks = {"origin": origin, "access-control-request-method": "POST"}
    reply = door.ask(method=method, headers=asks)
    assert reply.refusal == (403, "origin_not_allowed") and door.seen == []


@pytest.mark.parametrize(("site", "path", "status"), [
    ("cross-site", "/v1/echo", 403),
    ("same-site", "/v1/echo", 403),
    ("same-origin", "/v1/echo", 200),
    ("none", "/v1/echo", 200),
    ("cross-site", "/", 200),
    ("cross-site", "/page/style.css", 200),
])  # fmt: skip
def test_another_site_may_link_to_the_page_and_to_nothing_else(
    site: str, path: str, status: int
) -> None:
    """Browsers say where a request comes from even if they send no origin."""
    reply = Door(AccessRules()).ask(path, headers={"sec-fetch-site": site})
    assert reply.status == status


def test_an_allowed_site_may_ask_and_read(keyed: Keyed) -> None:
    """allow_origin answers the browser's question without a key, and lets the page read answers,
    errors as well.
    """
    allowed = "https://app.example.com"
    rules = make_rules("0.0.0.0", keyed.file, origins=[f"{allowed}:443/"])
    door = Door(rules)
    asks = {
        "origin": allowed,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    asked = door.ask(method="OPTIONS", headers=asks)
    assert (asked.status, asked.body) == (204, b"")
    assert "content-length" not in asked.headers
    assert asked.headers["access-control-allow-origin"] == allowed
    assert "authorization" in asked.headers["access-control-allow-headers"]
    for headers, status in (
        ({"origin": allowed}, 401),
        ({"origin": allowed, **keyed.bearer}, 200),
    ):
        reply = door.ask(headers=headers)
        assert reply.status == status
        assert reply.headers["access-control-allow-origin"] == allowed
        assert reply.headers["vary"] == "origin"
    other = {"origin": "http://app.example.com", **keyed.bearer}
    assert door.ask(headers=other).status == 403


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "app.example.com",
        "ftp://a",
        "https://a/b",
        "https://",
        "https://a:x",
    ],
)
def test_what_is_not_an_origin_is_refused(origin: str) -> None:
    """Also the one that would let every site in."""
    with pytest.raises(InputError, match="is not an origin"):
        make_rules("127.0.0.1", origins=[origin])


# Keys


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/page/style.css", "/healthz", "/readyz"]
)
def test_the_page_and_health_need_no_key(keyed: Keyed, path: str) -> None:
    """Everybody may see that there is a service; what it says of itself depends on whether a key
    came.
    """
    assert keyed.door.ask(path).status == 200
    assert keyed.door.ask(path, headers=keyed.bearer).status == 200
    assert [scope[HAS_KEY] for scope in keyed.door.seen] == [False, True]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/echo",
        "/metrics",
        "/openapi.json",
        "/nowhere",
        "/page",
        "/docs/",
        "/healthz/x",
    ],
)
def test_everything_else_needs_one(keyed: Keyed, path: str) -> None:
    """Not even what is not there is told to strangers."""
    for headers in (
        {},
        {"authorization": "Bearer rw-wrong"},
        {"api-key": ""},
        {"authorization": f"Basic {keyed.key}"},
    ):
        reply = keyed.door.ask(path, headers=headers)
        assert reply.refusal == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert keyed.door.ask("/", method="POST").status == 401
    assert keyed.door.seen == []


def test_a_key_may_come_in_two_ways_and_goes_no_further(keyed: Keyed) -> None:
    """As a bearer's token or as api-key; the application, and so no expert, never sees it."""
    headers = (
        {"authorization": f"Bearer {keyed.key}"},
        {"authorization": f"bearer {keyed.key}"},
        {"api-key": keyed.key},
    )
    assert [keyed.door.ask(headers=one).status for one in headers] == [200] * 3
    assert keyed.key.encode() not in repr(keyed.door.seen).encode()
    without = Door(AccessRules())
    assert without.ask(headers=keyed.bearer).status == 200
    assert keyed.key not in repr(without.seen)


def test_a_revoked_key_is_refused_while_the_service_runs(keyed: Keyed) -> None:
    """And so is every key once the file has gone."""
    other, _ = add_key(keyed.file, "other")
    keyed.door.rules.keys.watch()  # type: ignore[union-attr]
    revoke_key(keyed.file, "app")
    keyed.door.rules.keys.watch()  # type: ignore[union-attr]
    assert keyed.door.ask(headers=keyed.bearer).status == 401
    assert keyed.door.ask(headers={"api-key": other}).status == 200
    keyed.file.unlink()
    keyed.door.rules.keys.watch()  # type: ignore[union-attr]
    assert keyed.door.ask(headers={"api-key": other}).status == 401
    assert keyed.door.ask("/").status == 200


# Limits


def test_a_flood_without_a_key_is_told_so_and_then_turned_away(keyed: Keyed) -> None:
    """401 at first, then 429 with the time to wait; others, and whoever has a key at the same
    address, go on.
    """
    door = keyed.door
    replies = [door.ask() for _ in range(STRANGER_RATE.burst + 5)]
    statuses = [reply.status for reply in replies]
    assert statuses == [401] * STRANGER_RATE.burst + [429] * 5
    assert replies[-1].error["type"] == "rate_limit_error"
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert door.counted("ridgeway_refusals_total", reason="key") == STRANGER_RATE.burst
    assert door.ask(headers=keyed.bearer).status == 200
    assert door.ask(client="10.0.0.2").status == 401
    assert door.ask("/healthz").status == 200
    assert door.ask("/").status == 429
    door.now += 1
    assert door.ask("/").status == 200


def test_a_flood_from_everywhere_takes_bounded_memory(keyed: Keyed) -> None:
    """Addresses are remembered up to a number, networks of IPv6 as one."""

    async def everywhere() -> None:
        for number in range(MAX_STRANGERS + 200):
            await keyed.door.asking("/v1/echo", client=f"2001:db8:{number:x}::1")

    asyncio.run(everywhere())
    assert len(keyed.door.guard._addresses) == MAX_STRANGERS
    statuses = [
        keyed.door.ask(client=f"2001:db8:ffff::{number:x}").status
        for number in range(STRANGER_RATE.burst + 1)
    ]
    assert statuses == [401] * STRANGER_RATE.burst + [429]


def test_each_key_has_its_own_rate_or_the_services(tmp_path: Path) -> None:
    """--rate is for those keys that have none of their own; one key's requests are not
    another's.
    """
    file = tmp_path / "keys.toml"
    slow, _ = add_key(file, "slow", rate=0.5)
    usual, twin = (add_key(file, name)[0] for name in ("usual", "twin"))
    door = Door(AccessRules(keys=KeyRing(file), rate=2.0))

    def ask(key: str, times: int) -> list[int]:
        return [door.ask(headers={"api-key": key}).status for _ in range(times)]

    assert ask(slow, 3) == [200, 429, 429]
    assert ask(usual, 6) == [200] * 4 + [429] * 2
    assert ask(twin, 4) == [200] * 4
    door.now += 1
    assert (ask(slow, 1), ask(usual, 3)) == ([429], [200, 200, 429])


def test_without_keys_there_is_no_limit_unless_one_is_given() -> None:
    """And then it is that of each address."""
    free, limited = Door(AccessRules()), Door(AccessRules(rate=1.0))
    assert [free.ask().status for _ in range(200)] == [200] * 200
    assert [limited.ask().status for _ in range(3)] == [200, 200, 429]
    assert limited.ask(client="10.0.0.2").status == 200
    assert limited.ask("/healthz").status == 200


def test_no_more_requests_are_served_at_once_than_allowed() -> None:
    """One more is told to come again; health is still told, and who is done makes room."""
    door = Door(AccessRules(max_requests=2))

    async def crowd() -> list[Reply]:
        enough = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await enough.wait()
            return {"type": "http.request", "body": b"x", "more_body": False}

        slow: dict[str, Any] = {"method": "POST", "body": [b"x"], "receive": receive}
        begun = [asyncio.create_task(door.asking("/v1/echo", **slow)) for _ in range(2)]
        await asyncio.sleep(0)
        refused, health = await door.asking("/v1/echo"), await door.asking("/healthz")
        enough.set()
        later = [*await asyncio.gather(*begun), await door.asking("/v1/echo")]
        return [refused, health, *later]

    refused, *others = asyncio.run(crowd())
    assert refused.refusal == (503, "overloaded")
    assert refused.headers["retry-after"] == "2"
    assert [reply.status for reply in others] == [200] * 4


# Bodies


@pytest.mark.parametrize("length", ["101", "9" * 30])
def test_a_body_that_says_it_is_too_large_is_not_read(length: str) -> None:
    """The answer comes before the body."""

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    reply = Door(AccessRules(max_body_bytes=100)).ask(
        method="POST", headers={"content-length": length}, receive=receive
    )
    assert reply.refusal == (413, "body_too_large")


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "+5", ""])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    """It is not guessed at."""
    door = Door(AccessRules())
    sent: Any = {"headers": {"content-length": length}, "body": [b""]}
    assert door.ask(method="POST", **sent).status == 400


def test_a_body_that_turns_out_too_large_is_read_no_further() -> None:
    """One in chunks does not say how long it is; what is over the limit is not asked for."""
    endless = 0

    async def receive() -> dict[str, Any]:
        nonlocal endless
        endless += 1
        return {"type": "http.request", "body": b"x" * 30, "more_body": True}

    door = Door(AccessRules(max_body_bytes=100))
    reply = door.ask(
        method="POST", headers={"transfer-encoding": "chunked"}, receive=receive
    )
    assert (reply.refusal, endless) == ((413, "body_too_large"), 4)
    assert door.counted("ridgeway_refusals_total", reason="size") == 1
    assert door.counted("ridgeway_requests_total", path="/v1/echo", status="413") == 1


def test_a_body_of_just_the_limit_is_taken() -> None:
    """With its length said or in chunks."""
    door = Door(AccessRules(max_body_bytes=100))
    whole: Any = {"headers": {"content-length": "100"}, "body": [b"x" * 100]}
    assert door.ask(method="POST", **whole).body == b"100"
    assert door.ask(method="POST", body=[b"x" * 60, b"x" * 40]).body == b"100"
    assert door.ask(method="POST", body=[b"x" * 60, b"x" * 41]).status == 413


def test_a_body_that_the_connection_gives_up_is_a_timeout() -> None:
    """The connection keeps the time, and says so in the scope."""
    door = Door(AccessRules())

    async def receive() -> dict[str, Any]:
        door.seen[-1][BODY_IS_SLOW] = True
        return {"type": "http.request", "body": b"", "more_body": True}

    reply = door.ask(method="POST", headers={"content-length": "10"}, receive=receive)
    assert (reply.status, reply.error["type"]) == (408, "timeout_error")
    assert door.counted("ridgeway_refusals_total", reason="slow") == 1


def test_a_client_that_leaves_within_its_body_is_no_mistake_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is logged for it."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with caplog.at_level(logging.WARNING):
        reply = Door(AccessRules()).ask(
            method="POST", headers={"content-length": "10"}, receive=receive
        )
    assert reply.status == 400 and caplog.text == ""


# Counting


def test_requests_are_counted_by_the_addresses_that_exist() -> None:
    """However many addresses are made up, they are one label; nothing that was asked for stands in
    the metrics.
    """
    door = Door(AccessRules())
    for number in range(20):
        door.ask(f"/{SECRET}/{number}")
        door.ask(f"/v1/models/{SECRET}{number}")
    door.ask("/v1/echo", headers={"origin": "null"})
    model = "/v1/models/{name}"
    for path, status, count in (
        ("other", 404, 20),
        (model, 200, 20),
        ("other", 403, 1),
    ):
        labels = {"path": path, "status": str(status)}
        assert door.counted("ridgeway_requests_total", **labels) == count
    assert door.counted("ridgeway_request_seconds_count", path=model) == 20
    assert SECRET not in door.metrics.exposition().decode()


# Who may listen where


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com"])
def test_others_are_let_in_only_with_keys(host: str, tmp_path: Path) -> None:
    """An address that other machines reach is refused without keys, and so is a file that holds
    none.
    """
    empty = tmp_path / "keys.toml"
    empty.touch(mode=0o600)
    for file, words in (
        (None, "keys are required; make one with `ridgeway keys add"),
        (empty, "the file of --keys is empty"),
        (tmp_path / "none.toml", "there is no keys file"),
    ):
        with pytest.raises(InputError, match=words):
            make_rules(host, file, tls=True)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"]
)
def test_this_machine_is_let_in_without(host: str) -> None:
    """Loopback needs no key."""
    assert make_rules(host).keys is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_of_nothing_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="--rate"):
        make_rules("127.0.0.1", rate=rate)
