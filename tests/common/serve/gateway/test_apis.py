"""OpenAI's and Anthropic's official clients before the gateway, and small real servers of both APIs behind it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.http.access_rules import AccessRules, make_rules
from ridgeway.common.http.api_keys import KeyRing, add_key
from ridgeway.common.http.http_errors import Problem
from ridgeway.common.serve.gateway.chat_as_messages import ChatEvents, message_request
from ridgeway.common.serve.gateway.gateway import Gateway
from ridgeway.common.serve.gateway.messages_as_chat import MessageEvents, chat_request
from ridgeway.common.serve.gateway.sse import event_data
from ridgeway.common.serve.http_app import create_app
from ridgeway.common.serve.routing.current_release import ReleaseSource
from ridgeway.common.serve.routing.routing_service import RoutingService
from ridgeway.common.serve.serve_command import _responses_file
from tests.common.serve.gateway.api_experts import ARGUMENTS, ApiExpert, anthropic_expert, openai_expert
from tests.support.fake_expert import Expert, complains, leaves_after_two
from tests.support.in_process import DOMAINS, Local, running, served
from tests.support.serving import complaint, prompt_for, write_experts

if TYPE_CHECKING:
    import anthropic  # takes more than a second, so tests import it that use it, and whoever collects them does not

CODE, LAW = (prompt_for(domain, DOMAINS) for domain in ("code", "law"))
IMAGE = "iVBORw0KGgo="
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
OPENAI_TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}
ANTHROPIC_TOOL: Any = {"name": "weather", "description": "d", "input_schema": WEATHER}
ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


class Apis:
    """The service before an expert of each API: `code` speaks OpenAI's, `law` Anthropic's."""

    def __init__(self, local: Local, code: ApiExpert, law: ApiExpert) -> None:
        self.local, self.code, self.law = local, code, law
        self.url = str(local.http.base_url)

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        import anthropic

        return anthropic.Anthropic(base_url=self.url, **{"api_key": "none", "max_retries": 0, **options})


@pytest.fixture(scope="module")
def apis(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apis]:
    code, law = openai_expert("code"), anthropic_expert("law")
    with running(code) as code_url, running(law) as law_url:
        file = tmp_path_factory.mktemp("apis") / "experts.toml"
        file.write_text(
            f'fallback = "code"\n[experts.code]\nbase_url = "{code_url}/v1"\nmodel = "code-model"\n'
            f'[experts.law]\nbase_url = "{law_url}/v1"\nmodel = "law-model"\napi = "anthropic"\n'
        )
        with served(release, file) as local:
            yield Apis(local, code, law)


# OpenAI's client


def test_choices_log_probabilities_and_structured_output_pass(apis: Apis) -> None:
    """As the client asked for them, where the expert speaks the client's own API."""
    with apis.openai() as client:
        form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}
        told = client.chat.completions.create(
            model="code", messages=[{"role": "user", "content": "x"}], n=2, logprobs=True, response_format=form
        )
    assert [choice.message.content for choice in told.choices] == ['{"answer": 42}'] * 2
    assert told.choices[1].logprobs and told.choices[1].logprobs.content
    assert apis.code.last["response_format"] == form and apis.code.last["model"] == "code-model"


@pytest.mark.parametrize(("model", "prompt"), [("code", CODE), ("law", LAW)])
@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_client_talks_to_experts_of_either_api(apis: Apis, model: str, prompt: str, stream: bool) -> None:
    """Routed or named, streamed or not, with the tokens that were used."""
    with apis.openai() as client:
        for asked in ("auto", model):
            request: Any = {"model": asked, "messages": [{"role": "user", "content": prompt}]}
            if not stream:
                whole = client.chat.completions.create(**request)
                said, usage, reason = whole.choices[0].message.content, whole.usage, whole.choices[0].finish_reason
            else:
                options: Any = {"include_usage": True}
                chunks = list(client.chat.completions.create(**request, stream=True, stream_options=options))
                deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
                said, usage = "".join(deltas), chunks[-1].usage
                reason = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
            assert said is not None and said.replace(" ", "") == f"{model}heard{prompt}"
            assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (7, 3)
            assert reason == "stop"


@pytest.mark.parametrize("model", ["code", "law"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_client_uses_tools_with_either_api(apis: Apis, model: str, stream: bool) -> None:
    """The call comes back with its arguments, and the tool's result goes on to the expert."""
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "weather?"}]
    with apis.openai() as client:
        request: Any = {"model": model, "messages": messages, "tools": [OPENAI_TOOL], "tool_choice": "required"}
        if stream:
            name, written, call_id = "", "", ""
            for chunk in client.chat.completions.create(**request, stream=True):
                for part in chunk.choices[0].delta.tool_calls or ():
                    call_id, name = call_id or part.id or "", name or (part.function and part.function.name) or ""
                    written += (part.function and part.function.arguments) or ""
        else:
            told = client.chat.completions.create(**request).choices[0]
            assert told.finish_reason == "tool_calls"
            (call,) = told.message.tool_calls or []
            assert call.type == "function"
            name, written, call_id = call.function.name, call.function.arguments, call.id
        assert (name, json.loads(written)) == ("weather", json.loads(ARGUMENTS))
        asked = {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}
        messages += [
            {"role": "assistant", "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": call_id, "content": "rain"},
        ]
        done = client.chat.completions.create(model=model, messages=messages, tools=[OPENAI_TOOL])
        assert done.choices[0].finish_reason == "stop"
    if model == "law":
        sent = apis.law.last
        assert sent["system"] == "Be brief."
        assert sent["tools"] == [ANTHROPIC_TOOL]
        assert sent["messages"][1]["content"] == [
            {"type": "tool_use", "id": call_id, "name": "weather", "input": json.loads(ARGUMENTS)}
        ]
        assert sent["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": call_id, "content": "rain"}]


def test_structured_output_images_and_files_reach_an_expert_of_anthropics_api(apis: Apis) -> None:
    """A schema becomes its output_config, an image and a file their blocks, and the key goes where that API has it."""
    parts: Any = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{IMAGE}"}},
    ]
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}
    with apis.openai() as client:
        messages: Any = [{"role": "user", "content": parts}]
        told = client.chat.completions.create(
            model="law", messages=messages, response_format=form, temperature=0.5, stop="END", n=1, max_tokens=9
        )
    assert told.choices[0].message.content == '{"answer": 42}'
    path, headers, sent = apis.law.asked[-1]
    assert (path, headers["anthropic-version"], sent["model"]) == ("/v1/messages", "2023-06-01", "law-model")
    assert (sent["temperature"], sent["stop_sequences"], sent["max_tokens"]) == (0.5, ["END"], 9)
    assert sent["output_config"] == {"format": {"type": "json_schema", "schema": ANSWER}}
    assert [block["type"] for block in sent["messages"][0]["content"]] == ["text", "image", "image", "document"]
    assert sent["messages"][0]["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": IMAGE}
    assert "n" not in sent


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 1}, "seed"),
        ({"temperature": 1.5}, "temperature"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages.0.content.0.type",
        ),
    ],
)
def test_what_anthropics_api_cannot_say_is_refused_and_named(apis: Apis, fields: dict[str, Any], param: str) -> None:
    """In one sentence of the client's own API; the expert is not asked, and nothing is left out in silence."""
    before = len(apis.law.asked)
    request: Any = {"model": "law", "messages": [{"role": "user", "content": "x"}], **fields}
    with apis.openai() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**request)
    assert caught.value.param == param and param in caught.value.message
    assert len(apis.law.asked) == before


@pytest.mark.parametrize("endpoint", ["completions", "embeddings", "responses"])
def test_an_endpoint_that_anthropics_api_has_not_is_refused(apis: Apis, endpoint: str) -> None:
    """With the expert's name in the hands of the client."""
    body = {"model": "law", "prompt": "x", "input": "x"}
    response = apis.local.post(f"/v1/{endpoint}", body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "not_translatable"


@pytest.fixture
def lenient(apis: Apis, release: Path, tmp_path: Path) -> Callable[[str], contextlib.AbstractContextManager[Local]]:
    """The same experts; what becomes of a request that the API of `law` has no place for is the test's to say."""

    @contextlib.contextmanager
    def play(untranslatable: str) -> Iterator[Local]:
        file = tmp_path / "experts.toml"
        text = apis.local.file.read_text() + f'untranslatable = "{untranslatable}"\nfallbacks = ["code"]\n'
        file.write_text(text)
        with served(release, file) as local:
            yield local

    return play


def test_what_cannot_be_translated_is_dropped_where_the_file_says_so(apis: Apis, lenient: Any) -> None:
    """The answer names what was left out; what cannot be left out is refused as ever."""
    with lenient("drop") as local:
        fields: Any = {"seed": 1, "n": 2, "response_format": {"type": "json_object"}, "temperature": 1.5}
        answered = local.chat("auto", LAW, **fields)
        assert answered.status_code == 200 and answered.headers["x-ridgeway-expert"] == "law"
        assert answered.headers["x-ridgeway-dropped"] == "seed, n, response_format, temperature"
        assert not set(fields) & set(apis.law.last)
        assert "x-ridgeway-dropped" not in local.chat("auto", LAW).headers
        audio = [{"role": "user", "content": [{"type": "input_audio"}, {"type": "text", "text": LAW}]}]
        refused = local.post("/v1/chat/completions", {"model": "auto", "messages": audio})
        assert complaint(refused)["code"] == "not_translatable"
        assert complaint(local.post("/v1/completions", {"model": "law", "prompt": "x"}))["code"] == "not_translatable"


def test_the_next_expert_is_asked_where_the_file_says_so(apis: Apis, lenient: Any) -> None:
    """Where the router chose; whoever names the expert is refused."""
    with lenient("next") as local:
        answered = local.chat("auto", LAW, seed=1)
        assert answered.status_code == 200 and apis.code.last["seed"] == 1
        assert answered.headers["x-ridgeway-expert"] == "code"
        assert answered.headers["x-ridgeway-reason"] == "untranslatable"
        assert answered.headers["x-ridgeway-tried"] == "law untranslatable"
        told = local.post("/v1/responses", {"model": "auto", "input": LAW})
        assert told.status_code == 200 and told.headers["x-ridgeway-expert"] == "code"
        assert complaint(local.chat("law", LAW, seed=1))["code"] == "not_translatable"
        assert local.chat("auto", LAW).headers["x-ridgeway-expert"] == "law"


# Anthropic's client


@pytest.mark.parametrize(("model", "prompt"), [("code", CODE), ("law", LAW)])
@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_client_talks_to_experts_of_either_api(apis: Apis, model: str, prompt: str, stream: bool) -> None:
    """Routed or named, streamed or not, with the tokens that were used."""
    with apis.anthropic() as client:
        for asked in ("auto", model):
            request: Any = {"model": asked, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}]}
            if stream:
                with client.messages.stream(**request) as events:
                    texts = "".join(events.text_stream)
                    told = events.get_final_message()
            else:
                told = client.messages.create(**request)
                texts = "".join(block.text for block in told.content if block.type == "text")
            assert texts.replace(" ", "") == f"{model}heard{prompt}"
            assert (told.stop_reason, told.role, told.type) == ("end_turn", "assistant", "message")
            assert (told.usage.input_tokens, told.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize("model", ["code", "law"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_client_uses_tools_with_either_api(apis: Apis, model: str, stream: bool) -> None:
    """The call comes back with its input, and the tool's result goes on to the expert."""
    messages: Any = [{"role": "user", "content": "weather?"}]
    request: Any = {"model": model, "max_tokens": 50, "system": "Be brief.", "tools": [ANTHROPIC_TOOL]}
    with apis.anthropic() as client:
        chosen: Any = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        if stream:
            with client.messages.stream(**request, **chosen, messages=messages) as events:
                told = events.get_final_message()
        else:
            told = client.messages.create(**request, **chosen, messages=messages)
        assert told.stop_reason == "tool_use"
        (call,) = (block for block in told.content if block.type == "tool_use")
        assert (call.name, call.input) == ("weather", json.loads(ARGUMENTS))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in told.content]},
            {"role": "user", "content": [result, {"type": "text", "text": "and now?"}]},
        ]
        assert client.messages.create(**request, messages=messages).stop_reason == "end_turn"
    if model == "code":
        roles = [message["role"] for message in apis.code.last["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "user"]
        assert apis.code.last["messages"][3] == {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        assert apis.code.last["tools"] == [OPENAI_TOOL]


def test_images_and_documents_reach_an_expert_of_openais_api(apis: Apis) -> None:
    """As parts of the message; a text of a document as text."""
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    content: Any = [
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "document", "title": "a.pdf", "source": {**source, "media_type": "application/pdf"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        {"type": "text", "text": "what?", "cache_control": {"type": "ephemeral"}},
    ]
    with apis.anthropic() as client:
        client.messages.create(model="code", max_tokens=9, messages=[{"role": "user", "content": content}])
    parts = apis.code.last["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "file", "text", "text"]
    assert parts[0]["image_url"]["url"] == f"data:image/png;base64,{IMAGE}"
    assert parts[2]["file"] == {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{IMAGE}"}
    assert "cache_control" not in json.dumps(apis.code.last)


def test_between_a_client_and_an_expert_of_anthropics_api_everything_passes(apis: Apis) -> None:
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


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url"}}]}]}, "source.type"),
    ],
)
def test_what_openais_api_cannot_say_is_refused_and_named(apis: Apis, fields: dict[str, Any], named: str) -> None:
    """In Anthropic's shape of an error; the expert is not asked."""
    before = len(apis.code.asked)
    body = {"model": "code", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **fields}
    response = apis.local.post("/v1/messages", body)
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert named in response.json()["error"]["message"]
    assert len(apis.code.asked) == before


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "nobody", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}, 404, "not_found_error"),
        ({"model": "code", "messages": [{"role": "user", "content": "x"}]}, 400, "invalid_request_error"),
        ({"model": "code", "max_tokens": 9, "messages": []}, 400, "invalid_request_error"),
        (
            {"model": "code", "max_tokens": 9, "messages": [{"role": "user"}], "x": "y" * 5_000_000},
            413,
            "request_too_large",
        ),
    ],
)
def test_an_anthropic_client_gets_its_own_errors(apis: Apis, body: Any, status: int, kind: str) -> None:
    """Whether the gateway, the guard or the check of the body refuses."""
    response = apis.local.post("/v1/messages", body)
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert set(response.json()) == {"type", "error"} and set(response.json()["error"]) == {"type", "message"}


def test_a_mistake_that_an_expert_finds_is_told_in_the_clients_own_shape(release: Path, tmp_path: Path) -> None:
    """With the expert's words and status."""
    import anthropic

    with Expert(complains(422, "top_k is wrong")) as expert:
        file = tmp_path / "experts.toml"
        file.write_text(f'fallback = "code"\n[experts.code]\nbase_url = "{expert.url}"\nmodel = "m"\n')
        with (
            served(release, file) as local,
            anthropic.Anthropic(base_url=str(local.http.base_url), api_key="none", max_retries=0) as client,
        ):
            with pytest.raises(anthropic.UnprocessableEntityError) as caught:
                client.messages.create(model="code", max_tokens=1, messages=[{"role": "user", "content": "x"}])
            assert "top_k is wrong" in caught.value.message


def test_a_key_may_come_as_anthropics_clients_send_it(release: Path, tmp_path: Path) -> None:
    """As x-api-key; without one the error has that API's shape."""
    import anthropic

    key, _ = add_key(tmp_path / "keys.toml", "shop")
    service = RoutingService(ReleaseSource(release), watch_s=0)
    app = create_app(service, rules=AccessRules(keys=KeyRing(tmp_path / "keys.toml")))
    with running(app) as url:
        message: Any = {"model": "auto", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        with anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.create(**message)
            with pytest.raises(anthropic.NotFoundError, match="no experts are configured"):
                client.with_options(api_key=key).messages.create(**message)


def test_a_stream_that_breaks_is_an_error_of_the_clients_own_api(release: Path, tmp_path: Path) -> None:
    """After what came, and never an end that would pass the half off as the whole."""
    import anthropic

    with Expert(leaves_after_two) as expert:
        file = tmp_path / "experts.toml"
        file.write_text(f'fallback = "code"\n[experts.code]\nbase_url = "{expert.url}"\nmodel = "m"\n')
        with served(release, file) as local:
            url, heard = str(local.http.base_url), []
            message: Any = {"model": "code", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
            client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
            other = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            with client, pytest.raises(anthropic.APIStatusError, match="broke off"):
                for event in client.messages.create(**message, stream=True):
                    heard.append(event.type)
                    if heard.count("content_block_delta") == 2:
                        expert.last().was_read.set()
            assert heard.count("content_block_delta") == 2 and "message_stop" not in heard
            with other, pytest.raises(openai.APIError, match="broke off"):
                for _ in other.responses.create(model="code", input="x", stream=True):
                    expert.last().was_read.set()


# Responses


def test_a_response_goes_on_where_the_one_before_it_lies(release: Path, tmp_path: Path) -> None:
    """At the same expert and the same address, streamed or not, whatever the new text is about."""
    one, two, law = openai_expert("one"), openai_expert("two"), openai_expert("law")
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(running(app)) for app in (one, two, law)]
        file = tmp_path / "experts.toml"
        file.write_text(
            f'fallback = "code"\n[experts.code]\naddresses = ["{urls[0]}/v1", "{urls[1]}/v1"]\nmodel = "m"\n'
            f'[experts.law]\nbase_url = "{urls[2]}/v1"\nmodel = "m"\n'
        )
        local = stack.enter_context(served(release, file))
        client = stack.enter_context(openai.OpenAI(base_url=f"{local.http.base_url}/v1", api_key="x", max_retries=0))
        first = client.responses.create(model="auto", input=CODE)
        home = one if one.asked else two
        other = two if one.asked else one
        assert first.output_text == f"{home.name} answers 1"
        latest = first.id
        for number in range(2, 6):
            text: Any = [{"role": "user", "content": [{"type": "input_text", "text": LAW}]}]
            if number % 2:
                events = list(
                    client.responses.create(model="auto", input=text, previous_response_id=latest, stream=True)
                )
                assert events[0].type == "response.created" and events[-1].type == "response.completed"
                assert events[-1].response.output_text == f"{home.name} answers {number}"
                latest = events[-1].response.id
            else:
                told = client.responses.with_raw_response.create(model="auto", input=text, previous_response_id=latest)
                assert told.headers["x-ridgeway-reason"] == "sticky"
                assert told.parse().output_text == f"{home.name} answers {number}"
                latest = told.parse().id
            assert home.last["previous_response_id"] and home.last["model"] == "m"
        assert not other.asked and not law.asked
        assert client.responses.create(model="auto", input=LAW).output_text == "law answers 1"
        with pytest.raises(openai.NotFoundError, match="there is no resp_elsewhere"):
            client.responses.create(model="auto", input=LAW, previous_response_id="resp_elsewhere")
        assert client.responses.create(model="code", input="x", previous_response_id=first.id).output_text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_gone_on_from_with_its_own_key_alone(release: Path, tmp_path: Path, streamed: bool) -> None:
    """To another key it is not there, whichever expert that one names; nor does a wrong try make it another's."""
    keys, code, law = tmp_path / "keys.toml", openai_expert("code"), openai_expert("law")
    shop, other = (add_key(keys, name)[0] for name in ("shop", "other"))
    with running(code) as code_url, running(law) as law_url:
        file = write_experts(tmp_path / "experts.toml", {"code": f"{code_url}/v1", "law": f"{law_url}/v1"}, "law")
        service = RoutingService(ReleaseSource(release))
        app = create_app(service, gateway=Gateway(service, file), rules=AccessRules(KeyRing(keys)))
        with running(app) as url, httpx.Client(base_url=url, verify=False) as http:

            def ask(key: str, model: str, before: str | None) -> httpx.Response:
                body = {"model": model, "input": CODE, "stream": streamed, "previous_response_id": before}
                return http.post("/v1/responses", json=body, headers={"authorization": f"Bearer {key}"})

            assert ask(shop, "auto", None).status_code == 200
            assert ask(shop, "law", "resp_code1").status_code >= 400  # that expert does not have it
            asked = len(code.asked) + len(law.asked)
            for model in ("auto", "code", "law"):
                refused = ask(other, model, "resp_code1")
                assert refused.status_code == 404 and complaint(refused)["code"] == "response_not_found"
            assert len(code.asked) + len(law.asked) == asked
            assert ask(shop, "auto", "resp_code1").headers["x-ridgeway-expert"] == "code"


@pytest.mark.parametrize("is_kept", [True, False])
def test_whose_a_response_is_outlasts_a_restart(release: Path, tmp_path: Path, is_kept: bool) -> None:
    """Where it is not written down, no key of several goes on from it; an only key does, whatever is known."""
    keys, law, both = tmp_path / "keys.toml", openai_expert("law"), {"previous_response_id": "x", "conversation": "y"}
    shop = add_key(keys, "shop")[0]
    add_key(keys, "scraper", scope="metrics")
    responses = _responses_file(make_rules("127.0.0.1", keys)) if is_kept else None
    with running(law) as law_url:
        file = write_experts(tmp_path / "experts.toml", {"law": f"{law_url}/v1"}, "law")

        def ask(key: str, **body: Any) -> int:
            """Of a service that has just been started."""
            service = RoutingService(ReleaseSource(release))
            gateway = Gateway(service, file, responses=responses)
            with running(create_app(service, gateway=gateway, rules=AccessRules(KeyRing(keys)))) as url:
                headers = {"authorization": f"Bearer {key}"}
                answer = httpx.post(
                    f"{url}/v1/responses", json={"model": "auto", "input": LAW, **body}, headers=headers
                )
                assert answer.status_code != 404 or complaint(answer)["code"] == "response_not_found"
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
    """Images, files, tools and their results say nothing of where a chat goes, in any of the APIs."""
    noise, text = CODE * 4, {"type": "text", "text": LAW}
    image = {"type": "image_url", "image_url": {"url": noise}}
    file = {"type": "input_file", "filename": "a", "file_data": noise}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": noise}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": noise}]}
    bodies: dict[str, Any] = {
        "chat/completions": {"messages": [{"role": "user", "content": [image, text, {"type": "x", "x": noise}]}]},
        "messages": {"max_tokens": 9, "messages": [{"role": "user", "content": [pdf, text, result]}]},
        "responses": {
            "input": [
                {"role": "user", "content": [file, {"type": "input_text", "text": LAW}]},
                {"type": "function_call_output", "call_id": "x", "output": noise},
            ]
        },
    }
    for path, body in bodies.items():
        response = apis.local.post(f"/v1/{path}", {"model": "auto", **body})
        told = response.headers.get("x-ridgeway-domain") or response.json()["error"]["code"]
        assert told == ("law" if path == "messages" else "not_translatable"), (path, response.text)


# What there is not


def test_what_the_gateway_has_not_is_501(apis: Apis) -> None:
    """Audio, batches, files and the like: a clear sentence, and not a riddle of addresses."""
    import anthropic

    with apis.openai() as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.audio.transcriptions.create(model="auto", file=("a.wav", b"RIFF")),
            lambda: client.audio.speech.create(model="auto", voice="alloy", input="x"),
            lambda: client.batches.create(input_file_id="x", endpoint="/v1/chat/completions", completion_window="24h"),
            lambda: client.batches.list(),
            lambda: client.files.create(file=b"x", purpose="batch"),
            lambda: client.images.generate(model="auto", prompt="x"),
            lambda: client.responses.retrieve("resp_1"),
        ]
        for call in calls:
            with pytest.raises(openai.InternalServerError) as caught:
                call()
            assert caught.value.status_code == 501 and "serves" in caught.value.message
    with apis.anthropic() as other, pytest.raises(anthropic.InternalServerError) as refused:
        other.messages.batches.list()
    assert refused.value.status_code == 501 and "serves" in refused.value.message


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_can_be_asked_for_by_head(apis: Apis, path: str) -> None:
    """As some load balancers do: the status and no body."""
    response = httpx.head(f"{apis.url}{path}", trust_env=False)
    assert (response.status_code, response.content) == (200, b"")


# Laws of the translation

words = st.text("abc ü\n", min_size=1, max_size=5)
turns = st.lists(st.tuples(words, words), min_size=1, max_size=4)


@given(turns=turns, last=words, system=st.none() | words, stop=st.lists(words, max_size=2), calls=st.booleans())
def test_a_chat_that_is_turned_and_turned_back_says_the_same(
    turns: list[tuple[str, str]], last: str, system: str | None, stop: list[str], calls: bool
) -> None:
    """What Anthropic's API can say survives the way through OpenAI's: texts, tools, their calls and results."""
    messages: list[Any] = []
    for place, (asked, answered) in enumerate(turns):
        messages.append({"role": "user", "content": [{"type": "text", "text": asked}]})
        blocks: list[Any] = [{"type": "text", "text": answered}]
        if calls:
            call = {"type": "tool_use", "id": f"t{place}", "name": "weather", "input": {"at": place}}
            result = {"type": "tool_result", "tool_use_id": f"t{place}", "content": answered}
            messages += [
                {"role": "assistant", "content": [*blocks, call]},
                {"role": "user", "content": [result]},
            ]
        messages.append({"role": "assistant", "content": blocks})
    messages.append({"role": "user", "content": [{"type": "text", "text": last}]})
    request: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": messages, "stop_sequences": stop}
    request |= {"system": system} if system else {}
    request |= {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "any"}} if calls else {}
    assert message_request(chat_request(request)) == request


@given(cuts=st.lists(st.integers(0, 60), max_size=6), tool=st.booleans())
def test_a_stream_is_turned_alike_however_its_events_come_together(cuts: list[int], tool: bool) -> None:
    """Event by event or many at once, and a stream that is turned and turned back says the same."""
    deltas: list[Any] = [{"role": "assistant", "content": ""}, {"content": "one "}, {"content": "two"}]
    if tool:
        first = {"index": 0, "id": "c", "type": "function", "function": {"name": "weather", "arguments": ""}}
        deltas += [{"tool_calls": [first]}, {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}]
    frame = {"id": "msg_1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if tool else "stop"}]})
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    places = sorted({min(cut, len(events)) for cut in cuts} | {0, len(events)})
    whole, parts = MessageEvents(), MessageEvents()
    turned = whole.feed(b"".join(events)) + whole.finish()
    pieces = [b"".join(events[start:end]) for start, end in pairwise(places)]
    assert b"".join(map(parts.feed, pieces)) + parts.finish() == turned
    back = ChatEvents(with_usage=False)
    told = list(event_data(back.feed(turned) + back.finish()))
    said = [chunk["choices"][0] for chunk in told]
    assert "".join(each["delta"].get("content") or "" for each in said) == "one two"
    assert said[-1]["finish_reason"] == ("tool_calls" if tool else "stop")
    calls = [call for each in said for call in each["delta"].get("tool_calls") or ()]
    assert "".join(call["function"].get("arguments") or "" for call in calls) == ("{}" if tool else "")


@pytest.mark.parametrize("request_of", [chat_request, message_request])
def test_no_body_of_a_client_makes_the_translation_fail_otherwise_than_by_a_sentence(
    request_of: Callable[[Any], Any],
) -> None:
    """Whatever stands in the fields that only the expert would read."""
    odd: list[Any] = [None, 7, "x", [], [7], [None], {}, {"type": "x"}, {"type": "function"}, [{"type": "text"}]]
    names = ["tools", "tool_choice", "system", "stop", "stop_sequences", "metadata", "output_config", "thinking"]
    names += ["response_format", "parallel_tool_calls", "user", "temperature", "stream_options"]
    contents: list[Any] = [
        "x", None, [], [{"type": "image"}], [{"type": "image_url"}], [{"type": "image_url", "image_url": {"url": 7}}],
        [{"type": "file"}], [{"type": "tool_result"}], [{"type": "tool_use"}], [{"type": "document", "source": 7}],
        [{"type": "tool_result", "content": 7}], [{"type": "tool_result", "content": [7]}],
    ]  # fmt: skip
    calls: list[Any] = [[7], [{}], [{"function": 7}], 7]
    bodies = [{name: value} for name in names for value in odd]
    bodies += [{"messages": [{"role": role, "content": each}]} for each in contents for role in ("user", "assistant")]
    bodies += [{"messages": [{"role": "assistant", "tool_calls": each}]} for each in calls]
    for body in bodies:
        with contextlib.suppress(Problem):
            request_of({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], **body})
