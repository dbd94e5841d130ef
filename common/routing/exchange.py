"""What a request says of its conversation: what is routed of it, cut to its size, and the digest by
which the conversation is found again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from ridgeway.common.routing.conversation import (
    TOOL_ROLES,
    Message,
    Turn,
    weighted_turns,
    without_harness,
)

MAX_ROUTED_CHARACTERS = 32_768
"""Of a prompt, and of a chat's weightiest turn."""
MAX_EARLIER_CHARACTERS = 8192
"""Of every other turn of a chat: each weighs an eighth of the one after it, or less."""
_NUMBERS = re.compile(r"\d+")


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
    if len(turns) == 1 and len(turns[0].text) <= MAX_ROUTED_CHARACTERS:
        return CutTurns(list(turns), 0)
    first = max(1, sum(turn.weight == turns[0].weight for turn in turns))
    most = max(MAX_ROUTED_CHARACTERS // first, 2)
    rest = most if first > 1 else MAX_EARLIER_CHARACTERS
    kept = [
        Turn(cut(turn.text, rest if number else most), turn.weight)
        for number, turn in enumerate(turns)
    ]
    return CutTurns(
        kept,
        sum(len(turn.text) for turn in turns) - sum(len(turn.text) for turn in kept),
    )


class Exchange(NamedTuple):
    """What a request says of its conversation.

    found_by:   the digest of the messages up to the user message before the last one, or up to the
                last one while tools are being used; None where the conversation begins.
    noted_as:   the digest of the messages up to the last user message: what the next request will
                be found by.
    turns:      what is routed now: everything, or up to the last user message while tools are being
                used.
    before:     what was routed for the user message before; None if this is the first one.
    uses_tools: whether this goes on with what an expert asked tools for: then it goes to that
                expert.
    """

    found_by: bytes | None
    noted_as: bytes
    turns: CutTurns
    before: CutTurns | None
    uses_tools: bool


def exchange_of(
    messages: Sequence[Message], names: Sequence[str] = (), session: str = ""
) -> Exchange:
    """A chat as a conversation of a client; `messages` with tool results have a role of their own.

    names:   whose conversation it is: the client's key, its user, and the like.
    session: the name of the conversation; without one, its messages name it.
    """
    said = [_spoken(*message) for message in messages]
    users = [number for number, (role, _) in enumerate(said) if role == "user"]
    last = users[-1] if users else len(said) - 1
    uses_tools = any(role in TOOL_ROLES for role, _ in said[last + 1 :])
    now = said[: last + 1] if uses_tools else said
    before = said[: users[-2] + 1] if len(users) > 1 else None
    earlier = said[: last + 1] if uses_tools else before
    found_by = None if earlier is None else _name(earlier, names)
    noted_as = _name(said[: last + 1], names)
    if session:
        noted_as = digest("session", *names, session)
        found_by = noted_as
    return Exchange(
        found_by,
        noted_as,
        cut_turns(weighted_turns(now)),
        None if before is None else cut_turns(weighted_turns(before)),
        uses_tools,
    )


def _spoken(role: str, text: str) -> Message:
    """A message without what a harness added; one that says nothing else is a tool's."""
    said = without_harness(text)
    return ("tool" if text.strip() and not said.strip() else role), said


def _name(messages: Sequence[Message], names: Sequence[str]) -> bytes:
    """The digest of what was said. Tools' results are left out, since clients shorten old ones, and
    the numbers of system prompts, which tell the time.
    """
    parts: list[str] = []
    for role, text in messages:
        if role in TOOL_ROLES:
            continue
        plain = text if role in ("user", "assistant") else _NUMBERS.sub("", text)
        parts += (role, plain.strip())
    return digest("messages", *names, *parts)


def digest(*parts: str) -> bytes:
    """A name of 16 bytes; parts that are divided otherwise have another one."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode(errors="replace")
        hashed.update(len(content).to_bytes(8, "big"))
        hashed.update(content)
    return hashed.digest()
