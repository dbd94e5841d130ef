"""Which expert a conversation is with: it stays there unless what is asked now clearly belongs to
another domain.

A conversation is found again by a digest: of the client's `x-session-id`, or of its `user` and its
first turn. Kept are the digest, a domain and an expert's name, of the conversations that were heard
last; no text. Workers share what they know. Where nothing is known, as after a restart, the turns
that came before say where the conversation was. A response that an expert keeps is found likewise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ridgeway.common.base.errors import InputError
from ridgeway.common.http.key_budgets import open_shared
from ridgeway.common.routing.conversation import Turn, weighted_turns
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.router import Router

MAX_ROUTED_CHARACTERS = 32_768
"""Of a prompt, and of a chat's weightiest turn."""
MAX_EARLIER_CHARACTERS = 8192
"""Of every other turn of a chat: each weighs an eighth of the one after it, or less."""
LOOKED_AT_BYTES = 65_536
RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp[^"\\]{1,200})"')
MAX_NOTES = 100_000
NOTE_WAIT_S = 0.02
"""For another worker that writes: every request of this process waits as long."""
MAX_UNWRITTEN = 1_000
CLEAR_LOG_ODDS = 0.25
_FEW_TOKENS = 24
FEW_TOKENS_LOG_ODDS = 5.0
LEANING_TOKENS = 12
"""When the last user turn is evidence enough; docs/serving.md has the measurements behind them."""
FOLLOW_UPS = """\
and why?
why is that?
explain the second step
can you explain that in more detail?
go on
give me an example
thanks, please continue
what do you mean by that?
is that always true?
can you say that more simply?
summarise this in two sentences
and what happens next?
are you sure?
show me another way
what is the most important point here?
rewrite your answer as a list, please
I don't understand the last part, could you go through it again?
how does this relate to what you said before?""".splitlines()
"""What is said in conversations of any domain."""
LEAST_SCORE = 1e-9
_TABLE = (
    "CREATE TABLE IF NOT EXISTS notes (number INTEGER PRIMARY KEY, key BLOB UNIQUE,"
    " names TEXT)"
)
TOOL_ROLES = frozenset(("tool", "function"))

log = logging.getLogger("ridgeway.serve")

_Note = TypeVar("_Note")
Message = tuple[str, str]
"""A role and a text."""


class CutTurns(NamedTuple):
    """Turns as they are routed, and how many of their characters are left out."""

    turns: list[Turn]
    left_out: int


def cut(text: str, most: int = MAX_ROUTED_CHARACTERS) -> str:
    """The text, or its first and last characters, a line's end between them: `most` in all.

    Law: a cut text is cut no further, begins and ends as the text does, and is as long as a text
    may be.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[: half - 1]}\n{text[-(most - half) :]}"


def cut_turns(turns: Sequence[Turn]) -> CutTurns:
    """The turns of a chat, the weightiest first; of equal weight, they share what a prompt may
    have.
    """
    first = max(1, sum(turn.weight == turns[0].weight for turn in turns))
    most = max(MAX_ROUTED_CHARACTERS // first, 2)
    rest = most if first > 1 else MAX_EARLIER_CHARACTERS
    kept = [
        Turn(cut(turn.text, rest if place else most), turn.weight)
        for place, turn in enumerate(turns)
    ]
    return CutTurns(
        kept,
        sum(len(turn.text) for turn in turns) - sum(len(turn.text) for turn in kept),
    )


class Assignment(NamedTuple):
    """Where a conversation is.

    domain:   None if the router abstained.
    answered: who gave the last answer, perhaps in the expert's place; tools that it asked for are
              its own.
    """

    domain: str | None
    expert: str
    answered: str


class Exchange(NamedTuple):
    """What a request says of its conversation.

    key:        its digest.
    turns:      what is routed now: everything, or up to the last user message while tools are being
                used.
    before:     what was routed for the user message before; None if this is the first one.
    goes_on:    whether it may have begun before: a first turn without a session's name opens a new
                one.
    uses_tools: whether this goes on with what an expert asked tools for: then it goes to that
                expert.
    """

    key: bytes
    turns: CutTurns
    before: CutTurns | None
    goes_on: bool
    uses_tools: bool


def exchange_of(
    messages: Sequence[Message], user: str, session: str, client: str
) -> Exchange:
    """A chat as a conversation of a client; `messages` with tool results have a role of their
    own.
    """
    users = [place for place, (role, _) in enumerate(messages) if role == "user"]
    last = users[-1] if users else len(messages) - 1
    uses_tools = any(role in TOOL_ROLES for role, _ in messages[last + 1 :])
    now = messages[: last + 1] if uses_tools else messages
    before = messages[: users[-2] + 1] if len(users) > 1 else None
    first = messages[users[0]][1] if users else messages[0][1]
    named = ("session", session) if session else ("turns", user, first)
    key = _digest("\0".join((client, *named)))
    earlier = None if before is None else cut_turns(weighted_turns(before))
    goes_on = bool(session) or before is not None or uses_tools
    return Exchange(key, cut_turns(weighted_turns(now)), earlier, goes_on, uses_tools)


_leanings: WeakKeyDictionary[Router, Mapping[str, float]] = WeakKeyDictionary()
"""Of the routers that are in use; one that is replaced is not kept by this."""


def leaning(router: Router) -> Mapping[str, float]:
    """What a router makes of phrases that say nothing of a domain: the mean log probability of
    each.

    A domain of instructions draws "and why?" strongly. What draws such phrases is no evidence in a
    follow-up. The first
    time, the phrases are routed: with a model, that takes a while.
    """
    if router not in _leanings:
        found = router.route_many(FOLLOW_UPS)
        _leanings[router] = {
            name: fmean(math.log(max(each.scores[name], LEAST_SCORE)) for each in found)
            for name in router.domains
        }
    return _leanings[router]


class Evidence(NamedTuple):
    """What a user turn alone says for leaving the domain that a conversation is with, and how much
    of that it takes.

    found: log p(best)/p(domain); None if it says nothing, because the router abstained, or all,
           because the domain is none of the router's.
    """

    stays: bool
    found: float | None
    needed: float

    def to_json(self) -> dict[str, Any]:
        return {
            "stays": self.stays,
            "evidence": self.found,
            "evidence_needed": self.needed,
        }


def evidence_to_leave(
    decision: Decision, domain: str | None, leaning: Mapping[str, float]
) -> Evidence:
    """It takes 0.25 + 5·√(1 − n/24) with n < 24 tokens, and 0.25 with more; and beyond that the
    router's leaning from the domain to the best, all of it up to 12 tokens, and 12/n with more.
    """
    tokens = max(decision.tokens, 1)
    drawn = leaning.get(decision.best, 0.0) - leaning.get(domain or "", 0.0)
    few = math.sqrt(max(0.0, 1 - tokens / _FEW_TOKENS))
    needed = (
        CLEAR_LOG_ODDS
        + FEW_TOKENS_LOG_ODDS * few
        + drawn * min(1.0, LEANING_TOKENS / tokens)
    )
    if decision.abstained or domain is None or decision.scores.get(domain, 0.0) <= 0:
        return Evidence(decision.abstained, None, needed)
    found = math.log(decision.confidence / decision.scores[domain])
    return Evidence(found <= needed, found, needed)


class RecentNotes(Generic[_Note]):
    """A note for each key; of more than MAX_NOTES, those that were noted last.

    kind: what a note is, made of its fields.
    path: a file that processes share; without one, they are this process's own. What cannot be
          written at once, because
    another process writes, is known here, and is written with the next note. Where the file cannot
    be used any more,
    what stands in it is not known.
    """

    def __init__(self, kind: type[_Note], path: Path | None = None) -> None:
        self._kind = kind
        try:
            self._file = (
                sqlite3.connect(
                    ":memory:", isolation_level=None, check_same_thread=False
                )
                if path is None
                else open_shared(path, NOTE_WAIT_S)
            )
            self._unwritten: dict[bytes, str] = {}
            self._file.execute(
                "PRAGMA synchronous = OFF"
            )  # it is not meant to outlast the machine
            self._file.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            words = (
                "give the folder for temporary files room, or name another with TMPDIR"
            )
            raise InputError(
                f"the file {path} that workers share cannot be made: {error}; {words}"
            ) from None

    def find(self, key: bytes) -> _Note | None:
        if key in self._unwritten:
            return self._kind(*json.loads(self._unwritten[key]))
        try:
            row = self._file.execute(
                "SELECT names FROM notes WHERE key = ?", (key,)
            ).fetchone()
        except sqlite3.Error as error:
            log.error("what was noted cannot be read: %s", error)
            return None
        return None if row is None else self._kind(*json.loads(row[0]))

    def note(self, key: bytes, note: _Note) -> None:
        """A key that is noted again has the highest number again."""
        self._unwritten.pop(key, None)
        self._unwritten[key] = json.dumps(note)
        try:
            put = (
                "INSERT OR REPLACE INTO notes SELECT coalesce(max(number), 0) + 1, ?, ?"
                " FROM notes"
            )
            while self._unwritten:
                oldest = next(iter(self._unwritten))
                self._file.execute(put, (oldest, self._unwritten[oldest]))
                del self._unwritten[oldest]
            self._file.execute(
                "DELETE FROM notes WHERE number <= (SELECT max(number) FROM notes) - ?",
                (MAX_NOTES,),
            )
        except sqlite3.Error as error:
            log.error("nothing can be noted: %s", error)
            if len(self._unwritten) > MAX_UNWRITTEN:
                del self._unwritten[next(iter(self._unwritten))]


class Owner(NamedTuple):
    """An expert, the number of its address, and the name of the key that the response was made
    with.
    """

    expert: str
    address: int
    key: str


class ResponseOwners:
    """Of too many, those that were used last are known."""

    def __init__(self, path: Path | None = None) -> None:
        self._notes = RecentNotes(Owner, path)

    def find(self, name: str | None) -> Owner | None:
        return None if name is None else self._notes.find(_digest(name))

    def note_answer(
        self, answer: bytes, owner: Owner, goes_on_from: str | None
    ) -> None:
        """answer: a response, or how its stream begins."""
        if goes_on_from is not None:
            self._notes.note(_digest(goes_on_from), owner)
        if found := RESPONSE_ID.search(answer[:LOOKED_AT_BYTES]):
            self._notes.note(_digest(found[1].decode(errors="replace")), owner)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=16).digest()
