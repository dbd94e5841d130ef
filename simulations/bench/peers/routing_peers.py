"""Routing the same prompts to the same domains: accuracy, CPU time of a prompt, and memory.

All learn from the same sample of training texts. Those that work over sentence vectors get ours,
and what the encoder takes is counted in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.common.text.table_encoder import WORDS
from ridgeway.simulations import corpora
from ridgeway.simulations.bench.measuring import BenchOptions, Row
from ridgeway.simulations.bench.peers.peer import (
    Answered,
    Contest,
    Peer,
    asked_peer,
    rows_beside,
)
from ridgeway.simulations.experiments.dataset import (
    DATA_FOLDER,
    Dataset,
    ExperimentPlan,
    builtin_dataset,
    folder_dataset,
    split,
)
from ridgeway.simulations.experiments.routers import labelled, our_release
from ridgeway.simulations.experiments.sentence_routers import sentence_vectors

_SETS = {"stern/clinc10": (150, 60), "reasoning": (100, 40), "clm": (60, 30)}
"""Beside the project, and how many texts of a domain are learnt from and tested on: long ones take
the sentence encoder long."""
_USUAL = (100, 30)
_SEED = 1
_OWN = Peer("ours", "", "peer_own")
_OVER_VECTORS = {
    "kNN": (_OWN, {"kind": "knn"}),
    "logistic regression": (_OWN, {"kind": "logistic"}),
    "semantic-router": (
        Peer("semantic-router", ".venv-peers-semantic-router", "peer_semantic_router"),
        {},
    ),
    "lunar-router": (Peer("lunar-router", ".venv-peers-lunar", "peer_lunar"), {}),
}


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


def routing_rows(options: BenchOptions) -> Iterator[Row]:
    for dataset in shown_datasets(options.text):
        work = options.work / dataset.digest[:8]
        work.mkdir()
        yield from RoutingContest(dataset, options.encoder, work).rows()


@dataclass(frozen=True, slots=True)
class RoutingContest:
    """One dataset, and routers that learn from it."""

    dataset: Dataset
    encoder: str
    work: Path

    def rows(self) -> Iterator[Row]:
        ours = {
            "the table": self._of_release(WORDS, "never"),
            "with sentences": self._of_release(WORDS + SENTENCE, "auto"),
        }
        request = self._vectors()
        encoder = self.encoder + SENTENCE
        reading = self._asked(_OWN, {"kind": "encoder", "encoder": encoder})
        contenders = {
            f"{name} on our sentence vectors": partial(
                asked_peer, peer, request | more, self.work
            )
            for name, (peer, more) in _OVER_VECTORS.items()
        }
        for name, ask in contenders.items():
            contests = partial(self._contests, ours, reading)
            yield from rows_beside(self._what, name, ask, contests)
        corpora.write(self.dataset.corpora, self.work / "texts")
        texts = {"kind": "classifier", "data": str(self.work / "texts")}
        ask = partial(self._asked, _OWN, texts)
        alone = partial(self._contests, ours, dict.fromkeys(reading, 0.0))
        yield from rows_beside(self._what, "a MoDEM-like classifier", ask, alone)

    @property
    def _what(self) -> str:
        return f"routing {self.dataset.name}"

    def _of_release(self, features: str, sentences: str) -> Answered:
        plan = ExperimentPlan((self.dataset,), self.work, encoder=self.encoder)
        release = our_release(plan, self.dataset, features)
        request = {
            "kind": "release",
            "release": str(release),
            "sentences": sentences,
            "domains": self.dataset.domains,
        }
        return self._asked(_OWN, request)

    def _asked(self, peer: Peer, request: dict[str, Any]) -> Answered:
        """Of one that reads the test texts themselves."""
        texts, _ = labelled(self.dataset.test)
        return asked_peer(peer, request | {"test": texts}, self.work)

    def _vectors(self) -> dict[str, Any]:
        """Rows for what is learnt from, held-out text and the test, one after another."""
        parts = split(self.dataset)
        sides = {"train": parts.fit, "held": parts.held, "test": self.dataset.test}
        groups = [labelled(texts) for texts in sides.values()]
        texts = [text for own, _ in groups for text in own]
        labels = np.concatenate([own for _, own in groups])
        rows = sentence_vectors(find_encoder(self.encoder + SENTENCE), texts)
        vectors = self.work / "vectors.npy"
        scores = self.work / "scores.npy"
        np.save(vectors, rows)
        np.save(scores, np.eye(len(self.dataset.domains))[labels])
        ends = np.cumsum([len(own) for own, _ in groups])
        places = np.split(np.arange(len(texts)), ends[:-1])
        return {
            "vectors": str(vectors),
            "scores": str(scores),
            "labels": labels.tolist(),
            **{side: own.tolist() for side, own in zip(sides, places, strict=True)},
        }

    def _contests(
        self, ours: dict[str, Answered], reading: Answered, theirs: Answered
    ) -> dict[str, list[Contest]]:
        """reading: what the encoder takes of time and memory, where an answer is without it."""
        accuracy = self._accuracy(theirs)
        milliseconds = theirs["milliseconds"] + reading["milliseconds"]
        megabytes = theirs["megabytes"] + reading["megabytes"]
        contests = {}
        for words, answer in ours.items():
            right = self._accuracy(answer)
            time = answer["milliseconds"]
            contests[f"{self._what}, {words}"] = [
                Contest(right, accuracy, "%", "more"),
                Contest(time, milliseconds, "ms"),
                Contest(answer["megabytes"], megabytes, "MB"),
                Contest(
                    right / (1e3 * time),
                    accuracy / (1e3 * milliseconds),
                    "%/µs",
                    "more",
                ),
            ]
        return contests

    def _accuracy(self, answer: Answered) -> float:
        """Percent, the mean over domains."""
        _, truth = labelled(self.dataset.test)
        right = np.equal(answer["choices"], truth)
        means = [right[truth == label].mean() for label in set(truth)]
        return 100 * float(np.mean(means))
