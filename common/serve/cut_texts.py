"""What of a text is routed: all of it up to a size, of a longer one its beginning and its end.

So no request takes longer than another by more than this, whatever was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ridgeway.common.routing.conversation import Turn

MAX_ROUTED_CHARACTERS = 32_768
"""Of a prompt, and of a chat's weightiest turn."""
MAX_EARLIER_CHARACTERS = 8192
"""Of every other turn of a chat: each weighs an eighth of the one after it, or less."""


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
