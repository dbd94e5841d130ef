"""The routing API, asked over ASGI: the same answers as the library, and errors in one shape."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from ridgeway.common.base.settings import Scope
from ridgeway.common.routing.conversation import weighted_turns
from ridgeway.common.routing.conversations import (
    MAX_ROUTED_CHARACTERS,
    Evidence,
    cut,
    evidence_to_leave,
)
from ridgeway.common.routing.router import Router, origin
from ridgeway.serving import routing_api, routing_service
from ridgeway.serving.request_bodies import _MAX_PROMPTS, RouteRequest
from ridgeway.serving.routing_api import MAX_EXPLAINED_CHARACTERS
from ridgeway.serving.routing_service import ReleaseSource, RoutingService
from tests.support.in_process import client_of
from tests.support.serving import SECRET, complaint_of, prompt_for, release_of

DOMAINS = ["code", "law", "medicine"]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "release"
    release_of(folder, DOMAINS)
    return folder


@pytest.fixture(scope="module")
def router(release: Path) -> Router:
    return Router.load(release)


@pytest.fixture
def client(release: Path) -> Iterator[TestClient]:
    with client_of(RoutingService(ReleaseSource(release), watch_s=0)) as made:
        yield made


def route(client: TestClient, **body: Any) -> Any:
    answer = client.post("/v1/route", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_one_prompt_is_routed_as_the_library_routes_it(
    client: TestClient, router: Router
) -> None:
    """The same numbers, and the release they come from."""
    expected = router.route("where to?").to_json() | origin(router)
    assert route(client, prompt="where to?") == expected


def test_many_prompts_are_answered_in_their_order(
    client: TestClient, router: Router
) -> None:
    """One list in, one list out."""
    prompts = ["a", "", "b" * 500, "a"]
    decisions = [router.route(prompt).to_json() for prompt in prompts]
    expected = {**origin(router), "decisions": decisions}
    assert route(client, prompts=prompts) == expected


def test_a_conversation_is_routed_on_its_weighted_turns(
    client: TestClient, router: Router
) -> None:
    """Text alone counts: pictures and calls of tools are passed over."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "abc"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "def"},
                {"type": "image_url", "image_url": {"url": "x"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": "ghi jkl"},
    ]
    turns = weighted_turns([("system", "abc"), ("user", "def"), ("user", "ghi jkl")])
    expected = router.route_turns(turns).to_json() | origin(router)
    assert route(client, messages=messages) == expected
    explained = route(client, messages=messages, explain=True)
    assert explained == _json(router.explain_turns(turns).to_json() | origin(router))


@pytest.mark.parametrize("explain", [False, True])
def test_a_chat_leaves_its_domain_only_for_clear_evidence(
    client: TestClient, router: Router, explain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the last user message alone, as the gateway decides; what it says and what it takes are
    told.
    """

    def beside_the_loop(*arguments: Any) -> Evidence:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return evidence_to_leave(*arguments)

    monkeypatch.setattr(routing_api, "evidence_to_leave", beside_the_loop)
    first, other = (prompt_for(domain, DOMAINS) for domain in ("law", "code"))
    for text in (other, other[:2], first, "?"):
        messages = [{"role": "user", "content": said} for said in (first, text)]
        decided = route(client, messages=messages, after="law", explain=explain)
        decision = router.route(text)
        assert (decided["best"], decided["tokens"]) == (decision.best, decision.tokens)
        stays = evidence_to_leave(router, decision, "law", text).stays
        assert decided["stays"] is stays
        assert stays is (decided["evidence"] <= decided["evidence_needed"])
        assert "stays" not in route(client, messages=messages, explain=explain)
    asked = {"messages": messages, "after": "nope", "explain": explain}
    unknown = client.post("/v1/route", json=asked)
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "after")


def test_a_second_release_decides_beside_the_first(
    client: TestClient, release: Path, tmp_path: Path
) -> None:
    """Its explanation is its own, and nothing of it is counted; without one there is a sentence."""
    release_of(tmp_path / "other", [*DOMAINS, "tax"])
    other, prompt = Router.load(tmp_path / "other"), prompt_for("law", DOMAINS)
    compared = ReleaseSource(tmp_path / "other").open()
    service = RoutingService(ReleaseSource(release), watch_s=0, compared=compared)
    with client_of(service) as both:
        decided = both.post("/v1/compare", json={"prompt": prompt}).json()
        assert decided == _json(other.explain(prompt).to_json() | origin(other))
        seen = both.get("/v1/activity").json()
        assert (seen["compared"], seen["activity"]["steps"]) == (other.release, [])
    answer = client.post("/v1/compare", json={"prompt": prompt})
    assert answer.status_code == 404
    assert complaint_of(answer.json())["code"] == "no_comparison"
    assert client.get("/v1/activity").json()["compared"] is None


def test_an_explanation_is_given_when_asked_for(
    client: TestClient, router: Router
) -> None:
    """For one prompt and for many."""
    expected = _json(router.explain("where to?").to_json() | origin(router))
    assert route(client, prompt="where to?", explain=True) == expected
    many = route(client, prompts=["where to?"], explain=True)
    assert many["release"] == expected.pop("release") == router.release
    assert many["calibrated"] == expected.pop("calibrated")
    assert many["decisions"] == [expected]


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """As it is after a way through JSON: tuples are lists."""
    return {
        **value,
        "explanation": [
            {**token, "parts": list(token["parts"])} for token in value["explanation"]
        ],
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not valid JSON: EOF while parsing an object at line 1, column 1"),
        (
            b'{"prompt":\n zyzzyva}',
            "not valid JSON: expected value at line 2, column 2",
        ),
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 5000, "is nested too deeply at line 1, column"),
        (
            b'{"prompt": ' + b"1" * 5000 + b"}",
            "has a number of too many digits at line 1",
        ),
        (
            b'{"prompt": "zyzzyva \\ud800"}',
            "escape of no character, perhaps half of a pair, at line 1",
        ),
        (b"[]", "the body"),
        (b"{}", "exactly one of prompt, prompts and messages"),
        (b'{"prompt": "a", "prompts": ["b"]}', "exactly one"),
        (b'{"prompt": "a", "after": "law"}', "messages alone"),
        (b'{"prompt": 7}', "prompt"),
        (b'{"prompts": []}', "prompts"),
        (b'{"prompts": "a"}', "prompts"),
        (b'{"prompts": [null]}', "prompts.0"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{"content": "a"}]}', "messages.0.role"),
        (
            b'{"prompts": [' + b'"a",' * _MAX_PROMPTS + b'"a"]}',
            f"at most {_MAX_PROMPTS}",
        ),
        (b'{"messages": [{"role": "user", "content": 7}]}', "messages.0.content: "),
        (b'{"prompt": "zyzzyva", "explain": "yes"}', "explain"),
        (b'{"prompt": "a", "zyzzyva": 1}', "zyzzyva"),
    ],
)
def test_a_body_that_cannot_be_used_gets_one_clear_sentence(
    client: TestClient, body: bytes, words: str
) -> None:
    """It names the field and not what stands in it."""
    answer = client.post(
        "/v1/route", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert SECRET in words or SECRET not in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_body_of_many_mistakes_is_refused_at_the_first(client: TestClient) -> None:
    """To find all of them would hold everybody up; a hundred thousand are refused as quickly as
    one.
    """
    body = {"messages": [{"role": "user", "content": [1] * 100_000}]}
    assert client.post("/v1/route", json=body).status_code == 400
    with pytest.raises(ValidationError) as caught:
        RouteRequest.model_validate(body)
    assert caught.value.error_count() < 5


@pytest.mark.parametrize("most", [MAX_EXPLAINED_CHARACTERS, 0])
def test_texts_too_long_to_explain_are_still_routed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """An explanation holds every token, so it has an end: in characters, and in tokens times
    domains.
    """
    if not most:
        monkeypatch.setattr(routing_service, "MAX_EXPLAINED_PARTS", 10_000)
    prompts = ["a" * 30_000] * (1 + most // 30_000)
    refused = client.post("/v1/route", json={"prompts": prompts, "explain": True})
    assert refused.status_code == 400
    assert complaint_of(refused.json())["code"] == "too_long_to_explain"
    assert route(client, prompts=prompts)["decisions"][0]["tokens"] == 30_000


def test_of_a_long_text_beginning_and_end_are_routed_and_the_decision_says_so(
    client: TestClient, router: Router
) -> None:
    """A decision takes no longer for a longer text; prompts, chats and explanations are cut
    alike.
    """
    prompt = "a" * MAX_ROUTED_CHARACTERS + "b" * 1000
    whole = router.route(cut(prompt)).to_json() | origin(router) | {"left_out": 1000}
    assert route(client, prompt=prompt) == whole
    assert route(client, messages=[{"role": "user", "content": prompt}]) == whole
    explained = route(client, prompts=[prompt, "a"], explain=True)["decisions"]
    for decision, text, left_out in zip(
        explained, (cut(prompt), "a"), (1000, None), strict=True
    ):
        assert "".join(word["text"] for word in decision["explanation"]) == text
        assert decision.get("left_out") == left_out


@pytest.mark.parametrize("method", ["get", "put", "delete"])
def test_other_methods_and_addresses_are_errors_of_the_same_shape(
    client: TestClient, method: str
) -> None:
    for path, status in (("/v1/route", 405), ("/v1/nothing", 404)):
        answer = client.request(method, path)
        assert answer.status_code == status
        complaint_of(answer.json())


def test_a_mistake_of_the_server_tells_nothing(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the answer nor the log holds the prompt or what went wrong in detail."""

    def broken(self: Router, turns: object) -> None:
        raise RuntimeError(f"while reading {turns}")

    monkeypatch.setattr(Router, "route_turns", broken)
    answer = client.post("/v1/route", json={"prompt": SECRET})
    assert answer.status_code == 500
    assert complaint_of(answer.json())["code"] == "internal_error"
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_the_release_in_use_is_described(client: TestClient, router: Router) -> None:
    """Its id, its signer, its manifest."""
    card = client.get("/v1/releases/current").json()
    assert card["release"] == router.release
    assert card["manifest"]["domains"] == card["domains"] == DOMAINS
    assert card["refused"] is None


@pytest.mark.parametrize(
    ("fallback", "name"), [("generalist", "generalist"), (None, "none")]
)
def test_an_abstention_is_counted_under_no_domain(
    release: Path, fallback: str | None, name: str
) -> None:
    """Nor is the domain ahead named in a header; its fallback is, if it has one."""
    service = RoutingService(ReleaseSource(release), watch_s=0)
    router = service.router
    router.confidence = replace(
        router.confidence, scope=Scope(1.0, 0.0, 0.0, 1.0), fallback=fallback
    )
    with client_of(service) as client:
        routed = route(client, prompt=SECRET)
        assert (routed["domain"], routed["abstained"]) == (fallback, True)
        assert routed["best"] in DOMAINS
        asked = {"prompt": SECRET, "model": "auto"}
        headers = client.post("/v1/decide", json=asked).headers
        assert headers["x-ridgeway-domain"] == name
        assert headers["x-ridgeway-reason"] == "abstained"
        metrics = client.get("/metrics").text
    assert f'ridgeway_decisions_total{{domain="{name}"}} 2.0' in metrics
    assert "ridgeway_abstentions_total 2.0" in metrics


def test_what_is_decided_is_counted(client: TestClient, router: Router) -> None:
    """In the metrics and on the page alike, and neither holds a prompt."""
    prompts = [f"{SECRET} {number}" for number in range(6)]
    route(client, prompts=prompts)
    route(client, prompt=SECRET)
    best = [decision.best for decision in router.route_many([*prompts, SECRET])]
    metrics = client.get("/metrics").text
    for domain in set(best):
        assert (
            f'ridgeway_decisions_total{{domain="{domain}"}} {best.count(domain)}.0'
            in metrics
        )
    assert "ridgeway_routing_seconds_count 2.0" in metrics
    activity = client.get("/v1/activity").json()
    counted: Counter[str] = Counter()
    for step in activity["activity"]["steps"]:
        counted += Counter(step["decisions"])
    assert counted == Counter(best)
    assert SECRET not in metrics + str(activity)
