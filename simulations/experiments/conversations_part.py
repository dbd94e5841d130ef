"""The part `conversations`: chats that go on, and chats that change their subject, made of test
texts. Told is how many follow-ups stay where their conversation is, and how many new subjects are
followed, by the gateway's rule.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ridgeway.common.routing.conversation import weighted_turns
from ridgeway.common.routing.router import Router
from ridgeway.common.serve.conversations import Message, is_clear, leaning
from ridgeway.simulations.experiments.baselines.comparison import our_router
from ridgeway.simulations.experiments.baselines.routing_method import task_of
from ridgeway.simulations.experiments.dataset import Dataset, Texts
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import (
    Cell,
    Column,
    ReportPart,
    Table,
)

KEY = "conversations"
TITLE = "Conversations that go on or change their subject"
CODE = 1
CHATS = 900
SHORT_CHATS = 200
OPENING_LETTERS = (120, 400)
ANSWER_LETTERS = 600
LEAST_REST = 150
PHRASES = (
    *(
        "why?",
        "how so?",
        "tell me more",
        "please elaborate on the first point",
        "ok, what else?",
        "shorter, please",
    ),
    *(
        "could you walk me through it step by step?",
        "what would be a counterexample?",
        "can you check that again?",
    ),
    *(
        "that is not what I meant",
        "where did you get this from?",
        "what did you mean in the third sentence?",
    ),
    *(
        "and the other case?",
        "continue",
        "thank you! one more question about this: does it matter?",
    ),
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
    texts: Texts, phrases: Sequence[str], count: int, chance: random.Random
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
            other = chance.choice([each for each in names if each != name])
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
    leans = leaning(router)

    def by_the_rule(chat: Dialogue) -> str:
        decision = router.route(chat.last)
        return decision.best if is_clear(decision, chat.began, leans) else chat.began

    def by_all_turns(chat: Dialogue) -> str:
        return router.route_turns(
            weighted_turns([*chat.messages, ("user", chat.last)])
        ).best

    begun = [
        chat for chat in chats if router.route(chat.messages[0][1]).best == chat.began
    ]
    found = []
    for rule in (by_the_rule, by_all_turns):
        for changes in (False, True):
            own = [
                rule(chat) == chat.goes_on
                for chat in begun
                if (chat.began != chat.goes_on) == changes
            ]
            found.append(100 * sum(own) / max(len(own), 1))
    return tuple(found)


def run(plan: ExperimentPlan) -> ReportPart:
    columns = (
        Column("dataset"),
        Column("follow-ups that stay", "%", better="more"),
        Column("new subjects that are followed", "%", better="more"),
        Column("stay, by all turns", "%"),
        Column("followed, by all turns", "%"),
    )
    rows: list[tuple[Cell, ...]] = []
    for dataset in plan.datasets:
        router = our_router(
            task_of(plan, dataset, plan.work / f"{dataset.name}-{KEY}")
        )[0]
        rows.append((dataset.name, *rates(router, _of_tests(plan, dataset))))
    words = (
        (
            "Chats are made of test texts: an opening as a question, what follows as"
            " its answer; then a phrase such as “tell me more”, the next piece of the"
            " text, or the opening of a text of another domain."
        ),
        (
            "The last two columns are what routing would do without remembering where a"
            " conversation is."
        ),
    )
    return ReportPart(
        KEY, TITLE, words, (Table(KEY, "Conversations", columns, tuple(rows)),)
    )


def _of_tests(plan: ExperimentPlan, dataset: Dataset) -> list[Dialogue]:
    count = CHATS if plan.full else SHORT_CHATS
    return list(dialogues(dataset.test, PHRASES, count, random.Random(plan.seed)))
