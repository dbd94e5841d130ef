"""Experts learn and score texts, and what their likelihoods come to; both come out the same
again.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.statistics import Integers
from ridgeway.common.text.tokenizer import Ids, shared_tokenizer
from ridgeway.simulations.experiments.accuracy_part import (
    hindsight,
    routed_perplexities,
)
from ridgeway.simulations.experiments.expert_training import (
    BASE,
    MERGED,
    SHORT_RECIPE,
    Likelihoods,
    document_costs,
    load,
    train_experts,
    training_rows,
)
from tests.support.experiment_settings import tiny_dataset
from tests.support.tiny import tiny_definition
from tests.support.tiny_experts import ROWS

RECIPE = replace(
    SHORT_RECIPE, tokens=640, length=32, batch=4, layers=0, rate=1e-2, longest=48
)
END = 0
DOMAINS = ("code", "law", "medicine")


# Training


def by_definition(model: Any, ids: Ids) -> float:
    """The sum of the costs of all tokens of a document, the first one's too."""
    row = torch.tensor([[END, *ids.tolist()]])
    with torch.no_grad():
        chances = model(input_ids=row[:, :-1]).logits[0].log_softmax(1)
    return -float(chances[torch.arange(len(ids)), row[0, 1:]].sum())


def test_documents_cost_what_the_definition_says(folder: Path) -> None:
    """One without tokens costs nothing."""
    chance = np.random.default_rng(1)
    documents = [chance.integers(2, ROWS, size).astype(np.int32) for size in (1, 2, 30)]
    model = load(folder, "cpu")
    found = document_costs(model, [np.array([], dtype=np.int32), *documents], END)
    assert found == pytest.approx(
        [0.0, *(by_definition(model, ids) for ids in documents)], rel=1e-4
    )


def rows_of(texts: tuple[str, ...], **changes: Any) -> Integers:
    return training_rows(
        shared_tokenizer(tiny_definition()), texts, END, replace(RECIPE, **changes), 1
    )


@given(
    texts=st.lists(
        st.text("abcdefgh", min_size=1, max_size=20),
        min_size=1,
        max_size=12,
        unique=True,
    ),
    tokens=st.integers(1, 200),
    length=st.integers(1, 24),
)
def test_every_token_is_predicted_once(
    texts: list[str], tokens: int, length: int
) -> None:
    """Rows join to one stream of whole documents with an end around each, as long as was asked
    for.
    """
    rows = rows_of(tuple(texts), tokens=tokens, length=length)
    assert rows.shape == (max(1, tokens // length), length + 1)
    assert np.array_equal(rows[1:, 0], rows[:-1, -1])
    stream = [int(rows[0, 0]), *rows[:, 1:].ravel().tolist()]
    assert stream[0] == END
    known = [
        shared_tokenizer(tiny_definition()).encode(text).tolist() for text in texts
    ]
    ends = [index for index, number in enumerate(stream) if number == END]
    runs = [stream[begin + 1 : end] for begin, end in itertools.pairwise(ends)]
    assert all(run in known for run in runs)
    firsts = [known.index(run) for run in runs[: len(known)]]
    assert len(set(firsts)) == len(firsts), (
        "before a document comes twice, all have come once"
    )


def test_experts_know_their_own_domain_best(folder: Path) -> None:
    """Trained on letters of its own, each finds its domain's test text likeliest; the mean of all
    weights does not.
    """
    dataset = tiny_dataset(DOMAINS)
    [found] = train_experts(
        dataset, [dataset.test], folder, replace(RECIPE, tokens=1280), "cpu", 1
    )
    assert found.models == (BASE, *dataset.domains, MERGED)
    for domain in dataset.domains:
        ranked = sorted(found.models, key=lambda model: found.perplexity(domain, model))
        assert ranked[0] == domain
        assert found.costs[domain].shape == (10, 5)
        assert found.tokens[domain].tolist() == [48] * 10


# Likelihoods


@st.composite
def likelihoods(draw: st.DrawFn) -> Likelihoods:
    """Of one to five documents a domain, costs drawn freely."""
    chance = np.random.default_rng(draw(st.integers(0, 10**6)))
    counts = {name: draw(st.integers(1, 5)) for name in DOMAINS}
    costs = {
        name: chance.uniform(0.5, 4.0, (count, 5)) for name, count in counts.items()
    }
    tokens = {name: np.ones(count, np.int64) for name, count in counts.items()}
    return Likelihoods(DOMAINS, (BASE, *DOMAINS, MERGED), costs, tokens)


@given(found=likelihoods(), index=st.integers(0, 2))
def test_a_router_that_always_says_the_same_is_that_expert(
    found: Likelihoods, index: int
) -> None:
    """Routing everything to one expert gives that expert's perplexities; its own domain's are
    100.
    """
    sent = {name: [index] * len(found.costs[name]) for name in DOMAINS}
    alone = [found.perplexity(name, DOMAINS[index]) for name in DOMAINS]
    assert routed_perplexities(found, sent) == pytest.approx(alone)
    assert found.normalised(DOMAINS[index], alone[index]) == pytest.approx(100)


@given(found=likelihoods(), seed=st.integers(0, 99))
def test_no_router_is_better_than_hindsight(found: Likelihoods, seed: int) -> None:
    chance = np.random.default_rng(seed)
    drawn = {
        name: chance.integers(0, 3, len(found.costs[name])).tolist() for name in DOMAINS
    }
    for values in (
        routed_perplexities(found, drawn),
        [found.random_perplexity(name) for name in DOMAINS],
    ):
        shares = [
            found.normalised(name, value)
            for name, value in zip(DOMAINS, values, strict=True)
        ]
        assert sum(shares) / 3 <= hindsight(found) + 1e-9
