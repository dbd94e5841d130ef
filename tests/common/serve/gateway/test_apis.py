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

from ridgeway.common.http.access_rules import AccessRules, make_rules
from ridgeway.common.http.api_keys import KeyRing, add_key
from ridgeway.common.serve.gateway.gateway import Gateway
from ridgeway.common.serve.http_app import create_app
from ridgeway.common.serve.routing.current_release import ReleaseSource
from ridgeway.common.serve.routing.routing_service import RoutingService
from ridgeway.common.serve.serve_command import _responses_file
from tests.common.serve.gateway.api_experts import (
    ARGUMENTS,
    ApiExpert,
    anthropic_expert,
    expert_of_both,
    openai_expert,
)
from tests.common.serve.gateway.test_fleet import fleet_toml
from tests.support.fake_expert import (
    CHUNKED,
    EVENTS,
    PATIENCE_S,
    Asked,
    Expert,
    complains,
    fails,
    leaves_after_two,
    well,
)
from tests.support.in_process import DOMAINS, Local, answered_by, running, served
from tests.support.serving import SECRET, complaint, prompt_for, write_experts

if TYPE_CHECKING:
    # takes more than a second, so tests import it that use it, and whoever collects them does not
    import anthropic

CODE, LAW, BOTH = (prompt_for(domain, DOMAINS) for domain in DOMAINS)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
OPENAI_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": WEATHER},
}
ANTHROPIC_TOOL: Any = {"name": "weather", "description": "d", "input_schema": WEATHER}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
}


class Apis:
    """The service before three experts: `code` speaks OpenAI's API, `law` Anthropic's, `both`
    both.
    """

    def __init__(
        self, local: Local, code: ApiExpert, law: ApiExpert, both: ApiExpert
    ) -> None:
        self.local, self.code, self.law, self.both = local, code, law, both
        self.url = str(local.http.base_url)

    @property
    def asked(self) -> int:
        return sum(len(each.asked) for each in (self.code, self.law, self.both))

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            **{"api_key": "none", "max_retries": 0, **options},
        )

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        import anthropic

        return anthropic.Anthropic(
            base_url=self.url, **{"api_key": "none", "max_retries": 0, **options}
        )


@pytest.fixture(scope="module")
def apis(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apis]:
    code, law, both = (
        openai_expert("code"),
        anthropic_expert("law"),
        expert_of_both("both"),
    )
    folder = tmp_path_factory.mktemp("apis")
    with running(code) as code_url, running(law) as law_url, running(both) as both_url:
        file = folder / "experts.toml"
        (folder / "both.key").write_text("sk-both")
        file.write_text(
            f'fallback = "code"\n[experts.code]\nbase_url = "{code_url}/v1"\nmodel = "code-model"\n'
            f'[experts.law]\nbase_url = "{law_url}/v1"\nmodel = "law-model"\napis = ["anthropic"]\n'
            f'[experts.both]\nbase_url = "{both_url}/v1"\nmodel = "both-model"\n'
            'apis = ["openai", "anthropic"]\ndomains = ["médecine"]\napi_key_file = "both.key"\n'
        )
        with served(release, file) as local:
            yield Apis(local, code, law, both)


# OpenAI's client


def test_choices_log_probabilities_and_structured_output_pass(apis: Apis) -> None:
    """As the client asked for them, where the expert speaks the client's own API."""
    with apis.openai() as client:
        form: Any = {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": ANSWER},
        }
        told = client.chat.completions.create(
            model="code",
            messages=[{"role": "user", "content": "x"}],
            n=2,
            logprobs=True,
            response_format=form,
        )
    assert [choice.message.content for choice in told.choices] == ['{"answer": 42}'] * 2
    assert told.choices[1].logprobs and told.choices[1].logprobs.content
    assert (
        apis.code.last["response_format"] == form
        and apis.code.last["model"] == "code-model"
    )


@pytest.mark.parametrize(("model", "prompt"), [("code", CODE), ("both", BOTH)])
@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_client_talks_to_experts_of_its_api(
    apis: Apis, model: str, prompt: str, stream: bool
) -> None:
    """Routed or named, streamed or not, with the tokens that were used."""
    with apis.openai() as client:
        for asked in ("auto", model):
            request: Any = {
                "model": asked,
                "messages": [{"role": "user", "content": prompt}],
            }
            if not stream:
                whole = client.chat.completions.create(**request)
                said, usage, reason = (
                    whole.choices[0].message.content,
                    whole.usage,
                    whole.choices[0].finish_reason,
                )
            else:
                options: Any = {"include_usage": True}
                chunks = list(
                    client.chat.completions.create(
                        **request, stream=True, stream_options=options
                    )
                )
                deltas = [
                    chunk.choices[0].delta.content or ""
                    for chunk in chunks
                    if chunk.choices
                ]
                said, usage = "".join(deltas), chunks[-1].usage
                reason = [
                    chunk.choices[0].finish_reason for chunk in chunks if chunk.choices
                ][-1]
            assert said is not None and said.replace(" ", "") == f"{model}heard{prompt}"
            assert usage is not None and (
                usage.prompt_tokens,
                usage.completion_tokens,
            ) == (7, 3)
            assert reason == "stop"


@pytest.mark.parametrize("model", ["code", "both"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_client_uses_tools(apis: Apis, model: str, stream: bool) -> None:
    """The call comes back with its arguments, and the tool's result goes on to the expert."""
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "weather?"},
    ]
    with apis.openai() as client:
        request: Any = {
            "model": model,
            "messages": messages,
            "tools": [OPENAI_TOOL],
            "tool_choice": "required",
        }
        if stream:
            name, written, call_id = "", "", ""
            for chunk in client.chat.completions.create(**request, stream=True):
                for part in chunk.choices[0].delta.tool_calls or ():
                    call_id, name = (
                        call_id or part.id or "",
                        name or (part.function and part.function.name) or "",
                    )
                    written += (part.function and part.function.arguments) or ""
        else:
            told = client.chat.completions.create(**request).choices[0]
            assert told.finish_reason == "tool_calls"
            (call,) = told.message.tool_calls or []
            assert call.type == "function"
            name, written, call_id = (
                call.function.name,
                call.function.arguments,
                call.id,
            )
        assert (name, json.loads(written)) == ("weather", json.loads(ARGUMENTS))
        asked = {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": written},
        }
        messages += [
            {"role": "assistant", "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": call_id, "content": "rain"},
        ]
        done = client.chat.completions.create(
            model=model, messages=messages, tools=[OPENAI_TOOL]
        )
        assert done.choices[0].finish_reason == "stop"
    assert {"code": apis.code, "both": apis.both}[model].last["messages"] == messages


# Anthropic's client


@pytest.mark.parametrize(("model", "prompt"), [("law", LAW), ("both", BOTH)])
@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_client_talks_to_experts_of_its_api(
    apis: Apis, model: str, prompt: str, stream: bool
) -> None:
    """Routed or named, streamed or not, with the tokens that were used."""
    with apis.anthropic() as client:
        for asked in ("auto", model):
            request: Any = {
                "model": asked,
                "max_tokens": 50,
                "messages": [{"role": "user", "content": prompt}],
            }
            if stream:
                with client.messages.stream(**request) as events:
                    texts = "".join(events.text_stream)
                    told = events.get_final_message()
            else:
                told = client.messages.create(**request)
                texts = "".join(
                    block.text for block in told.content if block.type == "text"
                )
            assert texts.replace(" ", "") == f"{model}heard{prompt}"
            assert (told.stop_reason, told.role, told.type) == (
                "end_turn",
                "assistant",
                "message",
            )
            assert (told.usage.input_tokens, told.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize("model", ["law", "both"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_client_uses_tools(apis: Apis, model: str, stream: bool) -> None:
    """The call comes back with its input, and the tool's result goes on to the expert."""
    messages: Any = [{"role": "user", "content": "weather?"}]
    request: Any = {
        "model": model,
        "max_tokens": 50,
        "system": "Be brief.",
        "tools": [ANTHROPIC_TOOL],
    }
    with apis.anthropic() as client:
        chosen: Any = {
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}
        }
        if stream:
            with client.messages.stream(
                **request, **chosen, messages=messages
            ) as events:
                told = events.get_final_message()
        else:
            told = client.messages.create(**request, **chosen, messages=messages)
        assert told.stop_reason == "tool_use"
        (call,) = (block for block in told.content if block.type == "tool_use")
        assert (call.name, call.input) == ("weather", json.loads(ARGUMENTS))
        result = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [{"type": "text", "text": "rain"}],
        }
        messages += [
            {
                "role": "assistant",
                "content": [block.model_dump() for block in told.content],
            },
            {"role": "user", "content": [result, {"type": "text", "text": "and now?"}]},
        ]
        assert (
            client.messages.create(**request, messages=messages).stop_reason
            == "end_turn"
        )
    assert {"law": apis.law, "both": apis.both}[model].last["messages"] == messages


def test_between_a_client_and_an_expert_of_anthropics_api_everything_passes(
    apis: Apis,
) -> None:
    """Also what the gateway does not know."""
    body = {
        "model": "law",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "enabled", "budget_tokens": 5},
        "of tomorrow": [1, None],
    }
    assert apis.local.post("/v1/messages", body).status_code == 200
    assert apis.law.last == {**body, "model": "law-model"}


def test_a_key_goes_to_an_expert_as_the_api_that_it_is_asked_by_has_it(
    apis: Apis,
) -> None:
    """As a bearer's or as x-api-key, and with a version where that API wants one."""
    body = {
        "model": "both",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
    }
    assert apis.local.post("/v1/chat/completions", body).status_code == 200
    path, headers, _ = apis.both.asked[-1]
    assert (path, headers["authorization"]) == (
        "/v1/chat/completions",
        "Bearer sk-both",
    )
    assert not {"x-api-key", "anthropic-version"} & set(headers)
    assert apis.local.post("/v1/messages", body).status_code == 200
    path, headers, _ = apis.both.asked[-1]
    assert (path, headers["x-api-key"], headers["anthropic-version"]) == (
        "/v1/messages",
        "sk-both",
        "2023-06-01",
    )
    assert "authorization" not in headers


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (
            {
                "model": "nobody",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "x"}],
            },
            404,
            "not_found_error",
        ),
        (
            {"model": "law", "messages": [{"role": "user", "content": "x"}]},
            400,
            "invalid_request_error",
        ),
        (
            {"model": "law", "max_tokens": 9, "messages": []},
            400,
            "invalid_request_error",
        ),
        (
            {
                "model": "law",
                "max_tokens": 9,
                "messages": [{"role": "user"}],
                "x": "y" * 5_000_000,
            },
            413,
            "request_too_large",
        ),
    ],
)
def test_an_anthropic_client_gets_its_own_errors(
    apis: Apis, body: Any, status: int, kind: str
) -> None:
    """Whether the gateway, the guard or the check of the body refuses."""
    response = apis.local.post("/v1/messages", body)
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert set(response.json()) == {"type", "error"} and set(
        response.json()["error"]
    ) == {"type", "message"}


def test_an_anthropic_client_is_told_a_mistake_that_an_expert_finds(
    release: Path, tmp_path: Path
) -> None:
    """With the expert's words and status."""
    import anthropic

    with Expert(complains(422, "top_k is wrong")) as expert:
        file = tmp_path / "experts.toml"
        file.write_text(one_expert(expert.url))
        with (
            served(release, file) as local,
            anthropic.Anthropic(
                base_url=str(local.http.base_url), api_key="none", max_retries=0
            ) as client,
        ):
            with pytest.raises(anthropic.UnprocessableEntityError) as caught:
                client.messages.create(
                    model="code",
                    max_tokens=1,
                    messages=[{"role": "user", "content": "x"}],
                )
            assert "top_k is wrong" in caught.value.message


def test_a_key_may_come_as_anthropics_clients_send_it(
    release: Path, tmp_path: Path
) -> None:
    """As x-api-key; without one the error has that API's shape."""
    import anthropic

    key, _ = add_key(tmp_path / "keys.toml", "shop")
    service = RoutingService(ReleaseSource(release), watch_s=0)
    app = create_app(service, rules=AccessRules(keys=KeyRing(tmp_path / "keys.toml")))
    with running(app) as url:
        message: Any = {
            "model": "auto",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "x"}],
        }
        with anthropic.Anthropic(
            base_url=url, api_key="wrong", max_retries=0
        ) as client:
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.create(**message)
            with pytest.raises(
                anthropic.NotFoundError, match="no experts are configured"
            ):
                client.with_options(api_key=key).messages.create(**message)


def one_expert(url: str) -> str:
    """A file of experts whose only one speaks both APIs."""
    apis = 'apis = ["openai", "anthropic"]'
    return (
        f'fallback = "code"\n[experts.code]\nbase_url = "{url}"\nmodel = "m"\n{apis}\n'
    )


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


def test_a_stream_that_breaks_is_an_error_of_the_clients_own_api(
    release: Path, tmp_path: Path
) -> None:
    """After what came, and never an end that would pass the half off as the whole."""
    import anthropic

    with Expert(leaves_after_two_of_its_api) as expert:
        file = tmp_path / "experts.toml"
        file.write_text(one_expert(expert.url))
        with served(release, file) as local:
            url, heard = str(local.http.base_url), []
            message: Any = {
                "model": "code",
                "max_tokens": 1,
                "messages": [{"role": "user", "content": "x"}],
            }
            client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
            other = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            with client, pytest.raises(anthropic.APIStatusError, match="broke off"):
                for event in client.messages.create(**message, stream=True):
                    heard.append(event.type)
                    if heard.count("content_block_delta") == 2:
                        expert.last().was_read.set()
            assert (
                heard.count("content_block_delta") == 2 and "message_stop" not in heard
            )
            with other, pytest.raises(openai.APIError, match="broke off"):
                for _ in other.responses.create(model="code", input="x", stream=True):
                    expert.last().was_read.set()


# Whose API


def one_turn(text: str, **more: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [{"role": "user", "content": text}], **more}


UNSPOKEN = [
    ("chat/completions", one_turn(LAW), "law"),
    ("completions", {"prompt": LAW}, "law"),
    ("responses", {"input": LAW}, "law"),
    ("embeddings", {"input": LAW}, "law"),
    ("messages", one_turn(CODE), "code"),
]


@pytest.mark.parametrize(
    ("path", "body", "domain"), UNSPOKEN, ids=[path for path, *_ in UNSPOKEN]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_domain_that_does_not_speak_the_clients_api_is_refused_by_name(
    apis: Apis, path: str, body: dict[str, Any], domain: str, stream: bool
) -> None:
    """Routed or named, in the shape of the client's API, with the way out; no expert hears of
    it.
    """
    before = apis.asked
    for model in [domain] if path == "embeddings" else ["auto", domain]:
        response = apis.local.post(
            f"/v1/{path}", {"model": model, "stream": stream, **body}
        )
        assert (
            response.status_code == 400
            and response.headers["content-type"] == "application/json"
        )
        error = response.json()["error"] if path == "messages" else complaint(response)
        assert error["type"] == "invalid_request_error"
        assert path == "messages" or (error["code"], error["param"]) == (
            "api_not_spoken",
            "model",
        )
        names = (
            repr(domain),
            "OpenAI's",
            "Anthropic's",
            "LiteLLM",
            "docs/application/gateway.md",
        )
        assert all(name in error["message"] for name in names), error["message"]
        assert not {"x-ridgeway-expert", "x-ridgeway-tried"} & set(response.headers)
    assert apis.asked == before


def test_both_clients_say_that_an_api_is_not_spoken(apis: Apis) -> None:
    """And a count of tokens, which the gateway has not, is told so whatever an expert speaks."""
    import anthropic

    before, turn = apis.asked, one_turn(LAW)
    with apis.openai() as client:
        for stream in (False, True):
            with pytest.raises(
                openai.BadRequestError,
                match="no expert for the domain 'law' speaks OpenAI's API",
            ):
                client.chat.completions.create(model="auto", stream=stream, **turn)
    with apis.anthropic() as other:
        for stream in (False, True):
            with pytest.raises(
                anthropic.BadRequestError,
                match="the expert 'code' does not speak Anthropic's API",
            ):
                other.messages.create(model="code", stream=stream, **turn)
        with pytest.raises(anthropic.InternalServerError) as refused:
            other.messages.count_tokens(model="code", messages=turn["messages"])
    assert refused.value.status_code == 501
    assert apis.asked == before


class Shop(contextlib.ExitStack):
    """The service before experts by their settings; an expert without an answer of its own gives
    its name.
    """

    def __init__(self, release: Path, folder: Path) -> None:
        super().__init__()
        self.release, self.folder, self.experts = release, folder, dict[str, Expert]()

    def serve(
        self, settings: dict[str, dict[str, Any]], fallback: str = "generalist"
    ) -> Local:
        self.experts = {
            name: self.enter_context(Expert(well(name))) for name in settings
        }
        full = {
            name: {"base_url": self.experts[name].url, **each}
            for name, each in settings.items()
        }
        file = self.folder / "experts.toml"
        file.write_text(fleet_toml(full, f'fallback = "{fallback}"'))
        return self.enter_context(served(self.release, file))

    @property
    def asked(self) -> set[str]:
        return {name for name, each in self.experts.items() if each.asked}


@pytest.fixture
def shop(release: Path, tmp_path: Path) -> Iterator[Shop]:
    with Shop(release, tmp_path) as made:
        yield made


ANTHROPIC, BOTH_APIS = {"apis": ["anthropic"]}, {"apis": ["openai", "anthropic"]}


def test_another_expert_of_the_domain_answers_who_speaks_the_api(shop: Shop) -> None:
    """The worthiest of them, as the headers say; if it fails, the chain goes on with those that
    speak the API.
    """
    law = {"domains": ["law"]}
    local = shop.serve(
        {
            "large": {**law, "quality": 3.0},
            "small": {**law, **ANTHROPIC},
            "middle": {**law, **ANTHROPIC, "quality": 2.0},
            "code": ANTHROPIC,
            "generalist": BOTH_APIS,
        }
    )
    assert answered_by(local.chat(content=LAW)) == ("large", "best")
    response = local.post("/v1/messages", {"model": "auto", **one_turn(LAW)})
    assert (
        answered_by(response) == ("middle", "api")
        and response.headers["x-ridgeway-tried"] == "large api"
    )
    shop.experts["middle"].part = fails
    for name, tried in (
        ("small", "middle down"),
        ("generalist", "middle down, small down"),
    ):
        response = local.post("/v1/messages", {"model": "auto", **one_turn(LAW)})
        assert answered_by(response) == (name, "api")
        assert response.headers["x-ridgeway-tried"] == f"large api, {tried}"
        shop.experts["small"].part = fails
    shop.experts["generalist"].part = fails
    response = local.post("/v1/messages", {"model": "auto", **one_turn(LAW)})
    assert (
        response.status_code == 502
        and "large" not in response.json()["error"]["message"]
    )
    assert len(shop.experts["large"].asked) == 1 and "code" not in shop.asked


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
    shop: Shop, fallbacks: list[Any] | None, expert: str | None
) -> None:
    """And only one that speaks it; the headers say who should have answered."""
    own = {} if fallbacks is None else {"fallbacks": fallbacks}
    local = shop.serve(
        {"law": own, "code": {}, "spare": ANTHROPIC, "generalist": BOTH_APIS}
    )
    for stream in (False, True):
        response = local.post(
            "/v1/messages", {"model": "auto", **one_turn(LAW, stream=stream)}
        )
        if expert is None:
            assert (
                response.status_code == 400
                and "domain 'law'" in response.json()["error"]["message"]
            )
            assert response.headers["x-ridgeway-domain"] == "law"
        else:
            told = [
                response.headers[f"x-ridgeway-{name}"]
                for name in ("expert", "reason", "tried")
            ]
            assert told == [expert, "api", "law api"]
        refused = local.post(
            "/v1/messages", {"model": "law", **one_turn(LAW, stream=stream)}
        )
        assert refused.status_code == 400, "who names an expert gets no other"
    assert shop.asked == ({expert} if expert else set())


def test_no_choice_of_an_api_leads_to_another_domains_expert(shop: Shop) -> None:
    """Not by a session or a tool's result that came through the other API, nor for a domain without
    an expert.
    """
    local = shop.serve({"law": {}, "code": ANTHROPIC, "generalist": {}})
    session = {"x-session-id": "one"}
    assert (
        answered_by(
            local.post(
                "/v1/chat/completions", {"model": "auto", **one_turn(LAW)}, **session
            )
        )[0]
        == "law"
    )
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "x", "content": CODE}],
    }
    turns = [{"role": "user", "content": LAW}, {"role": "assistant", "content": "x"}]
    neither = {"role": "user", "content": SECRET}
    bodies = [
        one_turn(LAW),
        one_turn(LAW, messages=[*turns, result]),
        one_turn(LAW, messages=[*turns, neither]),
    ]
    for body in bodies:
        for headers in (session, {"x-session-id": "new"}, {}):
            for stream in (False, True):
                refused = local.post(
                    "/v1/messages",
                    {"model": "auto", **body, "stream": stream},
                    **headers,
                )
                assert (
                    refused.status_code == 400
                    and "domain 'law'" in refused.json()["error"]["message"]
                )
    unserved = local.post("/v1/messages", {"model": "auto", **one_turn(BOTH)})
    assert (
        unserved.status_code == 400
        and "domain 'médecine'" in unserved.json()["error"]["message"]
    )
    assert (
        answered_by(local.post("/v1/messages", {"model": "auto", **one_turn(CODE)}))[0]
        == "code"
    )
    assert len(shop.experts["law"].asked) == 1 and len(shop.experts["code"].asked) == 1
    assert not shop.experts["generalist"].asked


@pytest.mark.parametrize("is_of_the_domain", [True, False])
def test_results_of_tools_find_who_speaks_the_api_after_a_restart(
    shop: Shop, is_of_the_domain: bool
) -> None:
    """Where it is not known any more who asked for the tool: an expert of the domain, or whom the
    file lets answer.
    """
    large = {
        "domains": ["law"],
        "quality": 2.0,
        "fallbacks": [{"expert": "other", "on": ["api"]}],
    }
    other = {**ANTHROPIC, **({"domains": ["law"]} if is_of_the_domain else {})}
    local = shop.serve({"large": large, "other": other, "generalist": {}})
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "x", "content": "rain"}],
    }
    turns = [
        {"role": "user", "content": LAW},
        {"role": "assistant", "content": "x"},
        result,
    ]
    assert answered_by(
        local.post("/v1/messages", {"model": "auto", **one_turn(LAW, messages=turns)})
    ) == (
        "other",
        "api",
    )
    assert shop.asked == {"other"}


# Responses


def test_a_response_goes_on_where_the_one_before_it_lies(
    release: Path, tmp_path: Path
) -> None:
    """At the same expert and the same address, streamed or not, whatever the new text is about."""
    one, two, law = openai_expert("one"), openai_expert("two"), openai_expert("law")
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(running(app)) for app in (one, two, law)]
        file = tmp_path / "experts.toml"
        file.write_text(
            f'fallback = "code"\n[experts.code]\nmodel = "m"\n'
            f'addresses = ["{urls[0]}/v1", "{urls[1]}/v1"]\n'
            f'[experts.law]\nbase_url = "{urls[2]}/v1"\nmodel = "m"\n'
        )
        local = stack.enter_context(served(release, file))
        client = stack.enter_context(
            openai.OpenAI(
                base_url=f"{local.http.base_url}/v1", api_key="x", max_retries=0
            )
        )
        first = client.responses.create(model="auto", input=CODE)
        home = one if one.asked else two
        other = two if one.asked else one
        assert first.output_text == f"{home.name} answers 1"
        latest = first.id
        for number in range(2, 6):
            text: Any = [
                {"role": "user", "content": [{"type": "input_text", "text": LAW}]}
            ]
            if number % 2:
                events = list(
                    client.responses.create(
                        model="auto",
                        input=text,
                        previous_response_id=latest,
                        stream=True,
                    )
                )
                assert (
                    events[0].type == "response.created"
                    and events[-1].type == "response.completed"
                )
                assert (
                    events[-1].response.output_text == f"{home.name} answers {number}"
                )
                latest = events[-1].response.id
            else:
                told = client.responses.with_raw_response.create(
                    model="auto", input=text, previous_response_id=latest
                )
                assert told.headers["x-ridgeway-reason"] == "sticky"
                assert told.parse().output_text == f"{home.name} answers {number}"
                latest = told.parse().id
            assert home.last["previous_response_id"] and home.last["model"] == "m"
        assert not other.asked and not law.asked
        assert (
            client.responses.create(model="auto", input=LAW).output_text
            == "law answers 1"
        )
        with pytest.raises(openai.NotFoundError, match="there is no resp_elsewhere"):
            client.responses.create(
                model="auto", input=LAW, previous_response_id="resp_elsewhere"
            )
        assert client.responses.create(
            model="code", input="x", previous_response_id=first.id
        ).output_text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_gone_on_from_with_its_own_key_alone(
    release: Path, tmp_path: Path, streamed: bool
) -> None:
    """To another key it is not there, whichever expert that one names; nor does a wrong try make it
    another's.
    """
    keys, code, law = (
        tmp_path / "keys.toml",
        openai_expert("code"),
        openai_expert("law"),
    )
    shop, other = (add_key(keys, name)[0] for name in ("shop", "other"))
    with running(code) as code_url, running(law) as law_url:
        file = write_experts(
            tmp_path / "experts.toml",
            {"code": f"{code_url}/v1", "law": f"{law_url}/v1"},
            "law",
        )
        service = RoutingService(ReleaseSource(release))
        app = create_app(
            service, gateway=Gateway(service, file), rules=AccessRules(KeyRing(keys))
        )
        with running(app) as url, httpx.Client(base_url=url, verify=False) as http:

            def ask(key: str, model: str, before: str | None) -> httpx.Response:
                body = {
                    "model": model,
                    "input": CODE,
                    "stream": streamed,
                    "previous_response_id": before,
                }
                return http.post(
                    "/v1/responses",
                    json=body,
                    headers={"authorization": f"Bearer {key}"},
                )

            assert ask(shop, "auto", None).status_code == 200
            assert (
                ask(shop, "law", "resp_code1").status_code >= 400
            )  # that expert does not have it
            asked = len(code.asked) + len(law.asked)
            for model in ("auto", "code", "law"):
                refused = ask(other, model, "resp_code1")
                assert (
                    refused.status_code == 404
                    and complaint(refused)["code"] == "response_not_found"
                )
            assert len(code.asked) + len(law.asked) == asked
            assert (
                ask(shop, "auto", "resp_code1").headers["x-ridgeway-expert"] == "code"
            )


@pytest.mark.parametrize("is_kept", [True, False])
def test_whose_a_response_is_outlasts_a_restart(
    release: Path, tmp_path: Path, is_kept: bool
) -> None:
    """Where it is not written down, no key of several goes on from it; an only key does, whatever
    is known.
    """
    keys, law, both = (
        tmp_path / "keys.toml",
        openai_expert("law"),
        {"previous_response_id": "x", "conversation": "y"},
    )
    shop = add_key(keys, "shop")[0]
    add_key(keys, "scraper", scope="metrics")
    responses = _responses_file(make_rules("127.0.0.1", keys)) if is_kept else None
    with running(law) as law_url:
        file = write_experts(tmp_path / "experts.toml", {"law": f"{law_url}/v1"}, "law")

        def ask(key: str, **body: Any) -> int:
            """Of a service that has just been started."""
            service = RoutingService(ReleaseSource(release))
            gateway = Gateway(service, file, responses=responses)
            with running(
                create_app(service, gateway=gateway, rules=AccessRules(KeyRing(keys)))
            ) as url:
                headers = {"authorization": f"Bearer {key}"}
                answer = httpx.post(
                    f"{url}/v1/responses",
                    json={"model": "auto", "input": LAW, **body},
                    headers=headers,
                )
                assert (
                    answer.status_code != 404
                    or complaint(answer)["code"] == "response_not_found"
                )
                return answer.status_code

        assert ask(shop) == 200
        assert ask(shop, previous_response_id="resp_law1") == 200
        other = add_key(keys, "other")[0]
        asked = len(law.asked)
        for model in ("auto", "law"):
            assert ask(other, previous_response_id="resp_law1", model=model) == 404
            assert ask(other, conversation={"id": "resp_law1"}, model=model) == 404
        assert ask(shop, **both) == 400
        assert len(law.asked) == asked
        assert ask(shop, previous_response_id="resp_law1") == (200 if is_kept else 404)
    assert (tmp_path / "keys.toml.responses").exists() == is_kept


# What is routed


def test_only_text_is_routed(apis: Apis) -> None:
    """Images, files, tools and their results say nothing of where a chat goes, in any of the
    APIs.
    """
    noise, text = CODE * 4, {"type": "text", "text": LAW}
    image = {"type": "image_url", "image_url": {"url": noise}}
    file = {"type": "input_file", "filename": "a", "file_data": noise}
    pdf = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": noise},
    }
    result = {
        "type": "tool_result",
        "tool_use_id": "x",
        "content": [{"type": "text", "text": noise}],
    }
    bodies: dict[str, Any] = {
        "chat/completions": {
            "messages": [
                {"role": "user", "content": [image, text, {"type": "x", "x": noise}]}
            ]
        },
        "messages": {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [pdf, text, result]}],
        },
        "responses": {
            "input": [
                {
                    "role": "user",
                    "content": [file, {"type": "input_text", "text": LAW}],
                },
                {"type": "function_call_output", "call_id": "x", "output": noise},
            ]
        },
    }
    for path, body in bodies.items():
        response = apis.local.post(f"/v1/{path}", {"model": "auto", **body})
        assert response.headers["x-ridgeway-domain"] == "law", (path, response.text)
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
