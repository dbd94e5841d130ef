"""Sums of bounded documents, read from files by several threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeway.client.ready import sum_documents
from ridgeway.client.sums import prepare
from ridgeway.client.sums.prepare import PrepareJob
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.privacy.noise import PrivacyMode, bounded_sums, document_vectors
from ridgeway.common.privacy.public_prior import make_prior
from tests.support.corpora_on_disk import write_jsonl
from tests.support.simulated_federation import own_texts
from tests.support.tiny import private_encoder


@pytest.mark.parametrize("mode", ["columns", "full"])
@pytest.mark.usefixtures("private_sentences")
def test_neither_threads_nor_batches_change_a_sum(
    mode: PrivacyMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of all documents in one block."""
    texts = own_texts("V", "law", 16)
    encoder = private_encoder()
    prior = make_prior(encoder, texts)
    vectors = document_vectors(prior, encoder.read(texts), encoder)
    whole = bounded_sums(mode, vectors)
    file = write_jsonl(tmp_path / "law.jsonl", texts)
    for threads, characters in ((1, 1 << 19), (1, 100), (3, 100), (8, 1)):
        monkeypatch.setattr(prepare, "BATCH_CHARACTERS", characters)
        monkeypatch.setattr(prepare, "SENTENCE_BATCH_CHARACTERS", characters)
        job = PrepareJob(
            (file,), "law", DEFAULT.sampling, 0.0, ("text",), threads, whole=True
        )
        sums = sum_documents(job, encoder, mode, prior)
        assert np.array_equal(sums.products, whole.products) and np.array_equal(
            sums.column, whole.column
        )
