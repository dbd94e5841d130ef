"""Experts learn and score texts: what is predicted, what is trained, and that both come out the same again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.simulations.experiments.dataset import split
from ridgeway.simulations.experiments.experts.trainer import Trainer, load, passes, rate_share
from ridgeway.simulations.experiments.experts.training import (
    BASE,
    MERGED,
    SHORT,
    best_rate,
    course,
    end_of,
    expert_texts,
    mean_weights,
    sequences,
    train_experts,
)
from tests.support.tiny import tiny_definition
from tests.support.tiny_experts import ROWS, tiny_dataset

RECIPE = replace(SHORT, tokens=640, length=32, batch=4, layers=0, rates=(3e-3,), documents=0, longest=48)
END = 0


def trainer(folder: Path, **changes: Any) -> Trainer:
    return Trainer(load(folder, "cpu"), replace(RECIPE, **changes), "cpu")


def some_documents(seed: int = 0, count: int = 12) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, ROWS, size).astype(np.int32) for size in [0, 1, *rng.integers(1, 70, count - 2)]]


def by_definition(folder: Path, ids: Ids) -> float:
    """A document alone, without padding or batches: the sum of the costs of all its tokens, the first one's too."""
    if not len(ids):
        return 0.0
    row = torch.tensor([[END, *ids.tolist()]])
    with torch.no_grad():
        chances = load(folder, "cpu").double()(input_ids=row[:, :-1]).logits[0].log_softmax(1)
    return -float(chances[torch.arange(len(ids)), row[0, 1:]].sum())


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_documents_cost_what_they_cost_alone(folder: Path, layers: int) -> None:
    """Neither padding, nor the documents beside it, nor the place where the model is cut changes a document's cost."""
    documents = some_documents()
    there = trainer(folder, layers=layers, longest=40)
    found = there.likelihoods(there.test_batches(documents, END), len(documents))
    assert found == pytest.approx([by_definition(folder, ids[:40]) for ids in documents], rel=1e-4, abs=1e-4)


def test_training_lowers_the_cost_and_can_be_begun_again(folder: Path) -> None:
    """After a training the text is likelier; after `begin` everything is as it was."""
    documents = some_documents(1, 30)
    there = trainer(folder)
    tests = there.test_batches(documents, END)
    before = there.likelihoods(tests, len(documents))
    batches = there.training_batches(sequences(tuple(documents), END, 1280, 32, 1))
    losses = there.learn(batches, 3e-3, lambda: None)
    assert len(losses) == len(batches) == 10
    assert losses[-1] < losses[0]
    assert there.likelihoods(tests, len(documents)).sum() < before.sum()
    there.begin()
    assert np.array_equal(there.likelihoods(tests, len(documents)), before)


def test_only_the_last_layers_are_trained(folder: Path) -> None:
    """A short training leaves the embeddings and the layers below as they are."""
    model = load(folder, "cpu")
    before = {name: tensor.clone() for name, tensor in load(folder, "cpu").state_dict().items()}
    below = [layer.self_attn.q_proj.weight for layer in model.model.layers]
    there = Trainer(model, replace(RECIPE, layers=1), "cpu")
    there.learn(there.training_batches(sequences(tuple(some_documents()), END, 320, 32, 1)), 1e-2, lambda: None)
    changed = [
        not torch.equal(weight, before[f"model.layers.{place}.self_attn.q_proj.weight"])
        for place, weight in enumerate(below)
    ]
    assert changed == [False, False, True]
    assert torch.equal(model.get_input_embeddings().weight, before["model.embed_tokens.weight"])
    assert not torch.equal(model.model.norm.weight, before["model.norm.weight"])


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    tokens=st.integers(1, 200),
    length=st.integers(1, 24),
    seed=st.integers(0, 9),
)
def test_every_token_is_predicted_once(lengths: list[int], tokens: int, length: int, seed: int) -> None:
    """Rows join to one stream of whole documents with an end around each, as long as was asked for."""
    begun = enumerate(lengths)
    documents = tuple(np.arange(1, size + 1, dtype=np.int32) + 100 * place for place, size in begun)
    rows = sequences(documents, END, tokens, length, seed)
    assert rows.shape == (max(1, tokens // length), length + 1)
    assert np.array_equal(rows[1:, 0], rows[:-1, -1])
    stream = [int(rows[0, 0]), *rows[:, 1:].ravel().tolist()]
    assert stream[0] == END
    written = {" ".join(map(str, own.tolist())) for own in documents}
    assert all(own in written for own in split_at(stream)[:-1])


def split_at(stream: list[int]) -> list[str]:
    """The runs between ends, the last of which may be cut."""
    runs: list[list[int]] = [[]]
    for number in stream[1:]:
        if number == END:
            runs.append([])
        else:
            runs[-1].append(number)
    return [" ".join(map(str, run)) for run in runs]


def test_a_round_through_the_text_leaves_nothing_out() -> None:
    """Before a document comes twice, all have come once."""
    documents = tuple(np.array([place + 1], dtype=np.int32) for place in range(10))
    row = sequences(documents, END, 40, 40, 3)[0]
    first, second = row[1:21:2].tolist(), row[21:41:2].tolist()
    assert sorted(first) == sorted(second) == list(range(1, 11))
    assert first != second


def test_a_domain_without_text_is_one_sentence() -> None:
    """It would be searched for forever otherwise: an end alone is a document too."""
    with pytest.raises(EncoderError, match="no text to train"):
        sequences((), END, 10, 5, 1)


def test_held_out_and_test_text_are_not_trained_on() -> None:
    """An expert learns from the rest of its own domain alone."""
    dataset = tiny_dataset(60)
    work = expert_texts(dataset, tiny_definition(), replace(RECIPE, tokens=10**6, held=10**6), 1)
    parts = split(dataset)
    for name in dataset.domains:
        assert len(work.fit[name]) == len(parts.fit[name])
        assert len(work.held[name]) == len(parts.held[name])
        fit, held = ({ids.tobytes() for ids in own[name]} for own in (work.fit, work.held))
        assert fit.isdisjoint(held)
        assert fit.isdisjoint(ids.tobytes() for ids in work.test[name])


def test_no_more_is_tokenised_than_is_needed() -> None:
    """A short run does not read all of a large corpus."""
    work = expert_texts(tiny_dataset(200), tiny_definition(), replace(RECIPE, tokens=100), 1)
    assert all(100 <= sum(map(len, own)) < 100 * 80 for own in work.fit.values())


def test_a_tokenizer_without_an_end_is_refused() -> None:
    """Documents could not be told apart."""
    with pytest.raises(EncoderError, match="where texts end"):
        end_of(tiny_definition().replace(b"<end>", b"<begin>"))


@given(lengths=st.lists(st.integers(0, 50), max_size=40), most=st.integers(1, 200))
def test_documents_are_read_once_in_passes_that_fit(lengths: list[int], most: int) -> None:
    """Empty ones in none; a document longer than a pass alone."""
    found = passes(lengths, most)
    assert sorted(place for each in found for place in each) == [place for place, own in enumerate(lengths) if own]
    assert all(len(each) == 1 or len(each) * max(lengths[place] for place in each) <= most for each in found)


@given(steps=st.integers(1, 300), warmup=st.floats(0.0, 0.9))
def test_the_rate_rises_and_falls(steps: int, warmup: float) -> None:
    """It reaches the whole rate, never more, and goes down after that."""
    shares = [rate_share(step, steps, warmup) for step in range(steps)]
    top = shares.index(max(shares))
    assert max(shares) == pytest.approx(1.0)
    assert min(shares) >= 0.0
    assert shares[: top + 1] == sorted(shares[: top + 1])
    assert shares[top:] == sorted(shares[top:], reverse=True)


def test_a_training_that_went_astray_is_not_the_best() -> None:
    """A cost that is no number is worse than any other."""
    assert best_rate({"1": math.nan, "0.1": 3.0, "0.01": 2.0}) == 0.01
    assert best_rate({"0.1": 3.0, "1": math.inf}) == 0.1


def test_the_course_of_a_training_is_kept_in_few_numbers() -> None:
    """Means of stretches, first to last."""
    assert course([4.0, 2.0, 1.0, 0.0], 2) == [3.0, 0.5]
    assert course([1.0]) == [1.0]


def test_experts_know_their_own_domain_best(folder: Path) -> None:
    """Trained on letters of its own, each finds its domain's test text likeliest; the mean of all weights does not."""
    dataset = tiny_dataset()
    recipe = replace(RECIPE, rates=(1e-4, 1e-2), tokens=1280, trial=320, held=400)
    found = train_experts(expert_texts(dataset, tiny_definition(), recipe, 1), folder, recipe, "cpu", 1)
    assert found.models == (BASE, *dataset.domains, MERGED)
    for domain in dataset.domains:
        ranked = sorted(found.models, key=lambda model: found.perplexity(domain, model))
        assert ranked[0] == domain
        assert found.costs[domain].shape == (6, 5)
        assert found.tokens[domain].tolist() == [48] * 6
    assert found.about["rate"] == 1e-2
    assert found.about["trials"]["0.01"] < found.about["trials"]["0.0001"]


def test_two_runs_give_the_same_numbers(folder: Path) -> None:
    """Seeds decide; another seed trains otherwise."""
    dataset = tiny_dataset()
    recipe = replace(RECIPE, layers=1, tokens=128)

    def costs(seed: int) -> Any:
        return train_experts(
            expert_texts(dataset, tiny_definition(), recipe, seed), folder, recipe, "cpu", seed
        ).to_json()["costs"]

    assert costs(1) == costs(1)
    assert costs(1) != costs(2)


def test_a_mean_of_weights_is_taken_tensor_by_tensor() -> None:
    """As the paper averages experts."""
    [first, second] = mean_weights(
        [[torch.tensor([1.0]), torch.tensor([0.0, 4.0])], [torch.tensor([3.0]), torch.zeros(2)]]
    )
    assert first.tolist() == [2.0]
    assert second.tolist() == [0.0, 2.0]
