"""A conversation as weighted turns: what was asked last decides most, what went before decides the rest.

Knows roles and texts. Knows nothing of tokens, tables or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_TURNS = 16
"""What lies further back would weigh less than 2⁻¹⁵."""


class Turn(NamedTuple):
    """A text and its weight. A turn speaks with the mean of its tokens, so a long one says no more than a short one."""

    text: str
    weight: float


def weighted_turns(messages: Sequence[tuple[str, str]]) -> list[Turn]:
    """Turns of a conversation of (role, text), the weightiest first.

    The last message of the role `user` weighs 1. The others, the newest first, weigh 1/2, 1/4, 1/8 and so on, whatever
    their role, so that the last user turn always weighs more than all the others together. Messages without text are
    passed over, and at most 16 are read. Without any user message, the newest takes that place.
    """
    spoken = [(role, text) for role, text in messages if text.strip()]
    if not spoken:
        return [Turn("", 1.0)]
    users = [place for place, (role, _) in enumerate(spoken) if role == "user"]
    last = users[-1] if users else len(spoken) - 1
    others = [text for place, (_, text) in enumerate(spoken) if place != last]
    texts = [spoken[last][1], *reversed(others)][:MOST_TURNS]
    return [Turn(text, 0.5**age) for age, text in enumerate(texts)]
