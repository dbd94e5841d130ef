"""semantic-router over vectors that are given: an utterance is the number of its row."""

from __future__ import annotations

from typing import Any

import numpy as np
from semantic_router import IndexedRouter, Route
from semantic_router.encoders import DenseEncoder

from ridgeway.simulations.bench.peer import (
    Answered,
    answer_request,
    chosen_one_by_one,
    resident_mb,
)

_SETTINGS = ((5, "mean"), (1, "max"), (5, "sum"), (10, "sum"))
"""How many utterances are looked at, and how their scores add up."""


class RowEncoder(DenseEncoder):  # type: ignore[misc]
    """Looks vectors up."""

    rows: Any

    def __call__(self, docs: list[str]) -> list[list[float]]:
        found: list[list[float]] = self.rows[[int(doc) for doc in docs]].tolist()
        return found


def routed(request: Any) -> Answered:
    """By the setting that is best on held-out rows."""
    before = resident_mb()
    rows = np.load(request["vectors"])
    labels = request["labels"]
    names = sorted(set(labels))
    routes = [
        Route(
            name=str(label),
            utterances=[str(row) for row in request["train"] if labels[row] == label],
        )
        for label in names
    ]
    router = IndexedRouter(RowEncoder(name="rows", rows=rows), routes)
    megabytes = resident_mb() - before
    held = [labels[row] for row in request["held"]]

    def right(setting: tuple[int, str]) -> float:
        choices = _choices(router, request["held"], setting)["choices"]
        return float(np.mean(np.equal(choices, held)))

    best = max(_SETTINGS, key=right)
    return _choices(router, request["test"], best) | {"megabytes": megabytes}


def _choices(router: Any, prompts: list[int], setting: tuple[int, str]) -> Answered:
    from semantic_router.routers.indexed import _AGG

    top, adding = setting
    router.top_k = top
    router.aggregate = _AGG[adding]
    return chosen_one_by_one(lambda row: int(router(str(row)).name), prompts)


if __name__ == "__main__":
    answer_request(routed)
