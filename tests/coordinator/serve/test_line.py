"""The line of prompts: everybody gets their own answer, whoever else is asking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from common.conversation import Turn
from common.router import Decision
from coordinator.serve.line import LONG, MOST_TOGETHER, Line
from coordinator.serve.live import Current, Live, Source
from tests.serving import release_of

Result = TypeVar("Result")


@pytest.fixture
def live(tmp_path: Path) -> Live:
    release_of(tmp_path / "release", ["code", "law", "medicine"])
    return Current(Source(tmp_path / "release")).live


@pytest.fixture
def line(live: Live) -> Iterator[Line]:
    made = Line(lambda: live)
    yield made
    made.close()


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(work, 30))


def prompts(count: int) -> list[str]:
    return [f"{number} {'abcdefgh'[number % 8] * (number % 13)}" for number in range(count)]


def test_everyone_in_a_crowd_gets_the_answer_to_their_own_prompt(line: Line, live: Live) -> None:
    """Routed together or alone, a prompt's decision is the router's own, bit for bit."""
    asked = prompts(5 * MOST_TOGETHER)

    async def crowd() -> list[tuple[Live, Decision]]:
        return await asyncio.gather(*map(line.route, asked))

    answers = run(crowd())
    assert [decision for _, decision in answers] == [live.router.route(prompt) for prompt in asked]
    assert {id(used) for used, _ in answers} == {id(live)}


def test_prompts_of_one_moment_are_routed_together(line: Line, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of 32 is one batch, not 32."""
    sizes: list[int] = []
    real = live.router.route_many

    def counted(texts: list[str]) -> list[Decision]:
        sizes.append(len(texts))
        return real(texts)

    monkeypatch.setattr(live.router, "route_many", counted)

    async def crowd() -> None:
        await asyncio.gather(*map(line.route, prompts(MOST_TOGETHER + 3)))

    run(crowd())
    assert sizes == [MOST_TOGETHER, 3]


def test_a_long_text_holds_nobody_up(line: Line, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts are answered while a long one is still being read."""
    free = threading.Event()
    real = live.router.route

    def slow(text: str) -> Decision:
        assert free.wait(20)
        return real(text)

    monkeypatch.setattr(live.router, "route", slow)

    async def both() -> Decision:
        long = asyncio.create_task(line.route("a" * (LONG + 1)))
        await asyncio.sleep(0)
        await line.route("short")
        assert not long.done()
        free.set()
        return (await long)[1]

    assert run(both()).tokens == LONG + 1


def test_whoever_has_gone_is_not_waited_for(line: Line, live: Live) -> None:
    """A request that was given up takes nothing from the others of its batch."""

    async def crowd() -> Decision:
        gone = asyncio.create_task(line.route("gone"))
        stays = asyncio.create_task(line.route("stays"))
        await asyncio.sleep(0)
        gone.cancel()
        return (await stays)[1]

    assert run(crowd()) == live.router.route("stays")


def test_a_failure_reaches_those_who_asked_and_the_line_goes_on(
    line: Line, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in a batch is everyone's in it; the next batch is as if nothing had been."""

    async def crowd() -> Decision:
        with monkeypatch.context() as patch:
            patch.setattr(live.router, "route_many", lambda texts: 1 / 0)
            answers = await asyncio.gather(line.route("a"), line.route("b"), return_exceptions=True)
            assert [type(answer) for answer in answers] == [ZeroDivisionError, ZeroDivisionError]
        return (await line.route("c"))[1]

    assert run(crowd()) == live.router.route("c")


def test_even_what_is_no_exception_does_not_stop_the_line(
    line: Line, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library in another language that gives up raises what nobody catches."""

    class Panic(BaseException):
        pass

    def panic(texts: list[str]) -> list[Decision]:
        raise Panic

    async def crowd() -> Decision:
        with monkeypatch.context() as patch:
            patch.setattr(live.router, "route_many", panic)
            (answer,) = await asyncio.gather(line.route("a"), return_exceptions=True)
            assert isinstance(answer, RuntimeError)
        return (await line.route("c"))[1]

    assert run(crowd()) == live.router.route("c")


def test_a_release_that_changes_is_used_by_the_next_batch(live: Live, tmp_path: Path) -> None:
    """Each answer says under which release it was made."""
    release_of(tmp_path / "next", ["code", "law"], strength=50)
    other = Current(Source(tmp_path / "next")).live
    lives = [live]
    line = Line(lambda: lives[0])

    async def two() -> list[Live]:
        first, _ = await line.route("a")
        lives[0] = other
        second, _ = await line.route_turns([Turn("a", 1.0), Turn("b", 0.125)])
        return [first, second]

    assert run(two()) == [live, other]
    line.close()


def test_batches_conversations_and_explanations_are_the_routers_own(line: Line, live: Live) -> None:
    """Whatever the way through the line, the answer is what the library gives."""
    turns = [Turn("abc def", 1.0), Turn("xyz", 0.125)]
    assert run(line.route_many(prompts(70)))[1] == live.router.route_many(prompts(70))
    assert run(line.route_turns(turns))[1] == live.router.route_turns(turns)
    assert run(line.explain([turns, [Turn("a", 1.0)]]))[1] == [
        live.router.explain_turns(turns),
        live.router.explain("a"),
    ]
