"""Small things that tests are made of: an encoder, texts, a release."""

from __future__ import annotations

import json

import numpy as np
from tokenizers import Tokenizer as Backend

from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.privacy.public_prior import LETTER_BUCKETS
from ridgeway.common.text import sentence_encoder
from ridgeway.common.text.table_encoder import (
    TableEncoder,
    quantise,
    with_sentences,
    with_words,
)
from ridgeway.common.text.tokenizer import plain_definition

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,\n"
SPECIAL = "<end>"


def tiny_definition() -> bytes:
    """A tokenizer of single characters, with one special token and a token for what it does not
    know.
    """
    vocabulary = {
        SPECIAL: 0,
        "<unk>": 1,
        **{letter: index + 2 for index, letter in enumerate(LETTERS)},
    }
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    definition = {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": None,
        "added_tokens": [{"id": 0, "content": SPECIAL, "special": True, **flags}],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[\\s\\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    return plain_definition(json.dumps(definition).encode())


def tiny_library_tokenizer() -> Backend:
    """The same by the tokenizers library."""
    return Backend.from_str(tiny_definition().decode())


def tiny_encoder(width: int = 6, seed: int = 0) -> TableEncoder:
    """An encoder over single characters with a random table."""
    rows = len(LETTERS) + 2
    embeddings = np.random.default_rng(seed).standard_normal((rows, width))
    return TableEncoder("tiny", tiny_definition(), *quantise(embeddings))


def private_encoder(width: int = 6) -> TableEncoder:
    """The same with the runs of letters and the sentences that private rounds know."""
    lettered = with_words(tiny_encoder(width), WordFeatures(LETTER_BUCKETS))
    return with_sentences(lettered, sentence_encoder.find_use())
