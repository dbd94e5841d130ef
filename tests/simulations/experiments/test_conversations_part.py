"""Conversations made of texts: which are made, and the table of a made-up case."""

from __future__ import annotations

import random
from pathlib import Path

import tests.support.flower_parts  # noqa: F401  (Flower, without the warnings of what it imports)
from ridgeway.simulations.experiments.conversations_part import PHRASES, dialogues, run
from tests.support.experiment_settings import tiny_dataset, tiny_plan


def test_chats_go_on_or_change_their_subject() -> None:
    """Half of them change to another domain, where texts are too short for a next piece; the same ones again."""
    texts = tiny_dataset().test
    found = list(dialogues(texts, PHRASES, 40, random.Random(1)))
    assert found == list(dialogues(texts, PHRASES, 40, random.Random(1)))
    assert [chat.began == chat.goes_on for chat in found] == [True, False] * 40
    assert all((chat.last in PHRASES) == (chat.began == chat.goes_on) for chat in found)
    long = {"code": ("0" * 2000,), "law": ("a" * 2000,)}
    pieces = [chat.last for chat in dialogues(long, PHRASES, 2, random.Random(1))][1::3]
    assert {set(piece).pop() for piece in pieces} == {"0", "a"}


def test_a_dataset_has_a_row_of_four_rates(tmp_path: Path) -> None:
    part = run(tiny_plan(tmp_path))
    ((name, *rates),) = part.tables[0].rows
    assert name == "tiny" and len(rates) == 4
    assert all(0 <= float(str(rate)) <= 100 for rate in rates)
    assert float(str(rates[1])) > 90, "whole texts of other letters are followed"
