"""Intervals of accuracies that were counted under noise: they hold as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeway.common.privacy.document_bound import UNIT
from ridgeway.common.privacy.private_solve import likeliest_counts
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.coordinator.solving.noisy_accuracy import accuracy_intervals

DOMAINS = ("code", "law", "medicine")


@pytest.mark.parametrize(("documents", "sigma"), [(300, 0.0), (300, 6.0), (2000, 6.0), (2000, 40.0)])
def test_the_true_accuracy_lies_in_the_interval_nineteen_times_in_twenty(documents: int, sigma: float) -> None:
    """Of the text that the documents are a sample of; two holders of each domain, whose noise adds up."""
    rng = np.random.default_rng(documents + int(sigma))
    chances = np.array([[0.9, 0.07, 0.03], [0.1, 0.8, 0.1], [0.02, 0.03, 0.95]])
    truth = 100 * chances.diagonal().mean()
    runs, held, held_by_domain = 600, 0, 0
    for _ in range(runs):
        rows = [rng.multinomial(documents, row) for row in chances]
        noisy = [np.rint(UNIT * (row + rng.normal(0, sigma * 2**0.5, 3))).astype(np.int64) for row in rows]
        confusion = tuple(tuple(likeliest_counts(row).tolist()) for row in noisy)
        found = accuracy_intervals(Evaluation(DOMAINS, confusion), sigma, dict.fromkeys(DOMAINS, 2))
        held += found.mean[0] <= truth <= found.mean[1]
        low, high = found.domains["law"]
        held_by_domain += low <= 80 <= high
    assert held >= 0.92 * runs and held_by_domain >= 0.92 * runs


def test_a_few_documents_under_much_noise_say_nothing() -> None:
    """The interval is all that a share can be, and the accuracy lies in it."""
    evaluation = Evaluation(DOMAINS, ((3, 0, 0), (0, 2, 0), (0, 0, 0)))
    found = accuracy_intervals(evaluation, 17.0, dict.fromkeys(DOMAINS, 1))
    assert found.mean == (0.0, 100.0) and set(found.domains) == {"code", "law"}
    assert found.domains["code"] == (0.0, 100.0)
