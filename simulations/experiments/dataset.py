"""A dataset: domains with texts to learn from and to be tested on, how training text is split, and
texts as tokens.

Texts come from a folder, from this machine's own corpora, or (by presets) from a hub.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.files import sha256
from ridgeway.common.base.settings import Sampling
from ridgeway.common.base.threads import cores
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids
from ridgeway.common.statistics.sums import Integers, Statistics
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
        """Of every text in its order: equal datasets have equal digests, whatever they are
        called.
        """
        parts = (
            sha256(
                domain.encode(),
                *(
                    hashlib.sha256(text.encode(errors="replace")).digest()
                    for text in own
                ),
            ).encode()
            for side in (self.train, self.test)
            for domain, own in side.items()
        )
        return sha256(*parts)

    @property
    def corpora(self) -> list[Corpus]:
        return [
            Corpus(name, self.train[name], self.test[name]) for name in self.domains
        ]

    def sampled(
        self, seed: int, *, train: int | None = None, test: int | None = None
    ) -> Dataset:
        """The same dataset with a limited number of texts of a domain, drawn at random, in their
        old order.
        """
        return replace(
            self,
            train=_sampled(self.train, train, seed),
            test=_sampled(self.test, test, seed),
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Training text divided: `fit` to learn from, `held` to choose hyper-parameters on. Test texts
    are not here.
    """

    domains: tuple[str, ...]
    fit: Texts
    held: Texts


def split(dataset: Dataset, share: float = HELD_OUT) -> Split:
    """By the same rule that a holder keeps documents out of its sums."""
    fit, held = (
        {
            name: tuple(text for text in own if is_held_out(text, share) == out)
            for name, own in dataset.train.items()
        }
        for out in (False, True)
    )
    return Split(dataset.domains, fit, held)


def in_turn(side: Texts, most: int) -> list[str]:
    """Texts of all domains in turn, as many as are wanted at most."""
    return list(
        islice(
            (
                text
                for turn in zip_longest(*side.values())
                for text in turn
                if text is not None
            ),
            most,
        )
    )


def folder_dataset(folder: Path) -> Dataset:
    """A folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl. Raises InputError if there are fewer
    than two domains.
    """
    return _dataset(folder.resolve().name, f"the folder {folder.name}", folder)


def builtin_dataset() -> Dataset:
    """What this machine has after set-up."""
    return _dataset(
        "built-in", "text found on this machine: licences, sources, docstrings", None
    )


def _dataset(name: str, source: str, folder: Path | None) -> Dataset:
    corpora = read_corpora(folder)
    return Dataset(
        name,
        source,
        {each.name: each.train for each in corpora},
        {each.name: each.test for each in corpora},
    )


def _sampled(texts: Texts, most: int | None, seed: int) -> Texts:
    if most is None:
        return texts
    found = {}
    for name, own in texts.items():
        places = random.Random(f"{seed} {name}").sample(
            range(len(own)), min(most, len(own))
        )
        found[name] = tuple(own[place] for place in sorted(places))
    return found


# Texts as token ids


BATCH_TOKENS = 1 << 15
"""Tokens that are summed at a time, which bounds the memory that small windows take."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokens:
    """Texts as token ids in one row, `lengths` of them each."""

    ids: Ids
    lengths: Integers

    def part(self, start: int, tokens: int) -> Tokens:
        """This many tokens from a place on; texts that reach over an edge are cut."""
        lengths: Integers = np.diff(
            np.clip(np.cumsum(self.lengths), start, start + tokens) - start, prepend=0
        )
        return Tokens(self.ids[start : start + tokens], lengths[lengths > 0])

    def drawn(self, most: int, seed: str) -> Tokens:
        """Texts in an order that the seed decides, up to `most` tokens together: the last of them
        is cut.

        Law: what is drawn for fewer tokens stands first in what is drawn for more.
        """
        order = np.random.default_rng(list(seed.encode())).permutation(
            len(self.lengths)
        )
        ends = np.cumsum(self.lengths)
        kept = order[: 1 + int(np.searchsorted(np.cumsum(self.lengths[order]), most))]
        parts = [
            self.ids[ends[place] - self.lengths[place] : ends[place]]
            for place in kept.tolist()
        ]
        lengths = self.lengths[kept].copy()
        lengths[-1] -= max(0, int(lengths.sum()) - most)
        return Tokens(np.concatenate(parts)[:most], lengths)


DomainTokens = Mapping[str, Tokens]
"""Tokens by domain."""


def sums_of(
    encoder: TableEncoder, sampling: Sampling, library: DomainTokens
) -> dict[str, Statistics]:
    """Each domain's raw sums, without mistyped copies, which are made of text."""
    make = accumulators(encoder.table, replace(sampling, mistyped=0), encoder.words)
    found = {}
    for name, own in library.items():
        accumulator = make()
        for batch in batches(own):
            accumulator.add(batch.ids, batch.lengths)
        found[name] = accumulator.statistics(accumulator.state(), cores())
    return found


def batches(tokens: Tokens) -> list[Tokens]:
    """The same texts in pieces of about BATCH_TOKENS tokens; none is cut."""
    ends = np.cumsum(tokens.lengths)
    cuts = np.flatnonzero(np.diff(ends // BATCH_TOKENS, append=-1))
    bounds = np.concatenate(([0], ends[cuts]))
    pieces = zip(
        np.split(tokens.lengths, cuts[:-1] + 1),
        bounds[:-1].tolist(),
        bounds[1:].tolist(),
        strict=True,
    )
    return [Tokens(tokens.ids[start:end], lengths) for lengths, start, end in pieces]
