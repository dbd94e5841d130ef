"""What each key may spend in a window of time: requests, tokens and cost, kept in a file over
restarts and workers.

Windows are those of the calendar in UTC. A request is counted when it is let in, tokens and cost
when its answer has ended; so the last answer of a window may spend more than was left, and nothing
is let in after it.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ridgeway.common.http.http_errors import RefusedRequest

Window = Literal["minute", "hour", "day", "month"]
WINDOW_S: dict[Window, int] = {"minute": 60, "hour": 3600, "day": 86_400}
KEPT_S = 400 * 86_400
_WAIT_S = 5.0
"""For another process that writes."""
_TABLE = """CREATE TABLE IF NOT EXISTS usage (
    name TEXT, start INTEGER, requests INTEGER NOT NULL, tokens INTEGER NOT NULL,
    cost REAL NOT NULL,
    PRIMARY KEY (name, start))"""
READ = "SELECT requests, tokens, cost FROM usage WHERE name = ? AND start = ?"
ADD = """INSERT INTO usage VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, tokens = tokens + excluded.tokens,
    cost = cost + excluded.cost"""

log = logging.getLogger("ridgeway.http")


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What was spent in a window. Law: amounts add up, whoever spends them and in whatever
    order.
    """

    requests: int = 0
    tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyBudget:
    """The most that may be spent in a window; None: no limit."""

    window: Window
    requests: int | None = None
    tokens: int | None = None
    cost: float | None = None

    def limits(self) -> dict[str, float]:
        """The limits that there are, by what they count."""
        limits = {"requests": self.requests, "tokens": self.tokens, "cost": self.cost}
        return {kind: limit for kind, limit in limits.items() if limit is not None}

    def exceeded(self, spent: KeyUsage) -> str | None:
        """Which limit lets nothing more in."""
        for kind, limit in self.limits().items():
            if getattr(spent, kind) >= limit:
                unit = "units of cost" if kind == "cost" else kind
                return f"{getattr(spent, kind):g} of {limit:g} {unit}"
        return None

    def headers(self, spent: KeyUsage, reset_s: int) -> dict[str, str]:
        """What is left, as OpenAI's clients know it."""
        headers: dict[str, str] = {}
        for kind, limit in self.limits().items():
            left = max(0, limit - getattr(spent, kind))
            headers[f"x-ratelimit-limit-{kind}"] = f"{limit:.10g}"
            headers[f"x-ratelimit-remaining-{kind}"] = f"{left:.10g}"
            headers[f"x-ratelimit-reset-{kind}"] = f"{reset_s}s"
        return headers

    def in_words(self, spent: KeyUsage | None) -> str:
        """Limits, and what was spent of them."""
        spent = spent or KeyUsage()
        shares = [
            f"{getattr(spent, kind):g} of {limit:g} {kind}"
            for kind, limit in self.limits().items()
        ]
        return f"{', '.join(shares)} a {self.window}"


def window_at(window: Window, now: float) -> tuple[int, int]:
    """The window in which a time lies: its first second, and that of the next."""
    if window != "month":
        length = WINDOW_S[window]
        start = int(now // length) * length
        return start, start + length
    moment = datetime.fromtimestamp(now, UTC)
    first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    following = datetime(
        moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC
    )
    return int(first.timestamp()), int(following.timestamp())


@dataclass(frozen=True, slots=True)
class KeyAccount:
    """A request that was let in: what its key had left then, and where the rest is counted."""

    book: UsageBook
    name: str
    start: int
    headers: dict[str, str]
    counts_tokens: bool

    def spend(self, tokens: int, cost: float) -> None:
        self.book.add(self.name, self.start, KeyUsage(0, tokens, cost))


@dataclass(slots=True, eq=False)
class UsageBook:
    """The file in which is written what keys spend; it is made when the first key with a budget
    asks.
    """

    _path: Path
    _clock: Callable[[], float] = time.time
    _file: sqlite3.Connection | None = None

    def enter(self, name: str, budget: KeyBudget) -> KeyAccount:
        """Count a request and let it in, or raise if a limit is reached."""
        now = self._clock()
        start, end = window_at(budget.window, now)
        reset_s = max(1, math.ceil(end - now))
        try:
            with self._opened() as file:
                file.execute("BEGIN IMMEDIATE")
                spent = _read(file, name, start)
                over = budget.exceeded(spent)
                if over is None:
                    file.execute(ADD, (name, start, 1, 0, 0.0))
        except (sqlite3.Error, OSError) as error:
            log.error(
                "cannot write usage database; keys with budgets are refused: %s", error
            )
            raise RefusedRequest(
                "budget",
                503,
                "the usage of this key cannot be read now; try again",
                code="no_usage",
                headers={"retry-after": "1"},
            ) from None
        if over is not None:
            raise RefusedRequest(
                "budget",
                429,
                f"the budget of this key is spent: {over} this {budget.window}; it"
                f" starts anew in {reset_s} s",
                code="budget_spent",
                headers={
                    **budget.headers(spent, reset_s),
                    "retry-after": str(reset_s),
                },
            )
        counted = KeyUsage(spent.requests + 1, spent.tokens, spent.cost)
        counts_tokens = budget.tokens is not None or budget.cost is not None
        return KeyAccount(
            self, name, start, budget.headers(counted, reset_s), counts_tokens
        )

    def add(self, name: str, start: int, spent: KeyUsage) -> None:
        """What cannot be written down is lost, and the answer that it was spent for is not."""
        try:
            self._opened().execute(
                ADD, (name, start, spent.requests, spent.tokens, spent.cost)
            )
        except (sqlite3.Error, OSError) as error:
            log.error("cannot write usage database: %s", error)

    def spent(self, name: str, window: Window) -> KeyUsage:
        """What a key has spent in the window that is now."""
        return _read(self._opened(), name, window_at(window, self._clock())[0])

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            file = open_shared(self._path)
            file.execute(_TABLE)
            file.execute("DELETE FROM usage WHERE start < ?", (self._clock() - KEPT_S,))
            self._file = file
        return self._file


def _read(file: sqlite3.Connection, name: str, start: int) -> KeyUsage:
    row = file.execute(READ, (name, start)).fetchone()
    return KeyUsage() if row is None else KeyUsage(*row)


def open_shared(path: Path, wait_s: float | None = None) -> sqlite3.Connection:
    """A file of this user that several processes write. wait_s: for another that writes, once it is
    open.

    SQLite does not wait where another process sets the journal at the same moment, so this does.
    """
    path.touch(0o600)
    file = sqlite3.connect(path, _WAIT_S, isolation_level=None, check_same_thread=False)
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            file.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    file.execute("PRAGMA synchronous = NORMAL")
    if wait_s is not None:
        file.execute(f"PRAGMA busy_timeout = {round(1000 * wait_s)}")
    return file
