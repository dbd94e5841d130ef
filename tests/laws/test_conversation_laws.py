"""Conversations: which turn has how much of the say, and that it is what the routing follows."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.settings import Confidence, Selector, SelectorName
from ridgeway.common.routing.conversation import (
    FULL_WEIGHT_TOKENS,
    MAX_TURNS,
    TOOL_ROLES,
    Turn,
    shares,
    weighted_turns,
)
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import TokenTable
from ridgeway.common.text.tokenizer import Tokenizer
from ridgeway.common.text.tokens import TextReader
from tests.support.tiny import LETTERS, tiny_definition

TOKENIZER = Tokenizer(tiny_definition())
ROLES = ("system", "user", "assistant", "tool")

texts = st.text(LETTERS[:6] + " ", max_size=40)
messages = st.lists(st.tuples(st.sampled_from(ROLES), texts), max_size=9)
said = st.text(LETTERS[:6], min_size=1, max_size=40)


@st.composite
def routers(draw: st.DrawFn) -> Router:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    domains = draw(st.integers(2, 5))
    logits = rng.integers(-1000, 1001, (len(LETTERS) + 2, domains)).astype(np.int16)
    table = TokenTable(logits, 2.0**-8, rng.integers(0, 3, domains).astype(np.uint8))
    selector = Selector(
        draw(st.sampled_from(get_args(SelectorName))), draw(st.integers(1, 5))
    )
    confidence = Confidence(
        draw(st.sampled_from([0.1, 1.0])), draw(st.sampled_from([0.0, 0.3, 1.0]))
    )
    names = tuple(f"domain{column}" for column in range(domains))
    return Router(names, table, TextReader(TOKENIZER), selector, confidence)


@given(messages)
def test_every_turn_is_a_message_with_text_and_the_newest_are_kept(
    conversation: list[tuple[str, str]],
) -> None:
    """Nothing is made up, nothing empty counts, nor what tools say, and what is left out is older
    than what is kept.
    """
    numbered = [
        (role, f"{number} {text}" if text.strip() else text)
        for number, (role, text) in enumerate(conversation)
    ]
    worded = [(role, text) for role, text in numbered if text.strip()]
    spoken = [text for role, text in worded if role not in TOOL_ROLES] or [
        text for _, text in worded
    ]
    kept = [turn.text for turn in weighted_turns(numbered)]
    assert len(kept) == (min(len(spoken), MAX_TURNS) or 1)
    if spoken:
        rest = [text for text in reversed(spoken) if text != kept[0]]
        assert kept[1:] == rest[: len(kept) - 1]


@given(messages, texts)
def test_weights_fall_with_age(conversation: list[tuple[str, str]], text: str) -> None:
    """The last user turn comes first, and each other weighs an eighth of the one after it."""
    conversation = [*conversation, ("user", text)]
    turns = weighted_turns(conversation)
    assert [turn.weight for turn in turns] == [8.0**-age for age in range(len(turns))]
    users = [text for role, text in conversation if role == "user" and text.strip()]
    assert turns[0].text == users[-1] if users else True


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.floats(2.0**-15, 1)), min_size=1, max_size=6
    )
)
def test_shares_add_up_to_one(turns: list[tuple[int, float]]) -> None:
    """Whoever has tokens has a share, whoever has none has none, and a longer turn has no less than
    a shorter one.
    """
    tokens = np.array([count for count, _ in turns])
    plain = [Turn("", weight) for _, weight in turns]
    given_out = shares(plain, tokens)
    assert ((given_out > 0) == (tokens > 0)).all()
    assert given_out.sum() == pytest.approx(1.0 if tokens.any() else 0.0)
    tokens[0] += 1
    longer = shares(plain, tokens)
    assert longer[0] >= given_out[0] - 1e-12


def test_a_short_last_turn_leaves_the_say_to_what_went_before() -> None:
    """Two tokens of sixteen have a sixty-fourth of the full weight: an eighth of what the turn
    before them has.
    """
    turns = weighted_turns([("user", "a" * 40), ("user", "go")])
    for tokens, first in ((2, 1 / 9), (FULL_WEIGHT_TOKENS, 8 / 9)):
        says = shares(turns, np.array([tokens, 40]))
        assert says.tolist() == pytest.approx([first, 1 - first])


@given(router=routers(), text=texts)
def test_a_single_turn_is_routed_as_its_text(router: Router, text: str) -> None:
    """A chat of one message goes where the prompt would go, bit for bit, whatever the weight."""
    assert router.route_turns([Turn(text, 0.25)]) == router.route(text)
    assert router.explain_turns([Turn(text, 0.25)]) == router.explain(text)


@given(router=routers(), conversation=st.lists(said, min_size=2, max_size=6))
def test_the_scores_of_a_conversation_are_the_shared_means_of_its_turns(
    router: Router, conversation: list[str]
) -> None:
    """Held against the definition: each turn's mean, times its share, at the confidence of the mean
    length.
    """
    turns = weighted_turns([("user", text) for text in conversation])
    bare = router.with_confidence(temperature=1.0, growth=0.0)
    k = router.selector.k if router.selector.name == "entropy" else 1000
    voters = [min(len(turn.text), k) for turn in turns]
    says = shares(turns, np.array(voters))
    logs = [
        [math.log(score) for score in bare.route(turn.text).scores.values()]
        for turn in turns
    ]
    sure = router.confidence
    heat = sure.temperature / float(np.dot(says, voters)) ** sure.growth
    mixed = says @ np.array(logs) / heat
    odds = np.exp(mixed - mixed.max())
    decision = router.route_turns(turns)
    assert list(decision.scores.values()) == pytest.approx(
        (odds / odds.sum()).tolist(), abs=1e-6
    )
    assert decision.confidence == pytest.approx(max(decision.scores.values()))
    assert decision.tokens == sum(len(turn.text) for turn in turns)


@given(router=routers(), conversation=st.lists(said, min_size=1, max_size=6))
def test_the_words_of_a_conversation_explain_its_decision(
    router: Router, conversation: list[str]
) -> None:
    """Weights add up to the margin, parts to the scores over their mean, and a word's own parts to
    nothing.
    """
    turns = weighted_turns([("user", text) for text in conversation])
    explanation = router.explain_turns(turns)
    assert explanation.decision == router.route_turns(turns)
    best, second = (
        router.domains.index(name)
        for name in (explanation.decision.best, explanation.runner_up)
    )
    parts = np.array([word.parts for word in explanation.words])
    weights = [word.weight for word in explanation.words]
    assert math.fsum(weights) == pytest.approx(explanation.margin, abs=1e-9)
    assert (parts[:, best] - parts[:, second]).tolist() == pytest.approx(
        weights, abs=1e-9
    )
    assert parts.sum(axis=1).tolist() == pytest.approx([0.0] * len(parts), abs=1e-9)
    text = "".join(turn.text for turn in turns)
    assert "".join(word.text for word in explanation.words) == text
