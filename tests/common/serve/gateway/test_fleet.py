"""Experts as a fleet: several addresses an expert, several experts a domain, and chains of
fallbacks with reasons.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.deploy.processes import free_port
from ridgeway.common.experts.experts_file import Expert as ExpertEntry
from ridgeway.common.experts.experts_file import ExpertsFile
from ridgeway.common.serve.gateway.expert_link import (
    MAX_FAILURES,
    PAUSE_S,
    Attempt,
    ExpertLink,
)
from ridgeway.common.serve.gateway.failures import FAILED, ExpertFailure
from ridgeway.common.serve.telemetry import Metrics
from tests.support.fake_expert import (
    Asked,
    Expert,
    Part,
    complains,
    dies_at_once,
    fails,
    hangs,
    refuses_the_request,
    start_expert,
    step_by_step,
    too_many,
    unauthorised,
    wait_for,
    well,
    whole_text,
)
from tests.support.in_process import DOMAINS, Clock, Local, answered_by, served
from tests.support.serving import complaint, prompt_for, release_of, tokens_of, word_of

LAW = prompt_for("law", DOMAINS)
LOAD_THREADS = 8
KILL_EVERY_S = 0.7
KILLS = 5
RELEASES = 20


def fleet_toml(experts: Mapping[str, Mapping[str, Any]], top: str = "") -> str:
    """A file of experts with any settings; a dict in a list is written as an inline table."""
    lines = [top]
    for name, settings in experts.items():
        own = {"model": f"{name}-model", **settings}
        lines += [
            f"[experts.{json.dumps(name)}]",
            *(f"{field} = {_toml(value)}" for field, value in own.items()),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


Fleet = Callable[..., contextlib.AbstractContextManager[Local]]


@pytest.fixture
def fleet(release: Path, tmp_path: Path) -> Fleet:
    @contextlib.contextmanager
    def play(
        experts: Mapping[str, Mapping[str, Any]], top: str = "", mu: float | None = None
    ) -> Iterator[Local]:
        file = tmp_path / "experts.toml"
        top += "" if mu is None else f"\nmu = {mu}"
        file.write_text(fleet_toml(experts, top))
        with served(release, ExpertsFile(file)) as local:
            yield local

    return play


def cast_of(stack: contextlib.ExitStack, *parts: Part) -> list[Expert]:
    return [stack.enter_context(Expert(part)) for part in parts]


# Addresses


@given(ends=st.lists(st.integers(0, 30), max_size=30))
def test_requests_are_shared_out(ends: list[int]) -> None:
    """While all are up no address has more requests running than another would have with one
    more.
    """
    places = tuple(f"http://127.0.0.1:{port}/v1" for port in range(9000, 9005))
    link = ExpertLink(
        "law", ExpertEntry(addresses=places, model="m"), None, Metrics(), Clock()
    )
    running: list[Attempt] = []
    for end in [*ends, *[99] * 20]:
        if end < len(running):
            running.pop(end).end("ok", True)
        before = [each.running for each in link.addresses]
        attempt = link.begin()
        running.append(attempt)
        assert attempt.address.running <= min(before) + 1
    assert sum(each.running for each in link.addresses) == len(running)


def test_requests_are_shared_between_addresses(fleet: Fleet) -> None:
    """Eight at once over two addresses are four each."""
    steps = Semaphore(0)
    with contextlib.ExitStack() as stack:
        one, two = cast_of(stack, step_by_step(steps), step_by_step(steps))
        addresses = [one.url, two.url]
        local = stack.enter_context(
            fleet({"law": {"addresses": addresses}}, 'fallback = "law"')
        )
        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(local.chat, "law", stream=True) for _ in range(8)]
            wait_for(lambda: len(one.asked) + len(two.asked) == 8, "all were asked")
            steps.release(100)
            assert {each.result().status_code for each in asking} == {200}
        assert (len(one.asked), len(two.asked)) == (4, 4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("part", [dies_at_once, fails, too_many])
def test_what_fails_at_one_address_is_asked_at_another(
    fleet: Fleet, part: Part, stream: bool
) -> None:
    """No client notices, not even one that has named the expert, and nobody in the expert's place
    is asked.
    """
    with contextlib.ExitStack() as stack:
        bad, good, other = cast_of(stack, part, well("law"), well("generalist"))
        experts = {
            "law": {"addresses": [bad.url, good.url]},
            "generalist": {"base_url": other.url},
        }
        local = stack.enter_context(fleet(experts, 'fallback = "generalist"'))
        for model in ("auto", "law") * 4:
            response = local.chat(model, LAW, stream=stream)
            assert response.status_code == 200
            assert response.headers["x-ridgeway-expert"] == "law"
            assert "x-ridgeway-tried" not in response.headers
        assert len(bad.asked) >= 4 and len(good.asked) == 8 and not other.asked


def test_an_address_that_is_down_is_left_alone_and_the_expert_is_degraded(
    fleet: Fleet,
) -> None:
    """After five failures only the others are asked; the states and the metrics tell it."""
    with contextlib.ExitStack() as stack:
        bad, good = cast_of(stack, fails, well("law"))
        local = stack.enter_context(
            fleet({"law": {"addresses": [bad.url, good.url]}}, 'fallback = "law"')
        )
        for _ in range(4 * MAX_FAILURES):
            assert local.chat("law").status_code == 200
        assert len(bad.asked) == MAX_FAILURES
        assert local.states() == {"law": "degraded"}
        assert local.counted("expert_up", expert="law") == 1
        assert local.counted("expert_addresses_up", expert="law") == 1
        bad.part = well("law")
        local.clock.now += PAUSE_S
        assert local.chat("law").status_code == 200
        assert len(bad.asked) == MAX_FAILURES + 1
        assert local.states() == {"law": "up"}


def test_the_first_request_after_a_pause_tries_the_address(fleet: Fleet) -> None:
    """However few requests there are: else an address would never come back."""
    clock = Clock()
    places = tuple(f"http://127.0.0.1:{port}/v1" for port in (9000, 9001))
    link = ExpertLink(
        "law", ExpertEntry(addresses=places, model="m"), None, Metrics(), clock
    )
    first = link.addresses[0]
    for _ in range(MAX_FAILURES):
        first.breaker.settle(first.breaker.enter() or 0, False)
    assert link.begin().address.number == 2
    clock.now += PAUSE_S
    assert link.begin().address.number == 1
    assert link.begin().address.number == 2


def test_a_request_that_takes_too_long_is_asked_at_two_addresses_at_most(
    fleet: Fleet,
) -> None:
    """It may be the request itself that takes long; a third would only be kept busy too."""
    with contextlib.ExitStack() as stack:
        experts = cast_of(stack, hangs, hangs, hangs)
        settings = {"addresses": [each.url for each in experts], "timeout": 0.3}
        local = stack.enter_context(fleet({"law": settings}, 'fallback = "law"'))
        response = local.chat("law")
        assert response.status_code == 504
        assert complaint(response)["code"] == "expert_timeout"
        assert sum(len(each.asked) for each in experts) == 2


def test_places_are_counted_at_each_address(fleet: Fleet) -> None:
    """Two addresses of one place each take two requests, and the third is told to come again."""
    steps = Semaphore(0)
    with contextlib.ExitStack() as stack:
        experts = cast_of(stack, step_by_step(steps), step_by_step(steps))
        settings = {"addresses": [each.url for each in experts], "max_concurrent": 1}
        local = stack.enter_context(fleet({"law": settings}, 'fallback = "law"'))
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(local.chat, "law", stream=True) for _ in range(2)]
            wait_for(lambda: all(each.asked for each in experts), "both were asked")
            assert complaint(local.chat("law"))["code"] == "expert_full"
            steps.release(100)
            assert {each.result().status_code for each in asking} == {200}


# Health checks


def test_an_address_that_fails_its_health_checks_is_not_asked(fleet: Fleet) -> None:
    """No request is needed to find out, and one check that passes lets it in again."""
    ill = Event()

    def checked(asked: Asked) -> None:
        if asked.method == "GET":
            asked.reply(503 if ill.is_set() else 200, b"{}")
        else:
            well("law")(asked)

    with contextlib.ExitStack() as stack:
        one, other = cast_of(stack, checked, well("law"))
        other.part = lambda asked: (
            asked.reply(200, b"{}") if asked.method == "GET" else well("law")(asked)
        )
        settings = {
            "addresses": [one.url, other.url],
            "health": "/health",
            "health_interval": 0.05,
        }
        ill.set()
        local = stack.enter_context(fleet({"law": settings}, 'fallback = "law"'))
        wait_for(
            lambda: local.states() == {"law": "degraded"}, "the checks have failed"
        )
        for _ in range(4):
            assert local.chat("law").status_code == 200
        assert all(
            each.method == "GET" and each.path == "/health" for each in one.asked
        )
        ill.clear()
        wait_for(lambda: local.states() == {"law": "up"}, "a check has passed")
        local.clock.now += 60.0
        for _ in range(4):
            assert local.chat("law").status_code == 200
        assert any(each.method == "POST" for each in one.asked)


# Several experts a domain, and what they cost


def test_of_several_experts_of_a_domain_the_worthiest_answers_and_cost_flips_it(
    fleet: Fleet,
) -> None:
    """By quality in the domain without a weight of cost; with a weight that outdoes the difference,
    the cheaper one.
    """
    with contextlib.ExitStack() as stack:
        large, small, other = cast_of(
            stack, well("large"), well("small"), well("generalist")
        )
        experts = {
            "small": {
                "base_url": small.url,
                "domains": {"law": 0.8, "code": 0.9},
                "cost": 1.0,
            },
            "large": {
                "base_url": large.url,
                "domains": {"law": 0.9, "code": 0.7},
                "cost": 2.0,
            },
            "generalist": {"base_url": other.url},
        }
        expected = {
            0.0: ("large", "best"),
            0.05: ("large", "best"),
            0.2: ("small", "cost"),
        }
        for mu, (expert, reason) in expected.items():
            with fleet(experts, 'fallback = "generalist"', mu) as local:
                assert answered_by(local.chat(content=LAW)) == (expert, reason)
                told = local.post("/v1/route", {"prompt": LAW}).json()
                assert (told["expert"], told["expert_reason"]) == (expert, reason)
                assert answered_by(local.chat(content=prompt_for("code", DOMAINS))) == (
                    "small",
                    "best",
                )
                assert (
                    answered_by(local.chat(content=prompt_for("médecine", DOMAINS)))[0]
                    == "generalist"
                )


def test_a_peer_of_the_domain_answers_before_the_fallback(fleet: Fleet) -> None:
    """Whoever names the same domain is asked next; who names another is not."""
    with contextlib.ExitStack() as stack:
        large, small, other = cast_of(stack, fails, well("small"), well("generalist"))
        experts = {
            "large": {"base_url": large.url, "domains": ["law"], "quality": 2.0},
            "small": {"base_url": small.url, "domains": ["law"]},
            "generalist": {"base_url": other.url},
        }
        with fleet(experts, 'fallback = "generalist"') as local:
            response = local.chat(content=LAW)
            assert answered_by(response) == ("small", "down")
            assert response.headers["x-ridgeway-tried"] == "large down"
            small.part = too_many
            response = local.chat(content=LAW)
            assert answered_by(response) == ("generalist", "down")
            assert response.headers["x-ridgeway-tried"] == "large down, small busy"
            other.part = fails
            response = local.chat(content=LAW)
            assert response.status_code == 502
            message = complaint(response)["message"]
            assert [
                message.index(repr(name)) for name in ("large", "small", "generalist")
            ] == sorted(
                message.index(repr(name)) for name in ("large", "small", "generalist")
            )


# Chains of fallbacks


too_long = complains(
    400,
    "This model's maximum context length is 4096 tokens.",
    type="BadRequestError",
    code=400,
)
CHAIN = [
    {"expert": "spare", "on": ["down"]},
    {"expert": "long", "on": ["context"]},
    {"expert": "other", "on": ["refused", "busy"]},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("part", "expert", "reason"),
    [
        (dies_at_once, "spare", "down"),
        (too_long, "long", "context"),
        (unauthorised, "other", "refused"),
        (too_many, "other", "busy"),
    ],
)
def test_each_reason_has_its_own_fallback(
    fleet: Fleet, part: Part, expert: str, reason: str, stream: bool
) -> None:
    """An expert's own chain says who answers in its place, and the headers say why."""
    with contextlib.ExitStack() as stack:
        names = ("law", "spare", "long", "other")
        experts = dict(
            zip(names, cast_of(stack, part, *map(well, names[1:])), strict=True)
        )
        settings: dict[str, Any] = {
            name: {"base_url": each.url} for name, each in experts.items()
        }
        settings["law"]["fallbacks"] = CHAIN
        with fleet(settings, 'fallback = "spare"') as local:
            response = local.chat(content=LAW, stream=stream)
            assert response.status_code == 200
            assert (
                response.headers["x-ridgeway-expert"],
                response.headers["x-ridgeway-reason"],
            ) == (expert, reason)
            assert [name for name in names if experts[name].asked] == sorted(
                {"law", expert}, key=names.index
            )


def test_a_chain_goes_on_from_where_it_is(fleet: Fleet) -> None:
    """A prompt too long for the expert and one that is down: the next in the chain that is there
    for that reason.
    """
    with contextlib.ExitStack() as stack:
        law, long, other = cast_of(stack, too_long, fails, well("other"))
        chain = [
            {"expert": "long", "on": ["context"]},
            {"expert": "other", "on": ["down", "context"]},
        ]
        experts = {
            "law": {"base_url": law.url, "fallbacks": chain},
            "long": {"base_url": long.url},
            "other": {"base_url": other.url},
        }
        with fleet(experts, 'fallback = "other"') as local:
            response = local.chat(content=LAW)
            assert answered_by(response) == ("other", "context")
            assert response.headers["x-ridgeway-tried"] == "law context, long down"


@pytest.mark.parametrize("part", [too_long, refuses_the_request])
def test_a_prompt_that_is_too_long_is_told_where_no_other_is_named(
    fleet: Fleet, part: Part
) -> None:
    """The expert's own words come back, and nobody else is asked; nor is another mistake a
    reason.
    """
    with contextlib.ExitStack() as stack:
        law, other = cast_of(stack, part, well("generalist"))
        experts: dict[str, Any] = {
            "law": {"base_url": law.url},
            "generalist": {"base_url": other.url},
        }
        if part is refuses_the_request:
            experts["law"]["fallbacks"] = [{"expert": "generalist", "on": ["context"]}]
        with fleet(experts, 'fallback = "generalist"') as local:
            response = local.chat(content=LAW)
            assert response.status_code == 400
            assert not other.asked


# Under load


@pytest.mark.slow
def test_nothing_ends_silently_while_addresses_are_killed_and_releases_change(
    tmp_path: Path,
) -> None:
    """Real processes, ended by SIGKILL with requests under way and started again, under twenty
    releases: every request is answered, and every stream is whole, letter by letter, or a beginning
    with an error as its last event.
    """
    ports = [free_port() for _ in range(3)]
    running = {port: start_expert(port) for port in ports}
    stop, release, file = Event(), tmp_path / "release", tmp_path / "experts.toml"
    release_of(release, ["code", "law"])
    settings = {"addresses": [f"http://127.0.0.1:{port}/v1" for port in ports]}
    file.write_text(fleet_toml({"law": settings}, 'fallback = "law"'))
    try:
        for port in ports:
            wait_for(lambda port=port: _answers(port), "the expert answers")  # type: ignore[misc]
        with (
            served(release, ExpertsFile(file)) as local,
            ThreadPoolExecutor(LOAD_THREADS) as pool,
        ):
            url = str(local.http.base_url)
            asking = [pool.submit(_ask_on, url, stop) for _ in range(2)]
            streaming = [
                pool.submit(_stream_on, url, f"{name}", stop)
                for name in range(LOAD_THREADS - 2)
            ]
            for number in range(KILLS):
                for turn in range(RELEASES // KILLS):
                    time.sleep(KILL_EVERY_S / (RELEASES // KILLS))
                    release_of(
                        release, ["code", "law"], strength=200 + 10 * number + turn
                    )
                port = ports[number % len(ports)]
                running[port].kill()
                running[port].wait()
                running[port] = start_expert(port)
                wait_for(lambda port=port: _answers(port), "the expert is back")  # type: ignore[misc]
            stop.set()
            counts, streams = (
                [each.result() for each in asking],
                [each.result() for each in streaming],
            )
            failed = local.counted(
                "expert_requests_total", expert="law", outcome="failed"
            )
            unreachable = local.counted(
                "expert_requests_total", expert="law", outcome="unreachable"
            )
            broken = local.counted(
                "expert_requests_total", expert="law", outcome="broken_off"
            )
        assert {status for each in counts for status in each} == {200}, counts
        assert failed + unreachable > 0, (
            "nothing was under way when an expert was killed"
        )
        assert 0 < sum(cut_off for _, cut_off in streams) <= broken, streams
        assert all(whole for whole, _ in streams), streams
    finally:
        stop.set()
        for process in running.values():
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (
            httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 200
        )
    return False


def _ask_on(url: str, stop: Event) -> dict[int, int]:
    """How often each status came."""
    counts: dict[int, int] = {}
    body = {"model": "law", "messages": [{"role": "user", "content": "hello"}]}
    with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as http:
        while not stop.is_set():
            status = http.post("/v1/chat/completions", json=body).status_code
            counts[status] = counts.get(status, 0) + 1
    return counts


def _stream_on(url: str, name: str, stop: Event) -> tuple[int, int]:
    """How many streams were whole, and how many were a beginning with an error; there are no
    others, or this fails.
    """
    whole = cut_off = 0
    with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as http:
        while not stop.is_set():
            asked = f"{name}.{whole + cut_off}"
            body = {
                "model": "law",
                "stream": True,
                "messages": [{"role": "user", "content": asked}],
            }
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                *events, last = tokens_of(response.iter_lines())
            text = "".join(map(word_of, events))
            if last == "[DONE]":
                assert text == whole_text(asked)
                whole += 1
            else:
                assert last["error"]["code"] == "expert_broken_off", last
                assert whole_text(asked).startswith(text)
                cut_off += 1
    return whole, cut_off


def test_the_last_resort_is_the_address_that_was_left_alone_first() -> None:
    """Only where nobody else can answer, and only one of several; its success ends the pause."""
    clock = Clock()
    places = tuple(f"http://127.0.0.1:{port}/v1" for port in (9000, 9001))
    link = ExpertLink(
        "law", ExpertEntry(addresses=places, model="m"), None, Metrics(), clock
    )
    for each in reversed(link.addresses):
        for _ in range(MAX_FAILURES):
            each.breaker.settle(each.breaker.enter() or 0, False)
        clock.now += 1.0
    with pytest.raises(ExpertFailure):
        link.begin()
    attempt = link.begin(is_last=True)
    assert attempt.address.number == 2 and attempt.address.state == "down"
    attempt.fail(FAILED)
    with pytest.raises(ExpertFailure):
        link.begin()
    attempt = link.begin(is_last=True)
    attempt.heard()
    attempt.end("ok", True)
    assert link.addresses[1].state == "up" and link.begin().address.number == 2
    single = ExpertLink(
        "law",
        ExpertEntry(base_url="http://127.0.0.1:9/v1", model="m"),
        None,
        Metrics(),
        clock,
    )
    for _ in range(MAX_FAILURES):
        single.begin().fail(FAILED)
    with pytest.raises(ExpertFailure):
        single.begin(is_last=True)


def test_an_expert_without_any_address_left_says_when_to_come_again() -> None:
    """The soonest that one of them may be tried."""
    clock = Clock()
    places = tuple(f"http://127.0.0.1:{port}/v1" for port in (9000, 9001))
    link = ExpertLink(
        "law", ExpertEntry(addresses=places, model="m"), None, Metrics(), clock
    )
    for each in link.addresses:
        for _ in range(MAX_FAILURES):
            each.breaker.settle(each.breaker.enter() or 0, False)
        clock.now += 4.0
    with pytest.raises(ExpertFailure) as caught:
        link.begin()
    failed = caught.value.failed
    assert (failed.kind.outcome, failed.retry_after) == ("down", "2")
