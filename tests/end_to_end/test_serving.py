"""`ridgeway serve` before real experts, asked with the official `openai` client and with curl.

The experts are small language models made for this test, in a process of their own (`tests.support.real_expert`). Their
text is nonsense, but each one's own nonsense: the same question gets the same answer from the same expert.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

import httpx
import openai
import pytest

from tests.support.commands import workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences
from tests.support.fake_expert import WORDS, Expert, hangs_after_two, step_by_step
from tests.support.serving import SECRET, RealExpert, Serving, real_experts, tokens_of, word_of, write_experts
from tests.support.waiting import MAX_WAIT_S, PATIENCE_S, processes_per_core

PROMPTS = {domain: sentences(domain, 23)[-1] for domain in ALPHABETS}
"""A held-out text of each domain, which the router knows to place."""
CURL = ("curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "300")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealExpert]]:
    """Real experts of two domains."""
    with real_experts(tmp_path_factory.mktemp("experts"), ["law-model", "code-model"]) as (law, code):
        yield {"law": law, "code": code}


@pytest.fixture(scope="module")
def steps() -> Semaphore:
    """Each release of it lets the expert of medicine say one more word."""
    return Semaphore(0)


@pytest.fixture(scope="module")
def served(
    experts: dict[str, RealExpert], steps: Semaphore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("serving")
    made = workshop(folder)
    with Expert(step_by_step(steps)) as slow:
        urls = {"law": experts["law"].url, "code": experts["code"].url, "medicine": slow.url}
        names = {name: {"model": each.name} for name, each in experts.items()}
        file = write_experts(folder / "experts.toml", urls, "law", **names)
        with Serving(folder, made / "release", "--experts", file) as serving:
            yield serving


@pytest.fixture(scope="module")
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client


def asking(text: str) -> Any:
    return [{"role": "user", "content": text}]


def straight(expert: RealExpert, text: str) -> str:
    """What the expert says when it is asked without us."""
    body = {"model": expert.name, "messages": asking(text)}
    answer = httpx.post(f"{expert.url}/chat/completions", json=body, trust_env=False, timeout=300.0).json()
    return str(answer["choices"][0]["message"]["content"])


# The official client


@pytest.mark.parametrize("domain", ["law", "code"])
def test_a_prompt_reaches_the_expert_of_its_domain(
    client: openai.OpenAI, experts: dict[str, RealExpert], domain: str
) -> None:
    """With the model `auto` the text decides, and what the expert says comes back unchanged."""
    answer = client.chat.completions.create(model="auto", messages=asking(PROMPTS[domain]))
    assert answer.choices[0].message.content == straight(experts[domain], PROMPTS[domain])
    assert answer.usage is not None and answer.usage.completion_tokens > 0


def test_two_experts_answer_differently(experts: dict[str, RealExpert]) -> None:
    """Else the test above could not tell who answered."""
    for text in PROMPTS.values():
        assert straight(experts["law"], text) != straight(experts["code"], text)


def test_the_decision_is_in_the_headers(client: openai.OpenAI) -> None:
    """Which domain, which expert, how sure: for whoever asked with `auto`."""
    answer = client.chat.completions.with_raw_response.create(model="auto", messages=asking(PROMPTS["code"]))
    assert answer.headers["x-ridgeway-domain"] == "code"
    assert answer.headers["x-ridgeway-expert"] == "code"
    assert 0.5 < float(answer.headers["x-ridgeway-confidence"]) <= 1.0


def test_a_domain_can_be_forced(client: openai.OpenAI, experts: dict[str, RealExpert]) -> None:
    """The name of a domain as the model goes to its expert, whatever the text is."""
    answer = client.chat.completions.create(model="law", messages=asking(PROMPTS["code"]))
    assert answer.choices[0].message.content == straight(experts["law"], PROMPTS["code"])


@pytest.mark.parametrize("domain", ["law", "code"])
def test_a_streamed_answer_is_the_whole_answer(
    client: openai.OpenAI, experts: dict[str, RealExpert], domain: str
) -> None:
    """Its pieces, put together, are what the expert says at once when it is not streamed."""
    chunks = list(client.chat.completions.create(model="auto", messages=asking(PROMPTS[domain]), stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == straight(experts[domain], PROMPTS[domain])
    assert chunks[-1].choices[0].finish_reason == "length"


def test_completions_are_passed_on(client: openai.OpenAI) -> None:
    """The older endpoint, whole and streamed."""
    asked: Any = {"model": "auto", "prompt": PROMPTS["code"], "max_tokens": 5}
    whole = client.completions.create(**asked)
    streamed = client.completions.create(**asked, stream=True)
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in streamed) != ""


def test_embeddings_are_passed_on(client: openai.OpenAI) -> None:
    """One text or several, each with its vector; the experts' vectors differ."""
    one = client.embeddings.create(model="law", input=PROMPTS["law"], encoding_format="float")
    two = client.embeddings.create(model="code", input=[PROMPTS["law"], "abc"], encoding_format="float")
    assert len(one.data[0].embedding) == 32
    assert len(two.data) == 2
    assert one.data[0].embedding != two.data[0].embedding


def test_the_models_are_auto_and_the_domains(client: openai.OpenAI) -> None:
    """What can be named as a model."""
    names = [model.id for model in client.models.list()]
    assert {"auto", "code", "law", "medicine"} <= set(names)


def test_errors_are_the_classes_that_the_client_knows(client: openai.OpenAI) -> None:
    """An unknown model is not found; a wrong request is a bad request."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=asking(SECRET))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="auto", messages=[])


async def _asked_at_once(served: Serving, count: int) -> list[str]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", http_client=http) as client:
        texts = [PROMPTS["law"], PROMPTS["code"]] * count
        asked = [client.chat.completions.create(model="auto", messages=asking(text)) for text in texts]
        return [str(each.choices[0].message.content) for each in await asyncio.gather(*asked)]


def test_many_at_once_get_each_their_own_answer(served: Serving, experts: dict[str, RealExpert]) -> None:
    """The asynchronous client, both domains mixed: nobody gets another's answer."""
    answers = asyncio.run(_asked_at_once(served, 8))
    assert answers == [straight(experts[domain], PROMPTS[domain]) for domain in ("law", "code")] * 8


# Token by token


def test_each_token_is_passed_on_before_the_next_is_made(served: Serving, steps: Semaphore) -> None:
    """The expert may say a word only after we have read the one before: nothing is held back, at any place."""
    steps.release()  # the head of the answer comes with the first word, since until then the fallback could answer
    with served.streamed("medicine") as response:
        events = tokens_of(response.iter_lines())
        assert read_one_by_one(map(word_of, events), steps) == [*WORDS, "[DONE]"]


def test_the_official_client_reads_each_token_before_the_next_is_made(client: openai.OpenAI, steps: Semaphore) -> None:
    """The same through its own reading of the stream."""
    steps.release()
    chunks = client.chat.completions.create(model="medicine", messages=asking(SECRET), stream=True)
    words = (str(chunk.choices[0].delta.content) for chunk in chunks)
    assert read_one_by_one(words, steps) == [*WORDS]


def read_one_by_one(words: Iterator[str], steps: Semaphore) -> list[str]:
    """Let the expert say each next word only after the one before was read."""
    read = []
    for number, word in enumerate(words, start=1):
        read.append(word)
        if number < len(WORDS):
            steps.release()
    return read


# curl


def curl(served: Serving, *words: str, path: str = "/v1/chat/completions", body: Any = None) -> str:
    data = [] if body is None else ["--json", json.dumps(body)]
    done = subprocess.run(
        [*CURL, *words, *data, f"{served.url}{path}"], capture_output=True, text=True, timeout=MAX_WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_gets_an_answer_and_its_headers(served: Serving, experts: dict[str, RealExpert]) -> None:
    """As an operator tries it out by hand."""
    out = curl(served, "--include", body={"model": "auto", "messages": asking(PROMPTS["law"])})
    head, _, body = out.replace("\r\n", "\n").partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert "x-ridgeway-domain: law" in head.lower()
    assert "content-type: application/json" in head.lower()
    assert json.loads(body)["choices"][0]["message"]["content"] == straight(experts["law"], PROMPTS["law"])


def test_curl_streams(served: Serving, experts: dict[str, RealExpert]) -> None:
    """With -N, events of text/event-stream, the last [DONE]."""
    body = {"model": "auto", "messages": asking(PROMPTS["code"]), "stream": True}
    out = curl(served, "--no-buffer", "--include", body=body)
    head, _, rest = out.replace("\r\n", "\n").partition("\n\n")
    assert "content-type: text/event-stream" in head.lower()
    *events, last = tokens_of(iter(rest.splitlines()))
    assert last == "[DONE]"
    assert "".join(word_of(event) for event in events) == straight(experts["code"], PROMPTS["code"])


def test_curl_sees_each_token_when_it_is_made(served: Serving, steps: Semaphore) -> None:
    """The words come out of curl one by one, while the expert waits for us between them."""
    body = json.dumps({"model": "medicine", "messages": asking(SECRET), "stream": True})
    command = [*CURL, "--no-buffer", "--json", body, f"{served.url}/v1/chat/completions"]
    steps.release()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        events = tokens_of(iter(running.stdout.readline, ""))
        assert read_one_by_one(map(word_of, events), steps) == [*WORDS, "[DONE]"]
    assert running.returncode == 0


def test_curl_lists_the_models(served: Serving) -> None:
    """And sees whether the service is ready."""
    assert {each["id"] for each in json.loads(curl(served, path="/v1/models"))["data"]} >= {"auto", "law"}
    assert json.loads(curl(served, path="/readyz"))["ready"] is True


# The end


def test_no_prompt_was_written_down(served: Serving) -> None:
    """What the service said in all this holds no text of a prompt and no traceback."""
    for word in (SECRET, "Traceback", *(text[:30] for text in PROMPTS.values())):
        assert word not in served.said


def test_it_ends_well_when_it_is_told_to_while_a_stream_is_open(tmp_path: Path) -> None:
    """SIGTERM: the exit code is 0, and soon, although an expert has not finished its answer."""
    made = workshop(tmp_path)
    with Expert(hangs_after_two) as expert:
        urls = dict.fromkeys(ALPHABETS, expert.url)
        with Serving(tmp_path, made / "release", "--experts", write_experts(tmp_path / "e.toml", urls)) as serving:
            reading = Thread(target=read_on, args=(serving,))
            with serving.streamed("law") as response:
                events = tokens_of(response.iter_lines())
                assert [word_of(next(events)), word_of(next(events))] == ["one", "two"]
                reading.start()
                began = time.monotonic()
                assert serving.stop() == 0, serving.said
                assert time.monotonic() - began < 20 * processes_per_core()
            reading.join(20 * processes_per_core())
            assert "Traceback" not in serving.said
        assert expert.last().gone.wait(PATIENCE_S)


def read_on(serving: Serving) -> None:
    """A second stream that is open when the service ends; it ends with it, one way or another."""
    with contextlib.suppress(httpx.HTTPError), serving.streamed("code") as response:
        response.read()
