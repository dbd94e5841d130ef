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


def test_the_table_knows_pieces_of_other_languages(router: Router) -> None:
    """It is sure of most prompts, of which four in five go where they belong; the sentence encoder
    decides the others.
    """
    asked = [
        (router.route(text), domain)
        for prompts in PROMPTS.values()
        for domain, texts in prompts.items()
        for text in texts
    ]
    by_table = [
        decision.best == name for decision, name in asked if decision.router == "table"
    ]
    assert len(asked) / 2 < len(by_table) < len(asked)
    assert np.mean(by_table) >= 0.8
