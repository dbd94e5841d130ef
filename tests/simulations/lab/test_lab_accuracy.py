"""The part `accuracy`: its tables hold what was measured, and its words follow them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.evaluation import Evaluation
from simulations.lab import accuracy, pooled
from simulations.lab.accuracy import in_words
from simulations.lab.findings import Part, part_from_json
from simulations.lab.routers import sentences
from simulations.lab.routers.comparing import Compared, Row, compare, unlike
from simulations.lab.routers.registry import METHODS
from simulations.lab.routers.sentences import minilm
from simulations.lab.routers.task import task_of
from tests.lab_settings import tiny_plan, tiny_setting
from tests.tiny_models import make_model


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    """The part on small text, with a small transformer for the sentence encoder."""
    folder = tmp_path_factory.mktemp("accuracy")
    model = make_model(folder / "model")
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "file_of_wheel", lambda wheel, ending: None)
        patch.setenv(sentences.VARIABLE, str(model))
        patch.setattr(pooled, "EACH", 1)
        patch.setattr(pooled, "MANY", 4)
        minilm.cache_clear()
        return accuracy.run(tiny_plan(folder))


def test_every_router_has_a_row_in_both_tables(part: Part) -> None:
    """None is left out where everything can be had."""
    assert part.left_out == ()
    right, cost, equal = part.tables
    assert right.column("router") == cost.column("router")
    assert len(right.rows) == len(set(right.column("router"))) == 1 + 4 + 5 + 1 + 1 + 1 + 6 + 1
    assert "NO" not in equal.column("same bytes")


def test_means_are_means_of_their_rows(part: Part) -> None:
    """And one expert for everything is right for one domain of four."""
    right = part.tables[0]
    for row in right.rows:
        cells = [cell for cell in row[1:6] if isinstance(cell, float)]
        assert cells[4] == pytest.approx(sum(cells[:4]) / 4)
    means = dict(zip(right.column("router"), right.column("mean"), strict=True))
    assert {means[f"always {name}"] for name in ("code", "law", "medicine", "poetry")} == {25.0}


def test_ratios_are_to_ours(part: Part) -> None:
    """Ours takes as long as ours; routers that do nothing have no time."""
    cost = part.tables[1]
    ratios = dict(zip(cost.column("router"), cost.column("times ours"), strict=True))
    assert ratios["Ridgeway (ours)"] == 1.0
    assert ratios["random"] is None
    assert part_from_json(json.loads(json.dumps(part.to_json()))) == part


def test_without_the_sentence_encoder_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its routers are left out, with the reason."""
    monkeypatch.setattr(sentences, "file_of_wheel", lambda wheel, ending: None)
    monkeypatch.setattr(sentences, "HUB", "./nowhere")
    monkeypatch.delenv(sentences.VARIABLE, raising=False)
    minilm.cache_clear()
    found = compare(tiny_plan(tmp_path), tiny_setting())
    assert [words.partition(" ")[0] for words in found.left_out] == ["knn", "modem"]
    assert all("is not on this machine" in words for words in found.left_out)
    assert {row.method.key for row in found.rows} == set(METHODS) - {"knn", "modem"}


def row(key: str, name: str, right: int, milliseconds: float) -> Row:
    shown = Evaluation(("code", "law"), ((right, 100 - right), (0, 100)))
    return Row(METHODS[key], name, "", "", shown, None, 1.0, milliseconds, "a machine")


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (90, 80, "so ours is 5.0 points ahead"),
        (80, 90, "so ours is 5.0 points behind"),
        (80, 80, "as many as the best of the others, naive Bayes"),
    ],
)
def test_words_follow_the_figures(tmp_path: Path, ours: int, theirs: int, words: str) -> None:
    """Whoever is ahead is said to be."""
    plan = tiny_plan(tmp_path)
    rows = (
        row("random", "random", 100, 0.0),
        row("bayes", "naive Bayes", theirs, 1.0),
        row("ir3de", "IR3DE, best k on the test, as in the paper", 70, 1.0),
        row("knn", "kNN, k = 1", 60, 50.0),
        row("ridgeway", "Ridgeway (ours)", ours, 0.5),
    )
    said = " ".join(in_words(Compared(plan.settings[0], task_of(plan, plan.settings[0], tmp_path), rows, ())))
    assert words in said
    assert "50.0 ms, 100 times as long as ours" in said
    slow = replace(rows[-1], milliseconds=100.0)
    said = " ".join(
        in_words(Compared(plan.settings[0], task_of(plan, plan.settings[0], tmp_path), (*rows[:-1], slow), ()))
    )
    assert "0.50 of the time of ours" in said


@given(values=st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 1))))
def test_equal_shapes_are_timed_once(values: list[dict[str, int]]) -> None:
    """Each value is kept where it first stands."""
    assert unlike(values) == [json.loads(each) for each in dict.fromkeys(json.dumps(v, sort_keys=True) for v in values)]
