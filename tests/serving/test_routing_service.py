"""Routing in threads: every client gets its own answer, whatever others ask."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.release import CurrentRelease
from ridgeway.common.routing.router import Router
from ridgeway.serving import routing_service
from ridgeway.serving.routing_service import (
    MAX_QUICK_CHARACTERS,
    MAX_SHORT_CHARACTERS,
    ReleaseSource,
    RoutingThreads,
    ServedRelease,
)
from tests.support.serving import release_of
from tests.support.waiting import PATIENCE_S

Result = TypeVar("Result")


@pytest.fixture
def served(tmp_path: Path) -> ServedRelease:
    release_of(tmp_path / "release", ["code", "law", "medicine"])
    return CurrentRelease(ReleaseSource(tmp_path / "release")).served


@pytest.fixture
def threads(served: ServedRelease) -> Iterator[RoutingThreads]:
    made = RoutingThreads(lambda: served)
    yield made
    made.close()


def text(prompt: str) -> list[Turn]:
    return [Turn(prompt, 1.0)]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(work, 30))


def prompts(count: int) -> list[str]:
    return [
        f"{number} {'abcdefgh'[number % 8] * (number % 13)}" for number in range(count)
    ]


def test_everyone_in_a_crowd_gets_the_answer_to_their_prompt(
    threads: RoutingThreads, served: ServedRelease
) -> None:
    """Routed together or alone, a prompt's decision is the router's own, bit for bit."""
    asked = prompts(40)

    async def crowd() -> list[tuple[ServedRelease, Decision]]:
        return await asyncio.gather(
            *(threads.route_turns(text(prompt)) for prompt in asked)
        )

    answers = run(crowd())
    assert [decision for _, decision in answers] == [
        served.router.route(prompt) for prompt in asked
    ]
    assert {id(used) for used, _ in answers} == {id(served)}


def test_where_deciding_is_quick_a_short_prompt_is_decided_at_once(
    threads: RoutingThreads, served: ServedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no thread; a longer one does, so that others are not held up by it."""
    object.__setattr__(served, "is_quick", True)
    deciding: list[threading.Thread] = []
    real = Router.route_turns

    def watched(router: Router, turns: Sequence[Turn]) -> Decision:
        deciding.append(threading.current_thread())
        return real(router, turns)

    monkeypatch.setattr(Router, "route_turns", watched)
    asked = ["short", "a" * MAX_QUICK_CHARACTERS, "a" * (MAX_QUICK_CHARACTERS + 1)]

    async def one_by_one() -> list[Decision]:
        return [(await threads.route_turns(text(prompt)))[1] for prompt in asked]

    assert run(one_by_one()) == served.router.route_many(asked)
    here = threading.current_thread()
    assert [thread is here for thread in deciding] == [True, True, False]


def test_a_long_text_holds_nobody_up(
    threads: RoutingThreads, served: ServedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short prompts are answered while a long one is still being read."""
    free = threading.Event()
    real = served.router.route

    def slow(prompt: str) -> Decision:
        assert len(prompt) <= MAX_SHORT_CHARACTERS or free.wait(PATIENCE_S)
        return real(prompt)

    monkeypatch.setattr(served.router, "route", slow)

    async def both() -> Decision:
        long = asyncio.create_task(
            threads.route_turns(text("a" * (MAX_SHORT_CHARACTERS + 1)))
        )
        await asyncio.sleep(0)
        await threads.route_turns(text("short"))
        assert not long.done()
        free.set()
        return (await long)[1]

    assert run(both()).tokens == MAX_SHORT_CHARACTERS + 1


class Panic(BaseException):
    """What a library in another language raises that gives up, and nobody catches."""


@pytest.mark.parametrize(
    ("error", "reported"),
    [(ZeroDivisionError, ZeroDivisionError), (Panic, RuntimeError)],
)
def test_a_failure_reaches_whoever_asked_and_the_threads_go_on(
    threads: RoutingThreads,
    served: ServedRelease,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    reported: type[Exception],
) -> None:
    """The next request is as if nothing had been."""

    def fail(turns: list[Turn]) -> Decision:
        raise error

    async def crowd() -> Decision:
        with monkeypatch.context() as patch:
            patch.setattr(served.router, "route_turns", fail)
            asked = threads.route_turns(text("a")), threads.route_turns(text("b"))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(answer) for answer in answers] == [reported, reported]
        return (await threads.route_turns(text("c")))[1]

    assert run(crowd()) == served.router.route("c")


def test_a_release_that_changes_is_used_by_the_next_request(
    served: ServedRelease, tmp_path: Path
) -> None:
    """Each answer says under which release it was made."""
    release_of(tmp_path / "next", ["code", "law"], strength=50)
    other = CurrentRelease(ReleaseSource(tmp_path / "next")).served
    lives = [served]
    threads = RoutingThreads(lambda: lives[0])

    async def two() -> list[ServedRelease]:
        first, _ = await threads.route_turns(text("a"))
        lives[0] = other
        second, _ = await threads.route_turns([Turn("a", 1.0), Turn("b", 0.125)])
        return [first, second]

    assert run(two()) == [served, other]
    threads.close()


def test_a_batch_waits_its_turn_beside_another(
    threads: RoutingThreads, served: ServedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small batch is answered while a large one has pieces left; both get what the library
    gives.
    """
    real = served.router.route_many
    routed: list[int] = []

    def slow(texts: list[str]) -> list[Decision]:
        time.sleep(0.01)
        routed.append(len(texts))
        return real(texts)

    monkeypatch.setattr(served.router, "route_many", slow)
    monkeypatch.setattr(routing_service, "_MAX_PIECE_CHARACTERS", 100)
    many = ["a" * 100] * 30

    async def both() -> tuple[int, list[Decision], list[Decision]]:
        large = asyncio.create_task(threads.route_many(many))
        await asyncio.sleep(0)
        small = await threads.route_many(["b", "c"])
        turns = len(routed)
        return turns, small[1], (await large)[1]

    turns, small, large = run(both())
    assert turns < 10 and routed.count(1) == 30
    assert (small, large) == (real(["b", "c"]), real(many))
