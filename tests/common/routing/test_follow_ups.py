"""Follow-ups: what goes on with any subject stays, in five languages, and a new subject is
followed.
"""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.settings import Sampling
from ridgeway.common.routing.conversations import evidence_to_leave
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.router import Router
from ridgeway.common.text.sentence_encoder import SentenceEncoder
from ridgeway.common.text.table_encoder import TableEncoder, with_sentences
from tests.support.making import solved_router, total_of
from tests.support.serving import release_of

TURNS = Path(__file__).parents[2] / "data" / "turns.jsonl"
"""Written by hand: follow-ups, whose topic is null, and questions. The rule was chosen on the part
`choosing`.
"""
DOMAINS = ("code", "law")


def turns(part: str) -> dict[str | None, list[str]]:
    texts = defaultdict(list)
    for line in TURNS.read_text(encoding="utf-8").splitlines():
        turn = json.loads(line)
        if turn["part"] == part:
            texts[turn["topic"]].append(turn["text"])
    return texts


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Router:
    folder = tmp_path_factory.mktemp("follow_ups") / "release"
    release_of(folder, DOMAINS, strength=2)
    return Router.load(folder)


@pytest.fixture(scope="module")
def questions(use: TableEncoder, sentences: SentenceEncoder) -> Router:
    """A router that reads sentences, made of the questions of the part `choosing`."""
    encoder = with_sentences(use, sentences)
    known = {
        topic: texts for topic, texts in turns("choosing").items() if topic is not None
    }
    total = total_of(encoder, known.values(), Sampling(8, stride=8))
    return solved_router(encoder, known, total)


def test_follow_ups_stay_and_new_topics_are_followed_in_five_languages(
    questions: Router,
) -> None:
    """Of the half that the rule was not chosen on, wherever the chat is: at its fallback, too."""
    stayed: list[bool] = []
    followed: list[bool] = []
    for topic, texts in turns("aside").items():
        for text in texts:
            decision = questions.route(text)
            stays = [
                evidence_to_leave(questions, decision, domain, text).stays
                for domain in (None, *questions.domains)
                if domain is None or domain != topic
            ]
            if topic is None:
                stayed += stays
            elif decision.best == topic:
                followed += [not stay for stay in stays]
    assert len(stayed) >= 8 * 90
    assert len(followed) >= 7 * 50
    assert np.mean(stayed) >= 0.95
    assert np.mean(followed) >= 0.90


def test_a_long_text_that_is_like_no_phrase_is_followed(questions: Router) -> None:
    asked = "and why?"
    evidence = evidence_to_leave(questions, questions.route(asked), "law", asked)
    assert evidence.stays
    assert evidence.follow_up
    text = turns("choosing")["physics"][0] * 5
    decision = questions.route(text)
    assert decision.best == "physics"
    left = evidence_to_leave(questions, decision, "law", text)
    assert (left.stays, left.follow_up) == (False, False)


# By the table alone


def decision(confidence: float, abstained: bool = False) -> Decision:
    scores = {"code": confidence, "law": 1 - confidence}
    return Decision("code", confidence, scores, abstained, "code", 5)


@given(p=st.floats(0.51, 0.99), characters=st.integers(1, 200))
def test_more_evidence_is_never_less_clear(
    table: Router, p: float, characters: int
) -> None:
    """Clear stays clear in longer texts and with higher odds; an abstention is not clear, nor is
    the own domain.
    """

    def stays(
        confidence: float,
        characters: int,
        domain: str | None = "law",
        abstained: bool = False,
    ) -> bool:
        made = decision(confidence, abstained)
        return evidence_to_leave(table, made, domain, "x" * characters).stays

    if not stays(p, characters):
        assert not stays(p, max(characters, 200))
        assert not stays(min(p * 1.01, 0.999), characters)
    assert stays(p, characters, abstained=True)
    assert stays(p, characters, "code")
    assert not stays(p, characters, "retired")


def test_a_chat_with_the_fallback_is_held_as_any_other(table: Router) -> None:
    """What it takes to leave it is the lead over the runner-up."""
    at_fallback = evidence_to_leave(table, decision(0.9), None, "commit it")
    assert at_fallback == evidence_to_leave(table, decision(0.9), "law", "commit it")
    assert at_fallback.stays
    assert not evidence_to_leave(table, decision(0.9), None, "a long text " * 20).stays


def test_a_router_that_is_replaced_is_not_held(tmp_path: Path) -> None:
    release_of(tmp_path / "release", DOMAINS)
    router = Router.load(tmp_path / "release")
    evidence_to_leave(router, decision(0.9), "law", "and why?")
    kept = ref(router)
    del router
    gc.collect()
    assert kept() is None
