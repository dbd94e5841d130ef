"""A dataset: domains with texts to learn from and texts to be tested on, and how training text is split.

Texts come from a folder, from this machine's own corpora, or (by presets) from a hub. Knows nothing of routers.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.files import sha256
from ridgeway.simulations.corpora import Corpus, read_corpora

HELD_OUT = 0.1
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
        """Of every text in its order: equal datasets have equal digests, whatever they are called."""
        parts = (
            sha256(domain.encode(), *(hashlib.sha256(text.encode(errors="replace")).digest() for text in own)).encode()
            for side in (self.train, self.test)
            for domain, own in side.items()
        )
        return sha256(*parts)

    @property
    def corpora(self) -> list[Corpus]:
        return [Corpus(name, self.train[name], self.test[name]) for name in self.domains]

    def sampled(self, seed: int, *, train: int | None = None, test: int | None = None) -> Dataset:
        """The same dataset with a limited number of texts of a domain, drawn at random, in their old order."""
        return replace(self, train=_sampled(self.train, train, seed), test=_sampled(self.test, test, seed))


@dataclass(frozen=True, slots=True)
class Split:
    """Training text divided: `fit` to learn from, `held` to choose hyper-parameters on. Test texts are not here."""

    domains: tuple[str, ...]
    fit: Texts
    held: Texts


def split(dataset: Dataset, share: float = HELD_OUT) -> Split:
    """By the same rule that a holder keeps documents out of its sums."""
    fit, held = (
        {name: tuple(text for text in own if is_held_out(text, share) == out) for name, own in dataset.train.items()}
        for out in (False, True)
    )
    return Split(dataset.domains, fit, held)


def in_turn(side: Texts, most: int) -> list[str]:
    """Texts of all domains in turn, as many as are wanted at most."""
    return list(islice((text for turn in zip_longest(*side.values()) for text in turn if text is not None), most))


def folder_dataset(folder: Path) -> Dataset:
    """A folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl. Raises InputError if there are fewer than two domains."""
    return _dataset(folder.resolve().name, f"the folder {folder.name}", folder)


def builtin_dataset() -> Dataset:
    """What this machine has after set-up."""
    return _dataset("built-in", "text found on this machine: licences, sources, docstrings", None)


def _dataset(name: str, source: str, folder: Path | None) -> Dataset:
    corpora = read_corpora(folder)
    return Dataset(
        name, source, {each.name: each.train for each in corpora}, {each.name: each.test for each in corpora}
    )


def _sampled(texts: Texts, most: int | None, seed: int) -> Texts:
    if most is None:
        return texts
    found = {}
    for name, own in texts.items():
        places = random.Random(f"{seed} {name}").sample(range(len(own)), min(most, len(own)))
        found[name] = tuple(own[place] for place in sorted(places))
    return found
