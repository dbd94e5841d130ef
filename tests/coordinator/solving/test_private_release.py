"""A total under noise → a router that says how sure it is: the steps of a private round, on three
tiny domains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ridgeway.common.base.settings import Confidence, Sampling, Selector, WordFeatures
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import (
    UNIT,
    DocumentSums,
    PrivacyMode,
    bounded_sums,
    document_vectors,
)
from ridgeway.common.privacy.noisy_solve import Matrix, product_variance, solve_private
from ridgeway.common.privacy.public_prior import (
    LETTER_BUCKETS,
    PublicPrior,
    make_prior,
    private_width,
)
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.routing.decision import winners
from ridgeway.common.routing.sentence_table import compile_router
from ridgeway.common.routing.token_table import tally_texts
from ridgeway.common.statistics import Statistics, single_domain
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.solving.calibration import (
    NoisyAccuracy,
    confidence_under_noise,
    noisy_accuracy,
)
from ridgeway.coordinator.solving.solve import Total, add_weighted
from tests.support.simulated_federation import DOMAINS
from tests.support.tiny import LETTERS, private_encoder

pytestmark = pytest.mark.usefixtures("private_sentences")

DOCUMENTS = 400
modes = pytest.mark.parametrize("mode", ["columns", "full"])


def texts(domain: int, count: int, seed: int = 0) -> list[str]:
    """Texts that use the letters of their own third of the alphabet five times as often."""
    rng = np.random.default_rng([domain, seed])
    shares = np.where(np.arange(len(LETTERS)) % 3 == domain, 5.0, 1.0)
    return [
        "".join(rng.choice(list(LETTERS), 40, p=shares / shares.sum()))
        for _ in range(count)
    ]


def terms(mode: PrivacyMode, features: int) -> Terms:
    return Terms(
        mode="private",
        encoder="0" * 64,
        encoder_name="tiny",
        features=features,
        sampling=Sampling(window=8),
        weighting="tokens",
        mass=0,
        privacy=Privacy(mode=mode, epsilon=8.0, prior="0" * 64),
    )


def statistics(sums: DocumentSums, sigma: int, rng: np.random.Generator) -> Statistics:
    """One domain's sums; columns alone carry noise."""
    gram = np.zeros((len(sums.column), len(sums.column)), dtype=np.int64)
    if sums.mode == "full":
        gram[:-1, :-1] = sums.products
    noise = np.rint(rng.normal(0, sigma, sums.column.shape)).astype(np.int64)
    gram[-1] = gram[:, -1] = sums.column + noise
    return single_domain(gram)


@dataclass(frozen=True)
class Solved:
    """A router of three domains under noise, and what it was made of."""

    encoder: TableEncoder
    prior: PublicPrior
    privacy: Privacy
    total: Total
    weights: Matrix

    @classmethod
    def of_tiny_domains(cls, mode: PrivacyMode, encoder: TableEncoder) -> Solved:
        public = [text for domain in range(3) for text in texts(domain, 100, seed=9)]
        prior = make_prior(encoder, public)
        agreed = terms(mode, private_width(encoder) + 1)
        privacy = agreed.privacy
        assert privacy is not None
        rng = np.random.default_rng(3)
        parts = []
        for domain, name in enumerate(DOMAINS):
            read = encoder.read(texts(domain, DOCUMENTS))
            sums = bounded_sums(mode, document_vectors(prior, read, encoder))
            parts.append((name, statistics(sums, privacy.sigma, rng), 0.05))
        total = add_weighted(parts, agreed)
        weights = solve_private(total.statistics, privacy, DOMAINS, prior, encoder)
        return cls(encoder, prior, privacy, total, weights)

    def chosen(self, given: list[str]) -> list[int]:
        """Where texts are routed."""
        table = compile_router(self.encoder, self.weights)
        counted = tally_texts(table, Selector(), self.encoder.read(given))
        return [int(domain) for domain in winners(counted)]

    def confidence(self, accuracy: NoisyAccuracy) -> Confidence:
        return confidence_under_noise(
            self.total.statistics,
            self.privacy,
            DOMAINS,
            self.prior,
            self.encoder,
            self.weights,
            accuracy,
            Confidence(threshold=0.4, fallback="law"),
        )


@modes
def test_a_private_router_is_surer_the_more_often_it_is_right(
    mode: PrivacyMode,
) -> None:
    """Its accuracy is measured from noisy rows, and its confidence follows; the operator's
    threshold stays.
    """
    made = Solved.of_tiny_domains(mode, private_encoder())
    rows, rates = {}, []
    for domain, name in enumerate(DOMAINS):
        chosen = np.array(made.chosen(texts(domain, 200, seed=5)))
        rows[name] = UNIT * np.bincount(chosen, minlength=3)
        rates.append(np.mean(chosen == domain))
    truth = 100 * np.mean(rates)
    assert truth > 75
    measured = noisy_accuracy(rows, made.total.masses, DOMAINS, made.privacy)
    assert abs(measured.accuracy - truth) < 1
    assert measured.interval[0] < truth < measured.interval[1]
    sure = made.confidence(measured)
    assert (sure.threshold, sure.fallback, sure.calibrated) == (0.4, "law", False)
    unsure = made.confidence(NoisyAccuracy(50.0, (48.0, 52.0)))
    assert sure.temperature < unsure.temperature


@modes
def test_a_router_is_as_sure_with_letters_in_more_buckets(mode: PrivacyMode) -> None:
    """Several of the encoder's buckets are counted as one, so nothing differs but where weights
    stand.
    """
    accuracy = NoisyAccuracy(90.0, (88.0, 92.0))
    temperatures = []
    for times in (1, 2):
        letters = WordFeatures(times * LETTER_BUCKETS)
        encoder = replace(private_encoder(), options=letters)
        made = Solved.of_tiny_domains(mode, encoder)
        temperatures.append(made.confidence(accuracy).temperature)
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-9)


@pytest.mark.parametrize("members", [3, 4, 10, 100])
def test_noise_on_products_is_what_members_draw_together(members: int) -> None:
    """Each draws a share, of as many as surely add theirs."""
    privacy = Privacy(mode="full", epsilon=1.0, prior="0" * 64)
    names = [str(number) for number in range(members)]
    together = product_variance(privacy, names)
    assert privacy.sigma**2 <= together <= 3.001 * privacy.sigma**2
