"""Routers that our own environment has, each in a process of its own: ours out of a release; kNN,
logistic regression and the sentence encoder over which they work; a fine-tuned classifier.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeway.simulations.bench.peer import (
    Answered,
    answer_request,
    chosen_one_by_one,
    resident_mb,
)

Choose = Callable[[int], int]


def own_choices(request: Any) -> Answered:
    """What the router of the request's kind chooses for each test text, one at a time."""
    before = resident_mb()
    choose = _KINDS[request["kind"]](request)
    choose(0)
    answer = chosen_one_by_one(choose, range(len(request["test"])))
    return answer | {"megabytes": resident_mb() - before}


def _release(request: Any) -> Choose:
    """test: texts."""
    from ridgeway.common.routing.router import Router

    router = Router.load(Path(request["release"]), sentences=request["sentences"])
    router.make_fast()
    names = request["domains"]
    texts = request["test"]
    return lambda index: names.index(router.route(texts[index]).best)


def _encoder(request: Any) -> Choose:
    """Reads a text, and chooses nothing."""
    from ridgeway.common.text.encoder_files import find_encoder
    from ridgeway.simulations.experiments.sentence_routers import sentence_vectors

    encoder = find_encoder(request["encoder"])
    texts = request["test"]
    return lambda index: len(sentence_vectors(encoder, [texts[index]])) - 1


def _knn(request: Any) -> Choose:
    """test: numbers of rows, as for all that follow."""
    from ridgeway.simulations.experiments.sentence_routers import NEIGHBOURS, nearest

    return _best(request, nearest, NEIGHBOURS)


def _logistic(request: Any) -> Choose:
    from ridgeway.simulations.experiments.sentence_routers import STRENGTHS, logistic

    return _best(request, logistic, STRENGTHS)


def _best(
    request: Any, fitted: Callable[[Any, Any, Any], Any], settings: Sequence[float]
) -> Choose:
    """By the setting that is right most often on held-out rows."""
    rows = np.load(request["vectors"])
    labels = np.array(request["labels"])
    train, held, test = (request[side] for side in ("train", "held", "test"))
    classifiers = [fitted(rows[train], labels[train], setting) for setting in settings]
    best = max(classifiers, key=lambda each: each.score(rows[held], labels[held]))
    return lambda index: int(best.predict(rows[test[index]][None])[0])


def _classifier(request: Any) -> Choose:
    """A small transformer, fine-tuned as MoDEM's router is; by the recipe of a short experiment."""
    from ridgeway.simulations.experiments.dataset import ExperimentPlan, folder_dataset
    from ridgeway.simulations.experiments.routers import learnt
    from ridgeway.simulations.experiments.sentence_routers import MODEM

    dataset = folder_dataset(Path(request["data"]))
    with tempfile.TemporaryDirectory() as work:
        plan = ExperimentPlan((dataset,), Path(work), device="cpu")
        route = learnt(plan, dataset, "modem", MODEM).rows[0].route
    texts = request["test"]
    return lambda index: int(route([texts[index]])[0])


_KINDS: dict[str, Callable[[Any], Choose]] = {
    "release": _release,
    "encoder": _encoder,
    "knn": _knn,
    "logistic": _logistic,
    "classifier": _classifier,
}


if __name__ == "__main__":
    answer_request(own_choices)
