"""A dataset: domains with texts to learn from and texts to be tested on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.files import IMPORT_ROOT, sha256
from ridgeway.common.base.settings import DEFAULT, PLAIN_ENCODER
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.table_encoder import TableEncoder, bare_name
from ridgeway.simulations.corpora import Corpus, builtin, read_corpora

DATA_FOLDER = IMPORT_ROOT.parent / "shared" / "data"
"""Corpora beside the project, where they are."""
_HELD_OUT = 0.1
"""The share of the training text on which hyper-parameters of the baselines are chosen."""

Texts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Dataset:
    """name: what the tables say. source: where the texts come from, in words."""

    name: str
    source: str
    train: Texts
    test: Texts

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.train)

    @property
    def digest(self) -> str:
        """Of every text in its order, whatever the dataset is called."""
        sides = [list(self.train.items()), list(self.test.items())]
        return sha256(json.dumps(sides).encode())

    @property
    def corpora(self) -> list[Corpus]:
        return [
            Corpus(name, self.train[name], self.test[name]) for name in self.domains
        ]

    def sampled(
        self, seed: int, *, train: int | None = None, test: int | None = None
    ) -> Dataset:
        """At most this many texts of a domain, drawn at random, in their old order."""
        return replace(
            self,
            train=sampled_texts(self.train, train, seed),
            test=sampled_texts(self.test, test, seed),
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Training text divided: `fit` to learn from, `held` to choose hyper-parameters on."""

    fit: Texts
    held: Texts


def split(dataset: Dataset, share: float = _HELD_OUT) -> Split:
    """By the same rule that a holder keeps documents out of its sums."""
    fit = {}
    held = {}
    for name, texts in dataset.train.items():
        held[name] = tuple(text for text in texts if is_held_out(text, share))
        fit[name] = tuple(text for text in texts if not is_held_out(text, share))
    return Split(fit, held)


def sampled_texts(texts: Texts, most: int | None, seed: int) -> Texts:
    """At most this many texts of a domain, in their old order; None: all."""
    if most is None:
        return texts
    sampled = {}
    for name, known in texts.items():
        indices = random.Random(f"{seed} {name}").sample(
            range(len(known)), min(most, len(known))
        )
        sampled[name] = tuple(known[index] for index in sorted(indices))
    return sampled


def in_turn(texts: Texts, most: int) -> list[str]:
    """Texts of all domains in turn, at most this many."""
    turns = zip_longest(*texts.values())
    there = (text for turn in turns for text in turn if text is not None)
    return list(islice(there, most))


def folder_dataset(folder: Path) -> Dataset:
    """A folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl.

    Raises InputError if there are fewer than two domains.
    """
    return _dataset(folder.resolve().name, f"the folder {folder.name}", folder)


def builtin_dataset() -> Dataset:
    """What this machine has after set-up."""
    source = "text found on this machine: licences, sources, docstrings"
    return _dataset("built-in", source, None)


def _dataset(name: str, source: str, folder: Path | None) -> Dataset:
    corpora = read_corpora(folder) if folder else builtin()
    train = {corpus.name: corpus.train for corpus in corpora}
    test = {corpus.name: corpus.test for corpus in corpora}
    return Dataset(name, source, train, test)


# What every part of the experiments is given.


SHORT_TRAIN_TEXTS = 300
SHORT_TEST_TEXTS = 30
"""Of a domain in a short run: sentence encoders have no time for more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """
    datasets: at least one.
    work:     a folder for federations and other scratch.
    encoder:  our table of tokens alone.
    paper_encoder: that of routers which the paper has.
    full:     everything, for hours or a GPU; otherwise what two cores do in minutes.
    device:   auto, cpu, cuda or cuda:N.
    learnt:   what parts have learnt so far in this process, which they share.
    """

    datasets: tuple[Dataset, ...]
    work: Path
    encoder: str = bare_name(DEFAULT.encoder)
    paper_encoder: str = PLAIN_ENCODER
    full: bool = False
    device: str = "auto"
    seed: int = 1
    learnt: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def once(self, dataset: Dataset, name: str, make: Callable[[], T]) -> T:
        """What was made of a dataset under this name, made at the first call."""
        key = (dataset.digest, name)
        if key not in self.learnt:
            self.learnt[key] = make()
        made: T = self.learnt[key]
        return made

    def short(self, count: int) -> int | None:
        """A limit that holds in a short run only."""
        return None if self.full else count

    def table_encoder(self) -> TableEncoder:
        return find_encoder(self.encoder)

    def published_encoder(self) -> TableEncoder:
        return find_encoder(self.paper_encoder)

    def key(self) -> dict[str, Any]:
        """What decides results, apart from code."""
        return {
            "datasets": {dataset.name: dataset.digest for dataset in self.datasets},
            "encoder": self.encoder,
            "paper_encoder": self.paper_encoder,
            "full": self.full,
            "seed": self.seed,
        }
