"""The gateway on real sockets: who is asked, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import pytest

from ridgeway.common.routing.experts_file import Expert as NamedExpert
from ridgeway.common.routing.quality import SCORE_UNIT, QualityTable, save_quality
from ridgeway.common.web.http_errors import Problem
from ridgeway.serving.expert_client import expert_fields
from ridgeway.serving.expert_link import Endpoint
from tests.support.fake_expert import Asked, wait_for
from tests.support.in_process import (
    DOMAINS,
    EVERYONE,
    Fleet,
    Local,
    answered_by,
    everyone,
    sent,
    served,
)
from tests.support.serving import complaint, prompt_for

CODE = prompt_for("code", DOMAINS)

# Who is asked


def test_auto_goes_to_the_expert_of_the_domain_ahead(local: Local) -> None:
    """And the headers say what the router decided, with which release, and who answered."""
    for domain in DOMAINS:
        prompt = prompt_for(domain, DOMAINS)
        response = local.chat(content=prompt)
        decision = local.post("/v1/route", {"prompt": prompt}).json()
        assert answered_by(response) == (domain, "best")
        assert (decision["best"], decision["expert"]) == (domain, domain)
        assert unquote(response.headers["x-ridgeway-domain"]) == domain
        assert response.headers["x-ridgeway-release"] == decision["release"]
        assert float(response.headers["x-ridgeway-confidence"]) == pytest.approx(
            decision["confidence"], abs=1e-4
        )


def test_measured_experts_are_chosen_by_their_quality(
    fleet: Fleet, tmp_path: Path
) -> None:
    """By a table beside the file: whatever experts are called, with what is expected of each; a new
    table is taken.
    """
    scores = {"large": (90, 20, 50), "small": (10, 80, 60)}

    def write(scores: Mapping[str, tuple[int, ...]]) -> None:
        sums = np.array(list(scores.values()), dtype=np.int64).T * SCORE_UNIT
        save_quality(
            QualityTable(DOMAINS, tuple(scores), sums, np.full(sums.shape, 100)),
            tmp_path / "quality.json",
        )

    write(scores)
    experts: dict[str, Any] = {"large": {}, "small": {}, "other": {}}
    local = fleet.serve(experts, "", table="quality.json")
    for domain, expert in zip(DOMAINS, ("large", "small", "small"), strict=True):
        prompt = prompt_for(domain, DOMAINS)
        chosen = (expert, "quality")
        assert answered_by(local.chat(content=prompt)) == chosen
        decision = local.post("/v1/route", {"prompt": prompt}).json()
        assert (decision["expert"], decision["expert_reason"]) == chosen
        assert 0.4 < decision["expert_quality"] < 0.95
    worths = local.http.get("/v1/worths").json()
    assert worths["experts"] == ["large", "small"]
    assert worths["domains"] == list(DOMAINS)
    chances = [decision["scores"][domain] for domain in DOMAINS]
    worth = np.array(chances) @ np.array(worths["quality"])
    assert worth.argmax() == 1
    assert worth.max() == pytest.approx(decision["expert_quality"])
    assert local.gateway is not None
    assert "other: no scores; asked only by name" in local.gateway.notes()
    write({name: figures[::-1] for name, figures in scores.items()})
    wait_for(
        lambda: answered_by(local.chat(content=CODE))[0] == "small",
        "the new table is in use",
    )
    assert "other" not in fleet.asked


def test_a_name_forces_its_expert(local: Local, fleet: Fleet) -> None:
    """A domain's or any other expert's; its headers are plain ASCII whatever it is called.

    A name of nobody is not found, at any endpoint, and nobody is asked.
    """
    body = {**ANY, "model": "gpt-5"}
    for path in ("chat/completions", "completions", "embeddings"):
        unknown = local.post(f"/v1/{path}", body)
        assert unknown.status_code == 404
        assert complaint(unknown)["code"] == "model_not_found"
        assert complaint(unknown)["param"] == "model"
    assert not local.asked
    for number, name in enumerate(EVERYONE, start=1):
        response = local.chat(name)
        assert answered_by(response) == (name, "forced")
        assert all(value.isascii() for value in response.headers.values())
        assert "x-ridgeway-confidence" not in response.headers
        assert fleet.asked == set(EVERYONE[:number])


def test_cost_can_outweigh_probability(fleet: Fleet) -> None:
    """With a weight on cost, a cheaper expert is asked than that of the domain ahead."""
    local = fleet.serve(everyone(cost=1.0), mu=1.0)
    cheap = next(name for name in DOMAINS if name != local.ahead)
    fleet.write({**everyone(cost=1.0), cheap: {"cost": 0.0}}, "generalist", mu=1.0)
    wait_for(
        lambda: local.chat().headers["x-ridgeway-reason"] == "cost",
        "the file is read again",
    )
    response = local.chat()
    assert answered_by(response) == (cheap, "cost")
    assert unquote(response.headers["x-ridgeway-domain"]) == local.ahead


def test_models_lists_auto_then_domains_then_others(local: Local) -> None:
    """In the shape of OpenAI's list; each can be looked up."""
    listed = local.http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [
        "auto",
        *DOMAINS,
        "generalist",
    ]
    assert local.http.get("/v1/models/law").json() == listed["data"][2]
    unknown = complaint(local.http.get("/v1/models/nobody"))
    assert unknown["code"] == "model_not_found"


def test_an_alias_is_another_name_of_an_expert_or_of_auto(fleet: Fleet) -> None:
    """For clients that have a model's name written down; it is listed beside the others."""
    local = fleet.serve(everyone(), aliases={"gpt-4o": "auto", "small": "law"})
    assert answered_by(local.chat("gpt-4o")) == (local.ahead, "best")
    assert answered_by(local.chat("small")) == ("law", "forced")
    listed = local.http.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed][-2:] == ["gpt-4o", "small"]


def test_an_expert_gets_what_its_file_adds_to_each_request(fleet: Fleet) -> None:
    """Headers, parameters of the address and fields of the body, over the client's own; not what
    the gateway sets.
    """
    headers = {"x-team": "shop", "anthropic-beta": "a,b"}
    body = {"reasoning_effort": "low", "options": {"deep": [1, 2]}}
    law = {"headers": headers, "query": {"api-version": "2024-10-21"}, "body": body}
    local = fleet.serve({"law": law, "generalist": {}})
    asked = asked_law(local)
    assert asked.path == "/v1/chat/completions?api-version=2024-10-21"
    assert headers.items() <= asked.headers.items()
    assert body.items() <= asked.json.items()
    local.chat("generalist")
    assert "x-team" not in local.experts["generalist"].last().headers


def asked_law(local: Local) -> Asked:
    assert local.chat("law", reasoning_effort="high").status_code == 200
    return local.experts["law"].asked[-1]


def test_a_key_in_a_file_is_read_again_when_it_changes(
    fleet: Fleet, tmp_path: Path
) -> None:
    """So that it can be replaced without a restart; an empty file leaves the old key in use."""
    key = tmp_path / "expert.key"
    key.write_text("sk-one\n")
    local = fleet.serve(everyone(api_key_file="expert.key"))
    assert asked_law(local).headers["authorization"] == "Bearer sk-one"
    key.write_text("sk-two\n")
    wait_for(
        lambda: asked_law(local).headers["authorization"] == "Bearer sk-two",
        "the key is read again",
    )
    key.write_text("")
    sleep(0.2)
    assert asked_law(local).headers["authorization"] == "Bearer sk-two"


def test_without_experts_nothing_is_passed_on(release: Path) -> None:
    """The list is empty and a request is told why; routing goes on."""
    with served(release) as local:
        assert local.http.get("/v1/models").json() == {"object": "list", "data": []}
        for path in ("chat/completions", "completions", "embeddings"):
            response = local.post(f"/v1/{path}", {"model": "auto"})
            assert response.status_code == 404
            assert "no experts are configured" in complaint(response)["message"]
        assert "expert" not in local.post("/v1/route", {"prompt": "hello"}).json()


# What is asked


def test_every_field_is_passed_on_but_the_model(local: Local) -> None:
    """Fields that the gateway does not know reach the expert as they were."""
    fields: dict[str, Any] = {
        "temperature": 0.1,
        "n": "two",
        "tools": [{"x": [None, True, 1e-9, 2**70]}],
        "größe": {"ä": "\u2028"},
    }
    assert local.chat("law", **fields).status_code == 200
    messages = [{"role": "user", "content": "hello"}]
    assert sent(local.experts["law"]) == {
        "model": "law-model",
        "messages": messages,
        **fields,
    }


def test_the_experts_key_is_sent_and_the_clients_is_not(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks has no key of the expert's, and the expert gets none of the service's."""
    monkeypatch.setenv("LAW_KEY", "sk-law")
    key = {"api_key_env": "LAW_KEY"}
    local = fleet.serve({"law": key, "generalist": {}})
    sent = {"authorization": "Bearer of-the-client", "cookie": "a=b", "x-own": "1"}
    for name in ("law", "generalist"):
        body = {**CHAT, "model": name}
        assert local.post("/v1/chat/completions", body, **sent).status_code == 200
    keyed, keyless = fleet.experts.values()
    assert keyed.last().headers["authorization"] == "Bearer sk-law"
    assert "authorization" not in keyless.last().headers
    assert not {"cookie", "x-own"} & set(keyless.last().headers)


CHAT = {"model": "law", "messages": [{"role": "user", "content": "hello"}]}
ANY = {**CHAT, "prompt": "hello", "input": "hello"}
"""Each endpoint takes it."""
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


def limits_of(
    endpoint: Endpoint, body: Mapping[str, Any], granted: int | None = 60
) -> dict[str, Any]:
    """The limits in what an expert that grants so many tokens is asked."""
    entry = NamedExpert(base_url="http://127.0.0.1/v1", model="m", max_tokens=granted)
    asked = expert_fields(endpoint, entry, body)
    return {name: value for name, value in asked.items() if name in LIMITS}


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_an_expert_grants_are_cut(field: str) -> None:
    """A smaller wish stays; whatever else a field of this name holds is cut too, since an expert
    may understand it.
    """
    odd = (9, 10**30, -1, 0, "5", 9.0, True)
    for wish, limit in ((1, 1), (8, 8), *((wish, 8) for wish in odd)):
        body = {**CHAT, field: wish}
        assert limits_of("/chat/completions", body, 8) == {field: limit}


@pytest.mark.parametrize(
    ("endpoint", "fields", "limits"),
    [
        ("/chat/completions", {}, {"max_tokens": 60}),
        ("/chat/completions", {"max_tokens": None}, {"max_tokens": 60}),
        (
            "/chat/completions",
            {"max_completion_tokens": 5},
            {"max_completion_tokens": 5},
        ),
        (
            "/chat/completions",
            {"max_output_tokens": 5},
            {"max_tokens": 60, "max_output_tokens": 5},
        ),
        (
            "/chat/completions",
            {"n_predict": -1},
            {"max_tokens": 60, "n_predict": 60},
        ),
        ("/chat/completions", {"n": None, "best_of": None}, {"max_tokens": 60}),
        ("/chat/completions", {"n": 7}, {"max_tokens": 8}),
        (
            "/chat/completions",
            {"n": 7, "max_completion_tokens": 60},
            {"max_completion_tokens": 8},
        ),
        (
            "/chat/completions",
            {"n": 60, "n_predict": 60},
            {"max_tokens": 1, "n_predict": 1},
        ),
        ("/chat/completions", {"n": 2, "best_of": 4}, {"max_tokens": 15}),
        ("/completions", {}, {"max_tokens": 60}),
        (
            "/completions",
            {"max_completion_tokens": 9},
            {"max_tokens": 60, "max_completion_tokens": 9},
        ),
        (
            "/completions",
            {"best_of": 3, "max_tokens": 50},
            {"max_tokens": 20},
        ),
        (
            "/completions",
            {"n": 6, "best_of": 3, "max_tokens": 9},
            {"max_tokens": 9},
        ),
        (
            "/completions",
            {"prompt": ["a", "b", "c"], "n": 2},
            {"max_tokens": 10},
        ),
        ("/completions", {"prompt": [1, 2, 3]}, {"max_tokens": 60}),
        ("/completions", {"prompt": [[1, 2], [3]]}, {"max_tokens": 30}),
        ("/responses", {}, {"max_output_tokens": 60}),
        (
            "/responses",
            {"max_output_tokens": 61},
            {"max_output_tokens": 60},
        ),
        (
            "/responses",
            {"max_tokens": 9},
            {"max_output_tokens": 60, "max_tokens": 9},
        ),
        ("/responses", {"n": 3}, {"max_output_tokens": 20}),
        ("/messages", {"max_tokens": 61}, {"max_tokens": 60}),
        ("/messages", {"max_tokens": 59}, {"max_tokens": 59}),
    ],
)
def test_all_answers_to_a_request_together_have_no_more_tokens_than_granted(
    endpoint: Endpoint, fields: dict[str, Any], limits: dict[str, int]
) -> None:
    """Also if it names no number, or names one by a field that its endpoint does not know."""
    assert limits_of(endpoint, {**ANY, **fields}) == limits


@pytest.mark.parametrize(
    "endpoint", ["/chat/completions", "/completions", "/responses", "/messages"]
)
@pytest.mark.parametrize("name", ["n", "best_of"])
def test_more_answers_than_tokens_and_no_sensible_number_of_them_are_refused(
    endpoint: Endpoint, name: str
) -> None:
    """An expert may understand what is not a number; without a bound everything passes as it
    came.
    """
    for count in (61, 10**30, 0, -1, "2", 2.0, True, [2]):
        with pytest.raises(Problem) as refused:
            limits_of(endpoint, {**ANY, name: count})
        is_many = type(count) is int and count > 60
        code, param = ("too_many_answers", "n") if is_many else ("invalid_value", name)
        assert (refused.value.status, refused.value.code, refused.value.param) == (
            400,
            code,
            param,
        )
    assert limits_of(endpoint, {**ANY, name: "2"}, None) == {}


def test_the_limits_of_an_expert_hold_in_what_it_is_sent(fleet: Fleet) -> None:
    """A chat that asks for more gets what is granted; vectors have no number of tokens."""
    local = fleet.serve(everyone(max_tokens=60))
    local.chat("law", max_tokens=61)
    assert sent(local.experts["law"])["max_tokens"] == 60
    local.post("/v1/embeddings", {"model": "law", "input": ["a"] * 100})
    assert not set(sent(local.experts["law"])) & set(LIMITS)


def test_completions_are_routed_by_their_prompts(local: Local) -> None:
    """One text, or several that count alike; token ids only go where they are told to."""

    def complete(model: str, prompt: Any) -> httpx.Response:
        return local.post("/v1/completions", {"model": model, "prompt": prompt})

    for prompt in ("hello", ["hello"], ["hello"] * 100):
        response = complete("auto", prompt)
        assert answered_by(response) == (local.ahead, "best")
        assert local.chosen.last().path == "/v1/completions"
    for ids in ([1, 2], [[1, 2], [3]]):
        refused = complete("auto", ids)
        assert (refused.status_code, complaint(refused)["param"]) == (400, "prompt")
        assert complete("law", ids).status_code == 200
        assert sent(local.experts["law"])["prompt"] == ids


def test_embeddings_go_to_the_model_that_makes_them(fleet: Fleet) -> None:
    """Under a name of its own if it has one; for `auto` the one that the file names, whatever the
    text, or none.
    """
    local = fleet.serve(everyone(embedding_model="vectors"))
    asked: Any = {"model": "auto", "input": ["hello", "hello"]}
    refused = local.post("/v1/embeddings", asked)
    assert refused.status_code == 400
    assert complaint(refused)["code"] == "no_embeddings"
    assert not local.asked
    local = fleet.serve(everyone(embedding_model="vectors"), embeddings="law")
    for given in ("hello", ["hello", "hello"], [1, 2, 3]):
        body = {"model": "auto", "input": given}
        assert local.post("/v1/embeddings", body).status_code == 200
        assert sent(local.experts["law"])["model"] == "vectors"
    assert local.experts["law"].last().path == "/v1/embeddings"
    assert len(local.experts["law"].asked) == 3


UNUSABLE = [
    ("chat/completions", b"{"),
    ("chat/completions", b"[]"),
    (
        "chat/completions",
        b'{"model": "auto", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    ),
    ("chat/completions", b'{"model": "auto"}'),
    ("chat/completions", b'{"model": "law", "messages": []}'),
    ("chat/completions", b'{"model": "law", "messages": "hello"}'),
    ("chat/completions", b'{"model": "law", "messages": [{"content": "x"}]}'),
    (
        "chat/completions",
        b'{"model": "law", "messages": [{"role": "user", "content": 7}]}',
    ),
    ("chat/completions", b'{"messages": [{"role": "user", "content": "x"}]}'),
    (
        "chat/completions",
        b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}',
    ),
    (
        "chat/completions",
        b'{"model": "law", "messages": [{"role": "user", "content": "x"}], "stream": "yes"}',
    ),
    ("completions", b'{"model": "law"}'),
    ("completions", b'{"model": "law", "prompt": []}'),
    ("completions", b'{"model": "law", "prompt": ["x", 1]}'),
    ("embeddings", b'{"model": "law", "input": {"x": 1}}'),
    ("embeddings", b'{"model": "law", "input": null}'),
]


def test_a_body_that_cannot_be_used_is_refused(local: Local) -> None:
    """As a mistake of the client's, and no expert sees it."""
    for path, body in UNUSABLE:
        response = local.send(f"/v1/{path}", body)
        assert response.status_code == 400, body
        complaint(response)
    assert not local.asked
