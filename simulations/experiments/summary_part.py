"""The part `summary`: a number for each dataset and kind of round, beside the published method."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.privacy.public_prior import built_in_prior
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.simulations.experiments.dataset import Dataset, ExperimentPlan
from ridgeway.simulations.experiments.privacy_part import (
    PrivateGround,
    accuracy,
)
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.routers import (
    IR3DE,
    OURS,
    OURS_WITH_SENTENCES,
    evaluation,
    learnt,
)

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


def run(plan: ExperimentPlan) -> ReportPart:
    encoder = find_encoder(plan.encoder + SENTENCE)
    prior = built_in_prior(encoder)
    accuracies = {}
    for dataset in plan.datasets:
        private = PrivateGround(dataset, encoder, prior)
        accuracies[dataset.name] = dict(_accuracies(plan, dataset, private))
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


def _accuracies(
    plan: ExperimentPlan, dataset: Dataset, private: PrivateGround
) -> Iterator[tuple[str, float]]:
    for name, (words, method) in _EXACT.items():
        route = learnt(plan, dataset, name, method).rows[0].route
        yield words, evaluation(route, dataset.test).accuracy
    for words, (mode, epsilon) in _PRIVATE.items():
        privacy = private.privacy(mode, epsilon)
        seeds = range(plan.seed, plan.seed + SEEDS)
        yield words, mean(accuracy(private, privacy, seed) for seed in seeds)
