"""Scoring: what a holder counts is what the released router would do with the same texts, one by
one.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.round.scoring import Scorer, reliability, router_table
from ridgeway.common.base.settings import Confidence, Selector, SelectorName
from ridgeway.common.routing.evaluation import (
    _BEGINNING_TOKENS,
    CALIBRATED_COUNTS,
    CONFIDENCE_EDGES,
    CURVES,
    beginnings,
    evaluate,
    split_calibration,
)
from ridgeway.common.routing.release import Release
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import RouterTable, compile_table
from tests.support.tiny import LETTERS, SPECIAL, tiny_encoder

ENCODER = tiny_encoder()
DOMAINS = ("code", "law", "medicine")
RULES: tuple[tuple[SelectorName, int], ...] = (
    ("average", 10),
    ("all", 10),
    ("entropy", 1),
    ("entropy", 7),
)
SELECTORS = tuple(Selector(name, k) for name, k in RULES)
texts = st.lists(
    st.text(LETTERS + "é", max_size=30) | st.just(SPECIAL), min_size=1, max_size=6
)
seeds = st.integers(0, 1 << 32)
rules = st.sampled_from(SELECTORS)

Weights = NDArray[np.float64]


def weights_of(seed: int) -> Weights:
    return np.random.default_rng(seed).standard_normal(
        (ENCODER.width + 1, len(DOMAINS))
    )


def table_of(weights: Weights) -> RouterTable:
    return router_table(ENCODER, weights)


def scorer(
    documents: list[str],
    weights: Weights,
    rule: Selector = SELECTORS[0],
    domain: int = 0,
) -> Scorer:
    return Scorer(table_of(weights), rule, ENCODER.read(documents), domain)


def router_of(weights: Weights, rule: Selector) -> Router:
    """The router that would be released."""
    return Router(DOMAINS, compile_table(ENCODER, weights), ENCODER.reader, rule)


def release_of(weights: Weights) -> Release:
    manifest = {"domains": list(DOMAINS)}
    return Release(
        manifest,
        weights,
        table_of(weights),
        ENCODER.reader,
        SELECTORS[0],
        Confidence(),
    )


def with_tokens(documents: list[str]) -> list[str]:
    return [text for text in documents if len(ENCODER.read([text]).ids)]


@given(documents=texts, seed=seeds, rule=rules)
def test_a_document_counts_for_the_domain_that_the_router_would_name(
    documents: list[str], seed: int, rule: Selector
) -> None:
    """One text after the other, and all of them as `evaluate` counts; no tokens, no count."""
    weights = weights_of(seed)
    row = scorer(documents, weights, rule).routed()
    counted, router = with_tokens(documents), router_of(weights, rule)
    named = [router.route(text).best for text in counted]
    assert row.tolist() == [named.count(domain) for domain in DOMAINS]
    if counted:
        table = evaluate(
            router, {"code": counted, "law": ["a"], "medicine": ["a"]}
        ).confusion
        assert tuple(row.tolist()) == table[0]


@given(documents=texts, more=texts, seed=seeds, rule=rules, size=st.floats(-40, 40))
def test_where_a_document_is_routed_depends_on_that_document_alone(
    documents: list[str], more: list[str], seed: int, rule: Selector, size: float
) -> None:
    """Whatever others are held out beside it, and however large the weights of whoever made them:
    counts add up.
    """
    weights = weights_of(seed)
    weights[:, seed % 3] *= 2.0**size
    together = scorer([*documents, *more], weights, rule).routed()
    apart = [scorer([text], weights, rule).routed() for text in (*documents, *more)]
    assert together.tolist() == np.sum(apart, axis=0).tolist()


@given(
    documents=texts,
    seed=seeds,
    domain=st.integers(0, 2),
    before=st.integers(0, 2),
    rule=rules,
)
def test_what_a_router_loses_and_wins_is_told_by_comparing_documents(
    documents: list[str], seed: int, domain: int, before: int, rule: Selector
) -> None:
    """One by one: right under the last release and not under the router, and the other way
    round.
    """
    weights, older = weights_of(seed), weights_of(seed + 2)
    last = release_of(older)
    changes = scorer(documents, weights, rule, domain).changes(last, before)
    router, old = router_of(weights, rule), router_of(older, SELECTORS[0])
    right = [
        (
            old.route(text).best == DOMAINS[before],
            router.route(text).best == DOMAINS[domain],
        )
        for text in with_tokens(documents)
    ]
    assert changes == (right.count((True, False)), right.count((False, True)))


def bins(
    documents: list[str], weights: Weights, domain: int, temperatures: tuple[float, ...]
) -> NDArray[np.int64]:
    """What a calibration counts, before it is multiplied."""
    read = ENCODER.read(with_tokens(documents))
    if not len(read.lengths):
        return reliability(np.zeros((0, 3)), read.lengths, domain, temperatures)
    return reliability(
        *beginnings(table_of(weights), SELECTORS[0], read),
        domain,
        temperatures,
    )


@given(documents=texts, seed=seeds, domain=st.integers(0, 2))
def test_every_beginning_falls_into_one_bin_and_is_right_at_most_once(
    documents: list[str], seed: int, domain: int
) -> None:
    """Under each curve and temperature the same number: a text, and its first so many tokens where
    it has more.
    """
    counts = bins(documents, weights_of(seed), domain, (1e-6, 0.5, 1e6))
    assert counts.shape == (len(CURVES), 3, len(CONFIDENCE_EDGES), 2)
    lengths = ENCODER.read(documents).lengths.tolist()
    expected = sum(
        length > limit for length in lengths for limit in (*_BEGINNING_TOKENS, 0)
    )
    assert (counts[..., 0].sum(axis=-1) == expected).all()
    assert (counts[..., 1] <= counts[..., 0]).all()
    assert (counts[..., 1].sum(axis=-1) == counts[0, 0, :, 1].sum()).all()


@given(documents=texts, seed=seeds)
def test_few_documents_weigh_as_many_in_a_calibration(
    documents: list[str], seed: int
) -> None:
    """A holder's counts are those of its documents times one number, and add up to nearly the same
    for every holder.
    """
    weights = weights_of(seed)
    counts = bins(documents, weights, 0, (1.0,))
    bins_of_all, scope = split_calibration(
        scorer(documents, weights).calibration((1.0,)), 1
    )
    total = int(bins_of_all[0, 0, :, 0].sum())
    assert (
        not counts.any()
        or CALIBRATED_COUNTS - counts[0, 0, :, 0].sum() < total <= CALIBRATED_COUNTS
    )
    assert (bins_of_all * counts[0, 0, :, 0].sum() == counts * total).all()
    assert scope[..., 0].sum() == total


@given(documents=texts, seed=seeds)
def test_each_whole_text_is_right_for_one_domain_alone(
    documents: list[str], seed: int
) -> None:
    """What is right for one is wrong for the others, so the three add up to all beginnings."""
    counts = [bins(documents, weights_of(seed), domain, (1.0,)) for domain in range(3)]
    assert sum(int(bins[..., 1].sum()) for bins in counts) == int(
        counts[0][..., 0].sum()
    )


@pytest.mark.parametrize(("temperature", "edge"), [(1e9, 0.3), (1e-9, 0.999)])
def test_the_bins_are_those_of_the_confidence(temperature: float, edge: float) -> None:
    """Hot scores are sure of nothing: a third for each of three; cold ones are sure of
    everything.
    """
    counts = bins(["abcdefg"], weights_of(1), 0, (temperature,))
    assert (
        counts[0, 0, CONFIDENCE_EDGES.index(edge), 0] == counts[0, 0, :, 0].sum() == 2
    )


@pytest.mark.parametrize("documents", [[], ["", SPECIAL]])
def test_a_holder_without_held_out_text_counts_nothing(documents: list[str]) -> None:
    """Zeros of the right shape, whatever is asked."""
    made = scorer(documents, weights_of(1))
    assert made.routed().tolist() == [0, 0, 0]
    assert made.changes(release_of(weights_of(2)), 0) == (0, 0)
    assert not made.calibration((1.0,)).any()
