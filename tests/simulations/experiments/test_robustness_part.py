"""Prompts as people type them: what is done to test texts, and the table of a made-up case."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.simulations.experiments import robustness_part
from ridgeway.simulations.experiments.robustness_part import changed_texts, changes, run, typos
from ridgeway.simulations.experiments.routers import OURS
from ridgeway.simulations.experiments.token_routers import NAIVE_BAYES
from tests.support.experiment_settings import tiny_plan


def test_as_many_letters_are_changed_as_the_rate_says_and_the_same_ones_again() -> None:
    """Whatever stands beside a text; at no rate nothing is."""
    text = "abcdefghij" * 100
    assert typos(0.0)(text, random.Random(1)) == text
    texts = {"code": (text, "short"), "law": (text,)}
    found = changed_texts(texts, typos(0.2), 7)
    assert found["code"][0] == found["law"][0] != text
    kept = sum(one == other for one, other in zip(text, typos(1.0)(text, random.Random(2)), strict=False))
    assert kept < 400
    assert 700 < len(found["law"][0]) < 1300


def test_texts_are_cut_after_tokens(tmp_path: Path) -> None:
    """The tiny encoder's tokens are letters."""
    found = changes(tiny_plan(tmp_path).table_encoder().tokenizer)
    assert found["first 4"]("abcdefg", random.Random(1)) == "abcd"
    assert found["no blanks"]("a b c", random.Random(1)) == "abc"
    assert found["capitals"]("ab", random.Random(1)) == "AB"


def test_every_router_is_tried_on_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean text is routed as in the comparison; text of nowhere has its own table."""
    monkeypatch.setattr(robustness_part, "_METHODS", {"bayes": NAIVE_BAYES, "ridgeway": OURS})
    monkeypatch.setattr(robustness_part, "_OUT_OF_SCOPE", tmp_path / "nothing")
    first, gaps, scope = run(tiny_plan(tmp_path)).tables
    assert len(first.rows) == 2
    assert first.columns[1:] == gaps.columns[1:] == tuple(changes(tiny_plan(tmp_path).table_encoder().tokenizer))
    assert min(float(str(each)) for each in first.column("clean")) > 90
    assert scope.column("rejected: empty") == (100.0,)
    assert 0 <= float(str(gaps.column("clean")[0])) < 50


def test_scope_tells_texts_of_another_kind_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where out-of-scope texts are there; texts of the domains themselves are told apart from themselves by chance."""
    plan = tiny_plan(tmp_path)
    own = [text for texts in plan.datasets[0].test.values() for text in texts]
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": text}) + "\n" for text in own))
    monkeypatch.setattr(robustness_part, "_METHODS", {"ridgeway": OURS})
    monkeypatch.setattr(robustness_part, "_OUT_OF_SCOPE", other)
    scope = run(plan).tables[-1]
    assert scope.column("AUROC")[0] == pytest.approx(50)
