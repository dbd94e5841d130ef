"""`ridgeway serve` as a process of its own, asked with the official `openai` client and with
curl.
"""

from __future__ import annotations

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
from tests.support.fake_expert import WORDS, Expert, hangs_after_two, step_by_step, well
from tests.support.serving import SECRET, Serving, tokens_of, word_of, write_experts
from tests.support.waiting import PATIENCE_S, processes_per_core

PROMPTS = {domain: sentences(domain, 23)[-1] for domain in ALPHABETS}
"""A held-out text of each domain, which the router knows to place."""
CURL = "curl --silent --show-error --noproxy * --max-time 300 --no-buffer".split()


@pytest.fixture(scope="module")
def steps() -> Semaphore:
    """Each release of it lets the expert of medicine say one more word."""
    return Semaphore(0)


@pytest.fixture(scope="module")
def served(steps: Semaphore, module_path: Path) -> Iterator[Serving]:
    made = workshop(module_path)
    with (
        Expert(well("law")) as law,
        Expert(well("code")) as code,
        Expert(step_by_step(steps)) as slow,
    ):
        file = write_experts(
            module_path / "experts.toml",
            {"law": law.url, "code": code.url, "medicine": slow.url},
            "law",
        )
        with Serving(module_path, made / "release", "--experts", file) as serving:
            yield serving


@pytest.fixture(scope="module")
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client


def asking(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("domain", ["law", "code"])
def test_a_prompt_reaches_the_expert_of_its_domain(
    client: openai.OpenAI, domain: str
) -> None:
    """With the model `auto` the text decides, and what the expert says comes back unchanged, whole
    or streamed.
    """
    asked: Any = {"model": "auto", "messages": asking(PROMPTS[domain])}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == domain
    assert answer.usage is not None and answer.usage.completion_tokens > 0
    chunks = client.chat.completions.create(**asked, stream=True)
    assert [chunk.choices[0].delta.content for chunk in chunks] == [domain, *WORDS]


def test_errors_are_the_classes_that_the_client_knows(client: openai.OpenAI) -> None:
    """An unknown model is not found; a wrong request is a bad request."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=asking(SECRET))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="auto", messages=[])


def test_the_official_client_reads_each_token_before_the_next_is_made(
    client: openai.OpenAI, steps: Semaphore
) -> None:
    """The expert may say a word only after we have read the one before: nothing is held back, at
    any place.
    """
    # the head of the answer comes with the first word, since until then the fallback could answer
    steps.release()
    chunks = client.chat.completions.create(
        model="medicine", messages=asking(SECRET), stream=True
    )
    words = (str(chunk.choices[0].delta.content) for chunk in chunks)
    assert read_one_by_one(words, steps) == [*WORDS]


def test_curl_sees_each_token_when_it_is_made(
    served: Serving, steps: Semaphore
) -> None:
    """The words come out of curl one by one, while the expert waits for us between them."""
    body = json.dumps({"model": "medicine", "messages": asking(SECRET), "stream": True})
    command = [*CURL, "--json", body, f"{served.url}/v1/chat/completions"]
    steps.release()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        events = tokens_of(iter(running.stdout.readline, ""))
        assert read_one_by_one(map(word_of, events), steps) == [*WORDS, "[DONE]"]
    assert running.returncode == 0


def read_one_by_one(words: Iterator[str], steps: Semaphore) -> list[str]:
    """Let the expert say each next word only after the one before was read."""
    read = []
    for number, word in enumerate(words, start=1):
        read.append(word)
        if number < len(WORDS):
            steps.release()
    return read


def test_no_prompt_was_written_down(served: Serving) -> None:
    """What the service said in all this holds no text of a prompt and no traceback."""
    for word in (SECRET, "Traceback", *(text[:30] for text in PROMPTS.values())):
        assert word not in served.said


def test_it_ends_well_when_it_is_told_to_while_a_stream_is_open(tmp_path: Path) -> None:
    """SIGTERM: the exit code is 0, and soon, although an expert has not finished its answer."""
    made = workshop(tmp_path)
    with Expert(hangs_after_two) as expert:
        urls = dict.fromkeys(ALPHABETS, expert.url)
        with Serving(
            tmp_path,
            made / "release",
            "--experts",
            write_experts(tmp_path / "e.toml", urls),
        ) as serving:
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
