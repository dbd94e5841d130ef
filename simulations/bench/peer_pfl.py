"""pfl's Gaussian mechanism: vectors clipped, added up, and noise on the total."""

from __future__ import annotations

from typing import Any

import numpy as np
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.stats import MappedVectorStatistics

from ridgeway.simulations.bench.peer import Answered, answer_request


def noisy_means(request: Any) -> Answered:
    """The mean over rows of length one, under the noise of each ε and a δ; its root mean square
    error over repeats.
    """
    rows = np.load(request["vectors"])
    true = rows.mean(axis=0)
    root_errors = []
    for epsilon in request["epsilons"]:
        mechanism = GaussianMechanism.construct_single_iteration(
            1.0, epsilon, request["delta"]
        )
        errors = []
        for _ in range(request["repeats"]):
            total = sum_of_clipped(mechanism, rows)
            noisy, _ = mechanism.add_noise(total, len(rows))
            errors.append(noisy["sum"] / len(rows) - true)
        root_errors.append(float(np.sqrt(np.mean(np.square(errors)))))
    return {"errors": root_errors}


def sum_of_clipped(mechanism: Any, rows: Any) -> Any:
    """One user a row, as pfl clips and adds users' statistics."""
    total = None
    for row in rows:
        statistics = MappedVectorStatistics({"sum": row}, weight=1)
        clipped, _ = mechanism.constrain_sensitivity(statistics)
        total = clipped if total is None else total + clipped
    return total


if __name__ == "__main__":
    answer_request(noisy_means)
