"""Domains of holders who write one language are found by prompts in others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.routing.router import Router
from ridgeway.common.text.sentence_encoder import UseEncoder
from ridgeway.common.text.table_encoder import (
    TableEncoder,
    usual_sampling,
    with_sentences,
    with_words,
)
from tests.support.languages import PROMPTS, TRAINING
from tests.support.making import solved_router, total_of


@pytest.fixture(scope="module")
def router(use: TableEncoder, sentences: UseEncoder) -> Router:
    encoder = with_sentences(with_words(use, WordFeatures()), sentences)
    # with copies that are not mistyped
    texts = [[*texts, *texts] for texts in TRAINING.values()]
    total = total_of(encoder, texts, usual_sampling(encoder))
    return solved_router(encoder, TRAINING, total)


def share_right(router: Router, prompts: Mapping[str, Sequence[str]]) -> float:
    hits = [
        router.route(text).best == domain
        for domain, texts in prompts.items()
        for text in texts
    ]
    return float(np.mean(hits))


def test_prompts_in_other_languages_find_their_domain(router: Router) -> None:
    """Two domains are learnt in German, three in English; prompts are in six other languages."""
    right = {
        language: share_right(router, prompts) for language, prompts in PROMPTS.items()
    }
    assert np.mean(list(right.values())) >= 0.8, right
    assert min(right.values()) >= 0.6, right


def test_another_language_is_mostly_read_as_sentences(router: Router) -> None:
    """The table of an English model is unsure of most of them, so the sentence encoder decides."""
    texts = [
        text
        for prompts in PROMPTS.values()
        for asked in prompts.values()
        for text in asked
    ]
    assert np.mean([router.route(text).router == "sentences" for text in texts]) > 0.5
