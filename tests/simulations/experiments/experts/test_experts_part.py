"""The part as a whole, on a tiny model: tables, words, the cache, and the command for a machine with little on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.devices import gpus
from ridgeway.common.base.errors import EncoderError
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.simulations.experiments.baselines.comparison import METHODS
from ridgeway.simulations.experiments.baselines.routing_method import task_of
from ridgeway.simulations.experiments.dataset import Dataset, folder_dataset
from ridgeway.simulations.experiments.experts import experts_part as experts
from ridgeway.simulations.experiments.experts import training
from ridgeway.simulations.experiments.experts.experts_part import ROUTERS, run
from ridgeway.simulations.experiments.experts.training import FULL, SHORT, beginnings, scored_texts
from ridgeway.simulations.experiments.plan import Cache, ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import ReportPart, part_from_json, written_rows
from tests.support.tiny import tiny_encoder
from tests.support.tiny_experts import tiny_dataset, write_dataset

TRIED = ("bayes", "ir3de")
ROOT = Path(__file__).resolve().parents[4]
MISSING = (
    "flwr",
    "pydantic",
    "zstandard",
    "cryptography",
    "gguf",
    "pyarrow",
    "accelerate",
    "sklearn",
    "fastapi",
    "matplotlib",
)
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({MISSING}))
runpy.run_module("ridgeway.simulations.experiments", run_name="__main__", alter_sys=True)
"""


def plan_for(folder: Path, *datasets: Dataset, **changes: Any) -> ExperimentPlan:
    if not (folder / "encoder").exists():
        save_encoder(tiny_encoder(), folder / "encoder")
    options = {"work": folder / "work", "cache": Cache(folder / "cache"), "encoder": f"dir:{folder / 'encoder'}"}
    return ExperimentPlan(datasets=datasets or (tiny_dataset(),), **{**options, **changes})


@pytest.fixture(scope="module", name="place")
def a_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module", name="part")
def a_part(folder: Path, place: Path) -> ReportPart:
    return run(plan_for(place), folder, TRIED)


def test_a_part_has_the_tables_of_the_paper(part: ReportPart) -> None:
    """Experts among themselves, and every router among experts: once for whole texts, once for their beginnings."""
    assert [table.key for table in part.tables] == [
        "experts-perplexity-tiny",
        "experts-normalised-tiny",
        "experts-normalised-tiny-first-32",
    ]
    perplexity, whole, begun = part.tables
    assert perplexity.column("model")[1:4] == ("code expert", "law expert", "medicine expert")
    assert [column.name for column in whole.columns[1:4]] == ["code", "law", "medicine"]
    names = whole.column("who answers")
    assert names[:5] == (
        "code expert",
        "law expert",
        "medicine expert",
        "experts average (mean of their weights)",
        "random",
    )
    assert {"naive Bayes on token counts", "IR3DE-all", "IR3DE-avg", "IR3DE, k chosen on held-out text"} <= set(names)
    assert begun.column("who answers") == names
    assert all(written_rows(table) for table in part.tables)
    [plot] = part.plots
    assert [series.name for series in plot.series] == ["code", "law", "medicine"]
    assert plot.series[0].x[-1] == SHORT.tokens
    assert part_from_json(part.to_json()) == part
    assert part.key == experts.KEY and part.title == experts.TITLE


def test_easy_domains_are_routed_well(part: ReportPart) -> None:
    """Letters that no other domain uses give a text away, so that a router is as good as its experts."""
    whole = part.tables[1]
    found = dict(zip(whole.column("who answers"), whole.column("rightly sent"), strict=True))
    means = dict(zip(whole.column("who answers"), whole.column("mean"), strict=True))
    assert found["naive Bayes on token counts"] == 100.0
    assert means["naive Bayes on token counts"] == pytest.approx(100.0)


def test_experts_are_not_trained_twice(
    folder: Path, place: Path, part: ReportPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cached is taken from there."""
    monkeypatch.setattr(training, "train_experts", lambda *_: pytest.fail("trained again"))
    assert run(plan_for(place), folder, TRIED) == part


@pytest.mark.skipif(bool(gpus()), reason="a CUDA device is here")
def test_a_full_training_without_a_gpu_is_left_out(folder: Path, tmp_path: Path) -> None:
    """The short one stands for it, and the part says so and what to do."""
    part = run(plan_for(tmp_path, full=True), folder, ("bayes",))
    assert "no GPU to train experts for tiny in full" in part.left_out[0]
    assert "copy what it writes into the report's cache" in part.left_out[0]
    assert part.facts["tiny"]["recipe"] == SHORT.words()


def test_a_router_that_cannot_be_tried_is_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are shown, and the reason is told."""

    def missing(device: str) -> Any:
        raise EncoderError("the sentence encoder is not on this machine")

    monkeypatch.setattr("ridgeway.simulations.experiments.baselines.sentence_routers.minilm", missing)
    part = run(plan_for(tmp_path), folder, ("knn", "bayes"))
    assert any("not on this machine" in words for words in part.left_out)
    assert any("knn on the first 32 tokens" in words for words in part.left_out)
    assert "naive Bayes on token counts" in part.tables[1].column("who answers")


def test_every_router_of_the_paper_is_asked() -> None:
    """Those that look at nothing are reckoned from the likelihoods themselves."""
    assert set(ROUTERS) <= set(METHODS)
    assert set(METHODS) - set(ROUTERS) == {"random", "always", "linear"}


def test_scored_texts_are_among_those_that_routers_are_shown(folder: Path, tmp_path: Path) -> None:
    """Few in a short run, all in a full one."""
    dataset = tiny_dataset(20, 50)
    short, full = plan_for(tmp_path, dataset), plan_for(tmp_path / "full", dataset, full=True)
    few = scored_texts(short, dataset, SHORT)
    shown = task_of(short, dataset, tmp_path).shown
    for name in dataset.domains:
        assert len(few.test[name]) == SHORT.documents
        assert set(few.test[name]) <= set(shown[name])
    assert scored_texts(full, dataset, FULL) == dataset


def test_beginnings_are_beginnings(folder: Path) -> None:
    """So many tokens of every test text, and the training text untouched."""
    dataset = tiny_dataset()
    found = beginnings(dataset, folder, 5)
    assert found.train == dataset.train
    assert found.test == {name: tuple(text[:5] for text in own) for name, own in dataset.test.items()}
    assert found.name == "tiny-first-5"


def test_another_machine_s_work_is_taken_over(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks most packages trains and scores; its file, copied to the cache, is all that is needed."""
    data = write_dataset(tiny_dataset(), tmp_path / "tiny")
    words = ["--data", data, "--model", folder, "--out", tmp_path / "cache", "--device", "cpu", "--only", "experts"]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "scored    tiny" in done.stderr
    monkeypatch.setattr(training, "train_experts", lambda *_: pytest.fail("trained again"))
    part = run(plan_for(tmp_path, folder_dataset(data)), folder, ("bayes",))
    assert part.tables[0].column("model")[1:4] == ("code expert", "law expert", "medicine expert")
