"""A total under noise → a router that says how sure it is: the steps of a private round, on three
tiny domains.
"""

from __future__ import annotations

import numpy as np
import pytest

from ridgeway.common.base.settings import Confidence, Sampling
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import UNIT, DocumentSums, PrivacyMode
from ridgeway.common.privacy.noisy_solve import product_variance, solve_private
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.statistics import Statistics, single_domain
from ridgeway.coordinator.solving.calibration import (
    NoisyAccuracy,
    confidence_under_noise,
    noisy_accuracy,
)
from ridgeway.coordinator.solving.solve import Total, add_weighted
from tests.laws.test_noisy_solve_laws import (
    ENCODER,
    modes,
    scores,
    summed,
    texts,
)
from tests.laws.test_noisy_solve_laws import prior as prior
from tests.support.simulated_federation import DOMAINS

DOCUMENTS = 400


def terms(mode: PrivacyMode) -> Terms:
    return Terms(
        mode="private",
        encoder="0" * 64,
        encoder_name="tiny",
        features=ENCODER.width + 1,
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


def total_of_tiny_domains(mode: PrivacyMode, prior: PublicPrior) -> Total:
    rng, privacy = np.random.default_rng(3), terms(mode).privacy
    assert privacy is not None
    parts = zip(DOMAINS, summed(mode, prior, DOCUMENTS), strict=True)
    return add_weighted(
        ((name, statistics(sums, privacy.sigma, rng), 0.05) for name, sums in parts),
        terms(mode),
    )


@modes
def test_a_private_router_is_surer_the_more_often_it_is_right(
    mode: PrivacyMode, prior: PublicPrior
) -> None:
    """Its accuracy is measured from noisy rows, and its confidence follows; the operator's
    threshold stays.
    """
    total, agreed = total_of_tiny_domains(mode, prior), terms(mode)
    assert agreed.privacy is not None
    given = total.statistics, agreed.privacy, DOMAINS, prior, ENCODER
    weights = solve_private(*given)
    rows, rates = {}, []
    for domain, name in enumerate(DOMAINS):
        chosen = scores(weights, texts(domain, 200, seed=5)).argmax(axis=1)
        rows[name] = UNIT * np.bincount(chosen, minlength=3)
        rates.append(np.mean(chosen == domain))
    truth = 100 * np.mean(rates)
    measured = noisy_accuracy(rows, total.masses, DOMAINS, agreed.privacy)
    assert abs(measured.accuracy - truth) < 1
    assert measured.interval[0] < truth < measured.interval[1]

    plain = Confidence(threshold=0.4, fallback="law")

    def confidence(accuracy: NoisyAccuracy) -> Confidence:
        return confidence_under_noise(*given, weights, accuracy, plain)

    sure = confidence(measured)
    assert (sure.threshold, sure.fallback, sure.calibrated) == (0.4, "law", False)
    assert sure.temperature < confidence(NoisyAccuracy(50.0, (48.0, 52.0))).temperature


@pytest.mark.parametrize("members", [3, 4, 10, 100])
def test_noise_on_products_is_what_members_draw_together(members: int) -> None:
    """Each draws a share, of as many as surely add theirs."""
    privacy = Privacy(mode="full", epsilon=1.0, prior="0" * 64)
    names = [str(number) for number in range(members)]
    together = product_variance(privacy, names)
    assert privacy.sigma**2 <= together <= 3.001 * privacy.sigma**2
