"""Routers over the sentence encoder that ours reads, USE: kNN at three sizes, and logistic
regression. Both are scikit-learn's, and need all text in one place.

A text is the mean of the sentence vectors of its pieces, as in our sums, of length one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.model_files import imported
from ridgeway.common.encoding.sentence_features import SENTENCE
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.simulations.experiments.dataset import Dataset, split
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.routers import (
    Embed,
    Places,
    Route,
    RouterLine,
    RoutingMethod,
    labelled,
    read_once,
)
from ridgeway.simulations.experiments.sentence_routers import NEIGHBOURS, nearest

_Rows = NDArray[np.float32]

KNOWN_TEXTS = (100, 1000, None)
"""Training texts that kNN knows, in all; None: every one."""
SHORT_KNOWN_TEXTS = 60
"""Of a domain, in a short run, where None is that."""
STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse penalties of logistic regression."""


def sentence_vectors(encoder: TableEncoder, texts: Sequence[str]) -> _Rows:
    assert encoder.sentences is not None
    ids, lengths = encoder.tokenizer.encode_many(texts)
    sums, _ = encoder.sentences.vector_sums(ids, lengths)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / np.maximum(norms, 1), dtype=np.float32)


def _known(plan: ExperimentPlan, dataset: Dataset) -> tuple[Embed, _Rows, Places]:
    """How texts are read; the vectors of what is learnt from, and their domains, in an order drawn
    at random.
    """

    def make() -> tuple[Embed, _Rows, Places]:
        encoder = find_encoder(plan.encoder + SENTENCE)
        known = dataset.sampled(plan.seed, train=plan.short(SHORT_KNOWN_TEXTS))
        texts, labels = labelled(split(known).fit)
        order = np.random.default_rng(plan.seed).permutation(len(texts))
        read = read_once(partial(sentence_vectors, encoder))
        return read, read(texts)[order], labels[order]

    return plan.once(dataset, "vectors", make)


def _knn(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    vectors, rows, labels = _known(plan, dataset)

    def route_by(k: int, count: int) -> Route:
        classifier = nearest(rows[:count], labels[:count], k)
        return lambda prompts: classifier.predict(vectors(prompts))

    lines = []
    for count in sorted({min(size or len(rows), len(rows)) for size in KNOWN_TEXTS}):
        variants = {f"k = {k}": route_by(k, count) for k in NEIGHBOURS}
        lines.append(RouterLine(f"kNN on USE, {count:,} texts", variants))
    return lines


def _logistic(plan: ExperimentPlan, dataset: Dataset) -> list[RouterLine]:
    vectors, rows, labels = _known(plan, dataset)
    linear = imported("sklearn.linear_model", "simulation")

    def route_by(strength: float) -> Route:
        fitted = linear.LogisticRegression(C=strength, max_iter=500).fit(rows, labels)
        return lambda prompts: fitted.predict(vectors(prompts))

    variants = {f"C = {each:g}": route_by(each) for each in STRENGTHS}
    return [RouterLine("logistic regression on USE", variants)]


SAME_ENCODER_KNN = RoutingMethod("the same sentence vectors, nearest texts", _knn)
SAME_ENCODER_LOGISTIC = RoutingMethod(
    "the vectors that kNN has read, logistic regression", _logistic
)
