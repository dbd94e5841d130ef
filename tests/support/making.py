"""What the laws and vectors are made of: samples and their plain sums, prepared domains, a fixed
key, small routers.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import (
    DEFAULT,
    FEATURE_LIMIT,
    Confidence,
    Ridge,
    Sampling,
    Selector,
)
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.sentence_table import compile_router
from ridgeway.common.routing.token_table import TokenTable
from ridgeway.common.statistics import Integers, Prepared, Statistics
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokens import AnyTokenizer, TextReader
from ridgeway.coordinator.solving.solve import RouterChoices, solve_router
from tests.support.tiny import LETTERS

USUAL_CHOICES = RouterChoices.of_preset(DEFAULT)


@contextmanager
def allowing(mask: int) -> Iterator[None]:
    """While this lasts, new files of this process may do what the mask leaves."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def refusing(code: str) -> Iterator[None]:
    """Within this block a holder refuses, with this code."""
    with pytest.raises(Refused) as refused:
        yield
    assert refused.value.code == code


def statistics_of(
    samples: Integers, labels: Sequence[int], domains: int = 1
) -> Statistics:
    """The sums over samples, straight from their definition."""
    answers = np.zeros((len(samples), domains), dtype=np.int64)
    answers[np.arange(len(samples)), np.array(labels, dtype=np.int64)] = 1
    return Statistics(samples.T @ samples, samples.T @ answers)


def total_of(
    encoder: TableEncoder, texts: Iterable[Sequence[str]], sampling: Sampling
) -> Statistics:
    """The sums over the texts of several domains."""
    grams = []
    for domain in texts:
        sums = accumulators(encoder.table, sampling, encoder.words, encoder.sentences)()
        sums.add(encoder.read(domain))
        grams.append(sums.statistics(sums.state()).gram)
    cross = np.stack([gram[:, -1] for gram in grams], axis=1)
    return Statistics(np.sum(grams, axis=0), cross)


def solved_router(
    encoder: TableEncoder, domains: Iterable[str], total: Statistics
) -> Router:
    """The router of a total, as usual."""
    compiled = compile_router(encoder, solve_router(total, encoder, Ridge()).weights)
    return Router(tuple(domains), compiled, encoder.reader, Selector())


def one_domain(samples: Integers) -> Statistics:
    """The sums over the samples of a single domain."""
    return statistics_of(samples, [0] * len(samples))


def random_samples(seed: int, count: int, features: int, lean: int = 0) -> Integers:
    """Samples with the constant feature; `lean` shifts them, so that domains differ."""
    rng = np.random.default_rng(seed)
    samples = np.ones((count, features), dtype=np.int64)
    samples[:, :-1] = rng.integers(
        -FEATURE_LIMIT + abs(lean), FEATURE_LIMIT - abs(lean) + 1, (count, features - 1)
    )
    samples[:, 0] += lean
    return samples


@st.composite
def drawn_samples(draw: st.DrawFn, features: int) -> Integers:
    """A few samples: any integers within the limit, often at its edge, and the constant feature."""
    feature = st.one_of(
        st.sampled_from((-FEATURE_LIMIT, 0, FEATURE_LIMIT)),
        st.integers(-FEATURE_LIMIT, FEATURE_LIMIT),
    )
    rows = draw(
        st.lists(
            st.lists(feature, min_size=features - 1, max_size=features - 1),
            min_size=1,
            max_size=6,
        )
    )
    return np.array([[*row, 1] for row in rows], dtype=np.int64)


def prepared(
    domain: str,
    encoder: TableEncoder,
    seed: int,
    *,
    count: int = 80,
    name: str | None = None,
    sampling: Sampling | None = None,
) -> Prepared:
    """One domain's statistics as its holder would hand them over; another seed is another
    corpus.
    """
    samples = random_samples(seed, count, encoder.width + 1, lean=100 * (seed % 7))
    terms = sampling or Sampling()
    return Prepared(
        domain, name or encoder.name, encoder.fingerprint, terms, one_domain(samples)
    )


def fixed_identity(byte: int = 7) -> Identity:
    """A key made from 32 equal bytes, so that signatures are the same in every run."""
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32))


def sign_again(folder: Path, identity: Identity, changes: Mapping[str, Any]) -> None:
    """Write a release's manifest with some facts changed and a signature that holds."""
    path = folder / "manifest.json"
    body = {**json.loads(path.read_bytes()), **changes}
    del body["signature"]
    signature = {"key": identity.public, "value": identity.sign(canonical_json(body))}
    path.write_bytes(canonical_json({**body, "signature": signature}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def letter_router(
    tokenizer: AnyTokenizer,
    strengths: Mapping[str, Sequence[int]],
    domains: Sequence[str],
    selector: Selector | None = None,
) -> Router:
    """A router that knows some letters: each says so much for each domain, all other tokens say
    nothing.
    """
    logits = np.zeros((len(LETTERS) + 2, len(domains)), dtype=np.int16)
    for letter, row in strengths.items():
        logits[LETTERS.index(letter) + 2] = row
    table = TokenTable(logits, 1.0, np.zeros(len(domains), dtype=np.uint8))
    reader = TextReader(tokenizer)
    return Router(tuple(domains), table, reader, selector or Selector(), Confidence())


def plain_entropies(logits: NDArray[Any], step: float) -> NDArray[np.float32]:
    """-Σ p log p of the softmax over each row."""
    odds = np.exp(logits * step - (logits * step).max(axis=1, keepdims=True))
    chances = odds / odds.sum(axis=1, keepdims=True)
    logs = np.log(chances, out=np.zeros_like(chances), where=chances > 0)
    entropies: NDArray[np.float32] = -(chances * logs).sum(axis=1)
    return entropies.astype(np.float32)


@dataclass(frozen=True)
class Trap:
    """An object whose pickle makes a folder when it is loaded."""

    folder: str

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def trapped_pickle(folder: Path) -> bytes:
    """A pickle that betrays whoever loads it: `folder` then exists."""
    return pickle.dumps(Trap(str(folder)))
