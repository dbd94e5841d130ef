"""Budgets and numbers of parallel requests bind however many ask at once, and whichever worker they
come to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ridgeway.common.web.api_keys import add_key, usage_path
from ridgeway.common.web.http_errors import RefusedRequest
from ridgeway.common.web.key_budgets import UsageBook
from tests.support.fake_expert import Asked, Expert, hangs, token
from tests.support.in_process import CHATS, DOMAINS
from tests.support.serving import Serving, chat, leaving, release_of, write_experts
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

PROMPT_TOKENS = 11
ANSWER_TOKENS = 200
EACH = PROMPT_TOKENS + ANSWER_TOKENS
AT_ONCE = 64


def slow_answer(asked: Asked) -> None:
    time.sleep(0.2)
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": ANSWER_TOKENS}
    asked.reply(200, json.dumps({"model": "m", "choices": [], "usage": usage}).encode())


@contextlib.contextmanager
def serving(
    folder: Path, part: Any, workers: int = 2, **limits: Any
) -> Iterator[tuple[Serving, Expert, UsageBook]]:
    """The service with one key of these limits; and what the key has spent."""
    release_of(folder / "release", DOMAINS)
    keys = folder / "keys.toml"
    key, _ = add_key(keys, "shop", **limits)
    with Expert(part) as expert:
        prices = {"prompt_price": 1000.0, "answer_price": 1000.0}
        file = write_experts(
            folder / "experts.toml", dict.fromkeys(DOMAINS, expert.url), every=prices
        )
        options = ("--experts", file, "--keys", keys, "--workers", str(workers))
        with Serving(folder, folder / "release", *options, key=key) as served:
            yield served, expert, UsageBook(usage_path(keys))


def ask_at_once(
    served: Serving,
    number: int,
    answers: list[httpx.Response] | None = None,
    **more: Any,
) -> Counter[tuple[int, str]]:
    """Statuses and codes of errors of so many requests, each over a connection of its own;
    `answers` has them too, as they come.
    """
    come = [] if answers is None else answers
    body = chat("auto", "hello", **more)

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        headers = {"authorization": f"Bearer {served.key}"}
        async with httpx.AsyncClient(
            base_url=served.url, limits=limits, headers=headers, timeout=120.0
        ) as http:

            async def ask() -> None:
                come.append(await http.post(CHATS, json=body))

            await asyncio.gather(*(ask() for _ in range(number)))

    def code(answer: httpx.Response) -> str:
        return "" if answer.status_code == 200 else str(answer.json()["error"]["code"])

    asyncio.run(all_of_them())
    return Counter((answer.status_code, code(answer)) for answer in come)


@pytest.mark.parametrize(
    "limits", [{"max_tokens": 1000}, {"max_cost": 1.0}], ids=["tokens", "cost"]
)
@pytest.mark.parametrize(
    "named", [{"max_tokens": ANSWER_TOKENS}, {}], ids=["named", "unnamed"]
)
def test_at_most_one_request_goes_over_a_budget(
    tmp_path: Path, limits: Any, named: Any
) -> None:
    """64 at once, and again until nothing is left; the rest are told to come again, and not only in
    the next window.
    """
    answers: list[httpx.Response] = []

    def once_all_have_come(asked: Asked) -> None:
        wait_for(
            "the others are refused",
            lambda: len(expert.asked) + len(answers) >= AT_ONCE,
        )
        slow_answer(asked)

    with serving(tmp_path, once_all_have_come, window="month", **limits) as (
        served,
        expert,
        book,
    ):
        first = ask_at_once(served, AT_ONCE, answers, **named)
        assert set(first) == {(200, ""), (429, "budget_reserved")}
        wait_for(
            "all is settled",
            lambda: book.spent("shop", "month").tokens == first[200, ""] * EACH,
        )
        for _ in range(20):
            if (429, "budget_spent") in ask_at_once(served, 8, **named):
                break
        spent = book.spent("shop", "month")
        assert 1000 <= spent.tokens < 1000 + EACH
        assert spent.requests == len(expert.asked) == spent.tokens / EACH
        assert spent.cost == pytest.approx(spent.tokens / 1000)
        wait_for(
            "both workers' refusals are counted",
            lambda: served.metric("ridgeway_refusals_total", reason="budget") > 0,
        )


def test_who_leaves_pays_for_the_prompt(tmp_path: Path) -> None:
    """The expert has had it, streamed or not; four bytes are a token."""
    with serving(tmp_path, hangs, 1, window="month", max_tokens=1_000_000) as (
        served,
        expert,
        book,
    ):
        for streamed in (False, True):
            before = book.spent("shop", "month").tokens
            body = chat("auto", "x" * 40_000, stream=streamed)
            with leaving(served.http.base_url, body, key=served.key):
                expert.last(after=int(streamed))
            assert expert.last().gone.wait(60)
            paid = before + len(expert.last().body) // 4
            spent = partial(book.spent, "shop", "month")
            wait_for("it is charged", lambda: spent().tokens == paid)  # noqa: B023


def test_a_failed_request_is_not_charged(tmp_path: Path) -> None:
    """What was reserved for it is free again."""
    with serving(
        tmp_path, lambda asked: asked.reset(), 1, window="month", max_tokens=1000
    ) as (served, _, book):
        assert served.chat("auto", "hello").status_code == 502
        wait_for("it is free", lambda: book.spent("shop", "month").tokens == 0)


def test_a_key_has_no_more_requests_at_a_time_than_it_may(tmp_path: Path) -> None:
    """Over both workers together; they are let in again when others have ended."""
    at_once: list[int] = []
    running = 0

    def counted(asked: Asked) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        slow_answer(asked)
        running -= 1

    with serving(tmp_path, counted, max_parallel=3) as (served, _, _book):
        statuses = ask_at_once(served, AT_ONCE)
        assert set(statuses) == {(200, ""), (429, "too_many_parallel")}
        assert max(at_once) <= 3
        assert ask_at_once(served, 3) == {(200, ""): 3}


def test_what_a_killed_process_had_reserved_stays_spent_and_its_requests_do_not_run_for_ever(
    tmp_path: Path,
) -> None:
    """A stream is cut by SIGKILL: its reservation is charged, and its place is free when its lease
    is over.
    """

    def begins(asked: Asked) -> None:
        asked.head(200, b"text/event-stream", b"transfer-encoding: chunked\r\n")
        asked.chunk(token("one"))
        asked.linger()

    limits: Any = {"max_tokens": 1_000_000, "max_parallel": 1}
    with serving(tmp_path, begins, 1, window="month", **limits) as (
        served,
        expert,
        book,
    ):
        with (
            contextlib.suppress(httpx.HTTPError),
            served.streamed("auto", max_tokens=500) as response,
        ):
            lines = response.iter_lines()
            next(lines)
            os.kill(served.pid, signal.SIGKILL)
        assert book.spent("shop", "month").tokens == len(expert.last().body) // 2 + 500
        with pytest.raises(RefusedRequest, match="its limit"):
            book.enter("shop", None, 1)
        late = UsageBook(usage_path(tmp_path / "keys.toml"), lambda: time.time() + 61)
        late.enter("shop", None, 1).close()
