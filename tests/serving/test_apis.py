"""OpenAI's and Anthropic's official clients before the gateway, and small real servers of both APIs
behind it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.common.web.api_keys import AccessRules, KeyRing, add_key, make_rules
from ridgeway.serving.gateway import Gateway
from ridgeway.serving.routing_service import ReleaseSource, RoutingService
from ridgeway.serving.serve_command import _responses_file, create_app
from tests.serving.api_experts import (
    ApiExpert,
    anthropic_expert,
    expert_of_both,
    openai_expert,
)
from tests.support.fake_expert import (
    CHUNKED,
    EVENTS,
    PATIENCE_S,
    Asked,
    complains,
    fails,
    leaves_after_two,
)
from tests.support.in_process import (
    DOMAINS,
    Fleet,
    Local,
    answered_by,
    chat,
    experts_toml,
    running,
    served,
)
from tests.support.serving import SECRET, complaint, prompt_for, write_experts

if TYPE_CHECKING:
    # takes more than a second, so tests import it that use it, and whoever collects them does not
    import anthropic

ANTHROPIC = {"apis": ["anthropic"]}
BOTH_APIS = {"apis": ["openai", "anthropic"]}
CODE, LAW, BOTH = (prompt_for(domain, DOMAINS) for domain in DOMAINS)


def one_turn(text: str, model: str = "auto", **more: Any) -> Any:
    """A chat that both APIs take."""
    return chat(model, text, max_tokens=9, **more)


class Apis:
    """The service before three experts: `code` speaks OpenAI's API, `law` Anthropic's, `both`
    both.
    """

    def __init__(
        self, local: Local, code: ApiExpert, law: ApiExpert, both: ApiExpert
    ) -> None:
        self.local, self.law, self.both = local, law, both
        self._experts = (code, law, both)
        self.url = str(local.http.base_url)

    @property
    def asked(self) -> int:
        return sum(len(expert.asked) for expert in self._experts)

    def openai(self) -> openai.OpenAI:
        return openai_client(self.local)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic_client(self.url)


def openai_client(local: Local) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{local.http.base_url}/v1", api_key="none", max_retries=0
    )


def anthropic_client(url: str, key: str = "none") -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def apis(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apis]:
    experts = openai_expert("code"), anthropic_expert("law"), expert_of_both("both")
    folder = tmp_path_factory.mktemp("apis")
    (folder / "both.key").write_text("sk-both")
    settings: Any = (
        {},
        ANTHROPIC,
        {**BOTH_APIS, "domains": ["médecine"], "api_key_file": "both.key"},
    )
    with contextlib.ExitStack() as stack:
        addressed = {
            expert.name: {
                "base_url": f"{stack.enter_context(running(expert))}/v1",
                **fields,
            }
            for expert, fields in zip(experts, settings, strict=True)
        }
        file = folder / "experts.toml"
        file.write_text(experts_toml(addressed, fallback="code"))
        yield Apis(stack.enter_context(served(release, file)), *experts)


# OpenAI's client


@pytest.mark.parametrize(("model", "prompt"), [("code", CODE), ("both", BOTH)])
@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_client_talks_to_experts_of_its_api(
    apis: Apis, model: str, prompt: str, stream: bool
) -> None:
    """Routed or named, streamed or not, with the tokens that were used."""
    with apis.openai() as client:
        for asked in ("auto", model):
            request = chat(asked, prompt)
            if stream:
                options: Any = {
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
                *chunks, last = client.chat.completions.create(**request, **options)
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                usage, reason = last.usage, chunks[-1].choices[0].finish_reason
            else:
                whole = client.chat.completions.create(**request)
                text = whole.choices[0].message.content or ""
                usage, reason = whole.usage, whole.choices[0].finish_reason
            assert text.replace(" ", "") == f"{model}heard{prompt}"
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == (7, 3)
            assert reason == "stop"


# Anthropic's client


@pytest.mark.parametrize(("model", "prompt"), [("law", LAW), ("both", BOTH)])
@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_client_talks_to_experts_of_its_api(
    apis: Apis, model: str, prompt: str, stream: bool
) -> None:
    """Routed or named, streamed or not, with the tokens that were used."""
    with apis.anthropic() as client:
        for asked in ("auto", model):
            request = one_turn(prompt, asked)
            if stream:
                with client.messages.stream(**request) as events:
                    message = events.get_final_message()
            else:
                message = client.messages.create(**request)
            texts = "".join(
                block.text for block in message.content if block.type == "text"
            )
            assert texts.replace(" ", "") == f"{model}heard{prompt}"
            assert (message.stop_reason, message.role) == ("end_turn", "assistant")
            assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 3)


def test_between_a_client_and_an_expert_of_anthropics_api_everything_passes(
    apis: Apis,
) -> None:
    """Also what the gateway does not know."""
    body = one_turn(
        "x", "law", thinking={"type": "enabled"}, **{"of tomorrow": [1, None]}
    )
    assert apis.local.post("/v1/messages", body).status_code == 200
    assert apis.law.last == {**body, "model": "law-model"}


def test_a_key_goes_to_an_expert_as_the_api_that_it_is_asked_by_has_it(
    apis: Apis,
) -> None:
    """As a bearer's or as x-api-key, and with a version where that API wants one."""
    body = one_turn("x", "both")
    assert apis.local.post("/v1/chat/completions", body).status_code == 200
    path, headers, _ = apis.both.asked[-1]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer sk-both"
    assert not {"x-api-key", "anthropic-version"} & set(headers)
    assert apis.local.post("/v1/messages", body).status_code == 200
    path, headers, _ = apis.both.asked[-1]
    assert (path, headers["x-api-key"]) == ("/v1/messages", "sk-both")
    assert headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in headers


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (one_turn("x", "nobody"), 404, "not_found_error"),
        (chat("law", "x"), 400, "invalid_request_error"),
        (one_turn("x" * 5_000_000, "law"), 413, "request_too_large"),
    ],
    ids=["model", "body", "size"],
)
def test_an_anthropic_client_gets_its_own_errors(
    apis: Apis, body: Any, status: int, kind: str
) -> None:
    """Whether the gateway, the guard or the check of the body refuses."""
    response = apis.local.post("/v1/messages", body)
    answer = response.json()
    assert (response.status_code, answer["error"]["type"]) == (status, kind)
    assert set(answer) == {"type", "error"}
    assert set(answer["error"]) == {"type", "message"}


def test_an_anthropic_client_is_told_a_mistake_that_an_expert_finds(
    fleet: Fleet,
) -> None:
    """With the expert's words and status."""
    import anthropic

    local = fleet.serve({"code": BOTH_APIS})
    fleet.experts["code"].part = complains(422, "top_k is wrong")
    with (
        anthropic_client(str(local.http.base_url)) as client,
        pytest.raises(anthropic.UnprocessableEntityError, match="top_k is wrong"),
    ):
        client.messages.create(**one_turn("x", "code"))


def test_a_key_may_come_as_anthropics_clients_send_it(fleet: Fleet) -> None:
    """As x-api-key; without one the error has that API's shape."""
    import anthropic

    local, key = fleet.serve_keyed({"law": {}})
    with anthropic_client(str(local.http.base_url), "wrong") as client:
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**one_turn("x"))
        with pytest.raises(anthropic.BadRequestError, match="speaks Anthropic's API"):
            client.with_options(api_key=key).messages.create(**one_turn("x"))


def leaves_after_two_of_its_api(asked: Asked) -> None:
    """As `leaves_after_two`, in the API that it is asked by."""
    if not asked.path.endswith("/messages"):
        leaves_after_two(asked)
        return
    asked.head(200, EVENTS, CHUNKED)
    for text in ("one", "two"):
        event = {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        }
        asked.chunk(
            f"event: content_block_delta\ndata: {json.dumps(event)}\n\n".encode()
        )
    assert asked.was_read.wait(PATIENCE_S)


def test_a_stream_that_breaks_is_an_error_of_the_clients_own_api(fleet: Fleet) -> None:
    """After what came, and never an end that would pass the half off as the whole."""
    import anthropic

    local = fleet.serve({"code": BOTH_APIS})
    expert = fleet.experts["code"]
    expert.part = leaves_after_two_of_its_api
    events: list[str] = []
    with (
        anthropic_client(str(local.http.base_url)) as client,
        pytest.raises(anthropic.APIStatusError, match="broke off"),
    ):
        for event in client.messages.create(**one_turn("x", "code"), stream=True):
            events.append(event.type)
            if len(events) == 2:
                expert.last().was_read.set()
    assert events == ["content_block_delta"] * 2
    with openai_client(local) as other:
        creates: list[tuple[Any, Any]] = [
            (other.responses.create, {"model": "code", "input": "x"}),
            (other.chat.completions.create, chat("code", "x")),
        ]
        for create, body in creates:
            with pytest.raises(openai.APIError, match="broke off"):
                for _ in create(**body, stream=True):
                    expert.last().was_read.set()


# Whose API


UNSPOKEN = {
    "chat/completions": "law",
    "completions": "law",
    "responses": "law",
    "embeddings": "law",
    "messages": "code",
}
"""The domain of which no expert speaks the API of an endpoint."""


def of_any_endpoint(text: str, model: str = "auto", **more: Any) -> Any:
    """A body that each endpoint takes, which asks for the same."""
    return one_turn(text, model, prompt=text, input=text, **more)


@pytest.mark.parametrize(("path", "domain"), UNSPOKEN.items())
@pytest.mark.parametrize("stream", [False, True])
def test_a_domain_that_does_not_speak_the_clients_api_is_refused_by_name(
    apis: Apis, path: str, domain: str, stream: bool
) -> None:
    """Routed or named, in the shape of the client's API, with the way out; no expert hears of
    it.
    """
    before = apis.asked
    names = [domain] if path == "embeddings" else ["auto", domain]
    way_out = ("OpenAI's", "Anthropic's", "LiteLLM", "docs/application/gateway.md")
    for model in names:
        text = prompt_for(domain, DOMAINS)
        body = of_any_endpoint(text, model, stream=stream)
        response = apis.local.post(f"/v1/{path}", body)
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
        error = response.json()["error"] if path == "messages" else complaint(response)
        assert error["type"] == "invalid_request_error"
        if path != "messages":
            assert (error["code"], error["param"]) == ("api_not_spoken", "model")
        for name in (repr(domain), *way_out):
            assert name in error["message"]
        assert not {"x-ridgeway-expert", "x-ridgeway-tried"} & set(response.headers)
    assert apis.asked == before


def test_both_clients_say_that_an_api_is_not_spoken(apis: Apis) -> None:
    """And a count of tokens, which the gateway has not, is told so whatever an expert speaks."""
    import anthropic

    before = apis.asked
    with (
        apis.openai() as client,
        pytest.raises(
            openai.BadRequestError,
            match="no expert for the domain 'law' speaks OpenAI's API",
        ),
    ):
        client.chat.completions.create(**one_turn(LAW, stream=True))
    with apis.anthropic() as other:
        with pytest.raises(
            anthropic.BadRequestError,
            match="the expert 'code' does not speak Anthropic's API",
        ):
            other.messages.create(**one_turn(LAW, "code", stream=True))
        with pytest.raises(anthropic.InternalServerError) as refused:
            other.messages.count_tokens(**chat("code", LAW))
    assert refused.value.status_code == 501
    assert apis.asked == before


def test_another_expert_of_the_domain_answers_who_speaks_the_api(fleet: Fleet) -> None:
    """The worthiest of them, as the headers say; if it fails, the chain goes on with those that
    speak the API.
    """
    law = {"domains": ["law"]}
    local = fleet.serve(
        {
            "large": {**law, "quality": 3.0},
            "small": {**law, **ANTHROPIC},
            "middle": {**law, **ANTHROPIC, "quality": 2.0},
            "code": ANTHROPIC,
            "generalist": BOTH_APIS,
        }
    )
    assert answered_by(local.chat(content=LAW)) == ("large", "best")
    for name, tried in (
        ("middle", "large api"),
        ("small", "large api, middle down"),
        ("generalist", "large api, middle down, small down"),
    ):
        response = local.post("/v1/messages", one_turn(LAW))
        assert answered_by(response) == (name, "api")
        assert response.headers["x-ridgeway-tried"] == tried
        fleet.experts[name].part = fails
    response = local.post("/v1/messages", one_turn(LAW))
    assert response.status_code == 502
    assert "large" not in response.json()["error"]["message"]
    assert len(fleet.experts["large"].asked) == 1 and "code" not in fleet.asked


@pytest.mark.parametrize("path", ["messages", "responses"])
@pytest.mark.parametrize(
    ("fallbacks", "expert"),
    [
        (None, None),
        (["generalist"], None),
        ([], None),
        ([{"expert": "code", "on": ["api"]}], None),
        ([{"expert": "generalist", "on": ["api"]}], "generalist"),
        (
            [
                {"expert": "code", "on": ["api"]},
                "spare",
                {"expert": "generalist", "on": ["down", "api"]},
            ],
            "generalist",
        ),
    ],
)
def test_a_fallback_answers_for_an_api_only_where_the_file_says_so(
    fleet: Fleet, path: str, fallbacks: list[Any] | None, expert: str | None
) -> None:
    """And only one that speaks it, streamed or not; the headers say who should have answered."""
    speaks, other = (ANTHROPIC, {}) if path == "messages" else ({}, ANTHROPIC)
    chain = {} if fallbacks is None else {"fallbacks": fallbacks}
    experts = {"law": {**other, **chain}, "code": other, "spare": speaks}
    local = fleet.serve({**experts, "generalist": BOTH_APIS})
    for stream in (False, True):
        response = local.post(f"/v1/{path}", of_any_endpoint(LAW, stream=stream))
        headers = response.headers
        if expert is None:
            assert response.status_code == 400
            assert "domain 'law'" in response.json()["error"]["message"]
            assert headers["x-ridgeway-domain"] == "law"
        else:
            assert response.status_code == 200
            assert headers["x-ridgeway-expert"] == expert
            assert headers["x-ridgeway-reason"] == "api"
            assert headers["x-ridgeway-tried"] == "law api"
        named = of_any_endpoint(LAW, "law", stream=stream)
        refused = local.post(f"/v1/{path}", named)
        assert refused.status_code == 400, "who names an expert gets no other"
    assert fleet.asked == ({expert} if expert else set())


NOISE = CODE * 4
RESULT = {
    "type": "tool_result",
    "tool_use_id": "x",
    "content": [{"type": "text", "text": NOISE}],
}


def of_user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


TURNS = [{"role": "user", "content": LAW}, {"role": "assistant", "content": "x"}]


def test_no_choice_of_an_api_leads_to_another_domains_expert(fleet: Fleet) -> None:
    """Not by a session or a tool's result that came through the other API, nor for a domain without
    an expert.
    """
    local = fleet.serve({"law": {}, "code": ANTHROPIC, "generalist": {}})
    session = {"x-session-id": "one"}
    first = local.post("/v1/chat/completions", one_turn(LAW), **session)
    assert answered_by(first)[0] == "law"
    law = one_turn(LAW)
    lasts = of_user(RESULT), {"role": "user", "content": SECRET}
    bodies = [law, *({**law, "messages": [*TURNS, last]} for last in lasts)]
    for body in bodies:
        for headers in (session, {"x-session-id": "new"}, {}):
            for stream in (False, True):
                asked = {**body, "stream": stream}
                refused = local.post("/v1/messages", asked, **headers)
                assert refused.status_code == 400
                assert "domain 'law'" in refused.json()["error"]["message"]
    unserved = local.post("/v1/messages", one_turn(BOTH))
    assert unserved.status_code == 400
    assert "domain 'médecine'" in unserved.json()["error"]["message"]
    assert answered_by(local.post("/v1/messages", one_turn(CODE)))[0] == "code"
    assert [len(expert.asked) for expert in fleet.experts.values()] == [1, 1, 0]


@pytest.mark.parametrize("is_of_the_domain", [True, False])
def test_results_of_tools_find_who_speaks_the_api_after_a_restart(
    fleet: Fleet, is_of_the_domain: bool
) -> None:
    """Where it is not known any more who asked for the tool: an expert of the domain, or whom the
    file lets answer.
    """
    law = {"domains": ["law"]}
    fallbacks = {"fallbacks": [{"expert": "other", "on": ["api"]}]}
    other = {**ANTHROPIC, **(law if is_of_the_domain else {})}
    large = {**law, **fallbacks, "quality": 2.0}
    local = fleet.serve({"large": large, "other": other, "generalist": {}})
    body = {**one_turn(LAW), "messages": [*TURNS, of_user(RESULT)]}
    assert answered_by(local.post("/v1/messages", body)) == ("other", "api")
    assert fleet.asked == {"other"}


# Responses


def test_a_response_goes_on_where_the_one_before_it_lies(fleet: Fleet) -> None:
    """At the same expert and the same address, streamed or not, whatever the new text is about."""
    one, two, law = openai_expert("one"), openai_expert("two"), openai_expert("law")
    urls = [f"{fleet.enter_context(running(app))}/v1" for app in (one, two, law)]
    settings = {"law": {"addresses": urls[2:]}, "code": {"addresses": urls[:2]}}
    client = fleet.enter_context(openai_client(fleet.serve(settings)))
    first = client.responses.create(model="auto", input=CODE)
    home, other = (one, two) if one.asked else (two, one)
    assert first.output_text == f"{home.name} answers 1"
    latest = first.id
    for number in range(2, 6):
        request: Any = {
            "model": "auto",
            "input": [{"role": "user", "content": LAW}],
            "previous_response_id": latest,
        }
        if number % 2:
            begin, *_, end = client.responses.create(**request, stream=True)
            assert begin.type == "response.created"
            assert end.type == "response.completed"
            response = end.response
        else:
            raw = client.responses.with_raw_response.create(**request)
            assert raw.headers["x-ridgeway-reason"] == "sticky"
            response = raw.parse()
        assert response.output_text == f"{home.name} answers {number}"
        assert home.last["previous_response_id"] == latest
        latest = response.id
    assert not other.asked and not law.asked
    request = {"model": "auto", "input": LAW}
    assert client.responses.create(**request).output_text == "law answers 1"
    with pytest.raises(openai.NotFoundError, match="there is no resp_elsewhere"):
        client.responses.create(**request, previous_response_id="resp_elsewhere")
    named: Any = {"model": "code", "input": "x", "previous_response_id": first.id}
    assert client.responses.create(**named).output_text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_gone_on_from_with_its_own_key_alone(
    fleet: Fleet, tmp_path: Path, streamed: bool
) -> None:
    """To another key it is not there, whichever expert that one names; nor does a wrong try make it
    another's.
    """
    keys = tmp_path / "keys.toml"
    code, law = openai_expert("code"), openai_expert("law")
    shop, other = (add_key(keys, name)[0] for name in ("shop", "other"))
    local = fleet.serve(
        {
            app.name: {"addresses": [f"{fleet.enter_context(running(app))}/v1"]}
            for app in (code, law)
        },
        rules=AccessRules(KeyRing(keys)),
    )

    def ask(key: str, model: str, before: str | None) -> httpx.Response:
        body = {"model": model, "input": CODE, "previous_response_id": before}
        headers = {"authorization": f"Bearer {key}"}
        return local.post("/v1/responses", {**body, "stream": streamed}, **headers)

    assert ask(shop, "auto", None).status_code == 200
    # that expert does not have it
    assert ask(shop, "law", "resp_code1").status_code >= 400
    asked = len(code.asked), len(law.asked)
    for model in ("auto", "code", "law"):
        refused = ask(other, model, "resp_code1")
        assert refused.status_code == 404
        assert complaint(refused)["code"] == "response_not_found"
    assert (len(code.asked), len(law.asked)) == asked
    again = ask(shop, "auto", "resp_code1")
    assert again.headers["x-ridgeway-expert"] == "code"


@pytest.mark.parametrize("is_kept", [True, False])
def test_whose_a_response_is_outlasts_a_restart(
    release: Path, tmp_path: Path, is_kept: bool
) -> None:
    """Where it is not written down, no key of several goes on from it; an only key does, whatever
    is known.
    """
    keys, law = tmp_path / "keys.toml", openai_expert("law")
    shop = add_key(keys, "shop")[0]
    add_key(keys, "scraper", scope="metrics")
    responses = _responses_file(make_rules("127.0.0.1", keys)) if is_kept else None
    with running(law) as law_url:
        file = write_experts(tmp_path / "experts.toml", {"law": f"{law_url}/v1"}, "law")

        def ask(key: str, **body: Any) -> int:
            """Of a service that has just been started."""
            service = RoutingService(ReleaseSource(release))
            gateway = Gateway(service, ExpertsFile(file), responses=responses)
            rules = AccessRules(KeyRing(keys))
            with running(create_app(service, gateway=gateway, rules=rules)) as url:
                asked = {"model": "auto", "input": LAW, **body}
                headers = {"authorization": f"Bearer {key}"}
                answer = httpx.post(f"{url}/v1/responses", json=asked, headers=headers)
            if answer.status_code == 404:
                assert complaint(answer)["code"] == "response_not_found"
            return answer.status_code

        assert ask(shop) == 200
        assert ask(shop, previous_response_id="resp_law1") == 200
        other = add_key(keys, "other")[0]
        asked = len(law.asked)
        for model in ("auto", "law"):
            assert ask(other, previous_response_id="resp_law1", model=model) == 404
            assert ask(other, conversation={"id": "resp_law1"}, model=model) == 404
        assert ask(shop, previous_response_id="x", conversation="y") == 400
        assert len(law.asked) == asked
        assert ask(shop, previous_response_id="resp_law1") == (200 if is_kept else 404)
    assert (tmp_path / "keys.toml.responses").exists() == is_kept


# What is routed


IMAGE = {"type": "image_url", "image_url": {"url": NOISE}}
PDF = {"type": "document", "source": {"type": "base64", "data": NOISE}}
FILE = {"type": "input_file", "filename": "a", "file_data": NOISE}
OUTPUT = {"type": "function_call_output", "call_id": "x", "output": NOISE}
TEXT = {"type": "text", "text": LAW}
MIXED: dict[str, Any] = {
    "chat/completions": {"messages": [of_user(IMAGE, TEXT, {"x": NOISE, "type": "x"})]},
    "messages": {"max_tokens": 9, "messages": [of_user(PDF, TEXT, RESULT)]},
    "responses": {"input": [of_user(FILE, {**TEXT, "type": "input_text"}), OUTPUT]},
}


@pytest.mark.parametrize("path", MIXED)
def test_only_text_is_routed(apis: Apis, path: str) -> None:
    """Images, files, tools and their results say nothing of where a chat goes, in any of the
    APIs.
    """
    response = apis.local.post(f"/v1/{path}", {"model": "auto", **MIXED[path]})
    assert response.headers["x-ridgeway-domain"] == "law", response.text
    assert response.status_code == (200 if path == "messages" else 400)


# What there is not


def test_what_the_gateway_has_not_is_501(apis: Apis) -> None:
    """Audio, batches, files and the like: a clear sentence, and not a riddle of addresses."""
    import anthropic

    with apis.openai() as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.audio.transcriptions.create(
                model="auto", file=("a.wav", b"RIFF")
            ),
            lambda: client.audio.speech.create(model="auto", voice="alloy", input="x"),
            lambda: client.batches.create(
                input_file_id="x",
                endpoint="/v1/chat/completions",
                completion_window="24h",
            ),
            lambda: client.batches.list(),
            lambda: client.files.create(file=b"x", purpose="batch"),
            lambda: client.images.generate(model="auto", prompt="x"),
            lambda: client.responses.retrieve("resp_1"),
        ]
        for call in calls:
            with pytest.raises(openai.InternalServerError) as caught:
                call()
            assert caught.value.status_code == 501 and "serves" in caught.value.message
    with (
        apis.anthropic() as other,
        pytest.raises(anthropic.InternalServerError) as refused,
    ):
        other.messages.batches.list()
    assert refused.value.status_code == 501 and "serves" in refused.value.message


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_can_be_asked_for_by_head(apis: Apis, path: str) -> None:
    """As some load balancers do: the status and no body."""
    response = httpx.head(f"{apis.url}{path}", trust_env=False)
    assert (response.status_code, response.content) == (200, b"")
