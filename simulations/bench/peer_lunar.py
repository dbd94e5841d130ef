"""lunar-router's UniRoute over vectors that are given: clusters of training rows, and the mean
error of each model in each of them.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from lunar_router.core.clustering import KMeansClusterAssigner
from lunar_router.core.embeddings import PromptEmbedder
from lunar_router.models.llm_profile import LLMProfile
from lunar_router.models.llm_registry import LLMRegistry
from lunar_router.router.uniroute import UniRouteRouter
from sklearn.cluster import KMeans

from ridgeway.simulations.bench.peer import (
    Answered,
    answer_request,
    chosen_one_by_one,
    resident_mb,
)

_CLUSTERS = (100, 30, 300)
"""How many."""


class RowProvider:
    """Looks vectors up: a prompt is the number of its row."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self.dimension = rows.shape[1]

    def embed(self, text: str) -> Any:
        return self._rows[int(text)]

    def embed_batch(self, texts: list[str]) -> Any:
        return self._rows[[int(text) for text in texts]]


def chosen_models(request: Any) -> Answered:
    """The model for each test row, with as many clusters as do best on held-out rows.

    scores: of each row, what every model is worth on it, from 0 to 1; in a file as large as the
            vectors'.
    """
    logging.disable(logging.INFO)
    before = resident_mb()
    rows = np.load(request["vectors"])
    scores = np.load(request["scores"])
    train = request["train"]
    sizes = [size for size in _CLUSTERS if size <= len(train) // 2]
    routers = {size: _router(rows, scores, train, size) for size in sizes or [2]}
    held = request["held"]

    def worth(size: int) -> float:
        choices = chosen_one_by_one(routers[size], held)["choices"]
        return float(scores[held, choices].mean())

    best = max(routers, key=worth)
    answer = chosen_one_by_one(routers[best], request["test"])
    return answer | {"megabytes": resident_mb() - before}


def _router(rows: Any, scores: Any, train: list[int], size: int) -> Any:
    kmeans = KMeans(size, random_state=42, n_init=3).fit(rows[train])
    counts = np.bincount(kmeans.labels_, minlength=size)
    registry = LLMRegistry()
    for model, own in enumerate(scores[train].T):
        sums = np.bincount(kmeans.labels_, weights=own, minlength=size)
        errors = 1 - sums / np.maximum(counts, 1)
        registry.register(LLMProfile(str(model), errors, 0.0, len(train), counts))
    embedder = PromptEmbedder(RowProvider(rows), cache_enabled=False)
    router = UniRouteRouter(
        embedder, KMeansClusterAssigner(kmeans.cluster_centers_), registry
    )
    return lambda row: int(router.route(str(row)).selected_model)


if __name__ == "__main__":
    answer_request(chosen_models)
