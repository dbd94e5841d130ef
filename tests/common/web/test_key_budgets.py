"""Budgets of keys: what is let in, what is written down, and what is said when it is spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import InputError
from ridgeway.common.web import key_budgets
from ridgeway.common.web.api_keys import add_key, read_keys
from ridgeway.common.web.http_errors import RefusedRequest
from ridgeway.common.web.key_budgets import KeyBudget, KeyUsage, UsageBook, window_at
from tests.support.commands import Workshop
from tests.support.in_process import Clock

NOON = datetime(2026, 12, 31, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def book(tmp_path: Path) -> Iterator[UsageBook]:
    yield UsageBook(tmp_path / "usage", Clock(NOON))


@given(
    now=st.integers(0, 4 * 10**9),
    window=st.sampled_from(["minute", "hour", "day", "month"]),
)
def test_windows_follow_each_other_without_a_gap(now: int, window: str) -> None:
    """Every moment lies in one window, and the next one begins where it ends."""
    start, end = window_at(window, now)  # type: ignore[arg-type]
    assert start <= now < end
    assert window_at(window, end)[0] == end  # type: ignore[arg-type]
    assert window_at(window, start) == (start, end)  # type: ignore[arg-type]


def test_so_many_requests_are_let_in_and_no_more_until_the_next_window(
    tmp_path: Path,
) -> None:
    """The refusal says what was spent and when it begins anew; after a restart it is still
    known.
    """
    clock = Clock(NOON)
    budget = KeyBudget("hour", requests=3)
    book = UsageBook(tmp_path / "usage", clock)
    left = [
        book.enter("shop", budget).headers["x-ratelimit-remaining-requests"]
        for _ in range(3)
    ]
    assert left == ["2", "1", "0"]
    again = UsageBook(tmp_path / "usage", clock)
    with pytest.raises(
        RefusedRequest, match="3 of 3 requests this hour; it resets in 3600 s"
    ) as refused:
        again.enter("shop", budget)
    assert refused.value.headers == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "3600s",
        "retry-after": "3600",
    }
    assert again.enter("other", budget).headers["x-ratelimit-remaining-requests"] == "2"
    clock.now += 3600
    assert again.enter("shop", budget).headers["x-ratelimit-remaining-requests"] == "2"
    assert (tmp_path / "usage").stat().st_mode & 0o777 == 0o600


def test_tokens_and_cost_are_counted_when_an_answer_has_ended(book: UsageBook) -> None:
    """In the window in which its request came; then nothing more is let in."""
    budget = KeyBudget("month", tokens=100, cost=2.5)
    book.enter("shop", budget).spend(60, 1.5)
    account = book.enter("shop", budget)
    assert account.headers["x-ratelimit-remaining-tokens"] == "40"
    assert account.headers["x-ratelimit-remaining-cost"] == "1"
    account.spend(60, 0.5)
    assert book.spent("shop", "month") == KeyUsage(2, 120, 2.0)
    with pytest.raises(
        RefusedRequest, match="120 of 100 tokens this month; it resets in 43200 s"
    ):
        book.enter("shop", budget)


def test_two_processes_that_share_a_file_let_no_more_in_together(
    tmp_path: Path,
) -> None:
    """Each has a connection of its own, as workers have; of 100 requests 60 are let in, whoever
    lets them in.
    """
    budget = KeyBudget("day", requests=60)
    books = [UsageBook(tmp_path / "usage", Clock(NOON)) for _ in range(2)]
    let_in: list[int] = []

    def ask(book: UsageBook) -> None:
        for _ in range(50):
            try:
                book.enter("shop", budget)
            except RefusedRequest:
                continue
            let_in.append(1)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, books))
    assert len(let_in) == 60


def test_a_file_that_another_process_holds_is_a_sentence_and_loses_no_answer(
    book: UsageBook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody with a budget is let in meanwhile; what was spent for an answer is lost; afterwards
    all is as before.
    """
    monkeypatch.setattr(key_budgets, "_WAIT_S", 0.01)
    budget = KeyBudget("day", requests=2)
    account = book.enter("shop", budget)
    with closing(sqlite3.connect(tmp_path / "usage", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            RefusedRequest, match="the usage of this key cannot be read"
        ) as refused:
            book.enter("shop", budget)
        account.spend(7, 1.0)
    assert (refused.value.status, refused.value.code) == (503, "no_usage")
    assert caplog.text.count("database is locked") == 2
    assert book.enter("shop", budget).headers["x-ratelimit-remaining-requests"] == "0"
    assert book.spent("shop", "day") == KeyUsage(2, 0, 0.0)


@pytest.mark.parametrize(
    "limits",
    [
        {"window": "week", "max_requests": 1},
        {"window": "day"},
        {"max_requests": 1},
        {"window": "day", "max_cost": -1.0},
    ],
)
def test_a_budget_that_cannot_be_is_one_sentence(tmp_path: Path, limits: Any) -> None:
    with pytest.raises(InputError, match=r"window|max_cost"):
        add_key(tmp_path / "keys.toml", "shop", **limits)


def test_the_file_of_keys_keeps_budgets_and_the_command_shows_what_is_spent(
    tmp_path: Path,
) -> None:
    """A window without a limit is refused; what a key has spent is shown beside its limits."""
    file = tmp_path / "keys.toml"
    budget = KeyBudget("day", requests=10, cost=1.5)
    add_key(file, "shop", window="day", max_requests=10, max_cost=1.5)
    add_key(file, "plain")
    assert [record.budget for record in read_keys(file)] == [budget, None]
    UsageBook(tmp_path / "keys.toml.usage").enter("shop", budget)
    shop = Workshop(tmp_path)
    listed = shop.do("keys list keys.toml --json").json
    assert listed[0]["budget"]["requests"] == 10 and listed[0]["spent"]["requests"] == 1
    words = shop.do("keys list keys.toml").stdout
    assert "1 of 10 requests, 0 of 1.5 cost a day" in words
    for _ in range(2):
        UsageBook(tmp_path / "elsewhere").enter("shop", budget)
    elsewhere = shop.do("keys list keys.toml --usage elsewhere").stdout
    assert "2 of 10 requests" in elsewhere
    many = shop.do("keys add keys.toml many --max-parallel 3 --json").json
    assert many["max_parallel"] == 3 and read_keys(file)[-1].max_parallel == 3
    hour = "keys add keys.toml new --window hour --max-tokens 7 --json"
    assert shop.do(hour).json["budget"] == {
        "window": "hour",
        "requests": None,
        "tokens": 7,
        "cost": None,
    }
    week = "keys add keys.toml other --window week --max-tokens 7"
    assert shop.call(week).code == 2
    file.write_text(file.read_text().replace("max_requests = 10\nmax_cost = 1.5\n", ""))
    with pytest.raises(InputError, match="a budget needs a window"):
        read_keys(file)
