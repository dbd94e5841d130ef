"""Routing the same prompts to the same domains: accuracy, CPU time of a prompt, and memory.

All learn from the same sample of training texts. Those that work over sentence vectors get ours,
and what the encoder takes is counted in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.sentence_features import SENTENCE
from ridgeway.common.encoding.table_encoder import WORDS
from ridgeway.simulations import corpora
from ridgeway.simulations.bench.measuring import Row
from ridgeway.simulations.bench.peers.peer_environments import (
    Peer,
    PeerMissing,
    asked_peer,
)
from ridgeway.simulations.bench.peers.peer_rows import (
    Contest,
    compared,
    not_measured,
)
from ridgeway.simulations.experiments.dataset import (
    DATA_FOLDER,
    Dataset,
    builtin_dataset,
    folder_dataset,
    split,
)
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.routers import labelled, our_release
from ridgeway.simulations.experiments.same_encoder_routers import sentence_vectors

_SETS = {"stern/clinc10": (150, 60), "reasoning": (100, 40), "clm": (60, 30)}
"""Beside the project, and how many texts of a domain are learnt from and tested on: long ones take
the sentence encoder long."""
_USUAL = (100, 30)
_SEED = 1
_OWN = Peer("ours", "", "peer_own")
_OTHERS = {
    "kNN on our sentence vectors": (_OWN, {"kind": "knn"}),
    "logistic regression on our sentence vectors": (_OWN, {"kind": "logistic"}),
    "semantic-router on our sentence vectors": (
        Peer("semantic-router", ".venv-peers-semantic-router", "peer_semantic_router"),
        {},
    ),
    "lunar-router on our sentence vectors": (
        Peer("lunar-router", ".venv-peers-lunar", "peer_lunar"),
        {},
    ),
}
_CLASSIFIER = "a MoDEM-like classifier"


@dataclass(frozen=True, slots=True)
class RoutingFigures:
    """accuracy: percent, the mean over domains. milliseconds: of CPU, for a prompt."""

    accuracy: float
    milliseconds: float
    megabytes: float

    @property
    def per_microsecond(self) -> float:
        return self.accuracy / (1e3 * self.milliseconds)


def shown_datasets(folder: Path | None) -> list[Dataset]:
    """A folder that is named; else the sets beside the project; else built-in text."""
    if folder is not None:
        return [_sampled(folder_dataset(folder), *_USUAL)]
    there = [
        _sampled(folder_dataset(DATA_FOLDER / name), *sizes)
        for name, sizes in _SETS.items()
        if (DATA_FOLDER / name).is_dir()
    ]
    return there or [_sampled(builtin_dataset(), *_USUAL)]


def _sampled(dataset: Dataset, train: int, test: int) -> Dataset:
    return dataset.sampled(_SEED, train=train, test=test)


def routing_rows(folder: Path | None, encoder: str, work: Path) -> Iterator[Row]:
    for dataset in shown_datasets(folder):
        yield from _dataset_rows(dataset, encoder, work / dataset.digest[:8])


def _dataset_rows(dataset: Dataset, encoder: str, work: Path) -> Iterator[Row]:
    work.mkdir()
    contest = RoutingContest(dataset, encoder, work)
    ours = {
        "the table": contest.our_figures(WORDS, "never"),
        "with sentences": contest.our_figures(WORDS + SENTENCE, "auto"),
    }
    for name in (*_OTHERS, _CLASSIFIER):
        what = f"routing {dataset.name}"
        try:
            theirs = contest.other_figures(name)
        except PeerMissing as missing:
            yield not_measured(what, name, str(missing))
            continue
        for words, own in ours.items():
            yield compared(
                f"{what}, {words}",
                name,
                Contest(own.accuracy, theirs.accuracy, "%", "more"),
                Contest(own.milliseconds, theirs.milliseconds, "ms", "less"),
                Contest(own.megabytes, theirs.megabytes, "MB", "less"),
                Contest(own.per_microsecond, theirs.per_microsecond, "%/µs", "more"),
            )


class RoutingContest:
    """One dataset, and routers that have learnt from it."""

    def __init__(self, dataset: Dataset, encoder: str, work: Path) -> None:
        self._dataset = dataset
        self._encoder = encoder
        self._work = work
        self._plan = ExperimentPlan((dataset,), work, encoder=encoder)
        self._texts, self._truth = labelled(dataset.test)
        self._request = self._vectors()
        read = self._asked(
            _OWN,
            {
                "kind": "encoder",
                "encoder": encoder + SENTENCE,
                "test": self._texts,
            },
        )
        self._reading = (read["milliseconds"], read["megabytes"])

    def _vectors(self) -> dict[str, Any]:
        """Rows for what is learnt from, held-out text and the test, one after another."""
        parts = split(self._dataset)
        groups = [labelled(texts) for texts in (parts.fit, parts.held)]
        groups.append((self._texts, self._truth))
        texts = [text for own, _ in groups for text in own]
        labels = np.concatenate([own for _, own in groups])
        rows = sentence_vectors(find_encoder(self._encoder + SENTENCE), texts)
        vectors = self._work / "vectors.npy"
        scores = self._work / "scores.npy"
        np.save(vectors, rows)
        np.save(scores, np.eye(len(self._dataset.domains))[labels])
        ends = np.cumsum([len(own) for own, _ in groups]).tolist()
        return {
            "vectors": str(vectors),
            "scores": str(scores),
            "labels": labels.tolist(),
            "train": list(range(ends[0])),
            "held": list(range(ends[0], ends[1])),
            "test": list(range(ends[1], ends[2])),
        }

    def our_figures(self, features: str, sentences: str) -> RoutingFigures:
        release = our_release(self._plan, self._dataset, features)
        request = {
            "kind": "release",
            "release": str(release),
            "sentences": sentences,
            "domains": self._dataset.domains,
            "test": self._texts,
        }
        return self._figures(self._asked(_OWN, request), (0.0, 0.0))

    def other_figures(self, name: str) -> RoutingFigures:
        if name == _CLASSIFIER:
            corpora.write(self._dataset.corpora, self._work / "texts")
            request = {
                "kind": "classifier",
                "data": str(self._work / "texts"),
                "test": self._texts,
            }
            return self._figures(self._asked(_OWN, request), (0.0, 0.0))
        peer, more = _OTHERS[name]
        return self._figures(self._asked(peer, self._request | more), self._reading)

    def _asked(self, peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
        return asked_peer(peer, request, self._work)

    def _figures(
        self, answer: dict[str, Any], reading: tuple[float, float]
    ) -> RoutingFigures:
        """reading: what the encoder takes of time and memory, where an answer is without it."""
        right = np.equal(answer["choices"], self._truth)
        means = [right[self._truth == place].mean() for place in set(self._truth)]
        return RoutingFigures(
            100 * float(np.mean(means)),
            answer["milliseconds"] + reading[0],
            answer["megabytes"] + reading[1],
        )
