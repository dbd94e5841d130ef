"""Small drawn things, so that what is measured is the protocol: an encoder of made-up words, and domains of them.

Knows text and encoders. Knows nothing of timing.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from common.encoder import Encoder
from common.settings import FEATURE_LIMIT
from common.tokenizer import plain_definition
from simulations.corpora import Corpus

WORDS, WIDTH = 300, 64
DOMAINS = 3
DOCUMENTS, LENGTH = 20, 40
"""Documents of each holder, and words of each."""


def drawn_encoder(seed: int) -> Encoder:
    """Every made-up word is a token, whose embedding is drawn."""
    vocabulary = {"<unk>": 0, **{f"w{number}": number + 1 for number in range(WORDS)}}
    definition: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    table = np.random.default_rng(seed).integers(
        -FEATURE_LIMIT, FEATURE_LIMIT, (len(vocabulary), WIDTH), dtype=np.int16, endpoint=True
    )
    return Encoder("drawn", plain_definition(json.dumps(definition).encode()), table, 2.0**-12)


def drawn_corpora(holders: int, seed: int) -> list[Corpus]:
    """Domains that like different words, with text for so many holders."""
    return [_corpus(place, -(-holders // DOMAINS) * DOCUMENTS, seed) for place in range(DOMAINS)]


def _corpus(place: int, documents: int, seed: int) -> Corpus:
    chance = random.Random(f"{seed} {place}")
    own = [f"w{number}" for number in range(WORDS) if number % DOMAINS == place]
    texts = [" ".join(chance.choices(own, k=LENGTH)) for _ in range(documents + 2)]
    return Corpus(f"domain-{place}", tuple(texts[2:]), tuple(texts[:2]))
