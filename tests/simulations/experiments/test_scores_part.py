"""Experts that are not domains: a made-up case whose outcome can be worked out, and data that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.simulations.experiments.scores_part import run
from tests.support.experiment_settings import LETTERS, tiny_plan, tiny_texts

GOOD = {"code": "large", "law": "small", "medicine": "large"}
"""Which of two models answers rightly in each category."""


def test_each_question_goes_to_the_model_that_is_good_at_its_category(tmp_path: Path) -> None:
    """Where categories are plain to see, the router does as well as knowing them, and better than any one model."""
    folder = tmp_path / "scores"
    folder.mkdir()
    for side, texts in (("train", slice(0, 40)), ("test", slice(40, 50))):
        lines = [
            {"text": text, "category": name, "scores": {each: int(each == good) for each in ("large", "small")}}
            for name, good in GOOD.items()
            for text in tiny_texts(name, 50)[texts]
        ]
        (folder / f"{side}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert set(GOOD) < set(LETTERS)
    part = run(tiny_plan(tmp_path), folder)
    assert part.tables[0].column("right") == pytest.approx((200 / 3, 100, 100, 100))
    assert "2 models" in part.words[0] and "3 categories" in part.words[0]


def test_without_the_data_the_part_says_what_is_missing(tmp_path: Path) -> None:
    """No table, and one sentence that names the folder."""
    part = run(tiny_plan(tmp_path), tmp_path / "nowhere")
    assert part.tables == ()
    [words] = part.left_out
    assert "not on this machine" in words
