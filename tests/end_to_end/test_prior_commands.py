"""The public prior as operators make it: of built-in text, of a folder, and of what is no use."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.common.privacy.public_prior import (
    built_in_prior,
    private_width,
    read_prior,
)
from ridgeway.common.text.encoder_files import find_encoder
from tests.support.commands import Workshop

pytestmark = pytest.mark.usefixtures("private_sentences")


def test_a_prior_of_a_folder_can_be_made(shop: Workshop, tmp_path: Path) -> None:
    """Its fingerprint is the same whenever it is made of the same text."""
    words = (
        f"prior make law.jsonl code.jsonl --encoder {shop.private_encoder} --json --out"
    )
    made = {shop.do(words, tmp_path / name).json["fingerprint"] for name in "ab"}
    assert made == {read_prior(tmp_path / "a").fingerprint}


def test_without_a_folder_the_text_of_the_package_is_taken(
    shop: Workshop, tmp_path: Path
) -> None:
    """Nobody needs a corpus to begin."""
    shop.do("prior make --encoder", shop.private_encoder, "--out", tmp_path / "prior")
    encoder = find_encoder(shop.private_encoder)
    made = read_prior(tmp_path / "prior")
    assert made.width == private_width(encoder)
    assert made.fingerprint == built_in_prior(encoder).fingerprint


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nowhere", "no file or folder nowhere"),
        ("empty", "no text that Ridgeway reads"),
        ("law.jsonl --out tests", "is a folder"),
    ],
)
def test_what_is_no_use_is_said_in_one_sentence(
    shop: Workshop, words: str, sentence: str
) -> None:
    """An error names what was seen and is no traceback."""
    (shop / "empty").mkdir(exist_ok=True)
    done = shop.call(f"prior make {words} --encoder", shop.private_encoder)
    assert sentence in done.refusal
