"""The routers that ours is held against: each does what its name says, and no test text helps to
choose.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.common.base.settings import PAPER
from ridgeway.common.routing.token_table import normalised_columns
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.simulations.experiments.accuracy_part import METHODS
from ridgeway.simulations.experiments.dataset import ExperimentPlan, split
from ridgeway.simulations.experiments.routers import (
    LearntRouter,
    evaluation,
    learnt,
    solved,
    summed_texts,
    token_counts,
)
from ridgeway.simulations.experiments.sentence_routers import (
    TransformerSentences,
    nearest,
)
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny_models import make_model


@pytest.fixture(scope="module")
def model(module_path: Path) -> Path:
    return make_model(module_path / "model")


@pytest.fixture
def plan(tmp_path: Path) -> ExperimentPlan:
    return tiny_plan(tmp_path)


def learn(plan: ExperimentPlan, name: str) -> LearntRouter:
    return learnt(plan, plan.datasets[0], name, METHODS[name])


# All of them


@pytest.mark.parametrize("name", ["random", "bayes", "linear", "ir3de"])
def test_a_router_learns_the_same_twice(name: str, plan: ExperimentPlan) -> None:
    """It is learnt once in a run, and again in another."""
    again = replace(plan, learnt={})
    first, second = learn(plan, name), learn(again, name)
    assert learn(plan, name) is first is not second
    for one, other in zip(first.rows, second.rows, strict=True):
        assert (one.name, one.variant) == (other.name, other.variant)
        test = plan.datasets[0].test
        assert evaluation(one.route, test) == evaluation(other.route, test)


@pytest.mark.parametrize("name", ["bayes", "linear", "ir3de"])
def test_test_texts_do_not_help_to_choose(name: str, plan: ExperimentPlan) -> None:
    """With other test texts the same variant is chosen on held-out text."""
    dataset = plan.datasets[0]
    test = dict(
        zip(dataset.domains, reversed(list(dataset.test.values())), strict=True)
    )
    other = replace(plan, datasets=(replace(dataset, test=test),), learnt={})
    named = [
        {
            row.name: row.variant
            for row in learn(shown_plan, name).rows
            if "on the test" not in row.name
        }
        for shown_plan in (plan, other)
    ]
    assert named[0] == named[1]


@pytest.mark.parametrize("name", ["bayes", "linear", "ir3de", "ridgeway"])
def test_domains_in_letters_of_their_own_are_told_apart(
    name: str, tmp_path: Path
) -> None:
    """Every router over tokens finds what is plain to see; places are those of the dataset's own
    order.
    """
    plan = tiny_plan(tmp_path, tiny_dataset(("poetry", "code", "law")))
    row = learn(plan, name).rows[0]
    assert evaluation(row.route, plan.datasets[0].test).accuracy > 95


# kNN


@settings(max_examples=25)
@given(data=st.data(), k=st.integers(1, 9))
def test_a_vote_is_that_of_the_nearest(data: st.DataObject, k: int) -> None:
    """By votes, then by order: straight from the definition; more neighbours than there are texts
    are all of them.
    """
    places = np.array(data.draw(st.permutations(range(8))), dtype=np.float32)[:, None]
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=8, max_size=8)))
    prompt = data.draw(st.integers(0, 7)) + 0.25
    near = sorted(range(8), key=lambda text: abs(places[text, 0] - prompt))[:k]
    votes = [sum(labels[text] == domain for text in near) for domain in range(3)]
    assert nearest(places, labels, k).predict(
        np.array([[prompt]], dtype=np.float32)
    ) == votes.index(max(votes))


def test_an_embedding_is_of_its_text_alone(model: Path) -> None:
    """Of length one, and the same whatever texts are read beside it; what stands beyond the limit
    is not read.
    """
    encoder = TransformerSentences(model, "cpu", 128)
    texts = ["abc", "0123456789" * 20, "the law of the land", "a", ""]
    together, alone = (
        encoder.embed(texts),
        np.concatenate([encoder.embed([text]) for text in texts]),
    )
    assert np.allclose(together, alone, atol=1e-5)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert np.array_equal(
        encoder.embed(["0123456789" * 20]), encoder.embed(["0123456789" * 30])
    )
    assert not np.allclose(
        encoder.embed(["0123456789" * 5]), encoder.embed(["0123456789" * 6])
    )


# MoDEM


# Tables


def test_the_papers_router_is_the_papers_formula(encoder: TableEncoder) -> None:
    """W = (A + λI)⁻¹B over single tokens with a constant feature, columns divided by their norm."""
    texts = split(tiny_dataset()).fit
    parts = [
        summed_texts(encoder, PAPER.sampling, name, own) for name, own in texts.items()
    ]
    made = solved(parts, encoder, normalise=True)
    counts = token_counts(encoder.reader, texts, encoder.rows).astype(np.float64)
    rows = np.append(encoder.table * encoder.scale, np.ones((encoder.rows, 1)), axis=1)
    gram = (rows * counts.sum(axis=1)[:, None]).T @ rows + 0.01 * np.eye(rows.shape[1])
    weights = normalised_columns(np.linalg.solve(gram, rows.T @ counts))
    steps = np.ldexp(made.step, made.shifts)
    assert np.all(np.abs(made.logits * steps - rows @ weights) <= 0.5001 * steps)
