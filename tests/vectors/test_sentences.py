"""Sentence vectors, fixed: the digest of each text's ids and of its vector.

`python -m tests.vectors.test_sentences` writes the file anew, after a change of the computation
that is meant.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from ridgeway.common.text.sentence_encoder import UseEncoder, find_use
from ridgeway.common.text.sentence_network import MAX_SENTENCE_TOKENS
from tests.support.native import without_native
from tests.support.sentence_texts import TEXTS

FILE = Path(__file__).with_name("sentences.json")


def digests(encoder: UseEncoder) -> dict[str, dict[str, str]]:
    texts = list(TEXTS.values())
    ids, lengths = encoder.tokenizer.encode_many(texts, MAX_SENTENCE_TOKENS)
    vectors = encoder.vectors(ids, lengths).astype("<i2")
    starts = np.cumsum(lengths)[:-1]
    return {
        name: {
            "ids": hashlib.sha256(row.astype("<i4").tobytes()).hexdigest(),
            "vector": hashlib.sha256(vector.tobytes()).hexdigest(),
        }
        for name, row, vector in zip(TEXTS, np.split(ids, starts), vectors, strict=True)
    }


@pytest.mark.parametrize("native", [True, False])
def test_vectors_are_those_of_every_machine(
    sentences: UseEncoder, native: bool
) -> None:
    expected = json.loads(FILE.read_bytes())
    if native:
        assert digests(sentences) == expected
    else:
        with without_native():
            assert digests(sentences) == expected


if __name__ == "__main__":
    FILE.write_text(json.dumps(digests(find_use()), indent=1) + "\n")
