"""A setting: domains with texts to learn from and texts to be tested on, and how training text is split.

Texts come from a folder, from this machine's own corpora, or (by presets) from a hub. Knows nothing of routers.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from client.corpus import is_held_out
from common.files import sha256
from simulations.corpora import Corpus
from simulations.reading import read_corpora

HELD_OUT = 0.1
"""The share of the training text on which hyper-parameters of the baselines are chosen."""

Texts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Setting:
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
        """Of every text in its order: equal settings have equal digests, whatever they are called."""
        parts = (
            sha256(
                domain.encode(), *(hashlib.sha256(text.encode(errors="replace")).digest() for text in texts)
            ).encode()
            for side in (self.train, self.test)
            for domain, texts in side.items()
        )
        return sha256(*parts)

    @property
    def corpora(self) -> list[Corpus]:
        return [Corpus(name, self.train[name], self.test[name]) for name in self.domains]

    def sampled(self, seed: int, *, train: int | None = None, test: int | None = None) -> Setting:
        """The same setting with at most so many texts of a domain, drawn at random, in their old order."""
        return replace(self, train=_sampled(self.train, train, seed), test=_sampled(self.test, test, seed))


@dataclass(frozen=True, slots=True)
class Split:
    """Training text divided: `fit` to learn from, `held` to choose hyper-parameters on. Test texts are not here."""

    domains: tuple[str, ...]
    fit: Texts
    held: Texts


def split(setting: Setting, share: float = HELD_OUT) -> Split:
    """By the same rule that a holder keeps documents out of its sums."""
    fit = {name: tuple(text for text in texts if not is_held_out(text, share)) for name, texts in setting.train.items()}
    held = {name: tuple(text for text in texts if is_held_out(text, share)) for name, texts in setting.train.items()}
    return Split(setting.domains, fit, held)


def folder_setting(folder: Path) -> Setting:
    """A folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl. Raises InputError if there are fewer than two domains."""
    return _setting(folder.resolve().name, f"the folder {folder.name}", read_corpora(folder))


def builtin_setting() -> Setting:
    """What this machine has after set-up."""
    return _setting("built-in", "text found on this machine: licences, sources, docstrings", read_corpora(None))


def _setting(name: str, source: str, corpora: Sequence[Corpus]) -> Setting:
    train = {each.name: each.train for each in corpora}
    return Setting(name, source, train, {each.name: each.test for each in corpora})


def _sampled(texts: Texts, most: int | None, seed: int) -> Texts:
    if most is None:
        return texts
    return {name: _drawn(own, most, random.Random(f"{seed} {name}")) for name, own in texts.items()}


def _drawn(texts: tuple[str, ...], most: int, chance: random.Random) -> tuple[str, ...]:
    if len(texts) <= most:
        return texts
    return tuple(texts[place] for place in sorted(chance.sample(range(len(texts)), most)))
