"""The part `epsilon`: what a private round promises, in numbers that follow from ε and δ alone."""

from __future__ import annotations

import math
from statistics import NormalDist

from ridgeway.common.base.settings import DEFAULT_DELTA
from ridgeway.common.privacy.accountant import epsilon_of, rho_for
from ridgeway.simulations.attacks import auc_allowed, auc_of_noise
from ridgeway.simulations.experiments.dataset import ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable

_EPSILONS = (0.3, 1.0, 3.0, 8.0)
_TIMES = (1, 2, 3, 5, 10, 12)
_BELIEF = 0.01
"""Held beforehand that a document is there; and the share of false alarms."""


def run(plan: ExperimentPlan) -> ReportPart:
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
