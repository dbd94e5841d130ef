"""Routers of sums under noise: ordinary weights, steady whatever the noise says, and the domains'
own directions.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeway.common.privacy import noisy_solve, public_prior
from ridgeway.common.privacy.noise import (
    LETTERS_SHARE,
    SENTENCES_SHARE,
    VECTOR_LENGTH,
    DocumentSums,
    PrivacyMode,
    bounded_sums,
    moved_square,
    unit_rows,
)
from ridgeway.common.privacy.noisy_solve import Matrix, solve_noisy
from ridgeway.common.privacy.public_prior import Integers, PublicPrior
from tests.support.tiny import LETTERS, tiny_encoder

ENCODER = tiny_encoder(width=8)
TOKENS = 40
"""Of a text."""
TABLES = ENCODER.table, tiny_encoder(width=6, seed=1).table
"""Stand for what letters say, and sentences."""
SHARES = LETTERS_SHARE, SENTENCES_SHARE
MODES: tuple[PrivacyMode, ...] = ("columns", "full")
modes = pytest.mark.parametrize("mode", MODES)
seeds = st.integers(0, 2**32 - 1)


def texts(domain: int, count: int, seed: int = 0) -> list[str]:
    """Texts that use the letters of their own third of the alphabet five times as often."""
    rng = np.random.default_rng([domain, seed])
    shares = np.where(np.arange(len(LETTERS)) % 3 == domain, 5.0, 1.0)
    return [
        "".join(rng.choice(list(LETTERS), TOKENS, p=shares / shares.sum()))
        for _ in range(count)
    ]


def sums_of(given_texts: list[str], table: NDArray[np.int16]) -> Integers:
    """The sums of each text's features."""
    ids = np.array([ENCODER.tokenizer.encode(text) for text in given_texts])
    return np.asarray(table[ids].sum(axis=1, dtype=np.int64))


@pytest.fixture(scope="module", params=[1, 2], ids=["letters", "sentences"])
def prior(request: pytest.FixtureRequest) -> PublicPrior:
    """Of letters alone, and with sentences."""
    public = [text for domain in range(3) for text in texts(domain, 100, seed=9)]
    blocks = (
        public_prior._whitening(sums_of(public, table) / TOKENS, 0.0)
        for table in TABLES[: request.param]
    )
    return PublicPrior("e" * 64, *blocks)


def vectors(given_texts: list[str], prior: PublicPrior) -> Integers:
    """A row for each text, as those of documents."""
    counts = np.full(len(given_texts), TOKENS)
    parts = [
        share * unit_rows(block.whitened(sums_of(given_texts, table), counts))
        for share, block, table in zip(SHARES, prior.blocks, TABLES, strict=False)
    ]
    return unit_rows(np.hstack(parts))


def summed(mode: PrivacyMode, prior: PublicPrior, count: int) -> list[DocumentSums]:
    return [
        bounded_sums(mode, vectors(texts(domain, count), prior)) for domain in range(3)
    ]


def gaussian(sigma: float, shape: tuple[int, ...], seed: int) -> Integers:
    drawn = np.random.default_rng(seed).normal(0, sigma, shape)
    return np.asarray(np.rint(drawn).astype(np.int64))


def columns_of(
    parts: list[DocumentSums], sigma: float = 0.0, seed: int = 0
) -> tuple[Integers, Integers]:
    """The domains' columns and counts, under noise of this σ."""
    columns = np.stack([part.column for part in parts], axis=1)
    columns += gaussian(sigma, columns.shape, seed)
    return columns[:-1], columns[-1]


def solved(
    mode: PrivacyMode,
    parts: list[DocumentSums],
    noise: float,
    prior: PublicPrior,
    seed: int = 0,
) -> Matrix:
    """The router of these domains' sums; noise: σ relative to what a document can move."""
    sigma = round(noise * moved_square(mode) ** 0.5)
    known = *columns_of(parts, sigma, seed), sigma**2, prior, ENCODER.scale
    if mode == "columns":
        return solve_noisy(*known)
    products = reduce(add, (part.products for part in parts))
    drawn = np.triu(gaussian(sigma / 2**0.5, products.shape, seed + 1), 1)
    return solve_noisy(*known, products + drawn + drawn.T)


def scores(weights: Matrix, given_texts: list[str], prior: PublicPrior) -> Matrix:
    """What a router makes of texts."""
    tables = TABLES[: len(prior.blocks)]
    sums = np.hstack([sums_of(given_texts, table) for table in tables])
    return np.asarray(sums / TOKENS * ENCODER.scale @ weights[:-1] + weights[-1])


@modes
def test_the_router_finds_the_domains_again(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """With little noise for many documents nine texts in ten go where they belong."""
    weights = solved(mode, summed(mode, prior, 400), 3.0, prior)
    for domain in range(3):
        seen = scores(weights, texts(domain, 100, seed=1), prior)
        assert (seen.argmax(axis=1) == domain).mean() > 0.9


@modes
def test_halfway_between_all_domains_none_is_ahead(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """Whitening and centring are folded into the weights: what lies at the domains' centre
    scores 1/C for each.
    """
    parts = summed(mode, prior, 50)
    weights = solved(mode, parts, 0, prior)
    noisy = noisy_solve.noisy_means(mode, *columns_of(parts), 0.0)
    centre = noisy.means.mean(axis=0)[:, None]
    parts_of_centre = [
        block.centre
        + np.linalg.solve(block.scaled, noisy_solve.TYPICAL_LENGTH * rows[:, 0] / share)
        for share, block, rows in noisy_solve.split(centre, prior)
    ]
    embedding = np.concatenate(parts_of_centre)
    assert np.allclose(embedding * ENCODER.scale @ weights[:-1] + weights[-1], 1 / 3)


@modes
@given(seed=seeds, noise=st.floats(0, 1e6))
def test_whatever_noise_says_there_is_a_router(
    mode: PrivacyMode, prior: PublicPrior, seed: int, noise: float
) -> None:
    """Counts below zero and matrices that are not positive definite are what noise gives; weights
    are finite always.
    """
    assert np.isfinite(solved(mode, summed(mode, prior, 5), noise, prior, seed)).all()


@modes
def test_noise_alone_puts_no_domain_ahead(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """What noise explains is taken back: nothing is learnt from so few documents, and nothing is
    made up.
    """
    weights = solved(mode, summed(mode, prior, 5), 1e6, prior, seed=1)
    seen = scores(weights, texts(0, 50), prior)
    assert np.ptp(seen, axis=1).max() <= 0.2 * np.abs(seen).max()


@modes
def test_a_corpus_twice_gives_the_same_router(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """Domains weigh alike, however large they are."""
    parts = summed(mode, prior, 30)
    assert np.allclose(
        solved(mode, [part + part for part in parts], 0, prior),
        solved(mode, parts, 0, prior),
    )


@modes
def test_the_order_of_domains_is_of_no_account(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """A domain's column follows it."""
    parts = summed(mode, prior, 30)
    turned = solved(mode, parts[1:] + parts[:1], 0, prior)
    assert np.allclose(turned, np.roll(solved(mode, parts, 0, prior), -1, axis=1))


def test_full_sums_learn_how_documents_vary(prior: PublicPrior) -> None:
    """Without noise the variation within domains is the documents' own, symmetric and positive
    definite.
    """
    parts = summed("full", prior, 200)
    noisy = noisy_solve.noisy_means("full", *columns_of(parts), 0.0)
    products = reduce(add, (part.products for part in parts)) / VECTOR_LENGTH**2
    within = noisy_solve._within(products, noisy, 0.0)
    expected = products / 600 - noisy.means.T @ noisy.means / 3
    values = np.linalg.eigvalsh(expected)
    assert np.allclose(within, within.T) and np.linalg.eigvalsh(within)[0] > 0
    assert values[0] < noisy_solve.LEAST_EIGENVALUE * values.mean() or np.allclose(
        within, expected, atol=1e-6
    )
    assert np.allclose(
        np.linalg.eigvalsh(within),
        np.maximum(values, noisy_solve.LEAST_EIGENVALUE * values.mean()),
    )
