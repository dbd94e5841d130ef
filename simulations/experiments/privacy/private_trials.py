"""Private rounds over a dataset: how well their routers do by ε, mode, documents and prior, and
what attacks find.

    texts ──▶ rows through a prior ──▶ sums ──▶ noise of a round, drawn from a seed ──▶ router ──▶
    test texts

Sums, noise, solver and router are production's. What a round adds up, in the open or under masks,
is the plain sum of what its members have noised, which a test of private rounds shows byte for
byte; so totals are added up here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ridgeway.client.audit import audit_halves, canaries, halves, plant
from ridgeway.client.round.private_sums import as_statistics, laid_out, with_noise
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.settings import DEFAULT, Selector
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.privacy.document_bound import (
    DocumentSums,
    PrivacyMode,
    bounded_sums,
)
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.private_solve import solve_private
from ridgeway.common.privacy.public_prior import PublicPrior
from ridgeway.common.protocol.cohort import SamplingTerms, Terms
from ridgeway.common.routing.token_table import compile_table, tally_texts, winners
from ridgeway.common.statistics.sums import Integers
from ridgeway.coordinator.solving.total import add_weighted
from ridgeway.simulations.experiments.baselines.routing_method import evaluation
from ridgeway.simulations.experiments.dataset import Dataset, DomainTokens, Tokens

CANARIES = 100


@dataclass(frozen=True, slots=True)
class PrivateTrial:
    """One kind of round. documents: of a domain, at most; None: all. prior: its name among the
    ground's.
    """

    mode: PrivacyMode
    epsilon: float
    documents: int | None
    prior: str


@dataclass(frozen=True, eq=False)
class PrivateGround:
    """A dataset, and the priors that rounds over it can have."""

    dataset: Dataset
    encoder: TableEncoder
    priors: Mapping[str, PublicPrior]

    @cached_property
    def tests(self) -> DomainTokens:
        return {name: self._tokens(texts) for name, texts in self.dataset.test.items()}

    @cached_property
    def documents(self) -> DomainTokens:
        """What is summed."""
        return {
            name: self._tokens(
                [text for text in texts if not is_held_out(text, DEFAULT.holdout)]
            )
            for name, texts in self.dataset.train.items()
        }

    def _tokens(self, texts: Sequence[str]) -> Tokens:
        return Tokens(*self.encoder.tokenizer.encode_many(texts))

    def privacy(self, trial: PrivateTrial) -> Privacy:
        return Privacy(
            mode=trial.mode,
            epsilon=trial.epsilon,
            prior=self.priors[trial.prior].fingerprint,
        )

    def terms(self, privacy: Privacy) -> Terms:
        """The terms of a round."""
        encoder = self.encoder
        about: dict[str, Any] = {
            "encoder": encoder.fingerprint,
            "encoder_name": encoder.name,
        }
        sampling = SamplingTerms(**DEFAULT.sampling.to_json())
        shape: dict[str, Any] = {
            "features": encoder.width + 1,
            "weighting": "tokens",
            "mass": 0,
            "sampling": sampling,
        }
        return Terms(mode="private", privacy=privacy, **about, **shape)


def accuracy(ground: PrivateGround, trial: PrivateTrial, seed: int) -> float:
    """Percent of test texts that reach their domain, in the mean over domains, after a round with
    one holder each.

    seed: of the noise, and of which documents there are.
    """
    rng = np.random.default_rng(seed)
    domains = ground.dataset.domains
    privacy = ground.privacy(trial)
    prior = ground.priors[trial.prior]
    parts = []
    drawn = seed if trial.documents else 0
    for name in domains:
        sums = _summed(ground, trial.prior, name, trial.mode, trial.documents, drawn)
        noisy = with_noise(*laid_out(sums, privacy, len(domains)), rng.bytes)
        parts.append((name, as_statistics(sums, noisy), 0.0))
    total = add_weighted(parts, ground.terms(privacy))
    weights = solve_private(
        total.statistics, privacy, total.domains, prior, ground.encoder.scale
    )
    table = compile_table(ground.encoder.table, ground.encoder.scale, weights)
    routed = {
        name: (
            winners(
                tally_texts(table, Selector("average"), own.ids, own.lengths)
            ).tolist()
        )
        for name, own in ground.tests.items()
    }
    return evaluation(total.domains, routed).accuracy


@lru_cache(maxsize=8)
def _rows(ground: PrivateGround, prior: str, domain: str) -> Integers:
    own = ground.documents[domain]
    return document_vectors(
        ground.priors[prior], own.ids, own.lengths, ground.encoder.table
    )


@lru_cache(maxsize=16)
def _summed(
    ground: PrivateGround,
    prior: str,
    domain: str,
    mode: PrivacyMode,
    documents: int | None,
    seed: int,
) -> DocumentSums:
    """The exact sums of some documents of a domain: those of all are the same for every seed."""
    rows = _rows(ground, prior, domain)
    return bounded_sums(
        mode,
        (
            np.random.default_rng(seed).permutation(rows)[:documents]
            if documents
            else rows
        ),
    )


def attacked_documents(
    ground: PrivateGround, trial: PrivateTrial, runs: int, seed: int
) -> dict[str, Any]:
    """What attacks name of the first domain's documents, and how well they tell which were there:
    see the audit.
    """
    rng = np.random.default_rng(seed)
    privacy = ground.privacy(trial)
    prior = ground.priors[trial.prior]
    own, control = halves(
        ground.dataset.train[ground.dataset.domains[0]], ground.encoder, prior
    )
    told = audit_halves(own, control, ground.encoder, prior, privacy, rng.bytes)
    planted = plant(
        privacy, canaries(ground.encoder, prior, CANARIES, rng), runs, rng, rng.bytes
    )
    return {**asdict(told), "planted": asdict(planted)}
