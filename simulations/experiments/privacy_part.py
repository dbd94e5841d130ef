"""The part `privacy`: how well the routers of private rounds do by ε, mode, documents and prior,
and what attacks find.

    texts ──▶ rows through a prior ──▶ sums ──▶ noise of a round, drawn from a seed ──▶ router ──▶
    test texts

What a round adds up, in the open or under masks, is the plain sum of what its members have noised,
which a test of private rounds shows byte for byte; so totals are added up here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from statistics import mean
from typing import Any

import numpy as np

from ridgeway.client.round.private_sums import as_statistics, laid_out, with_noise
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import DEFAULT, Selector
from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.sentence_features import SENTENCE
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.privacy.built_in_text import built_in_text, this_machine
from ridgeway.common.privacy.document_bound import (
    DocumentSums,
    PrivacyMode,
    bounded_sums,
)
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.private_solve import solve_private
from ridgeway.common.privacy.public_prior import PublicPrior, make_prior
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.routing.sentence_table import compile_router, margin_for
from ridgeway.common.statistics.sums import Integers
from ridgeway.coordinator.solving.total import add_weighted
from ridgeway.simulations.audit import audit_halves, canaries, halves, plant
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import (
    OURS_WITH_SENTENCES,
    evaluation,
    learnt,
)
from ridgeway.simulations.experiments.token_routers import table_route

BUILT_IN = "built-in text"
NEAR = "and other datasets"
_MODES: tuple[PrivacyMode, ...] = ("columns", "full")
CANARIES = 100
_BLOCK = 50
"""How many documents a thread reads at a time."""
_WORDS = (
    "Under differential privacy each document adds one vector of bounded length, seen"
    " through a public prior, and holders add noise. What a round adds up is the plain"
    " sum of what its members have noised, so rounds are added up here, with noise drawn"
    " from seeds."
)


@dataclass(frozen=True, slots=True)
class PrivateSizes:
    """documents: of a domain; None: all. seeds: draws of noise. runs: in which some are planted."""

    epsilons: tuple[float, ...]
    documents: tuple[int | None, ...]
    runs: int
    seeds: int = 5


SHORT_PRIVATE_SIZES = PrivateSizes(epsilons=(1.0, 8.0), documents=(None,), runs=20)
FULL_PRIVATE_SIZES = PrivateSizes(
    epsilons=(0.3, 1.0, 3.0, 8.0), documents=(500, None), runs=40
)


@dataclass(frozen=True, slots=True)
class PrivateTrial:
    """One kind of round. documents: of a domain, at most; None: all. prior: its name."""

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

    def privacy(self, trial: PrivateTrial) -> Privacy:
        return Privacy(
            mode=trial.mode,
            epsilon=trial.epsilon,
            prior=self.priors[trial.prior].fingerprint,
        )

    def terms(self, privacy: Privacy) -> Terms:
        """The terms of a round."""
        return Terms(
            mode="private",
            privacy=privacy,
            encoder=self.encoder.fingerprint,
            encoder_name=self.encoder.name,
            features=self.encoder.document_width + 1,
            weighting="tokens",
            mass=0,
            sampling=DEFAULT.sampling,
        )


def run(plan: ExperimentPlan) -> ReportPart:
    size = FULL_PRIVATE_SIZES if plan.full else SHORT_PRIVATE_SIZES
    tables, left_out = private_tables(plan, size)
    title = "Accuracy and attacks under noise"
    return ReportPart(title, (_WORDS,), tuple(tables), tuple(left_out))


def private_tables(
    plan: ExperimentPlan, size: PrivateSizes
) -> tuple[list[ReportTable], list[str]]:
    """All trials of a plan's datasets; attacks on too few documents are left out, and why."""
    encoder = find_encoder(plan.encoder + SENTENCE)
    datasets = plan.datasets
    public = list(built_in_text(this_machine()).values())
    far = make_prior(encoder, public)
    tables = []
    left_out = []
    for dataset in datasets:
        others = [
            list(own)
            for each in datasets
            if each is not dataset
            for own in each.train.values()
        ]
        priors = {BUILT_IN: far}
        if others:
            priors[NEAR] = make_prior(encoder, [*public, *others])
        ground = PrivateGround(dataset, encoder, priors)
        tables.append(_accuracies(plan, size, ground))
        try:
            tables.append(_attacks(plan, size, ground))
        except CorpusError as error:
            left_out.append(f"attacks on documents of {dataset.name}: {error}")
    return tables, left_out


# Accuracy


def _accuracies(
    plan: ExperimentPlan, size: PrivateSizes, ground: PrivateGround
) -> ReportTable:
    dataset = ground.dataset
    sizes = [len(own) for own in dataset.train.values()]
    whole = f"{min(sizes):,} to {max(sizes):,}"
    kinds = product(ground.priors, size.documents, _MODES, size.epsilons)
    rows: list[tuple[Cell, ...]] = []
    for prior, documents, mode, epsilon in kinds:
        trial = PrivateTrial(mode, epsilon, documents, prior)
        seeds = range(plan.seed, plan.seed + size.seeds)
        found = [accuracy(ground, trial, seed) for seed in seeds]
        figures = (mean(found), min(found), max(found))
        rows.append((prior, str(documents or whole), mode, f"{epsilon:g}", *figures))
    exact = learnt(plan, dataset, "ridgeway with sentences", OURS_WITH_SENTENCES)
    reached = evaluation(exact.rows[0].route, dataset.test).accuracy
    rows.append(("–", whole, "no privacy", "–", reached, reached, reached))
    return ReportTable(
        f"Accuracy under differential privacy, {dataset.name}, percent",
        ("prior", "documents of a domain", "mode", "ε", "mean", "lowest", "highest"),
        tuple(rows),
        f"Mean over domains of the test texts that reach theirs, over {size.seeds} draws"
        " of noise; δ is 10⁻⁸.",
    )


def accuracy(ground: PrivateGround, trial: PrivateTrial, seed: int) -> float:
    """Percent of test texts that reach their domain, in the mean over domains, after a round with
    one holder each.

    seed: of the noise, and of which documents there are.
    """
    chance = np.random.default_rng(seed)
    domains = ground.dataset.domains
    privacy = ground.privacy(trial)
    parts = []
    for name in domains:
        drawn = seed if trial.documents else 0
        sums = _summed(ground, trial.prior, name, trial.mode, trial.documents, drawn)
        noisy = with_noise(*laid_out(sums, privacy, len(domains)), chance.bytes)
        parts.append((name, as_statistics(sums, noisy), 0.0))
    total = add_weighted(parts, ground.terms(privacy))
    encoder = ground.encoder
    prior = ground.priors[trial.prior]
    weights = solve_private(total.statistics, privacy, total.domains, prior, encoder)
    table = compile_router(encoder, weights, margin_for(private=True))
    columns = np.array([domains.index(name) for name in total.domains])
    route = table_route(encoder.tokenizer, table, Selector("average"), columns)
    return evaluation(route, ground.dataset.test).accuracy


@lru_cache(maxsize=16)
def _rows(ground: PrivateGround, prior: str, domain: str) -> Integers:
    """The bounded vector of every document that is summed."""
    texts = ground.dataset.train[domain]
    summed = [text for text in texts if not is_held_out(text, DEFAULT.holdout)]
    encoder = ground.encoder

    def vectors(start: int) -> Integers:
        ids, lengths = encoder.tokenizer.encode_many(summed[start : start + _BLOCK])
        return document_vectors(
            ground.priors[prior], ids, lengths, encoder.table, encoder.sentences
        )

    with ThreadPoolExecutor(cores()) as pool:
        return np.concatenate([*pool.map(vectors, range(0, len(summed), _BLOCK))])


@lru_cache(maxsize=16)
def _summed(
    ground: PrivateGround,
    prior: str,
    domain: str,
    mode: PrivacyMode,
    documents: int | None,
    seed: int,
) -> DocumentSums:
    """The exact sums of some documents of a domain, drawn by a seed; None: of all."""
    rows = _rows(ground, prior, domain)
    if documents:
        rows = np.random.default_rng(seed).permutation(rows)[:documents]
    return bounded_sums(mode, rows)


# Attacks


def _attacks(
    plan: ExperimentPlan, size: PrivateSizes, ground: PrivateGround
) -> ReportTable:
    rows = [
        row
        for mode, epsilon in product(_MODES, size.epsilons)
        for row in _attack_rows(
            attacked_documents(
                ground,
                PrivateTrial(mode, epsilon, None, BUILT_IN),
                size.runs,
                plan.seed,
            )
        )
    ]
    columns = (
        "mode",
        "ε",
        "view",
        "documents",
        "named of its own, %",
        "of the control, %",
        "by chance, %",
        "pairs told apart, %",
        "planted ones, %",
        "by this noise, %",
        "allowed, %",
    )
    name = ground.dataset.name
    return ReportTable(
        f"Attacks on sums under noise: one half of {ground.dataset.domains[0]} of"
        f" {name}, the other half as a control",
        columns,
        tuple(rows),
        "named: of the half's distinct tokens; pairs told apart: how often a document"
        " that was summed scores above one that was not, with either half summed, 50 %"
        " is guessing; planted"
        " ones: the same for documents of random tokens by someone who knows all else,"
        f" in {size.runs} runs, each with its own noise, so that a few points are chance;"
        " by this noise: the best that can be; allowed: what ε allows any mechanism.",
    )


def attacked_documents(
    ground: PrivateGround, trial: PrivateTrial, runs: int, seed: int
) -> dict[str, Any]:
    """What attacks name of the first domain's documents, and how well they tell which were there:
    see the audit.
    """
    chance = np.random.default_rng(seed)
    privacy = ground.privacy(trial)
    prior = ground.priors[trial.prior]
    texts = ground.dataset.train[ground.dataset.domains[0]]
    own, control = halves(texts, ground.encoder, prior)
    told, swapped = (
        asdict(audit_halves(*pair, ground.encoder, prior, privacy, chance.bytes))
        for pair in ((own, control), (control, own))
    )
    # halves that differ by chance favour one direction as much as they hinder the other
    pairs = mean(
        each["membership_auc"]["own_against_control"] for each in (told, swapped)
    )
    documents = canaries(ground.encoder, prior, CANARIES, chance)
    planted = plant(privacy, documents, runs, chance, chance.bytes)
    return {**told, "pairs": pairs, "planted": asdict(planted)}


def _attack_rows(told: Mapping[str, Any]) -> Iterator[tuple[Cell, ...]]:
    auc = told["membership_auc"]
    for each in told["findings"]:
        shares = (
            each["own"]["recovered"],
            each["control"]["recovered"],
            each["own"]["chance"],
            told["pairs"],
            told["planted"]["auc"],
            auc["worst_case"],
            auc["allowed"],
        )
        yield (
            told["privacy"],
            f"{told['epsilon']:g}",
            each["view"],
            told["documents"],
            *(100 * share for share in shares),
        )
