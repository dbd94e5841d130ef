"""What each key may spend in a window of time: requests, tokens and cost, kept in a file over
restarts and workers.

Windows are those of the calendar in UTC. A request is counted when it is let in. The most tokens
and cost that its answer may take count as spent from when an expert is asked, and what it took in
their place from when it has ended. So only the last request that is let in can spend more than was
left, however many are served at once. What a process that was killed had reserved stays spent.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ridgeway.common.web.http_errors import RefusedRequest

Window = Literal["minute", "hour", "day", "month"]
WINDOW_S: dict[Window, int] = {"minute": 60, "hour": 3600, "day": 86_400}
KEPT_S = 400 * 86_400
_WAIT_S = 5.0
"""For another process that writes."""
LEASE_S = 60.0
"""A request of a process that was killed counts as running for so long."""
RENEW_S = 10.0
MAX_RESERVED = 10**9
"""Tokens of one request; who asks for more has everything reserved anyway."""
_TABLE = """CREATE TABLE IF NOT EXISTS usage (
    name TEXT, start INTEGER, requests INTEGER NOT NULL, tokens INTEGER NOT NULL,
    cost REAL NOT NULL,
    PRIMARY KEY (name, start))"""
_RUNNING = """CREATE TABLE IF NOT EXISTS running (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, start INTEGER NOT NULL,
    tokens INTEGER NOT NULL, cost REAL NOT NULL, until REAL NOT NULL)"""
BEGIN_REQUEST = "INSERT INTO running VALUES (NULL, ?, ?, 0, 0.0, ?)"
RESERVE = "UPDATE running SET tokens = ?, cost = ? WHERE id = ?"
RESERVED = """SELECT count(*), coalesce(sum(tokens * (start = :start)), 0),
    coalesce(sum(cost * (start = :start)), 0.0)
    FROM running WHERE name = :name AND until > :now"""
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

    def is_reserved(self, spent: KeyUsage, reserved: KeyUsage) -> bool:
        """Whether less would be spent than the limits if requests under way took nothing."""
        free = KeyUsage(
            spent.requests,
            spent.tokens - reserved.tokens,
            spent.cost - reserved.cost,
        )
        return self.exceeded(free) is None

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


@dataclass(slots=True, eq=False)
class KeyAccount:
    """A request that was let in: what its key had left then, and where the rest is counted.

    Its owner closes it when the request has ended.
    """

    book: UsageBook
    name: str
    start: int
    headers: dict[str, str]
    budget: KeyBudget | None
    number: int
    reserved: KeyUsage = KeyUsage()

    @property
    def counts_tokens(self) -> bool:
        budget = self.budget
        return budget is not None and not (budget.tokens is None is budget.cost)

    def reserve(self, tokens: int, cost: float) -> None:
        """Count the most that an answer may take, or raise if a limit is reached."""
        if self.budget is not None and self.counts_tokens:
            most = KeyUsage(0, min(tokens, MAX_RESERVED), cost)
            self.book.reserve(self, self.budget, most)
            self.reserved = most

    def spend(self, tokens: int, cost: float) -> None:
        """Count what an answer took, in place of what was reserved for it."""
        if self.budget is None:
            return
        reserved = self.reserved
        self.reserved = KeyUsage()
        self.book.settle(
            self, KeyUsage(0, tokens - reserved.tokens, cost - reserved.cost)
        )

    def close(self) -> None:
        """The request has ended; what it reserved and has not spent is free again."""
        if self.reserved != KeyUsage():
            self.spend(0, 0.0)
        self.book.leave(self)


@dataclass(slots=True, eq=False, weakref_slot=True)
class UsageBook:
    """The file in which is written what keys spend and which of their requests run; it is made when
    the first key with a limit asks.
    """

    path: Path
    _clock: Callable[[], float] = time.time
    _file: sqlite3.Connection | None = None
    _open: set[int] = field(default_factory=set)
    _renewed: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def enter(
        self, name: str, budget: KeyBudget | None, parallel: int | None = None
    ) -> KeyAccount:
        """Count a request and let it in, or raise if a limit is reached.

        parallel: how many requests of a key are served at a time.
        """
        now = self._clock()
        start, end = window_at(budget.window, now) if budget is not None else (0, 0)
        reset_s = max(1, math.ceil(end - now))
        with self._writing() as file:
            file.execute("DELETE FROM running WHERE until <= ?", (now,))
            spent = _read(file, name, start)
            running, reserved = _reserved(file, name, start, now)
            if parallel is not None and running >= parallel:
                raise RefusedRequest(
                    "parallel",
                    429,
                    f"this key has {running} requests in flight, its limit; try again "
                    "soon",
                    code="too_many_parallel",
                    headers={"retry-after": "1"},
                )
            if budget is not None:
                _check(budget, spent, reserved, reset_s)
                file.execute(ADD, (name, start, 1, 0, 0.0))
            number = (
                file.execute(BEGIN_REQUEST, (name, start, now + LEASE_S)).lastrowid or 0
            )
            self._open.add(number)
        counted = KeyUsage(spent.requests + 1, spent.tokens, spent.cost)
        headers = {} if budget is None else budget.headers(counted, reset_s)
        return KeyAccount(self, name, start, headers, budget, number)

    def reserve(self, account: KeyAccount, budget: KeyBudget, most: KeyUsage) -> None:
        """Count what a request may take as spent, or raise, and count the request no longer."""
        now = self._clock()
        reset_s = max(1, math.ceil(window_at(budget.window, account.start)[1] - now))
        name, start = account.name, account.start
        with self._writing() as file:
            spent = _read(file, name, start)
            before = KeyUsage(spent.requests - 1, spent.tokens, spent.cost)
            try:
                _check(budget, before, _reserved(file, name, start, now)[1], reset_s)
            except RefusedRequest:
                file.execute(ADD, (name, start, -1, 0, 0.0))
                file.execute("COMMIT")
                raise
            file.execute(ADD, (name, start, 0, most.tokens, most.cost))
            file.execute(RESERVE, (most.tokens, most.cost, account.number))

    def settle(self, account: KeyAccount, more: KeyUsage) -> None:
        """What cannot be written down is lost, and the answer that it was spent for is not."""
        self._note(
            (ADD, (account.name, account.start, 0, more.tokens, more.cost)),
            (RESERVE, (0, 0.0, account.number)),
        )

    def leave(self, account: KeyAccount) -> None:
        """A request has ended."""
        self._open.discard(account.number)
        self._note(("DELETE FROM running WHERE id = ?", (account.number,)))

    def renew(self) -> None:
        """To be called now and then: requests under way are so still."""
        now = self._clock()
        if not self._open or now < self._renewed + RENEW_S:
            return
        self._renewed = now
        renewal = "UPDATE running SET until = ? WHERE id = ?"
        until = now + LEASE_S
        self._note(*((renewal, (until, number)) for number in tuple(self._open)))

    def spent(self, name: str, window: Window) -> KeyUsage:
        """What a key has spent in the window that is now, with what is reserved."""
        return _read(self._opened(), name, window_at(window, self._clock())[0])

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; a refusal if the file cannot be written."""
        try:
            with self._lock, self._opened() as file:
                file.execute("BEGIN IMMEDIATE")
                yield file
        except (sqlite3.Error, OSError) as error:
            log.error(
                "cannot write usage database; keys with limits are refused: %s", error
            )
            raise RefusedRequest(
                "budget",
                503,
                "the usage of this key cannot be read now; try again",
                code="no_usage",
                headers={"retry-after": "1"},
            ) from None

    def _note(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """One transaction, lost if the file cannot be written."""
        try:
            with self._lock, self._opened() as file:
                file.execute("BEGIN IMMEDIATE")
                for statement, values in statements:
                    file.execute(statement, values)
        except (sqlite3.Error, OSError) as error:
            log.error("cannot write usage database: %s", error)

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            file = open_shared(self.path)
            weakref.finalize(self, file.close)
            file.execute(_TABLE)
            file.execute(_RUNNING)
            file.execute("DELETE FROM usage WHERE start < ?", (self._clock() - KEPT_S,))
            self._file = file
        return self._file


def _check(
    budget: KeyBudget, spent: KeyUsage, reserved: KeyUsage, reset_s: int
) -> None:
    """Raise if a limit is reached, and say when to come again: when the next window begins, or soon
    if requests under way may leave something.
    """
    over = budget.exceeded(spent)
    if over is None:
        return
    code, wait_s = "budget_spent", reset_s
    words = (
        f"the budget of this key is spent: {over} this {budget.window}; it resets in "
        f"{reset_s} s"
    )
    if budget.is_reserved(spent, reserved):
        code, wait_s = "budget_reserved", 1
        words = (
            "the rest of this key's budget is reserved by its requests in flight; try "
            "again soon"
        )
    headers = budget.headers(spent, reset_s) | {"retry-after": str(wait_s)}
    raise RefusedRequest("budget", 429, words, code=code, headers=headers)


def _reserved(
    file: sqlite3.Connection, name: str, start: int, now: float
) -> tuple[int, KeyUsage]:
    """How many requests of a key run, and what is reserved for those of a window."""
    values = {"name": name, "start": start, "now": now}
    running, tokens, cost = file.execute(RESERVED, values).fetchone()
    return running, KeyUsage(0, tokens, cost)


def _read(file: sqlite3.Connection, name: str, start: int) -> KeyUsage:
    row = file.execute(READ, (name, start)).fetchone()
    return KeyUsage() if row is None else KeyUsage(*row)


def open_shared(path: Path, wait_s: float | None = None) -> sqlite3.Connection:
    """A file of this user that several processes write. wait_s: for another that writes, once it is
    open.

    SQLite does not wait where another process sets the journal at the same moment, so this does.
    """
    path.touch(0o600)
    file = sqlite3.connect(
        path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
    )
    with ExitStack() as on_error:
        on_error.callback(file.close)
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
        on_error.pop_all()
    return file
