"""Routers that our own environment has, each in a process of its own: ours out of a release; kNN,
logistic regression and the sentence encoder over which they work; a fine-tuned classifier.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeway.simulations.bench.peers.peer_process import (
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
    places = list(range(len(request["test"])))
    choose(places[0])
    choices, milliseconds = chosen_one_by_one(choose, places)
    return {
        "choices": choices,
        "milliseconds": milliseconds,
        "megabytes": resident_mb() - before,
    }


def _release(request: Any) -> Choose:
    """test: texts."""
    from ridgeway.common.routing.router import Router

    router = Router.load(Path(request["release"]), sentences=request["sentences"])
    router.make_fast()
    names = request["domains"]
    texts = request["test"]
    return lambda place: names.index(router.route(texts[place]).best)


def _encoder(request: Any) -> Choose:
    """Reads a text, and chooses nothing."""
    from ridgeway.common.encoding.encoder_sources import find_encoder
    from ridgeway.simulations.experiments.same_encoder_routers import sentence_vectors

    encoder = find_encoder(request["encoder"])
    texts = request["test"]
    return lambda place: len(sentence_vectors(encoder, [texts[place]])) - 1


def _vectors(request: Any) -> tuple[Any, Any]:
    rows = np.load(request["vectors"])
    return rows[request["train"]], np.array(request["labels"])[request["train"]]


def _knn(request: Any) -> Choose:
    """test: numbers of rows, as for all that follow. The k is the best on held-out rows."""
    from ridgeway.simulations.experiments.sentence_routers import NEIGHBOURS, nearest

    rows, labels = _vectors(request)
    return _best(request, [nearest(rows, labels, k) for k in NEIGHBOURS])


def _logistic(request: Any) -> Choose:
    from sklearn.linear_model import LogisticRegression

    from ridgeway.simulations.experiments.same_encoder_routers import STRENGTHS

    rows, labels = _vectors(request)
    return _best(
        request,
        [
            LogisticRegression(C=each, max_iter=500).fit(rows, labels)
            for each in STRENGTHS
        ],
    )


def _best(request: Any, classifiers: Sequence[Any]) -> Choose:
    """The classifier that is right most often on held-out rows."""
    rows = np.load(request["vectors"])
    held = request["held"]
    labels = np.array(request["labels"])[held]
    best = max(classifiers, key=lambda each: each.score(rows[held], labels))
    test = request["test"]
    return lambda place: int(best.predict(rows[test[place]][None])[0])


def _classifier(request: Any) -> Choose:
    """A small transformer, fine-tuned as MoDEM's router is; by the recipe of a short experiment."""
    from ridgeway.simulations.experiments.dataset import folder_dataset
    from ridgeway.simulations.experiments.plan import ExperimentPlan
    from ridgeway.simulations.experiments.routers import learnt
    from ridgeway.simulations.experiments.sentence_routers import MODEM

    dataset = folder_dataset(Path(request["data"]))
    with tempfile.TemporaryDirectory() as work:
        plan = ExperimentPlan((dataset,), Path(work), device="cpu")
        route = learnt(plan, dataset, "modem", MODEM).rows[0].route
    texts = request["test"]
    return lambda place: int(route([texts[place]])[0])


_KINDS: dict[str, Callable[[Any], Choose]] = {
    "release": _release,
    "encoder": _encoder,
    "knn": _knn,
    "logistic": _logistic,
    "classifier": _classifier,
}


if __name__ == "__main__":
    answer_request(own_choices)
