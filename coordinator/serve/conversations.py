"""Which expert a conversation is with: it stays there unless what is asked now clearly belongs to another domain.

A conversation is found again by a digest: of the client's `x-session-id`, or of its `user` and its first turn. Kept are
the digest, a domain and an expert's name, of the conversations that were heard last; no text. Where nothing is known,
after a restart or in another worker, the turns that came before say where the conversation was.

Knows decisions and digests. Knows nothing of connections and of HTTP.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from ridgeway.common.routing.conversation import weighted_turns
from ridgeway.common.routing.router import Decision
from ridgeway.coordinator.serve.cut_texts import CutTurns, cut_turns

MAX_CONVERSATIONS = 100_000
CLEAR_LOG_ODDS = 0.75
FEW_TOKENS = 12
FEW_TOKENS_LOG_ODDS = 10.0
"""When the last user turn is evidence enough; docs/serving.md has the measurements behind them."""
TOOL_ROLES = frozenset(("tool", "function"))

Message = tuple[str, str]
"""A role and a text."""


class Seat(NamedTuple):
    """Where a conversation is.

    domain:   None if the router abstained.
    answered: who gave the last answer, perhaps in the expert's place; tools that it asked for are its own.
    """

    domain: str | None
    expert: str
    answered: str


class Talk(NamedTuple):
    """What a request says of its conversation.

    key:        its digest.
    turns:      what is routed now: everything, or up to the last user message while tools are being used.
    before:     what was routed for the user message before; None if this is the first one.
    goes_on:    whether it may have begun before: a first turn without a session's name opens a new one.
    uses_tools: whether this goes on with what an expert asked tools for: then it goes to that expert.
    """

    key: bytes
    turns: CutTurns
    before: CutTurns | None
    goes_on: bool
    uses_tools: bool


def talk_of(messages: Sequence[Message], user: str, session: str, client: str) -> Talk:
    """A chat as a conversation of a client; `messages` with tool results have a role of their own."""
    users = [place for place, (role, _) in enumerate(messages) if role == "user"]
    last = users[-1] if users else len(messages) - 1
    uses_tools = any(role in TOOL_ROLES for role, _ in messages[last + 1 :])
    now = messages[: last + 1] if uses_tools else messages
    before = messages[: users[-2] + 1] if len(users) > 1 else None
    first = messages[users[0]][1] if users else messages[0][1]
    named = ("session", session) if session else ("turns", user, first)
    key = hashlib.blake2b("\0".join((client, *named)).encode(errors="replace"), digest_size=16).digest()
    earlier = None if before is None else cut_turns(weighted_turns(before))
    goes_on = bool(session) or before is not None or uses_tools
    return Talk(key, cut_turns(weighted_turns(now)), earlier, goes_on, uses_tools)


class Evidence(NamedTuple):
    """What a user turn alone says for leaving the domain that a conversation is with, and how much of that it takes.

    found: log p(best)/p(domain); None if it says nothing, because the router abstained, or all, because the domain is
           none of the router's.
    """

    stays: bool
    found: float | None
    needed: float

    def to_json(self) -> dict[str, Any]:
        return {"stays": self.stays, "evidence": self.found, "evidence_needed": self.needed}


def evidence_to_leave(decision: Decision, domain: str | None) -> Evidence:
    """It takes 0.75 + 10·√(1 − n/12) with n < 12 tokens, and 0.75 with more: of a few words like "and why?" a router
    says something too, but it means nothing."""
    needed = CLEAR_LOG_ODDS + FEW_TOKENS_LOG_ODDS * math.sqrt(max(0.0, 1 - decision.tokens / FEW_TOKENS))
    if decision.abstained or domain is None or decision.scores.get(domain, 0.0) <= 0:
        return Evidence(decision.abstained, None, needed)
    found = math.log(decision.confidence / decision.scores[domain])
    return Evidence(found <= needed, found, needed)


def is_clear(decision: Decision, domain: str | None) -> bool:
    """Whether the decision on a user turn alone is evidence enough to leave a domain."""
    return not evidence_to_leave(decision, domain).stays


class Conversations:
    """Where conversations are; of more than MAX_CONVERSATIONS, those that were heard last."""

    def __init__(self) -> None:
        self._seats: OrderedDict[bytes, Seat] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seats)

    def find(self, key: bytes) -> Seat | None:
        return self._seats.get(key)

    def note(self, key: bytes, seat: Seat) -> None:
        self._seats[key] = seat
        self._seats.move_to_end(key)
        if len(self._seats) > MAX_CONVERSATIONS:
            self._seats.popitem(last=False)
