"""Scoring: what a holder counts is what the released router would do with the same texts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.round.scoring import HeldOut, LastRouter, Scorer
from ridgeway.common.base.settings import SelectorName
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.protocol.messages import Candidate
from ridgeway.common.routing.evaluation import (
    BEGINNING_TOKENS,
    CALIBRATED_COUNTS,
    CONFIDENCE_EDGES,
    CURVES,
    evaluate,
    split_calibration,
)
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import compile_table, normalised_columns
from tests.support.tiny import LETTERS, SPECIAL, tiny_encoder

ENCODER = tiny_encoder()
DOMAINS = ("code", "law", "medicine")
RULES: tuple[tuple[SelectorName, int], ...] = (("average", 10), ("all", 10), ("entropy", 1), ("entropy", 7))
CANDIDATES = tuple(
    Candidate(ridge=ridge, normalise_columns=normalise, selector=name, k=k)
    for ridge, normalise, (name, k) in product((0, 1), (False, True), RULES)
)
texts = st.lists(st.text(LETTERS + "é", max_size=30) | st.just(SPECIAL), min_size=1, max_size=6)
seeds = st.integers(0, 1 << 32)


def weights_of(seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((ENCODER.width + 1, len(DOMAINS)))


def held_out(documents: list[str], encoder: TableEncoder = ENCODER) -> HeldOut:
    ids, lengths = encoder.tokenizer.encode_many(documents)
    return HeldOut(ids.astype(np.int32), lengths.astype(np.int64))


def router_of(weights: NDArray[np.float64], candidate: Candidate) -> Router:
    """The router that would be released if the candidate were chosen."""
    used = normalised_columns(weights) if candidate.normalise_columns else weights
    return Router(DOMAINS, compile_table(ENCODER.table, ENCODER.scale, used), ENCODER.tokenizer, candidate.rule)


def with_tokens(documents: list[str]) -> list[str]:
    return [text for text in documents if len(ENCODER.tokenizer.encode_many([text])[0])]


@given(documents=texts, seed=seeds)
def test_a_document_counts_for_the_domain_that_the_router_would_name(documents: list[str], seed: int) -> None:
    """For every candidate: one text after the other, and all of them as `evaluate` counts; no tokens, no count."""
    weights = [weights_of(seed), weights_of(seed + 1)]
    counts = Scorer(ENCODER, held_out(documents)).routed(weights, CANDIDATES, 0)
    counted = with_tokens(documents)
    for candidate, row in zip(CANDIDATES, counts, strict=True):
        router = router_of(weights[candidate.ridge], candidate)
        named = [router.route(text).best for text in counted]
        assert row == [*(named.count(domain) for domain in DOMAINS), 0, 0]
        if counted:
            table = evaluate(router, {"code": counted, "law": ["a"], "medicine": ["a"]}).confusion
            assert tuple(row[:-2]) == table[0]


@given(documents=texts, seed=seeds, own=st.integers(0, 2), before=st.integers(0, 2))
def test_what_a_candidate_loses_and_wins_is_told_by_comparing_documents(
    documents: list[str], seed: int, own: int, before: int
) -> None:
    """One by one: right under the last router and not under the candidate, and the other way round."""
    weights, older = [weights_of(seed), weights_of(seed + 1)], weights_of(seed + 2)
    last = LastRouter(older, CANDIDATES[0].rule, before)
    rows = Scorer(ENCODER, held_out(documents)).routed(weights, CANDIDATES, own, last)
    old = Router(DOMAINS, compile_table(ENCODER.table, ENCODER.scale, older), ENCODER.tokenizer, last.rule)
    for candidate, row in zip(CANDIDATES, rows, strict=True):
        router = router_of(weights[candidate.ridge], candidate)
        right = [
            (old.route(text).best == DOMAINS[before], router.route(text).best == DOMAINS[own])
            for text in with_tokens(documents)
        ]
        assert row[-2:] == [right.count((True, False)), right.count((False, True))]


@given(documents=texts, seed=seeds, own=st.integers(0, 2))
def test_every_beginning_falls_into_one_bin_and_is_right_at_most_once(
    documents: list[str], seed: int, own: int
) -> None:
    """Under each curve and temperature the same number: a text, and its first so many tokens where it has more."""
    temperatures = (1e-6, 0.5, 1e6)
    scorer = Scorer(ENCODER, held_out(documents))
    counts = scorer.reliability(weights_of(seed), CANDIDATES[0], own, temperatures)
    assert counts.shape == (len(CURVES), 3, len(CONFIDENCE_EDGES), 2)
    lengths = [len(ENCODER.tokenizer.encode_many([text])[0]) for text in documents]
    beginnings = sum(length > limit for length in lengths for limit in (*BEGINNING_TOKENS, 0))
    assert (counts[..., 0].sum(axis=-1) == beginnings).all()
    assert (counts[..., 1] <= counts[..., 0]).all()
    assert (counts[..., 1].sum(axis=-1) == counts[0, 0, :, 1].sum()).all()


@given(documents=texts, seed=seeds)
def test_few_documents_weigh_as_many_in_a_calibration(documents: list[str], seed: int) -> None:
    """A holder's counts are those of its documents times one number, and add up to nearly the same for every holder."""
    scorer = Scorer(ENCODER, held_out(documents))
    given = weights_of(seed), CANDIDATES[0], 0, (1.0,)
    counts = scorer.reliability(*given)
    reliability, scope = split_calibration(scorer.calibration(*given), 1)
    total = int(reliability[0, 0, :, 0].sum())
    assert not counts.any() or CALIBRATED_COUNTS - counts[0, 0, :, 0].sum() < total <= CALIBRATED_COUNTS
    assert (reliability * counts[0, 0, :, 0].sum() == counts * total).all()
    assert scope[..., 0].sum() == total


@given(documents=texts, seed=seeds)
def test_each_whole_text_is_right_for_one_domain_alone(documents: list[str], seed: int) -> None:
    """What is right for one is wrong for the others, so the three add up to all beginnings."""
    scorer = Scorer(ENCODER, held_out(documents))
    counts = [scorer.reliability(weights_of(seed), CANDIDATES[0], own, (1.0,)) for own in range(3)]
    assert sum(int(each[..., 1].sum()) for each in counts) == int(counts[0][..., 0].sum())


@pytest.mark.parametrize(("temperature", "edge"), [(1e9, 0.3), (1e-9, 0.999)])
def test_the_bins_are_those_of_the_confidence(temperature: float, edge: float) -> None:
    """Hot scores are sure of nothing: a third for each of three; cold ones are sure of everything."""
    counts = Scorer(ENCODER, held_out(["abcdefg"])).reliability(weights_of(1), CANDIDATES[0], 0, (temperature,))
    assert counts[0, 0, CONFIDENCE_EDGES.index(edge), 0] == counts[0, 0, :, 0].sum() == 2


@pytest.mark.parametrize("documents", [[], ["", SPECIAL]])
def test_a_holder_without_held_out_text_counts_nothing(documents: list[str]) -> None:
    """Zeros of the right shape, whatever is asked."""
    nothing = HeldOut(np.empty(0, np.int32), np.empty(0, np.int64))
    scorer = Scorer(ENCODER, held_out(documents) if documents else nothing)
    assert scorer.routed([weights_of(1)], CANDIDATES[:2], 0) == [[0, 0, 0, 0, 0]] * 2
    assert not scorer.reliability(weights_of(1), CANDIDATES[0], 0, (1.0,)).any()
