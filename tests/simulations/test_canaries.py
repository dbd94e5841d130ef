"""Planted documents: they prove no more than the terms allow, and notice noise that is too
small.
"""

from __future__ import annotations

import numpy as np
import pytest

from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import PrivacyMode, unit_rows
from ridgeway.common.privacy.public_prior import Integers, PublicPrior, make_prior
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.simulations.attacks import auc_allowed, auc_of_noise
from ridgeway.simulations.audit import canaries, epsilon_at_least, plant
from tests.support.tiny import LETTERS, private_encoder

PRIOR = "0" * 64
modes = pytest.mark.parametrize("mode", ["columns", "full"])


@pytest.fixture(scope="module")
def encoder(private_sentences: None) -> TableEncoder:
    return private_encoder()


@pytest.fixture(scope="module")
def prior(encoder: TableEncoder) -> PublicPrior:
    rng = np.random.default_rng(0)
    return make_prior(
        encoder, ["".join(rng.choice(list(LETTERS), 40)) for _ in range(200)]
    )


def short_rows(rng: np.random.Generator) -> Integers:
    """Rows of documents, which are short so that their products take little noise."""
    return unit_rows(rng.integers(-(1 << 20), 1 << 20, (60, 24)))


def test_planted_documents_lie_apart(encoder: TableEncoder, prior: PublicPrior) -> None:
    """They are drawn by what is given, and none is like another."""
    made, again = (
        canaries(encoder, prior, 60, np.random.default_rng(4)) for _ in range(2)
    )
    assert np.array_equal(made, again)
    rows = made / np.linalg.norm(made, axis=1, keepdims=True)
    alike = (rows @ rows.T)[~np.eye(60, dtype=bool)]
    assert np.abs(alike).max() < 0.5 and abs(alike.mean()) < 0.1


@modes
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_planted_documents_prove_no_more_than_the_terms_allow(
    mode: PrivacyMode, epsilon: float
) -> None:
    """6,000 guesses: the bound is below ε, and the attack as good as the noise lets the best one
    be, and no better.
    """
    rng = np.random.default_rng(5)
    privacy = Privacy(mode=mode, epsilon=epsilon, prior=PRIOR)
    planted = plant(privacy, short_rows(rng), 100, rng, rng.bytes)
    assert planted.guesses == 6_000 and planted.at_least < epsilon
    assert planted.auc == pytest.approx(auc_of_noise(epsilon, privacy.delta), abs=0.03)
    assert planted.auc < auc_allowed(epsilon, privacy.delta) + 0.03


@modes
def test_noise_that_is_too_small_is_noticed(mode: PrivacyMode) -> None:
    """What was noised for ε = 20 cannot pass for ε = 1: the bound proves more than was promised."""
    rng = np.random.default_rng(6)
    weak = Privacy(mode=mode, epsilon=20.0, prior=PRIOR)
    assert plant(weak, short_rows(rng), 100, rng, rng.bytes).at_least > 1.5


def test_nothing_is_proven_by_guessing() -> None:
    """Scores that know nothing give a bound of nought, or next to it."""
    rng = np.random.default_rng(7)
    assert epsilon_at_least(rng.normal(size=5000), rng.normal(size=5000), 1e-8) < 0.1


def test_what_always_tells_proves_much() -> None:
    """The bound grows with the number of guesses where documents are told every time."""
    few, many = (
        epsilon_at_least(np.ones(count), np.zeros(count), 1e-8)
        for count in (100, 10_000)
    )
    assert 2 < few < many
