"""The part as a whole, on a tiny model: tables, words, the shelf, and the command for a machine with little on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import simulations.lab.experts as experts
from common.devices import cards
from common.encoder import save_encoder
from common.errors import EncoderError
from simulations.lab.cells import rows
from simulations.lab.experts import obtaining
from simulations.lab.experts.obtaining import beginnings, recipe_of, scored
from simulations.lab.experts.part import ROUTERS, run
from simulations.lab.experts.recipe import SHORT
from simulations.lab.findings import Part, part_from_json
from simulations.lab.plan import Plan
from simulations.lab.routers.registry import METHODS
from simulations.lab.routers.task import task_of
from simulations.lab.setting import Setting, folder_setting
from simulations.lab.shelf import Shelf
from tests.tiny import tiny_encoder
from tests.tiny_experts import tiny_setting, write_setting

TRIED = ("bayes", "ir3de")
ROOT = Path(experts.__file__).resolve().parents[3]
MISSING = ("flwr", "pydantic", "zstandard", "cryptography", "gguf", "pyarrow", "accelerate", "fastapi", "matplotlib")
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({MISSING}))
runpy.run_module("simulations.lab.experts", run_name="__main__", alter_sys=True)
"""


def plan_for(folder: Path, *settings: Setting, **changes: Any) -> Plan:
    save_encoder(tiny_encoder(), folder / "encoder")
    options = {"work": folder / "work", "shelf": Shelf(folder / "shelf"), "encoder": f"dir:{folder / 'encoder'}"}
    return Plan(settings=settings or (tiny_setting(),), **{**options, **changes})


@pytest.fixture(name="part")
def a_part(folder: Path, tmp_path: Path) -> Part:
    return run(plan_for(tmp_path), folder, TRIED)


def test_a_part_has_the_tables_of_the_paper(part: Part) -> None:
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
    assert all(rows(table) for table in part.tables)
    [plot] = part.plots
    assert [series.name for series in plot.series] == ["code", "law", "medicine"]
    assert plot.series[0].x[-1] == SHORT.tokens
    assert part_from_json(part.to_json()) == part
    assert part.key == experts.KEY and part.title == experts.TITLE


def test_easy_domains_are_routed_well(part: Part) -> None:
    """Letters that no other domain uses give a text away, so that a router is as good as its experts."""
    whole = part.tables[1]
    found = dict(zip(whole.column("who answers"), whole.column("rightly sent"), strict=True))
    means = dict(zip(whole.column("who answers"), whole.column("mean"), strict=True))
    assert found["naive Bayes on token counts"] == 100.0
    assert means["naive Bayes on token counts"] == pytest.approx(100.0)
    assert any("naive Bayes on token counts: 100.0" in words for words in part.words)


def test_experts_are_not_trained_twice(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the shelf is taken from there."""
    first = run(plan_for(tmp_path), folder, TRIED)
    monkeypatch.setattr(obtaining, "make", lambda *_: pytest.fail("trained again"))
    assert run(plan_for(tmp_path), folder, TRIED) == first


@pytest.mark.skipif(bool(cards()), reason="a CUDA device is here")
def test_a_full_training_without_a_card_is_left_out(folder: Path, tmp_path: Path) -> None:
    """The short one stands for it, and the part says so and what to do."""
    part = run(plan_for(tmp_path, full=True), folder, ("bayes",))
    assert "no card to train experts for tiny in full" in part.left_out[0]
    assert "copy what it writes into the report's cache" in part.left_out[0]
    assert part.facts["tiny"]["recipe"] == SHORT.words()


def test_a_router_that_cannot_be_tried_is_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are shown, and the reason is told."""

    def missing(device: str) -> Any:
        raise EncoderError("the sentence encoder is not on this machine")

    monkeypatch.setattr("simulations.lab.routers.knn.minilm", missing)
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
    setting = tiny_setting(20, 50)
    short, full = plan_for(tmp_path, setting), plan_for(tmp_path / "full", setting, full=True)
    few = scored(short, setting, recipe_of(short))
    shown = task_of(short, setting, tmp_path).shown
    for name in setting.domains:
        assert len(few.test[name]) == SHORT.documents
        assert set(few.test[name]) <= set(shown[name])
    assert scored(full, setting, recipe_of(full)) == setting


def test_beginnings_are_beginnings(folder: Path) -> None:
    """So many tokens of every test text, and the training text untouched."""
    setting = tiny_setting()
    found = beginnings(setting, folder, 5)
    assert found.train == setting.train
    assert found.test == {name: tuple(text[:5] for text in own) for name, own in setting.test.items()}
    assert found.name == "tiny-first-5"


def test_another_machine_s_work_is_taken_over(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks most packages trains and scores; its file, copied to the shelf, is all that is needed."""
    data = write_setting(tiny_setting(), tmp_path / "tiny")
    words = ["--data", data, "--model", folder, "--out", tmp_path / "shelf", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny\tcode\tlaw\tmedicine\nbase\t")
    assert "trained   law" in done.stderr
    monkeypatch.setattr(obtaining, "make", lambda *_: pytest.fail("trained again"))
    part = run(plan_for(tmp_path, folder_setting(data)), folder, ("bayes",))
    figures = done.stdout.splitlines()[1].split("\t")[1:]
    assert [f"{value:.2f}" for value in part.tables[0].rows[0][1:4] if isinstance(value, float)] == figures
