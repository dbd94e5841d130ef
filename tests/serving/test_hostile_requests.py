"""Requests that are wrong, too large, too many or not allowed: each gets a proper error, and the
service goes on.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_expert import Expert, well
from tests.support.in_process import DOMAINS, Local, memory
from tests.support.in_process import served as service_of
from tests.support.serving import SECRET, chat, complaint, write_experts

POSTS = ("/v1/route", "/v1/chat/completions", "/v1/completions", "/v1/embeddings")
WRONG: tuple[bytes, ...] = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"12",
    b"\xff\xfe\x00",
    b'{"model": "auto"}',
    b'{"model": 3, "messages": 4, "prompt": {}, "input": {}}',
    b'{"model": "auto", "messages": [], "prompt": [], "input": []}',
    b'{"model": "auto", "messages": [{"role": 1, "content": {}}], "prompt": {"a": 1}, "input": 7}',
    b'{"model": "auto", "messages": [null], "prompt": [null], "input": [null]}',
    b'{"model": null, "messages": "x", "prompt": null, "input": null}',
    b'{"model": "auto", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)
NOWHERE = (
    "/v1/route/",
    "/v1/nothing",
    "/v1",
    "/../etc/passwd",
    "/%2e%2e/%00",
    "//",
    "/v1/models/x/y",
)
PARTS = dict(zip(POSTS, ("prompt", "messages", "prompt", "input"), strict=True))
"""Where the text of a request stands."""
HEAD = (
    b"POST /v1/route HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
)
MB = 1_000_000


@pytest.fixture(scope="module")
def experts() -> Iterator[dict[str, Expert]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Expert(well(name))) for name in DOMAINS}


@pytest.fixture(scope="module")
def experts_file(
    experts: dict[str, Expert], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    urls = {name: expert.url for name, expert in experts.items()}
    return write_experts(tmp_path_factory.mktemp("hostile") / "experts.toml", urls)


@pytest.fixture(scope="module")
def open_to_all(release: Path, experts_file: Path) -> Iterator[Local]:
    with service_of(release, experts_file) as local:
        yield local


@pytest.fixture
def served(open_to_all: Local, caplog: pytest.LogCaptureFixture) -> Iterator[Local]:
    yield open_to_all
    assert_well(open_to_all, caplog)


def a_request(path: str, text: str) -> dict[str, Any]:
    """A request to an address that is asked for a text."""
    content: Any = (
        [{"role": "user", "content": text}] if PARTS[path] == "messages" else text
    )
    return (
        {PARTS[path]: content}
        if path == "/v1/route"
        else {"model": "auto", PARTS[path]: content}
    )


def assert_well(served: Local, caplog: pytest.LogCaptureFixture) -> None:
    assert served.http.get("/healthz").status_code == 200
    assert served.chat("code").status_code == 200
    for word in (SECRET, "Traceback"):
        assert word not in caplog.text


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_makes_no_sense_is_refused(
    served: Local, experts: dict[str, Expert], path: str
) -> None:
    """Broken JSON, wrong types, missing parts, a hundred thousand brackets: 400, and no expert is
    bothered.
    """
    before = sum(len(expert.asked) for expert in experts.values())
    for body in WRONG:
        response = served.send(path, body)
        assert response.status_code == 400, (body[:80], response.text)
        assert complaint(response)["type"] == "invalid_request_error"
    assert sum(len(expert.asked) for expert in experts.values()) == before


@pytest.mark.parametrize("path", POSTS)
def test_a_body_of_another_kind_is_refused(served: Local, path: str) -> None:
    """A page of another site can send forms and plain text unasked; only JSON is taken."""
    body = json.dumps(chat("auto", "hello"))
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
    ):
        response = served.send(path, body, kind)
        assert response.status_code == 415, response.text
        complaint(response)


def test_a_body_with_half_a_character_pair_is_no_servers_error(served: Local) -> None:
    r"""JSON can hold "\ud800", which no text can; it is refused, or routed and passed on."""
    for path in POSTS:
        response = served.send(path, json.dumps(a_request(path, "\ud800")))
        assert response.status_code < 500, response.text


def test_a_very_long_name_of_a_model_is_not_thrown_back(served: Local) -> None:
    """An error stays short whatever was asked for."""
    response = served.chat("m" * MB)
    assert response.status_code in (400, 404)
    assert len(response.content) < 2000
    complaint(response)


@pytest.mark.parametrize("path", NOWHERE)
def test_an_unknown_address_is_not_found(served: Local, path: str) -> None:
    """Nothing but the addresses that there are."""
    response = served.http.get(f"{served.http.base_url}{path}")
    assert response.status_code in (404, 405), response.text
    complaint(response)


@pytest.mark.parametrize("path", POSTS)
def test_a_prompt_of_five_megabytes_is_too_large(served: Local, path: str) -> None:
    """413, in the usual shape, and the memory is not kept."""
    before = memory()
    response = served.post(path, a_request(path, f"{SECRET} " + "x" * (5 * MB)))
    assert response.status_code == 413, response.text
    assert complaint(response)["type"] == "invalid_request_error"
    assert memory() - before < 60 * MB


def test_a_long_conversation_within_the_limit_is_answered(served: Local) -> None:
    """Three megabytes of talk are allowed, and routed."""
    messages = [{"role": "user", "content": f"{SECRET} " + "abc " * 1000}] * 750
    response = served.post(
        "/v1/chat/completions", {"model": "auto", "messages": messages}
    )
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "words",
    [
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: 999\r\n\r\n{",
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: evil.example\r\nhost: 127.0.0.1\r\n\r\n",
    ],
    ids=[
        "negative",
        "two-lengths",
        "left-early",
        "same-hosts",
        "two-hosts",
    ],
)
def test_what_is_hardly_http_does_not_hurt(served: Local, words: bytes) -> None:
    """Whatever bytes come, the answer is an error or none, and the connection ends."""
    address = served.http.base_url.host, served.http.base_url.port or 0
    with (
        socket.create_connection(address, timeout=10) as connection,
        contextlib.suppress(OSError),
    ):
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)
        assert answer == b"" or int(answer.split()[1]) in range(400, 500), answer


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "x"}] * 100_000}]},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "x"}] * 30}] * 4000},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "more": [[]] * 100_000},
        ),
        ("/v1/completions", {"prompt": [[1]] * 100_000}),
        (
            "/v1/route",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "x",
                        **{f"{n}": 1 for n in range(100_000)},
                    }
                ]
            },
        ),
    ],
    ids=["parts", "parts-of-many", "unknown-fields", "ids", "keys"],
)
def test_a_body_of_a_hundred_thousand_values_is_refused(
    served: Local, path: str, fields: dict[str, Any]
) -> None:
    """To read it would hold all other requests up for as long as it takes."""
    response = served.post(
        path, fields if path == "/v1/route" else {"model": "auto", **fields}
    )
    assert (response.status_code, complaint(response)["code"]) == (
        400,
        "too_many_values",
    )


def test_what_looks_like_values_inside_a_text_is_text(served: Local) -> None:
    """Code and JSON in a prompt are no values of the request, whatever quotes and backslashes stand
    in them.
    """
    text = json.dumps({"[{:": "\\"}) * 60_000
    assert served.post("/v1/route", {"prompt": text}).status_code == 200
