"""What belongs to no domain: how far a score stands out, and the chance that is learnt from counts
of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import Confidence, Scope, Selector
from ridgeway.common.routing.decision import (
    _BINS,
    SCOPE_COUNTS_SHAPE,
    fit_scope,
    prominence,
    scope_counts,
    separation,
)
from ridgeway.common.routing.evaluation import beginnings, calibrate
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import compile_table
from tests.support.tiny import LETTERS, tiny_encoder

ENCODER = tiny_encoder()
DOMAINS = ("code", "law", "medicine", "music")
many_scores = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(2, 9)),
    elements=st.floats(-9, 9, width=32),
)


@given(many_scores)
def test_prominence_lies_between_nought_and_one(scores: Any) -> None:
    """By Samuelson's inequality, whatever the scores are."""
    shares = prominence(scores)
    assert shares.min() >= 0
    assert shares.max() <= 1 + 1e-12


@given(many_scores)
def test_counts_are_of_every_text_twice(scores: Any) -> None:
    """Once by all domains, once by all but its own, in the same length; of two domains nothing is
    told.
    """
    voters = np.arange(1, len(scores) + 1) ** 4
    counts = scope_counts(scores, voters, 0)
    assert counts.shape == SCOPE_COUNTS_SHAPE
    assert (counts.sum(axis=1)[:, 0] == counts.sum(axis=1)[:, 1]).all()
    assert counts[..., 0].sum() == (len(scores) if scores.shape[1] > 2 else 0)


def chance_of(scope: Scope, above: Any, tokens: int) -> Any:
    logit = scope.slope * above + scope.growth * np.log(tokens) + scope.offset
    return 1 / (1 + np.exp(-logit))


def counts_of(inside: float, outside: float, size: int, seed: int) -> Any:
    """Texts of all lengths whose prominence lies about these."""
    chance = np.random.default_rng(seed)
    counts = np.zeros(SCOPE_COUNTS_SHAPE, dtype=np.int64)
    for kind, centre in enumerate((inside, outside)):
        for length in range(SCOPE_COUNTS_SHAPE[0]):
            drawn = np.clip(chance.normal(centre, 0.1, size), 0, 1 - 1e-9)
            bins = (drawn * _BINS).astype(int)
            counts[length, :, kind] = np.bincount(bins, minlength=_BINS)
    return counts


def test_the_chance_is_learnt_where_the_two_differ() -> None:
    """It rises with prominence, is even where both are as frequent, and keeps nearly all that
    belongs.
    """
    counts = counts_of(0.7, 0.4, 500, 1)
    scope = fit_scope([counts, counts])
    assert scope is not None
    assert chance_of(scope, 0.55, 32) == pytest.approx(0.5, abs=0.05)
    chances = chance_of(scope, (np.arange(_BINS) + 0.5) / _BINS, 64)
    kept = counts[3:, chances >= scope.least, 0].sum() / counts[3:, :, 0].sum()
    assert 0.97 <= kept <= 1
    assert separation([counts]) > 0.95


def test_nothing_is_learnt_where_nothing_can_be() -> None:
    """No texts, two domains, or text that stands out less with its own domain than without."""
    none = np.zeros(SCOPE_COUNTS_SHAPE, dtype=np.int64)
    assert fit_scope([]) is None
    assert fit_scope([none]) is None
    assert fit_scope([counts_of(0.3, 0.6, 300, 2)]) is None


def scoped_router(least: float = 0.5) -> Router:
    weights = np.random.default_rng(5).standard_normal(
        (ENCODER.width + 1, len(DOMAINS))
    )
    compiled = compile_table(ENCODER, weights)
    confidence = Confidence(scope=Scope(9.0, 0.3, -4.0, least))
    return Router(DOMAINS, compiled, ENCODER.reader, Selector(), confidence)


@given(st.lists(st.text(LETTERS + "?! ", max_size=20), min_size=1, max_size=5))
def test_a_decision_s_chance_is_that_of_its_prominence(prompts: list[str]) -> None:
    """The same by the router, one by one or together, as by arrays; without letters or digits there
    is none.
    """
    router = scoped_router()
    scope = router.confidence.scope
    assert scope is not None
    decisions = router.route_many(prompts)
    assert decisions == [router.route(prompt) for prompt in prompts]
    for prompt, decision in zip(prompts, decisions, strict=True):
        assert decision.scope is not None
        scores, voters = beginnings(
            router.compiled, router.selector, router.reader.read([prompt])
        )
        if not any(map(str.isalnum, prompt)) or not voters[-1:]:
            assert decision.scope == 0.0 and not decision.belongs
            assert decision.abstained
            continue
        expected = chance_of(scope, prominence(scores)[-1], voters[-1])
        assert decision.scope == pytest.approx(expected)
        assert decision.belongs == (decision.scope >= scope.least)
        assert decision.abstained == (not decision.belongs)


def test_text_that_belongs_nowhere_goes_to_the_fallback_if_there_is_one() -> None:
    """Else to no domain; either way the decision says that it abstained."""
    plain = scoped_router(1.0)
    assert plain.route("abc").domain is None
    named = plain.with_confidence(fallback="general")
    assert (named.route("abc").domain, named.route("").domain) == ("general", "general")
    assert named.explain("??").decision.abstained


def test_a_router_abstains_where_a_domain_is_ahead_that_no_expert_is_for() -> None:
    """On its prompts alone, and not where the router is told never to abstain; the manifest keeps
    the name.
    """
    router = scoped_router()
    best = router.route("aaaa").best
    plain = router.confidence.abstaining(scope=0.0)
    outside = replace(plain, outside=(best,))
    decision = router.with_confidence(outside=(best,)).route("aaaa")
    assert (decision.domain, decision.best) == (None, best)
    assert decision.reason == "out_of_scope"
    others = [letter * 4 for letter in LETTERS if router.route(letter * 4).best != best]
    assert others
    decided = replace(router, confidence=outside).route_many(others)
    assert not any(decision.abstained for decision in decided)
    assert Confidence.of_json(outside.to_json()) == outside
    assert "outside" not in plain.to_json()
    assert outside.abstaining(threshold=0) == plain


def test_calibration_learns_the_scope_of_a_router() -> None:
    """From the texts themselves what holders would count of them."""
    router = scoped_router()
    texts = {
        name: [f"{letter * 9}{other}" for other in LETTERS]
        for name, letter in zip(DOMAINS, "abcd", strict=True)
    }
    read = [router.reader.read(texts[name]) for name in DOMAINS]
    scores = [beginnings(router.compiled, router.selector, tokens) for tokens in read]
    counts = [scope_counts(*rows, column) for column, rows in enumerate(scores)]
    assert calibrate(router, texts).scope == fit_scope(counts)


def test_a_scope_survives_its_manifest_and_one_without_reads_as_before() -> None:
    """What is not there is not written."""
    scoped = Confidence(scope=Scope(1.0, 0.0, -1.0, 0.25))
    assert Confidence.of_json(scoped.to_json()) == scoped
    assert "scope" not in Confidence().to_json()
    assert Confidence.of_json({"temperature": 2.0}) == Confidence(temperature=2.0)


@pytest.mark.parametrize(
    "facts", [(0, 0, 0, 0.5), (np.nan, 0, 0, 0.5), (1, np.inf, 0, 0.5), (1, 0, 0, 2)]
)
def test_a_scope_that_cannot_be_is_refused(
    facts: tuple[float, float, float, float],
) -> None:
    """A falling chance, or one that is no number."""
    with pytest.raises(InputError):
        Scope(*facts)


def test_a_threshold_of_zero_never_abstains() -> None:
    """Neither for its confidence nor for its scope, which can be set by itself."""
    router = scoped_router(0.99)
    never = replace(router, confidence=router.confidence.abstaining(threshold=0))
    for text in ("abc", "", "?!"):
        assert router.route(text).reason == "out_of_scope"
        decided = never.route(text)
        assert not decided.abstained and decided.domain == decided.best
    half = router.confidence.abstaining(threshold=0, scope=0.99)
    assert half == router.confidence
    lower = router.confidence.abstaining(scope=0.2).scope
    assert lower is not None
    assert lower.least == 0.2
    assert router.confidence.abstaining() == router.confidence
