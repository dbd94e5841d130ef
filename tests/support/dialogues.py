"""Conversations made of real texts: an opening and its answer, then a follow-up or another topic.

The rule by which a conversation stays or changes over was chosen on train files with FOLLOW_UPS, and is measured on
test files with OTHER_FOLLOW_UPS.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ridgeway.common.routing.router import Router
from ridgeway.coordinator.serve.conversations import is_clear

FOLLOW_UPS = (
    "and why?",
    "why is that?",
    "explain the second step",
    "can you explain that in more detail?",
    "give me an example",
    "go on",
    "thanks, please continue",
    "what do you mean by that?",
    "is that always true?",
    "can you say that more simply?",
    "summarise this in two sentences",
    "and what happens next?",
    "are you sure?",
    "show me another way",
    "what is the most important point here?",
    "rewrite your answer as a list, please",
    "I don't understand the last part, could you go through it again?",
    "how does this relate to what you said before?",
)
OTHER_FOLLOW_UPS = (
    "why?",
    "how so?",
    "tell me more",
    "please elaborate on the first point",
    "could you walk me through it step by step?",
    "what would be a counterexample?",
    "ok, what else?",
    "shorter, please",
    "can you check that again?",
    "that is not what I meant",
    "where did you get this from?",
    "what did you mean in the third sentence?",
    "and the other case?",
    "continue",
    "thank you! one more question about this: does it matter?",
)


class Dialogue(NamedTuple):
    """topic: the domain of the last turn; the same as of the opening if it is a follow-up."""

    domain: str
    opening: str
    last: str
    topic: str


def dialogues(folder: Path, part: str, phrases: Sequence[str], count: int, seed: int = 1) -> Iterator[Dialogue]:
    """For each domain, so many openings: each with a phrase, with the next piece of its text, and with a new topic."""
    rng = random.Random(seed)
    rows = {path.name.removesuffix(f".{part}.jsonl"): _rows(path) for path in sorted(folder.glob(f"*.{part}.jsonl"))}
    for domain in rows:
        for _ in range(count):
            opening, rest = _opening(rng.choice(rows[domain]), rng)
            yield Dialogue(domain, opening, rng.choice(phrases), domain)
            if len(rest) > 750:
                yield Dialogue(domain, opening, rest[600 : 600 + rng.randint(60, 300)], domain)
            other = rng.choice([name for name in rows if name != domain])
            yield Dialogue(domain, opening, _opening(rng.choice(rows[other]), rng)[0], other)


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _opening(row: dict[str, Any], rng: random.Random) -> tuple[str, str]:
    text = str(row["text"])
    opening = str(row.get("prompt") or text[: rng.randint(120, 400)])
    return opening, text[len(opening) :]


def followed(router: Router, talks: Iterator[Dialogue]) -> tuple[float, float]:
    """Percent of follow-ups that stay and of new topics that are followed, of openings that were routed rightly."""
    stayed: list[bool] = []
    changed: list[bool] = []
    for talk in talks:
        if router.route(talk.opening).best != talk.domain:
            continue
        decision = router.route(talk.last)
        leaves = decision.best != talk.domain and is_clear(decision, talk.domain)
        if talk.topic == talk.domain:
            stayed.append(not leaves)
        else:
            changed.append(leaves and decision.best == talk.topic)
    return 100 * sum(stayed) / len(stayed), 100 * sum(changed) / len(changed)
