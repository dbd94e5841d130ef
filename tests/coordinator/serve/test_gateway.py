"""The gateway on real sockets: who is asked, with what, what comes back, and who answers in another's place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from coordinator.serve.breaker import FAILURES, PAUSE_S
from tests.faulty_experts import (
    CHUNKED,
    END,
    EVENTS,
    Asked,
    Expert,
    Part,
    completion,
    dies_after_two,
    dies_at_once,
    fails,
    hangs,
    hangs_after_two,
    html,
    nobody,
    step_by_step,
    token,
    too_many,
    unauthorised,
    wait_for,
    well,
)
from tests.in_process import Local, experts_toml, served
from tests.serving import complaint, complaint_of, prompt_for, release_of, tokens_of, word_of

DOMAINS = ("code", "law", "médecine")
EVERYONE = (*DOMAINS, "generalist")
FALLBACK = 'fallback = "generalist"'


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gateway") / "release"
    release_of(folder, DOMAINS)
    return folder


class Cast:
    """An expert for every domain and a generalist, and the service before them."""

    def __init__(self, local: Local, experts: dict[str, Expert]) -> None:
        self.local = local
        self.experts = experts

    @property
    def ahead(self) -> str:
        """The domain that a chat of the word `hello` is routed to."""
        return self.local.service.current.live.router.route("hello").best

    @property
    def chosen(self) -> Expert:
        return self.experts[self.ahead]

    def all_domains(self, part: Part) -> None:
        for domain in DOMAINS:
            self.experts[domain].part = part


Casting = Callable[..., contextlib.AbstractContextManager[Cast]]


@pytest.fixture
def cast(release: Path, tmp_path: Path) -> Casting:
    @contextlib.contextmanager
    def play(top: str = FALLBACK, **more: Any) -> Iterator[Cast]:
        with contextlib.ExitStack() as stack:
            experts = {name: stack.enter_context(Expert(well(name))) for name in EVERYONE}
            file = tmp_path / "experts.toml"
            file.write_text(experts_toml({name: each.url for name, each in experts.items()}, top, **more))
            yield Cast(stack.enter_context(served(release, file)), experts)

    return play


def answered_by(response: httpx.Response) -> tuple[str, str]:
    """The expert that answered and the reason, as the headers say it; the answer itself must agree."""
    assert response.status_code == 200, response.text
    expert = unquote(response.headers["x-ridgeway-expert"])
    assert response.json()["model"] == expert
    return expert, response.headers["x-ridgeway-reason"]


def sent(expert: Expert) -> Any:
    return expert.last().json


# Who is asked


@pytest.mark.parametrize("domain", DOMAINS)
def test_auto_goes_to_the_expert_of_the_domain_ahead(cast: Casting, domain: str) -> None:
    """And the headers say what the router decided, with which release, and who answered."""
    prompt = prompt_for(domain, DOMAINS)
    with cast() as play:
        response = play.local.chat(content=prompt)
        decision = play.local.post("/v1/route", {"prompt": prompt}).json()
        assert answered_by(response) == (domain, "best")
        assert (decision["best"], decision["expert"]) == (domain, domain)
        assert unquote(response.headers["x-ridgeway-domain"]) == domain
        assert response.headers["x-ridgeway-release"] == decision["release"]
        assert float(response.headers["x-ridgeway-confidence"]) == pytest.approx(decision["confidence"], abs=1e-4)


@pytest.mark.parametrize("name", EVERYONE)
def test_a_name_forces_its_expert(cast: Casting, name: str) -> None:
    """A domain's or any other expert's; its headers are plain ASCII whatever it is called."""
    with cast() as play:
        response = play.local.chat(name)
        assert answered_by(response) == (name, "forced")
        assert all(value.isascii() for value in response.headers.values())
        assert "x-ridgeway-confidence" not in response.headers
        assert [each for each in EVERYONE if play.experts[each].asked] == [name]


def test_an_unknown_model_is_not_found(cast: Casting) -> None:
    """As OpenAI's clients expect it, and nobody is asked."""
    with cast() as play:
        response = play.local.chat("gpt-5")
        assert response.status_code == 404
        assert complaint(response)["code"] == "model_not_found"
        assert not any(each.asked for each in play.experts.values())


def test_an_abstention_goes_to_the_fallback(release: Path, tmp_path: Path) -> None:
    """Whichever domain was ahead."""
    with Expert(well("generalist")) as expert:
        file = tmp_path / "experts.toml"
        file.write_text(experts_toml({"generalist": expert.url}, FALLBACK))
        with served(release, file, changes={"threshold": 1.0, "fallback": "generalist"}) as local:
            assert answered_by(local.chat()) == ("generalist", "abstained")


def test_cost_can_outweigh_probability(cast: Casting) -> None:
    """With a weight on cost, a cheaper expert is asked than that of the domain ahead."""
    with cast("mu = 1.0\n" + FALLBACK, cost=1.0) as play:
        cheap = next(name for name in DOMAINS if name != play.ahead)
        text = play.local.file.read_text()
        start = text.index(f'[experts."{cheap}"]')
        play.local.file.write_text(text[:start] + text[start:].replace("cost = 1.0", "cost = 0.0", 1))
        wait_for(lambda: play.local.chat().headers["x-ridgeway-reason"] == "cost", "the file is read again")
        response = play.local.chat()
        assert answered_by(response) == (cheap, "cost")
        assert unquote(response.headers["x-ridgeway-domain"]) == play.ahead


def test_models_lists_auto_then_domains_then_others(cast: Casting) -> None:
    """In the shape of OpenAI's list; each can be looked up."""
    with cast() as play:
        listed = play.local.http.get("/v1/models").json()
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["auto", *DOMAINS, "generalist"]
        assert play.local.http.get("/v1/models/law").json() == listed["data"][2]
        assert complaint(play.local.http.get("/v1/models/nobody"))["code"] == "model_not_found"


def test_without_experts_nothing_is_passed_on(release: Path) -> None:
    """The list is empty and a request is told why; routing goes on."""
    with served(release, None) as local:
        assert local.http.get("/v1/models").json() == {"object": "list", "data": []}
        for path in ("chat/completions", "completions", "embeddings"):
            response = local.post(f"/v1/{path}", {"model": "auto"})
            assert response.status_code == 404
            assert "no experts are configured" in complaint(response)["message"]
        assert "expert" not in local.post("/v1/route", {"prompt": "hello"}).json()


# What is asked


def test_every_field_is_passed_on_but_the_model(cast: Casting) -> None:
    """Fields that the gateway does not know reach the expert as they were."""
    fields: dict[str, Any] = {
        "temperature": 0.1,
        "n": "two",
        "tools": [{"x": [None, True, 1e-9, 2**70]}],
        "größe": {"ä": "\u2028"},
    }
    with cast() as play:
        assert play.local.chat("law", **fields).status_code == 200
        messages = [{"role": "user", "content": "hello"}]
        assert sent(play.experts["law"]) == {"model": "law-model", "messages": messages, **fields}


def test_the_experts_key_is_sent_and_the_clients_is_not(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks has no key of the expert's, and the expert gets none of the service's."""
    monkeypatch.setenv("LAW_KEY", "sk-law")
    with Expert(well("law")) as keyed, Expert(well("generalist")) as keyless:
        file = tmp_path / "experts.toml"
        file.write_text(
            experts_toml({"generalist": keyless.url}, FALLBACK)
            + experts_toml({"law": keyed.url}, api_key_env="LAW_KEY")
        )
        with served(release, file) as local:
            headers = {"authorization": "Bearer of-the-client", "cookie": "a=b", "x-own": "1"}
            for name in ("law", "generalist"):
                response = local.http.post(
                    "/v1/chat/completions",
                    json={"model": name, "messages": [{"role": "user", "content": "x"}]},
                    headers=headers,
                )
                assert response.status_code == 200
        assert keyed.last().headers["authorization"] == "Bearer sk-law"
        assert "authorization" not in keyless.last().headers
        assert not {"cookie", "x-own"} & set(keyless.last().headers)


@pytest.mark.parametrize(("wished", "granted"), [(5, 5), (8, 8), (9, 8), (10**6, 8), ("many", "many"), (None, None)])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_an_expert_grants_are_cut(cast: Casting, field: str, wished: Any, granted: Any) -> None:
    """A smaller wish stays, and what is no number is the expert's business."""
    with cast(max_tokens=8) as play:
        play.local.chat("law", **{field: wished})
        assert sent(play.experts["law"])[field] == granted


def test_completions_are_routed_by_their_prompts(cast: Casting) -> None:
    """One text, or several that count alike; token ids only go where they are told to."""
    with cast() as play:
        for prompt in ("hello", ["hello"], ["hello"] * 100):
            response = play.local.post("/v1/completions", {"model": "auto", "prompt": prompt})
            assert answered_by(response) == (play.ahead, "best")
            assert play.chosen.last().path == "/v1/completions"
        for ids in ([1, 2], [[1, 2], [3]]):
            refused = play.local.post("/v1/completions", {"model": "auto", "prompt": ids})
            assert (refused.status_code, complaint(refused)["param"]) == (400, "prompt")
            assert play.local.post("/v1/completions", {"model": "law", "prompt": ids}).status_code == 200
            assert sent(play.experts["law"])["prompt"] == ids


def test_embeddings_go_to_the_model_that_makes_them(cast: Casting) -> None:
    """Under a name of its own if it has one."""
    with cast(embedding_model="vectors") as play:
        response = play.local.post("/v1/embeddings", {"model": "auto", "input": ["hello", "hello"]})
        assert response.status_code == 200
        assert sent(play.chosen)["model"] == "vectors"
        assert play.chosen.last().path == "/v1/embeddings"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", b"{"),
        ("chat/completions", b"[]"),
        ("chat/completions", b'{"model": "auto", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}'),
        ("chat/completions", b'{"model": "auto"}'),
        ("chat/completions", b'{"model": "law", "messages": []}'),
        ("chat/completions", b'{"model": "law", "messages": "hello"}'),
        ("chat/completions", b'{"model": "law", "messages": [{"content": "x"}]}'),
        ("chat/completions", b'{"model": "law", "messages": [{"role": "user", "content": 7}]}'),
        ("chat/completions", b'{"messages": [{"role": "user", "content": "x"}]}'),
        ("chat/completions", b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}'),
        ("chat/completions", b'{"model": "law", "messages": [{"role": "user", "content": "x"}], "stream": "yes"}'),
        ("completions", b'{"model": "law"}'),
        ("completions", b'{"model": "law", "prompt": []}'),
        ("completions", b'{"model": "law", "prompt": ["x", 1]}'),
        ("embeddings", b'{"model": "law", "input": {"x": 1}}'),
        ("embeddings", b'{"model": "law", "input": null}'),
    ],
)
def test_a_body_that_cannot_be_used_is_refused(cast: Casting, path: str, body: bytes) -> None:
    """As a mistake of the client's, and no expert sees it."""
    with cast() as play:
        headers = {"content-type": "application/json"}
        response = play.local.http.post(f"/v1/{path}", content=body, headers=headers)
        assert response.status_code == 400
        complaint(response)
        assert not any(each.asked for each in play.experts.values())


# When an expert cannot answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("part", "reason", "status"),
    [(too_many, "busy", 429), (fails, "down", 502), (html, "down", 502), (dies_at_once, "down", 502)],
)
def test_the_fallback_answers_for_an_expert_that_cannot(
    cast: Casting, part: Part, reason: str, status: int, stream: bool
) -> None:
    """Unless the client has named the expert: then it gets an error, and never another's answer."""
    with cast() as play:
        play.all_domains(part)
        response = play.local.chat(stream=stream)
        assert response.status_code == 200
        assert response.headers["x-ridgeway-expert"] == "generalist"
        assert response.headers["x-ridgeway-reason"] == reason
        forced = play.local.chat("law", stream=stream)
        assert forced.status_code == status
        assert "'law'" in complaint(forced)["message"]
        assert forced.headers.get("retry-after") == ("7" if part is too_many else None)
        assert len(play.experts["law"].asked) == (2 if play.ahead == "law" else 1)


def test_nobody_there_is_the_fallbacks_turn(release: Path, tmp_path: Path) -> None:
    """A port that refuses connections; without a fallback it is an error that names no address."""
    with nobody() as url, Expert(well("generalist")) as expert:
        file = tmp_path / "experts.toml"
        file.write_text(experts_toml(dict.fromkeys(DOMAINS, url) | {"generalist": expert.url}, FALLBACK))
        with served(release, file) as local:
            assert answered_by(local.chat()) == ("generalist", "down")
            refused = local.chat("law")
            assert refused.status_code == 503
            assert "127.0.0.1" not in refused.text


def test_an_expert_that_hangs_is_given_up(cast: Casting) -> None:
    """After its time, and its connection is closed."""
    with cast(timeout=0.3) as play:
        play.all_domains(hangs)
        assert answered_by(play.local.chat()) == ("generalist", "down")
        assert play.chosen.last().gone.wait(10)
        assert play.local.chat("law").status_code == 504


def test_if_the_fallback_fails_too_both_are_named(cast: Casting) -> None:
    """In one sentence, with the status of the last."""
    with cast() as play:
        play.all_domains(too_many)
        play.experts["generalist"].part = fails
        response = play.local.chat()
        assert response.status_code == 502
        assert response.headers["retry-after"] == "7"
        message = complaint(response)["message"]
        assert repr(play.ahead) in message and "'generalist'" in message


def test_a_key_that_the_expert_refuses_is_the_operators_mistake(cast: Casting) -> None:
    """It is said, not covered up by the fallback, and nothing of what the expert said is shown."""
    with cast() as play:
        play.all_domains(unauthorised)
        response = play.local.chat()
        assert response.status_code == 502
        assert complaint(response)["code"] == "expert_refused"
        assert "sk-" not in response.text
        assert not play.experts["generalist"].asked


def test_a_mistake_that_the_expert_finds_is_the_clients(cast: Casting) -> None:
    """Its answer is passed on as it is."""
    body = b'{"error": {"message": "n is too large", "type": "invalid_request_error", "param": "n", "code": null}}'
    with cast() as play:
        for status in (400, 413, 422):
            play.all_domains(lambda asked, status=status: asked.reply(status, body))  # type: ignore[misc]
            response = play.local.chat(n=10**6)
            assert (response.status_code, response.content) == (status, body)
            assert unquote(response.headers["x-ridgeway-expert"]) == play.ahead


def test_a_full_expert_is_busy(cast: Casting) -> None:
    """Whoever comes when all its places are taken goes to the fallback; named, it is asked to wait."""
    steps = Semaphore(1)
    with cast(max_concurrent=1) as play:
        play.all_domains(step_by_step(steps))
        with play.local.streamed() as first:
            assert answered_by(play.local.chat()) == ("generalist", "busy")
            refused = play.local.chat(play.ahead)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            steps.release(10)
            first.read()
        play.all_domains(well("free"))
        assert play.local.chat(play.ahead).status_code == 200


def test_a_kept_connection_that_was_closed_is_replaced(cast: Casting) -> None:
    """The expert has closed it without an answer, so the request is sent once more, on a new one."""

    def keeps_then_closes(asked: Asked) -> None:
        body = completion("law")
        asked.send(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        if len(play.experts["law"].asked) == 1:
            asked.connection.recv(65536)  # the second request comes here, and is not answered

    with cast() as play:
        play.experts["law"].part = keeps_then_closes
        assert play.local.chat("law").status_code == 200
        assert play.local.chat("law").status_code == 200
        assert len(play.experts["law"].asked) == 2
        assert play.local.counted("expert_requests_total", expert="law", outcome="ok") == 2


def test_an_expert_that_fails_again_and_again_is_left_alone(cast: Casting) -> None:
    """After five failures it is not asked; after ten seconds one request tries, and its success ends that."""
    with cast() as play:
        law = play.experts["law"]
        law.part = fails
        for _ in range(FAILURES):
            assert play.local.chat("law").status_code == 502
        refused = play.local.chat("law")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, f"{PAUSE_S:g}")
        assert len(law.asked) == FAILURES
        assert play.local.states()["law"] == "down"
        assert play.local.counted("expert_up", expert="law") == 0
        law.part = well("law")
        play.local.clock.now += PAUSE_S
        assert play.local.chat("law").status_code == 200
        assert play.local.states()["law"] == "up"
        assert play.local.counted("expert_up", expert="law") == 1


# Streams


def test_tokens_are_passed_on_one_by_one(cast: Casting) -> None:
    """Each arrives before the expert has made the next."""
    steps = Semaphore(1)
    with cast() as play:
        play.all_domains(step_by_step(steps))
        with play.local.streamed() as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert unquote(response.headers["x-ridgeway-expert"]) == play.ahead
            events = tokens_of(response.iter_lines())
            for word in ("one", "two", "three"):
                assert word_of(next(events)) == word
                assert play.local.counted("streams") == 1
                steps.release()
            assert word_of(next(events)) == "four"
            assert next(events) == "[DONE]"
        wait_for(lambda: play.local.counted("streams") == 0, "the stream is counted as ended")


@pytest.mark.parametrize(("part", "code"), [(dies_after_two, "broken_off"), (hangs_after_two, "silent")])
def test_a_stream_that_fails_ends_with_an_error(cast: Casting, part: Part, code: str) -> None:
    """After what came before, and without [DONE]; nobody else is asked, since the client has read a part."""
    with cast(silence=0.3) as play:
        play.all_domains(part)
        with play.local.streamed() as response:
            events = list(tokens_of(response.iter_lines()))
        assert [word_of(each) for each in events[:2]] == ["one", "two"]
        assert complaint_of(events[2])["code"] == f"expert_{code}"
        assert len(events) == 3
        assert not play.experts["generalist"].asked


def test_half_an_event_is_not_passed_on(cast: Casting) -> None:
    """So that the error behind it can be read."""

    def half(asked: Asked) -> None:
        asked.head(200, EVENTS, CHUNKED)
        asked.chunk(token("one") + token("two")[:20])

    with cast() as play:
        play.all_domains(half)
        with play.local.streamed() as response:
            events = list(tokens_of(response.iter_lines()))
        assert word_of(events[0]) == "one"
        assert complaint_of(events[1])["code"] == "expert_broken_off"
        assert len(events) == 2


def test_a_stream_cut_anywhere_arrives_as_it_was(cast: Casting) -> None:
    """Byte for byte, also where the expert's pieces end in the middle of an event."""
    whole = token("one") + token("zwölf") + END

    def pieces(asked: Asked) -> None:
        asked.head(200, EVENTS, CHUNKED)
        for start in range(0, len(whole), 7):
            asked.chunk(whole[start : start + 7])
        asked.chunk(b"")

    with cast() as play:
        play.all_domains(pieces)
        with play.local.streamed() as response:
            assert response.read() == whole


@pytest.mark.parametrize("framed", [True, False])
def test_where_a_stream_ends_is_said_by_http_or_by_its_last_word(cast: Casting, framed: bool) -> None:
    """Some servers leave [DONE] out; but where a connection is merely closed, that may have been an accident."""

    def without_done(asked: Asked) -> None:
        asked.head(200, EVENTS, CHUNKED if framed else b"")
        if framed:
            asked.chunk(token("one"))
            asked.chunk(b"")
        else:
            asked.send(token("one"))

    with cast() as play:
        play.all_domains(without_done)
        with play.local.streamed() as response:
            events = list(tokens_of(response.iter_lines()))
        assert word_of(events[0]) == "one"
        assert [complaint_of(each)["code"] for each in events[1:]] == ([] if framed else ["expert_broken_off"])


# Clients that go


@pytest.mark.parametrize("stream", [False, True])
def test_when_the_client_goes_the_expert_is_left(cast: Casting, stream: bool) -> None:
    """Its request is closed at once, whether its answer had begun or not, and its place is free again."""
    with cast(timeout=60, silence=60, max_concurrent=1) as play:
        play.all_domains(hangs_after_two if stream else hangs)
        asking = Thread(target=_ask_and_go, args=(play.local.http.base_url, stream))
        asking.start()
        asked = play.chosen.last()
        assert asked.gone.wait(10)
        asking.join()
        gone = {"expert": play.ahead, "outcome": "gone"}
        wait_for(lambda: play.local.counted("expert_requests_total", **gone) == 1, "it is counted")
        assert play.local.counted("streams") == 0
        play.all_domains(well("again"))
        assert play.local.chat(play.ahead).status_code == 200
        assert play.local.states()[play.ahead] == "up"


def _ask_and_go(url: httpx.URL, stream: bool) -> None:
    """Read two tokens, or for a moment nothing, and close the connection."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    with httpx.Client(base_url=url, timeout=0.5) as http, contextlib.suppress(httpx.ReadTimeout):  # noqa: SIM117
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_bytes())


# The file changes


def test_a_new_file_of_experts_is_taken_and_a_bad_one_refused(cast: Casting, caplog: pytest.LogCaptureFixture) -> None:
    """Requests under way end where they began; the log says what was refused, without a path."""
    steps = Semaphore(1)
    with cast() as play, Expert(well("law")) as other:
        play.experts["law"].part = step_by_step(steps)
        with play.local.streamed("law") as response:
            addresses = {name: each.url for name, each in play.experts.items()}
            play.local.file.write_text(experts_toml({**addresses, "law": other.url, "new": other.url}, FALLBACK))
            wait_for(lambda: "new" in play.local.states(), "the file is taken")
            assert play.local.chat("law").status_code == 200
            assert len(other.asked) == 1
            steps.release(10)
            assert list(tokens_of(response.iter_lines()))[-1] == "[DONE]"
        play.local.file.write_text('fallback = "nobody"\n')
        wait_for(lambda: "is refused" in caplog.text, "the file is refused")
        assert str(play.local.file.parent) not in caplog.text
        assert play.local.chat("new").status_code == 200


def test_experts_that_stay_keep_their_breaker(cast: Casting) -> None:
    """A file that changes something else does not make a broken expert whole; one that leaves is counted no more."""
    with cast() as play:
        play.experts["law"].part = fails
        for _ in range(FAILURES):
            play.local.chat("law")
        addresses = {name: each.url for name, each in play.experts.items() if name != "code"}
        play.local.file.write_text(experts_toml(addresses, "mu = 0.5\n" + FALLBACK))
        wait_for(lambda: "code" not in play.local.states(), "the file is taken")
        assert play.local.states()["law"] == "down"
        assert "code" not in json.dumps(play.local.http.get("/v1/models").json())
        assert play.local.service.metrics.registry.get_sample_value("ridgeway_expert_up", {"expert": "code"}) is None


def test_a_release_that_nobody_serves_is_refused(tmp_path: Path) -> None:
    """Without a fallback, a new release with a domain that has no expert leaves the old one in use."""
    folder = tmp_path / "release"
    old = release_of(folder, ("code", "law"))
    with Expert(well("x")) as expert:
        file = tmp_path / "experts.toml"
        file.write_text(experts_toml({"code": expert.url, "law": expert.url}))
        with served(folder, file) as local:
            release_of(folder, ("code", "law", "music"))
            wait_for(lambda: local.service.current.refused is not None, "the release is refused")
            assert "music" in str(local.service.current.refused)
            assert local.chat().headers["x-ridgeway-release"] == old
