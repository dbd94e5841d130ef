"""Experts that hang, die or talk nonsense: who asks gets a proper error or the fallback's answer,
and all goes on.

Each fault has experts of its own, so that one that is left alone after many failures changes no
other test. They are asked by two services: `alone` has no fallback, `backed` has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ridgeway.common.routing.experts_file import ExpertsFile
from tests.support import fake_expert as faulty
from tests.support.fake_expert import Expert, Part, well
from tests.support.in_process import Local, memory, served
from tests.support.serving import (
    SECRET,
    chat,
    complaint,
    complaint_of,
    prompt_for,
    release_of,
    tokens_of,
    word_of,
    write_experts,
)
from tests.support.waiting import MAX_WAIT_S, processes_per_core

KEY = "sk-the-experts-own-key"
SHORT = {"timeout": 0.7, "silence": 0.7}
USUAL = {"timeout": 10.0, "silence": 10.0, "api_key_env": "EXPERTS_KEY"}
LONG = {"timeout": 60.0, "silence": 60.0}

WHOLE: dict[str, tuple[Part, int]] = {
    "hangs": (faulty.hangs, 504),
    "trickles-body": (faulty.trickles_a_body, 504),
    "dies": (faulty.dies_at_once, 502),
    "half": (faulty.half_a_body, 502),
    "html": (faulty.html, 502),
    "broken-json": (faulty.broken_json, 502),
    "a-list": (faulty.not_an_object, 502),
    "not-http": (faulty.not_http, 502),
    "fails": (faulty.fails, 502),
    "redirects": (faulty.redirects, 502),
    "endless-head": (faulty.endless_head, 502),
    "endless-body": (faulty.endless_body, 502),
    "too-many": (faulty.too_many, 429),
}
"""What an expert does with a request for a whole answer, and the status that whoever asked then
gets.
"""

FIRST: dict[str, tuple[Part, int]] = {
    "hangs-s": (faulty.hangs, 504),
    "dies-s": (faulty.dies_at_once, 502),
    "html-s": (faulty.html, 502),
    "whole-s": (faulty.ignores_the_stream, 502),
    "not-http-s": (faulty.not_http, 502),
    "fails-s": (faulty.fails, 502),
    "broken-events-s": (faulty.broken_events, 502),
    "endless-head-s": (faulty.endless_head, 502),
    "too-many-s": (faulty.too_many, 429),
}
"""The same where a stream was asked for, before the expert has sent a token."""

MIDST: dict[str, tuple[Part, str]] = {
    "hangs-after-two": (faulty.hangs_after_two, "expert_silent"),
    "dies-after-two": (faulty.dies_after_two, "expert_broken_off"),
    "leaves-after-two": (faulty.leaves_after_two, "expert_broken_off"),
}
"""What goes wrong after two tokens were passed on, and the error that follows them."""

OTHERS: dict[str, Part] = {
    "good": well("good"),
    "unauthorised": faulty.unauthorised,
    "long": faulty.hangs,
    "long-stream": faulty.hangs_after_two,
    "trickles": faulty.trickles,
    "endless-line": faulty.endless_line,
    "pours": faulty.pours,
}
PARTS = {
    **{name: part for name, (part, _) in {**WHOLE, **FIRST, **MIDST}.items()},
    **OTHERS,
}
DOMAINS = [*WHOLE, *FIRST, *MIDST, "unauthorised", "refused", "refused-s"]
"""The other experts have no domain: they are only asked by name."""
HASTY = ("hangs", "trickles-body", "hangs-s", "hangs-after-two")
"""Those whose time is short, so that tests are."""
PATIENT = ("long", "long-stream")
"""Those that are surely not given up by the service itself."""
Troupe = dict[str, Expert]


@pytest.fixture(scope="module")
def experts() -> Iterator[Troupe]:
    """Every expert, by the name of what it does."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Expert(part)) for name, part in PARTS.items()}


@pytest.fixture(scope="module")
def services(
    experts: Troupe, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Local]]:
    """One without a fallback and one with, both of the same experts."""
    folder = tmp_path_factory.mktemp("faults")
    release_of(folder / "release", DOMAINS)
    settings: dict[str, Any] = {
        "every": USUAL,
        **dict.fromkeys(HASTY, SHORT),
        **dict.fromkeys(PATIENT, LONG),
    }
    with contextlib.ExitStack() as stack:
        urls = {name: expert.url for name, expert in experts.items()}
        urls |= {
            name: stack.enter_context(faulty.nobody())
            for name in ("refused", "refused-s")
        }
        made = {}
        for name, fallback in (("alone", ""), ("backed", "good")):
            file = write_experts(folder / f"{name}.toml", urls, fallback, **settings)
            known = ExpertsFile(file, environment={"EXPERTS_KEY": KEY})
            made[name] = stack.enter_context(served(folder / "release", known))
        yield made


@pytest.fixture
def alone(
    services: dict[str, Local], caplog: pytest.LogCaptureFixture
) -> Iterator[Local]:
    yield services["alone"]
    assert_well(services["alone"], caplog)


@pytest.fixture
def backed(
    services: dict[str, Local], caplog: pytest.LogCaptureFixture
) -> Iterator[Local]:
    yield services["backed"]
    assert_well(services["backed"], caplog)


def assert_well(served: Local, caplog: pytest.LogCaptureFixture) -> None:
    """The service answers, and has said nothing that it should not."""
    assert served.http.get("/healthz").json() == {"status": "ok"}
    assert said(served.chat("good")) == "good"
    for word in (SECRET, KEY, "Traceback", "/secret/place"):
        assert word not in caplog.text


def secret_prompt(fault: str) -> str:
    """A text that goes to the expert of this fault, with a word that must stand in no log."""
    return f"{SECRET} {prompt_for(fault, DOMAINS)}"


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def clean(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which tells nothing of the expert's inside."""
    error = complaint(response)
    text = response.text + str(response.headers)
    assert all(
        word not in text
        for word in (KEY, "sk-exp", "Traceback", "/secret/place", "127.0.0.1", "nginx")
    ), text
    return error


# Before there is an answer


@pytest.mark.parametrize("fault", [*WHOLE, *FIRST, "refused", "refused-s"])
def test_without_a_fallback_a_fault_is_a_proper_error(alone: Local, fault: str) -> None:
    """The status says whose fault it was and whether to come again; the body has the shape of
    OpenAI's errors. A stream of which no token was passed on is answered as if it were none.
    """
    response = alone.chat(fault, stream=fault.endswith("-s"))
    _, expected = {**WHOLE, **FIRST}.get(fault, (None, 503))
    assert response.status_code == expected, response.text
    assert clean(response)["code"]


@pytest.mark.parametrize("fault", [*WHOLE, "refused"])
def test_with_a_fallback_a_fault_is_not_noticed(
    backed: Local, experts: Troupe, fault: str
) -> None:
    """The fallback answers in the place of an expert that cannot, and the headers say so; one that
    hangs is left.
    """
    response = backed.chat("auto", secret_prompt(fault))
    assert said(response) == "good"
    assert response.headers["x-ridgeway-domain"] == fault
    assert response.headers["x-ridgeway-expert"] == "good"
    assert response.headers["x-ridgeway-reason"] == (
        "busy" if fault == "too-many" else "down"
    )
    assert fault != "hangs" or experts[fault].last().gone.wait(faulty.PATIENCE_S)


@pytest.mark.parametrize("which", ["alone", "backed"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_an_expert_refuses_is_not_the_clients_mistake(
    which: str, stream: bool, request: pytest.FixtureRequest
) -> None:
    """Not 401, which would send the client to look at its own key, and no fallback that would hide
    it for ever.
    """
    served: Local = request.getfixturevalue(which)
    response = served.chat("auto", secret_prompt("unauthorised"), stream=stream)
    assert response.status_code == 502, response.text
    assert clean(response)["code"] == "expert_refused"


@pytest.mark.parametrize("fault", [*FIRST, "refused-s"])
def test_a_stream_that_cannot_begin_is_begun_by_the_fallback(
    backed: Local, fault: str
) -> None:
    """Whoever asked sees one whole stream, the fallback's."""
    with backed.streamed("auto", secret_prompt(fault)) as response:
        events = list(tokens_of(response.iter_lines()))
    assert response.status_code == 200
    assert [word_of(event) for event in events[:-1]] == ["good", *faulty.WORDS]
    assert events[-1] == "[DONE]"


# In the midst of a stream


@pytest.mark.parametrize("fault", MIDST)
@pytest.mark.parametrize("which", ["alone", "backed"])
def test_a_stream_that_breaks_ends_with_an_error_after_what_came(
    fault: str, which: str, experts: Troupe, request: pytest.FixtureRequest
) -> None:
    """Two tokens came; then an error as an event, and no [DONE], which would pass half an answer
    off as a whole one.
    """
    served: Local = request.getfixturevalue(which)
    with served.streamed("auto", secret_prompt(fault)) as response:
        events = faulty.all_events(tokens_of(response.iter_lines()), experts[fault])
    assert response.status_code == 200
    assert [word_of(event) for event in events[:2]] == ["one", "two"]
    assert len(events) == 3, events
    assert complaint_of(events[2])["code"] == MIDST[fault][1]


@pytest.mark.parametrize("fault", ["endless-line", "endless-body"])
def test_what_has_no_end_does_not_fill_the_memory(alone: Local, fault: str) -> None:
    """Gigabytes from an expert go nowhere: they are refused, or passed on no faster than they are
    read.
    """
    before = memory()
    with contextlib.suppress(httpx.HTTPError), alone.streamed(fault) as response:
        most = 0
        for piece in response.iter_raw():
            most += len(piece)
            if most > 64_000_000:
                break
    assert memory() - before < 100_000_000


def test_a_stream_of_nothing_but_comments_holds_nobody_up(alone: Local) -> None:
    """It may go on or be ended; others are served meanwhile, and it ends with its client."""
    with contextlib.suppress(httpx.HTTPError), alone.streamed("trickles") as response:
        if response.status_code == 200:
            lines = response.iter_raw()
            next(lines)
        assert said(alone.chat("good")) == "good"


# Whoever asked has gone


def test_a_client_that_does_not_read_slows_its_expert_down(
    alone: Local, experts: Troupe
) -> None:
    """What nobody takes is not kept: the expert has to wait, and the memory stays as it is."""
    before = memory()
    with alone.streamed("pours") as response:
        assert word_of(next(tokens_of(response.iter_lines()))).startswith("y")
        asked = experts["pours"].last()
        sent = -1
        while sent < asked.sent:
            sent = asked.sent
            time.sleep(0.5)
        assert memory() - before < 50_000_000
        assert said(alone.chat("good")) == "good"
    assert asked.gone.wait(faulty.PATIENCE_S)


def test_many_that_wait_hold_nobody_up(alone: Local, experts: Troupe) -> None:
    """A hundred requests to an expert that hangs leave the others as quick as before, and end with
    their clients.
    """
    before = len(experts["long"].asked)

    async def wait_and_ask() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=alone.http.base_url,
            trust_env=False,
            timeout=MAX_WAIT_S,
            limits=limits,
        ) as client:
            waiting = [
                asyncio.create_task(
                    client.post("/v1/chat/completions", json=chat("long", str(number)))
                )
                for number in range(100)
            ]
            await asyncio.to_thread(
                faulty.wait_for,
                lambda: len(experts["long"].asked) == before + 100,
                "all asked",
            )
            began = time.monotonic()
            answer = await client.post(
                "/v1/chat/completions", json=chat("good", "hello")
            )
            assert said(answer) == "good"
            assert time.monotonic() - began < 5 * processes_per_core()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(wait_and_ask())
    assert all(
        asked.gone.wait(faulty.PATIENCE_S) for asked in experts["long"].asked[before:]
    )
    assert alone.http.get("/readyz").json()["experts"]["long"] == "up"
