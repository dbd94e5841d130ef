"""Decisions for other gateways: bodies as clients write them in, headers out; and nginx, which
follows them.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.serving import rules as rules_module
from ridgeway.serving.rules import RoutingRule, RoutingRules
from ridgeway.serving.serve_command import serve_settings
from tests.support.fake_expert import wait_for
from tests.support.in_process import CHATS, DOMAINS, Local, answered_by, served
from tests.support.serving import complaint, prompt_for

CONFIGURATION = Path(__file__).parents[2] / "packages" / "gateways" / "nginx.conf"
DECIDE = "/v1/decide"
LONG = {domain: 4 * prompt_for(domain, DOMAINS) for domain in DOMAINS}
FRAME = """daemon off; pid {folder}/pid; error_log {folder}/log;
events {{}}
http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{configuration} }}"""


@pytest.fixture
def alone(release: Path) -> Iterator[Local]:
    """A service without experts."""
    with served(release) as alone:
        yield alone


def decided(answer: httpx.Response) -> tuple[str, str]:
    assert (answer.status_code, answer.content) == (200, b""), answer.text
    return answer.headers["x-ridgeway-expert"], answer.headers["x-ridgeway-reason"]


def decide(service: Local, *said: str, **more: Any) -> tuple[str, str]:
    """The expert and the reason for what a user said."""
    return decided(service.post(DECIDE, {**chat(*said), **more}))


def chat(*said: str) -> dict[str, Any]:
    turns = [
        {"role": role, "content": text}
        for text in said
        for role in ("user", "assistant")
    ]
    return {"model": "gpt-x", "messages": turns[:-1], "temperature": 0.5}


BODIES: dict[str, Any] = {
    "chat": chat(LONG["law"]),
    "messages": {**chat(LONG["law"]), "max_tokens": 9, "system": "Be brief."},
    "responses": {"model": "gpt-x", "input": LONG["law"]},
    "completions": {"model": "gpt-x", "prompt": LONG["law"]},
}


@pytest.mark.parametrize("shape", BODIES)
def test_a_body_of_either_api_is_decided_as_it_is(
    local: Local, alone: Local, shape: str
) -> None:
    """With experts and without, at any path behind, whatever model it names."""
    answer = local.post("/v1/decide/v1/whatever", BODIES[shape])
    assert decided(answer) == ("law", "best")
    assert answer.headers["x-ridgeway-domain"] == "law"
    assert not local.experts["law"].asked
    assert decided(alone.post(DECIDE, BODIES[shape])) == ("law", "best")


def test_a_conversation_stays_by_either_way_of_deciding(
    local: Local, alone: Local
) -> None:
    """And an abstention names the fallback."""
    for service in (local, alone):
        service.abstains(0.6)
        assert decide(service, LONG["law"])[0] == "law"
        assert decide(service, LONG["law"], "?")[0] == "law"
        assert decide(service, LONG["law"], LONG["code"])[0] == "code"
        assert decide(service, "?") == ("generalist", "abstained")


def test_what_cannot_be_read_is_refused(alone: Local) -> None:
    """A gateway that asks for leave is given none."""
    for content in ("{", '{"model": "x", "messages": []}'):
        assert alone.send(DECIDE, content).status_code == 400
    assert alone.send(DECIDE, "x", "").status_code == 415
    assert alone.http.get(DECIDE).status_code == 405


def test_nginx_sends_each_request_to_its_expert(local: Local, tmp_path: Path) -> None:
    """The example of packages/gateways, with the addresses of this test: the expert gets the whole
    body.
    """
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    names = {
        "127.0.0.1:8080": str(local.http.base_url).split("//")[1].rstrip("/"),
        "127.0.0.1:9001": local.experts["law"].url.split("/")[2],
        "127.0.0.1:9002": local.experts["generalist"].url.split("/")[2],
        "127.0.0.1:8000": f"127.0.0.1:{port}",
    }
    configuration = CONFIGURATION.read_text()
    for name, other in names.items():
        assert name in configuration
        configuration = configuration.replace(name, other)
    file = tmp_path / "nginx.conf"
    file.write_text(FRAME.format(folder=tmp_path, configuration=configuration))
    process = subprocess.Popen([nginx, "-c", file, "-e", tmp_path / "log"])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

            def is_up() -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) == 0

            wait_for(is_up, "nginx listens")
            body = {**chat(LONG["law"]), "padding": "x" * 100_000}
            answer = client.post(CHATS, json=body)
            assert answer.status_code == 200, (tmp_path / "log").read_text()
            assert answer.json()["model"] == "law"
            assert local.experts["law"].last().json == body
            assert local.experts["law"].last().path == CHATS
            wrong = client.post(CHATS, json={"model": 1})
            assert wrong.status_code == 400
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(params=["google-re2", "re"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rules are matched by it."""
    if request.param == "google-re2":
        pytest.importorskip("re2")
    else:
        monkeypatch.setattr(rules_module, "re2", None)
    return str(request.param)


def test_rules_come_before_the_router(local: Local, alone: Local, engine: str) -> None:
    """A pattern of the last message, a header, or a tool, in their order; a domain that is not
    there is refused.
    """
    rules = RoutingRules(
        [
            RoutingRule(domain="code", pattern=r"(?i)\bticket-\d+"),
            RoutingRule(domain="médecine", header="X-Team: clinic"),
            RoutingRule(domain="code", tool="run_tests"),
        ]
    )
    tools = {"tools": [{"type": "function", "function": {"name": "run_tests"}}]}
    law = LONG["law"]
    for service in (local, alone):
        service.service.rules = rules
        rules.check(service.service.router)
        assert decide(service, f"see Ticket-12 {law}") == ("code", "rule")
        team = service.post(DECIDE, chat(law), **{"x-team": "clinic"})
        assert (unquote(decided(team)[0]), decided(team)[1]) == ("médecine", "rule")
        assert decide(service, law, **tools) == ("code", "rule")
        assert decide(service, law) == ("law", "best")
    assert answered_by(local.chat(content="ticket-7")) == ("code", "rule")
    assert answered_by(local.chat("law", "ticket-7")) == ("law", "forced")
    wrong = RoutingRules([RoutingRule(domain="tax", tool="x")])
    with pytest.raises(InputError, match="names the domain 'tax'; there are code, law"):
        wrong.check(local.service.router)


ENDLESS = RoutingRule(domain="code", pattern="(a+)+$")
HOSTILE = chat("a" * 64 + "!")
"""Backtracking would take longer than the test has."""


def test_a_hostile_prompt_is_decided_or_refused(
    local: Local,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By google-re2 it is decided; by `re`, an error of the client's own API, a warning without
    text, and no expert.
    """
    monkeypatch.setattr(rules_module, "PATTERN_CPU_S", 0.05)
    local.service.rules = RoutingRules([ENDLESS])
    for path, body in {
        "decide": HOSTILE,
        "messages": {**HOSTILE, "model": "auto", "max_tokens": 9},
    }.items():
        asked = local.asked
        answer = local.post(f"/v1/{path}", body)
        if engine == "re":
            assert answer.status_code == 400
            assert "not be matched in time" in answer.json()["error"]["message"]
            assert local.asked == asked
            assert "rule 1 took more than 0.05 s" in caplog.text
            assert "aaa" not in caplog.text
        elif path == "decide":
            assert decided(answer)[1] in ("best", "abstained")
        assert decide(local, "aaa") == ("code", "rule")


def test_a_search_that_goes_on_stalls_no_other_request(
    local: Local, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """And who waits too long for it is told to come again; if the service stops, so does the
    search.
    """
    monkeypatch.setattr(rules_module, "PATTERN_CPU_S", 600.0)
    with ThreadPoolExecutor(1) as threads:
        rules = local.service.rules = RoutingRules([ENDLESS])
        slow = threads.submit(local.post, DECIDE, HOSTILE)
        wait_for(
            lambda: engine == "google-re2" or rules._searches._process is not None,
            "the search has begun",
        )
        assert local.http.get("/healthz").status_code == 200
        assert answered_by(local.chat("law", "hello")) == ("law", "forced")
        if engine == "re":
            monkeypatch.setattr(rules_module, "PATTERN_WAIT_S", 0.01)
            late = local.post(DECIDE, HOSTILE)
            assert (late.status_code, complaint(late)["code"]) == (503, "overloaded")
            rules.close()
        assert slow.result().status_code == (200 if engine == "google-re2" else 400)


@pytest.mark.parametrize("pattern", ["a(?=b)", r"(a)\1", r"\bübung\b"])
def test_what_google_re2_cannot_match_as_meant_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    """Python's own engine takes it, and that is said."""
    pytest.importorskip("re2")
    with pytest.raises(ValueError, match="RE2"):
        RoutingRule(domain="law", pattern=pattern)
    RoutingRule(domain="law", pattern=r"(?i)(^|\PL)übung(\PL|$)")
    monkeypatch.setattr(rules_module, "re2", None)
    RoutingRules([RoutingRule(domain="law", pattern=pattern)])
    assert "google-re2 is not installed" in caplog.text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({}, "exactly one of pattern, header and tool"),
        ({"pattern": "x", "tool": "y"}, "exactly one of"),
        ({"pattern": "("}, "it is no regular expression"),
        ({"header": "x-team"}, "a header is written with its value"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(
    tmp_path: Path, rule: dict[str, str], words: str
) -> None:
    lines = [f"{name} = {value!r}" for name, value in {"domain": "law", **rule}.items()]
    (tmp_path / "serve.toml").write_text("\n".join(["[[rules]]", *lines]))
    with pytest.raises(InputError, match=words):
        serve_settings(tmp_path / "serve.toml")
