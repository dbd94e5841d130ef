"""Experts as a fleet: several addresses an expert, several experts a domain, and chains of
fallbacks with reasons.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.deploy.processes import free_port
from ridgeway.common.routing.experts_file import Expert as ExpertEntry
from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.serving.expert_link import (
    FAILED,
    MAX_FAILURES,
    PAUSE_S,
    Attempt,
    ExpertFailure,
    ExpertLink,
)
from ridgeway.serving.telemetry import Metrics
from tests.support.fake_expert import (
    Asked,
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
from tests.support.in_process import (
    DOMAINS,
    Clock,
    Fleet,
    answered_by,
    experts_toml,
    served,
)
from tests.support.serving import complaint, prompt_for, release_of, tokens_of, word_of

LAW = prompt_for("law", DOMAINS)
LOAD_THREADS = 8
KILL_EVERY_S = 0.7
KILLS = 5
RELEASES = 20


def link_of(clock: Clock, addresses: int) -> ExpertLink:
    """An expert of so many addresses, none of which is asked."""
    ports = range(9000, 9000 + addresses)
    urls = tuple(f"http://127.0.0.1:{port}/v1" for port in ports)
    entry = ExpertEntry(addresses=urls, model="m")
    return ExpertLink("law", entry, None, Metrics(), clock)


# Addresses


@given(ends=st.lists(st.integers(0, 30), max_size=30))
def test_requests_are_shared_out(ends: list[int]) -> None:
    """While all are up no address has more requests running than another would have with one
    more.
    """
    link = link_of(Clock(), 5)
    running: list[Attempt] = []
    for end in [*ends, *[99] * 20]:
        if end < len(running):
            running.pop(end).end("ok", True)
        before = [address.running for address in link.addresses]
        attempt = link.begin()
        running.append(attempt)
        assert attempt.address.running <= min(before) + 1
    assert sum(address.running for address in link.addresses) == len(running)


def test_requests_are_shared_between_addresses(fleet: Fleet) -> None:
    """Eight at once over two addresses are four each."""
    steps = Semaphore(0)
    one, two = fleet.start(step_by_step(steps), step_by_step(steps))
    local = fleet.serve({"law": {"addresses": [one.url, two.url]}})
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(local.chat, "law", stream=True) for _ in range(8)]
        wait_for(lambda: len(one.asked) + len(two.asked) == 8, "all were asked")
        steps.release(100)
        assert {answer.result().status_code for answer in asking} == {200}
    assert (len(one.asked), len(two.asked)) == (4, 4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("part", [dies_at_once, fails, too_many])
def test_what_fails_at_one_address_is_asked_at_another(
    fleet: Fleet, part: Part, stream: bool
) -> None:
    """No client notices, not even one that has named the expert, and nobody in the expert's place
    is asked.
    """
    bad, good = fleet.start(part, well("law"))
    local = fleet.serve({"law": {"addresses": [bad.url, good.url]}, "generalist": {}})
    for model in ("auto", "law") * 4:
        response = local.chat(model, LAW, stream=stream)
        assert response.status_code == 200
        assert response.headers["x-ridgeway-expert"] == "law"
        assert "x-ridgeway-tried" not in response.headers
    assert len(bad.asked) >= 4 and len(good.asked) == 8 and not fleet.asked


def test_an_address_that_is_down_is_left_alone_and_the_expert_is_degraded(
    fleet: Fleet,
) -> None:
    """After five failures only the others are asked; the states and the metrics tell it."""
    bad, good = fleet.start(fails, well("law"))
    local = fleet.serve({"law": {"addresses": [bad.url, good.url]}})
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


def test_the_first_request_after_a_pause_tries_the_address() -> None:
    """However few requests there are: else an address would never come back."""
    clock = Clock()
    link = link_of(clock, 2)
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
    experts = fleet.start(hangs, hangs, hangs)
    addresses = [expert.url for expert in experts]
    response = fleet.serve({"law": {"addresses": addresses, "timeout": 0.3}}).chat()
    assert response.status_code == 504
    assert complaint(response)["code"] == "expert_timeout"
    assert sum(len(expert.asked) for expert in experts) == 2


def test_places_are_counted_at_each_address(fleet: Fleet) -> None:
    """Two addresses of one place each take two requests, and the third is told to come again."""
    steps = Semaphore(0)
    experts = fleet.start(step_by_step(steps), step_by_step(steps))
    addresses = [expert.url for expert in experts]
    local = fleet.serve({"law": {"addresses": addresses, "max_concurrent": 1}})
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(local.chat, "law", stream=True) for _ in range(2)]
        wait_for(lambda: all(expert.asked for expert in experts), "both were asked")
        assert complaint(local.chat("law"))["code"] == "expert_full"
        steps.release(100)
        assert {answer.result().status_code for answer in asking} == {200}


# Health checks


def test_an_address_that_fails_its_health_checks_is_not_asked(fleet: Fleet) -> None:
    """No request is needed to find out, and one check that passes lets it in again."""
    ill = Event()
    ill.set()

    def checked(ill: Event) -> Part:
        def part(asked: Asked) -> None:
            if asked.method == "GET":
                asked.reply(503 if ill.is_set() else 200, b"{}")
            else:
                well("law")(asked)

        return part

    one, other = fleet.start(checked(ill), checked(Event()))
    settings = {"health": "/health", "health_interval": 0.05}
    local = fleet.serve({"law": {"addresses": [one.url, other.url], **settings}})
    wait_for(lambda: local.states() == {"law": "degraded"}, "the checks have failed")
    for _ in range(4):
        assert local.chat("law").status_code == 200
    assert all(asked.method == "GET" and asked.path == "/health" for asked in one.asked)
    ill.clear()
    wait_for(lambda: local.states() == {"law": "up"}, "a check has passed")
    local.clock.now += 60.0
    for _ in range(4):
        assert local.chat("law").status_code == 200
    assert any(asked.method == "POST" for asked in one.asked)


# Several experts a domain, and what they cost


@pytest.mark.parametrize(
    ("mu", "chosen"),
    [(0.0, ("large", "best")), (0.05, ("large", "best")), (0.2, ("small", "cost"))],
)
def test_of_several_experts_of_a_domain_the_worthiest_answers_and_cost_flips_it(
    fleet: Fleet, mu: float, chosen: tuple[str, str]
) -> None:
    """By quality in the domain without a weight of cost; with a weight that outdoes the difference,
    the cheaper one.
    """
    experts = {
        "small": {"domains": {"law": 0.8, "code": 0.9}, "cost": 1.0},
        "large": {"domains": {"law": 0.9, "code": 0.7}, "cost": 2.0},
        "generalist": {},
    }
    local = fleet.serve(experts, mu=mu)
    assert answered_by(local.chat(content=LAW)) == chosen
    decision = local.post("/v1/route", {"prompt": LAW}).json()
    assert (decision["expert"], decision["expert_reason"]) == chosen
    for domain, expert in (("code", "small"), ("médecine", "generalist")):
        prompt = prompt_for(domain, DOMAINS)
        assert answered_by(local.chat(content=prompt))[0] == expert


def test_a_peer_of_the_domain_answers_before_the_fallback(fleet: Fleet) -> None:
    """Whoever names the same domain is asked next; who names another is not."""
    law = {"domains": ["law"]}
    names = ("large", "small", "generalist")
    local = fleet.serve({"large": {**law, "quality": 2.0}, "small": law, names[2]: {}})
    for name, part, answers, tried in (
        ("large", fails, "small", "large down"),
        ("small", too_many, "generalist", "large down, small busy"),
    ):
        fleet.experts[name].part = part
        response = local.chat(content=LAW)
        assert answered_by(response) == (answers, "down")
        assert response.headers["x-ridgeway-tried"] == tried
    fleet.experts["generalist"].part = fails
    response = local.chat(content=LAW)
    assert response.status_code == 502
    assert response.headers["retry-after"] == "7"
    message = complaint(response)["message"]
    positions = [message.index(repr(name)) for name in names]
    assert positions == sorted(positions)


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
    names = ("law", "spare", "long", "other")
    settings = {name: {"fallbacks": CHAIN} if name == "law" else {} for name in names}
    local = fleet.serve(settings, "spare")
    fleet.experts["law"].part = part
    response = local.chat(content=LAW, stream=stream)
    assert response.status_code == 200
    assert response.headers["x-ridgeway-expert"] == expert
    assert response.headers["x-ridgeway-reason"] == reason
    assert fleet.asked == {"law", expert}


def test_a_chain_goes_on_from_where_it_is(fleet: Fleet) -> None:
    """A prompt too long for the expert and one that is down: the next in the chain that is there
    for that reason.
    """
    chain = [
        {"expert": "long", "on": ["context"]},
        {"expert": "other", "on": ["down", "context"]},
    ]
    local = fleet.serve({"law": {"fallbacks": chain}, "long": {}, "other": {}})
    fleet.experts["law"].part = too_long
    fleet.experts["long"].part = fails
    response = local.chat(content=LAW)
    assert answered_by(response) == ("other", "context")
    assert response.headers["x-ridgeway-tried"] == "law context, long down"


@pytest.mark.parametrize(
    ("part", "fallbacks"),
    [
        (too_long, {}),
        (
            refuses_the_request,
            {"fallbacks": [{"expert": "generalist", "on": ["context"]}]},
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_told_where_no_other_is_named(
    fleet: Fleet, part: Part, fallbacks: dict[str, Any]
) -> None:
    """The expert's own words come back, and nobody else is asked; nor is another mistake a
    reason.
    """
    local = fleet.serve({"law": fallbacks, "generalist": {}})
    fleet.experts["law"].part = part
    assert local.chat(content=LAW).status_code == 400
    assert fleet.asked == {"law"}


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
    file.write_text(experts_toml({"law": settings}, fallback="law"))
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
            counts = [client.result() for client in asking]
            streams = [client.result() for client in streaming]
            failed, unreachable, broken = (
                local.counted("expert_requests_total", expert="law", outcome=outcome)
                for outcome in ("failed", "unreachable", "broken_off")
            )
        assert {status for count in counts for status in count} == {200}, counts
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
    link = link_of(clock, 2)
    for address in reversed(link.addresses):
        for _ in range(MAX_FAILURES):
            address.breaker.settle(address.breaker.enter() or 0, False)
        clock.now += 1.0
    with pytest.raises(ExpertFailure):
        link.begin()
    attempt = link.begin(is_last=True)
    assert attempt.address.number == 2 and attempt.address.state == "down"
    attempt.fail(FAILED)
    with pytest.raises(ExpertFailure):
        link.begin()
    attempt = link.begin(is_last=True)
    attempt.answer_began()
    attempt.end("ok", True)
    assert link.addresses[1].state == "up" and link.begin().address.number == 2
    single = link_of(clock, 1)
    for _ in range(MAX_FAILURES):
        single.begin().fail(FAILED)
    with pytest.raises(ExpertFailure):
        single.begin(is_last=True)


def test_an_expert_without_any_address_left_says_when_to_come_again() -> None:
    """The soonest that one of them may be tried."""
    clock = Clock()
    link = link_of(clock, 2)
    for address in link.addresses:
        for _ in range(MAX_FAILURES):
            address.breaker.settle(address.breaker.enter() or 0, False)
        clock.now += 4.0
    with pytest.raises(ExpertFailure) as caught:
        link.begin()
    failed = caught.value.failed
    assert (failed.kind.outcome, failed.retry_after) == ("down", "2")
