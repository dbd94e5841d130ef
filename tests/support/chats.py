"""Chats made of test texts, that go on or change their subject, and how the gateway's rule decides
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ridgeway.common.routing.conversation import Message, weighted_turns
from ridgeway.common.routing.conversations import evidence_to_leave
from ridgeway.common.routing.router import Router

OPENING_LETTERS = (120, 400)
ANSWER_LETTERS = 600
LEAST_REST = 150
PHRASES = (
    "why?",
    "how so?",
    "tell me more",
    "please elaborate on the first point",
    "ok, what else?",
    "shorter, please",
    "could you walk me through it step by step?",
    "what would be a counterexample?",
    "can you check that again?",
    "that is not what I meant",
    "where did you get this from?",
    "what did you mean in the third sentence?",
    "and the other case?",
    "continue",
    "thank you! one more question about this: does it matter?",
)
"""What people say when they mean the same subject; the gateway has its own phrases, and none of
these.
"""


class Dialogue(NamedTuple):
    """A chat of one domain, and what its user says next: of the same domain, or of another."""

    began: str
    goes_on: str
    messages: tuple[Message, ...]
    last: str


def dialogues(
    texts: Mapping[str, Sequence[str]],
    phrases: Sequence[str],
    count: int,
    chance: random.Random,
) -> Iterator[Dialogue]:
    """From each opening: a phrase, the next piece of a long text, and the opening of a text of
    another domain.
    """
    names = [name for name in texts if texts[name]]
    for name in names:
        for _ in range(count // len(names)):
            question, answer, rest = _opening(chance.choice(texts[name]), chance)
            chat = ("user", question), ("assistant", answer or "Yes.")
            yield Dialogue(name, name, chat, chance.choice(phrases))
            if len(rest) > LEAST_REST:
                yield Dialogue(name, name, chat, rest[: chance.randint(60, 300)])
            other = chance.choice([domain for domain in names if domain != name])
            yield Dialogue(
                name, other, chat, _opening(chance.choice(texts[other]), chance)[0]
            )


def _opening(text: str, chance: random.Random) -> tuple[str, str, str]:
    """A question, its answer, and what remains of a text."""
    end = chance.randint(*OPENING_LETTERS)
    return text[:end], text[end : end + ANSWER_LETTERS], text[end + ANSWER_LETTERS :]


def rates(router: Router, chats: Sequence[Dialogue]) -> tuple[float, ...]:
    """Percent of follow-ups that stay and of new subjects that are followed: by the rule, then by
    all turns together.

    A chat counts if its opening was routed rightly.
    """

    def by_the_rule(chat: Dialogue) -> str:
        decision = router.route(chat.last)
        stays = evidence_to_leave(router, decision, chat.began, chat.last).stays
        return chat.began if stays else decision.best

    def by_all_turns(chat: Dialogue) -> str:
        return router.route_turns(
            weighted_turns([*chat.messages, ("user", chat.last)])
        ).best

    begun = [
        chat for chat in chats if router.route(chat.messages[0][1]).best == chat.began
    ]
    percentages = []
    for rule in (by_the_rule, by_all_turns):
        for changes in (False, True):
            hits = [
                rule(chat) == chat.goes_on
                for chat in begun
                if (chat.began != chat.goes_on) == changes
            ]
            percentages.append(100 * sum(hits) / max(len(hits), 1))
    return tuple(percentages)
