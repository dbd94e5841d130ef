"""The parts `epsilon`, `privacy` and `summary`: what private rounds promise, what they cost in
accuracy, and a number for each dataset and kind of round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from statistics import NormalDist, mean

import numpy as np

from ridgeway.client.round.epochs import as_statistics, laid_out, with_noise
from ridgeway.client.sums.corpus import is_held_out
from ridgeway.common.base.errors import CorpusError
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import DEFAULT, DEFAULT_DELTA, Selector
from ridgeway.common.privacy.accountant import Privacy, epsilon_of, rho_for
from ridgeway.common.privacy.noise import (
    DocumentSums,
    PrivacyMode,
    bounded_sums,
    document_vectors,
)
from ridgeway.common.privacy.noisy_solve import solve_private
from ridgeway.common.privacy.public_prior import PublicPrior, built_in_prior
from ridgeway.common.routing.sentence_table import compile_router, margin_for
from ridgeway.common.statistics import Integers, Statistics
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.common.text.table_encoder import WORDS, TableEncoder
from ridgeway.simulations.attacks import auc_allowed, auc_of_noise
from ridgeway.simulations.audit import audit_halves, canaries, halves, plant
from ridgeway.simulations.experiments.dataset import Dataset, ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import (
    IR3DE,
    OURS,
    OURS_WITH_SENTENCES,
    evaluation,
    learnt,
    table_route,
)

# The part `epsilon`: what a private round promises, in numbers that follow from ε and δ alone.


_EPSILONS = (0.3, 1.0, 3.0, 8.0)
_TIMES = (1, 2, 3, 5, 10, 12)
_BELIEF = 0.01
"""Held beforehand that a document is there; and the share of false alarms."""


def run_epsilon(plan: ExperimentPlan) -> ReportPart:
    tables = (_meaning(), _multiples())
    return ReportPart("What ε promises", (), tables)


def _meaning() -> ReportTable:
    columns = (
        "ε",
        "odds change by at most",
        "1 % becomes at most, %",
        "pairs told apart: allowed, %",
        "by this noise, %",
        "members found at 1 % false alarms, %",
        "σ over what a document moves",
    )
    return ReportTable(
        "What ε means for one document in one round",
        columns,
        tuple(_meaning_row(epsilon) for epsilon in _EPSILONS),
        f"δ = {DEFAULT_DELTA:g}. 50 % of pairs is guessing.",
        digits=2,
    )


def _meaning_row(epsilon: float) -> tuple[Cell, ...]:
    odds = math.exp(epsilon)
    believed = odds * _BELIEF / (odds * _BELIEF + 1 - _BELIEF)
    # the best test of two Gaussians that lie μ apart
    mu = math.sqrt(2 * rho_for(epsilon, DEFAULT_DELTA))
    found = NormalDist().cdf(NormalDist().inv_cdf(_BELIEF) + mu)
    return (
        f"{epsilon:g}",
        odds,
        100 * believed,
        100 * auc_allowed(epsilon, DEFAULT_DELTA),
        100 * auc_of_noise(epsilon, DEFAULT_DELTA),
        100 * found,
        1 / mu,
    )


def _multiples() -> ReportTable:
    """Of k documents the noise is k times smaller, so ρ counts k² times; rounds add their ρ up."""
    rows: list[tuple[Cell, ...]] = []
    for epsilon in _EPSILONS:
        rho = rho_for(epsilon, DEFAULT_DELTA)
        for what, power in (("documents of one person", 2), ("rounds", 1)):
            shares = [epsilon_of(rho * times**power, DEFAULT_DELTA) for times in _TIMES]
            rows.append((f"{epsilon:g}", what, *shares))
    return ReportTable(
        "ε of several documents of one person, and of several rounds",
        ("ε of one", "of", *map(str, _TIMES)),
        tuple(rows),
    )


# The part `privacy`: how well the routers of private rounds do by ε and mode, and what attacks
# find.
#
#     texts ──▶ rows through a prior ──▶ sums ──▶ noise of a round, drawn from a seed ──▶ router ──▶
#     test texts
#
# What a round adds up, in the open or under masks, is the plain sum of what its members have
# noised, which a test of private rounds shows byte for byte; so totals are added up here.


_MODES: tuple[PrivacyMode, ...] = ("columns", "full")
EPSILONS = (1.0, 8.0)
NOISE_DRAWS = 5
"""Draws of noise."""
PLANTED_RUNS = 20
"""In which some documents are planted."""
CANARIES = 100
_BLOCK = 50
"""How many documents a thread reads at a time."""
_WORDS = (
    "Under differential privacy each document adds one vector of bounded length, seen"
    " through a public prior, and holders add noise. What a round adds up is the plain"
    " sum of what its members have noised, so rounds are added up here, with noise drawn"
    " from seeds."
)


@dataclass(frozen=True, eq=False)
class PrivateGround:
    """A dataset, and the prior of rounds over it."""

    dataset: Dataset
    encoder: TableEncoder
    prior: PublicPrior

    def privacy(self, mode: PrivacyMode, epsilon: float) -> Privacy:
        return Privacy(mode=mode, epsilon=epsilon, prior=self.prior.fingerprint)


def run_privacy(plan: ExperimentPlan) -> ReportPart:
    encoder = find_encoder(plan.encoder + WORDS + SENTENCE)
    prior = built_in_prior(encoder)
    tables = []
    left_out = []
    for dataset in plan.datasets:
        ground = PrivateGround(dataset, encoder, prior)
        tables.append(_accuracies(plan, ground))
        try:
            tables.append(_attacks(plan.seed, ground))
        except CorpusError as error:
            left_out.append(f"attacks on documents of {dataset.name}: {error}")
    title = "Accuracy and attacks under noise"
    return ReportPart(title, (_WORDS,), tuple(tables), tuple(left_out))


# Accuracy


def _accuracies(plan: ExperimentPlan, ground: PrivateGround) -> ReportTable:
    dataset = ground.dataset
    rows: list[tuple[Cell, ...]] = []
    for mode, epsilon in product(_MODES, EPSILONS):
        privacy = ground.privacy(mode, epsilon)
        seeds = range(plan.seed, plan.seed + NOISE_DRAWS)
        accuracies = [accuracy(ground, privacy, seed) for seed in seeds]
        rows.append(
            (mode, f"{epsilon:g}", mean(accuracies), min(accuracies), max(accuracies))
        )
    exact = learnt(plan, dataset, "ridgeway with sentences", OURS_WITH_SENTENCES)
    reached = evaluation(exact.rows[0].route, dataset.test).accuracy
    rows.append(("no privacy", "–", reached, reached, reached))
    sizes = [len(texts) for texts in dataset.train.values()]
    return ReportTable(
        f"Accuracy under differential privacy, {dataset.name}, percent",
        ("mode", "ε", "mean", "lowest", "highest"),
        tuple(rows),
        f"Mean over domains of the test texts that reach theirs, over {NOISE_DRAWS} draws"
        f" of noise; domains have {min(sizes):,} to {max(sizes):,} documents; the prior"
        " is of built-in text; δ is 10⁻⁸.",
    )


def accuracy(ground: PrivateGround, privacy: Privacy, seed: int) -> float:
    """Percent of test texts that reach their domain, in the mean over domains, after a round with
    one holder each. seed: of the noise.
    """
    chance = np.random.default_rng(seed)
    encoder = ground.encoder
    domains = ground.dataset.domains
    parts = []
    for name in domains:
        sums = _sums(ground, privacy.mode, name)
        noisy = with_noise(*laid_out(sums, privacy, len(domains)), chance.bytes)
        parts.append(as_statistics(sums, noisy))
    total = Statistics(
        np.sum([part.gram for part in parts], axis=0),
        np.hstack([part.cross for part in parts]),
    )
    weights = solve_private(total, privacy, domains, ground.prior, encoder)
    table = compile_router(encoder, weights, margin_for(private=True))
    columns = np.arange(len(domains))
    route = table_route(encoder.reader, table, Selector("average"), columns)
    return evaluation(route, ground.dataset.test).accuracy


@lru_cache(maxsize=16)
def _sums(ground: PrivateGround, mode: PrivacyMode, domain: str) -> DocumentSums:
    """The exact sums of all documents that are summed."""
    return bounded_sums(mode, _rows(ground, domain))


@lru_cache(maxsize=16)
def _rows(ground: PrivateGround, domain: str) -> Integers:
    """The bounded vector of every document that is summed."""
    texts = ground.dataset.train[domain]
    summed = [text for text in texts if not is_held_out(text, DEFAULT.holdout)]
    encoder = ground.encoder

    def vectors(start: int) -> Integers:
        tokens = encoder.read(summed[start : start + _BLOCK])
        return document_vectors(ground.prior, tokens, encoder)

    with ThreadPoolExecutor(cores()) as pool:
        return np.concatenate([*pool.map(vectors, range(0, len(summed), _BLOCK))])


# Attacks


def _attacks(seed: int, ground: PrivateGround) -> ReportTable:
    rows = [
        row
        for mode, epsilon in product(_MODES, EPSILONS)
        for row in _attack_rows(ground, ground.privacy(mode, epsilon), seed)
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
        "named: of the buckets of runs of letters that the half has more of than public"
        " text (column), or varies most in (products); pairs told apart: how often a document"
        " that was summed scores above one that was not, with either half summed, 50 %"
        " is guessing; planted"
        " ones: the same for documents of random pieces by someone who knows all else,"
        f" in {PLANTED_RUNS} runs, each with its own noise, so that a few points are chance;"
        " by this noise: the best that can be; allowed: what ε allows any mechanism.",
    )


def _attack_rows(
    ground: PrivateGround, privacy: Privacy, seed: int
) -> Iterator[tuple[Cell, ...]]:
    """What attacks name of the first domain's documents, and how well they tell which were there:
    see the audit.
    """
    chance = np.random.default_rng(seed)
    prior = ground.prior
    texts = ground.dataset.train[ground.dataset.domains[0]]
    own, control = halves(texts, ground.encoder, prior)
    measured, swapped = (
        audit_halves(*pair, prior, privacy, chance.bytes)
        for pair in ((own, control), (control, own))
    )
    auc = measured.membership_auc
    # halves that differ by chance favour one direction as much as they hinder the other
    pairs = mean(
        audit.membership_auc.own_against_control for audit in (measured, swapped)
    )
    documents = canaries(ground.encoder, prior, CANARIES, chance)
    planted = plant(privacy, documents, PLANTED_RUNS, chance, chance.bytes)
    for finding in measured.findings:
        shares = (
            finding.own.recovered,
            finding.control.recovered,
            finding.own.chance,
            pairs,
            planted.auc,
            auc.worst_case,
            auc.allowed,
        )
        yield (
            measured.privacy,
            f"{measured.epsilon:g}",
            finding.view,
            measured.documents,
            *(100 * (share or 0) for share in shares),
        )


# The part `summary`: a number for each dataset and kind of round, beside the published method.


_EXACT = {
    "ir3de": ("the published method, k chosen on held-out text", IR3DE),
    "ridgeway": ("the default, exact sums", OURS),
    "ridgeway with sentences": ("with sentences, exact sums", OURS_WITH_SENTENCES),
}
_PRIVATE: dict[str, tuple[PrivacyMode, float]] = {
    "private, ε = 1: the default of a deployment": ("columns", 1.0),
    "private, ε = 3": ("columns", 3.0),
    "private, ε = 1, `sums = full`": ("full", 1.0),
}
SEEDS = 3


def run_summary(plan: ExperimentPlan) -> ReportPart:
    encoder = find_encoder(plan.encoder + WORDS + SENTENCE)
    prior = built_in_prior(encoder)
    accuracies = {}
    for dataset in plan.datasets:
        private = PrivateGround(dataset, encoder, prior)
        accuracies[dataset.name] = dict(_round_accuracies(plan, dataset, private))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(column[name] for column in accuracies.values()))
        for name in next(iter(accuracies.values()))
    )
    table = ReportTable(
        "Test texts that reach their domain, percent",
        ("router", *accuracies),
        rows,
        f"Mean over domains; of private rounds, over {SEEDS} draws of noise.",
    )
    return ReportPart("In short", (), (table,))


def _round_accuracies(
    plan: ExperimentPlan, dataset: Dataset, private: PrivateGround
) -> Iterator[tuple[str, float]]:
    for name, (words, method) in _EXACT.items():
        route = learnt(plan, dataset, name, method).rows[0].route
        yield words, evaluation(route, dataset.test).accuracy
    for words, (mode, epsilon) in _PRIVATE.items():
        privacy = private.privacy(mode, epsilon)
        seeds = range(plan.seed, plan.seed + SEEDS)
        yield words, mean(accuracy(private, privacy, seed) for seed in seeds)
