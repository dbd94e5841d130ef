"""A conversation as weighted turns: what was asked last decides most; where it says too little,
what went before does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing.decision import Floats, Integers, Tally

FADE_PER_TURN = 1 / 8
"""The part of its successor's weight that a message has."""
FULL_WEIGHT_TOKENS = 16
"""A turn of this many tokens has its full weight; of fewer, the square of their share of these."""
MAX_TURNS = 6
"""What lies further back would weigh less than 2⁻¹⁷."""
TOOL_ROLES = frozenset(("tool", "function"))
"""What tools say decides nothing."""
HARNESS_BLOCKS = (
    "system-reminder",
    "environment_context",
    "environment_details",
    "user_instructions",
    "local-command-caveat",
    "local-command-stdout",
    "ide_opened_file",
    "ide_selection",
)
"""What coding agents put into messages of the role `user`, as <name>…</name>."""

Message = tuple[str, str]
"""A role and a text."""


class Turn(NamedTuple):
    """A text and its weight. A turn speaks with the mean of its tokens, so a long one says no more
    than a short one.
    """

    text: str
    weight: float


def without_harness(text: str) -> str:
    """The text without what a coding agent added to it; a block that does not end is the user's."""
    for name in HARNESS_BLOCKS if "</" in text else ():
        opening = f"<{name}>"
        closing = f"</{name}>"
        kept = []
        start = 0
        while (begin := text.find(opening, start)) >= 0 and (
            end := text.find(closing, begin)
        ) >= 0:
            kept.append(text[start:begin])
            start = end + len(closing)
        text = "".join([*kept, text[start:]])
    return text


def weighted_turns(messages: Sequence[Message]) -> list[Turn]:
    """Turns of a conversation of (role, text), the weightiest first.

    The last message of the role `user` weighs 1. The others, the newest first, weigh 1/8, 1/64 and
    so on, whatever their role, so that the last user turn weighs more than seven times all the
    others together. Messages without text, what tools say and what a harness adds are passed over,
    and six messages are read at most. Without any user message, the newest takes that place.
    """
    plain = [(role, without_harness(text)) for role, text in messages]
    worded = [(role, text) for role, text in plain if text.strip()]
    # what tools say counts where nobody else says anything
    spoken = [message for message in worded if message[0] not in TOOL_ROLES] or worded
    if not spoken:
        return [Turn("", 1.0)]
    users = [position for position, (role, _) in enumerate(spoken) if role == "user"]
    last = users[-1] if users else len(spoken) - 1
    others = [text for position, (_, text) in enumerate(spoken) if position != last]
    texts = [spoken[last][1], *reversed(others)][:MAX_TURNS]
    return [Turn(text, FADE_PER_TURN**age) for age, text in enumerate(texts)]


Chat = Sequence[Any]
"""A chat as OpenAI's and Anthropic's clients write it: a list of {"role": …, "content": text or
parts}, or of their own message objects, or of LangChain's.
"""
_ROLES = {"human": "user", "ai": "assistant"}
"""What LangChain calls them."""


def chat_turns(messages: Chat) -> list[Turn]:
    """The turns of a chat; of parts, the text alone. Raises InputError that says what to pass."""
    return weighted_turns(chat_messages(messages))


def chat_messages(messages: Chat) -> list[Message]:
    """The roles and texts of a chat. Raises InputError that says what to pass."""
    if not isinstance(messages, Sequence) or isinstance(
        messages, str | bytes | bytearray
    ):
        raise _wrong("a prompt", messages)
    return [
        _spoken(message, f"message {number}") for number, message in enumerate(messages)
    ]


def _spoken(message: Any, where: str) -> Message:
    fields = _fields(message)
    role = fields.get("role") or fields.get("type")
    if not isinstance(role, str):
        raise _wrong(where, message)
    role = _ROLES.get(role, role)
    content = fields.get("content")
    if isinstance(content, str) or content is None:
        return role, content or ""
    if not isinstance(content, Sequence):
        raise _wrong(f"the content of {where}", content)
    parts = [_fields(part) for part in content]
    if not all(parts):
        raise _wrong(f"the content of {where}", content)
    if any(part.get("type") == "tool_result" for part in parts):
        role = "tool"
    texts = [part.get("text") for part in parts]
    return role, "\n".join(text for text in texts if isinstance(text, str))


def _fields(value: Any) -> Mapping[str, Any]:
    """Of a message or a part of one, also as a client's own object; none of anything else."""
    if isinstance(value, Mapping):
        return value
    names = ("role", "type", "content", "text")
    return {name: field for name in names if (field := getattr(value, name, None))}


def _wrong(what: str, value: object) -> InputError:
    fitting = 'a text, or a chat as a list of {"role": "user", "content": "…"}'
    return InputError(
        f"{what} of type {type(value).__name__} cannot be routed; pass {fitting}"
    )


def shares(turns: Sequence[Turn], tokens: Integers) -> Floats:
    """What part of the say each turn has, given how many of its tokens take part: they add up to 1,
    or are all 0.

    "Go on" says little by itself, so a turn of fewer than 16 tokens leaves more of the say to the
    others.
    """
    fullness = np.minimum(tokens, FULL_WEIGHT_TOKENS) / FULL_WEIGHT_TOKENS
    weights = np.array([turn.weight for turn in turns]) * fullness**2
    return weights / (weights.sum() or 1.0)


def weighed(counted: Tally, turns: Sequence[Turn]) -> Tally:
    """What the turns of a conversation say together, over their mean number of voters; a single
    turn as it is.
    """
    if len(turns) == 1:
        return counted
    says = shares(turns, counted.voters)
    length = np.dot(says, counted.voters)
    scale = (says * length / np.maximum(counted.voters, 1))[:, None]
    return Tally(
        (scale * counted.points).sum(axis=0, keepdims=True),
        (scale * counted.sums).sum(axis=0, keepdims=True),
        np.array([length]),
        counted.unit,
    )
