"""Log-likelihoods of test documents under every expert, and what follows from them: perplexity, and the paper's
normalised performance of whoever chooses the expert.

Knows numpy. Knows nothing of models or routers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BASE, MERGED = "base", "merged"
"""The model that was not trained, and the one whose weights are the mean of all experts'."""
DIGITS = 4
"""Of a document's log-likelihood, as it is kept."""

Costs = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Likelihoods:
    """
    models: BASE, an expert for each domain, MERGED.
    costs:  by domain, documents × models: the negative log-likelihood of each test document.
    tokens: by domain, how many tokens of each document were predicted.
    about:  how the experts came about.
    """

    domains: tuple[str, ...]
    models: tuple[str, ...]
    costs: Mapping[str, Costs]
    tokens: Mapping[str, NDArray[np.int64]]
    about: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "domains": list(self.domains),
            "models": list(self.models),
            "costs": {name: np.round(own, DIGITS).tolist() for name, own in self.costs.items()},
            "tokens": {name: own.tolist() for name, own in self.tokens.items()},
            "about": dict(self.about),
        }

    def perplexity(self, domain: str, model: str) -> float:
        """Of one model over all test documents of a domain."""
        return self._perplexity(domain, self.costs[domain][:, self.models.index(model)])

    def routed_perplexity(self, domain: str, places: Sequence[int]) -> float:
        """When each document of a domain is answered by the expert of the domain it is sent to."""
        experts = [self.models.index(self.domains[place]) for place in places]
        return self._perplexity(domain, self.costs[domain][np.arange(len(experts)), experts])

    def random_perplexity(self, domain: str) -> float:
        """When experts are drawn by lot: the mean of what all draws would cost."""
        experts = [self.models.index(name) for name in self.domains]
        return self._perplexity(domain, self.costs[domain][:, experts].mean(axis=1))

    def _perplexity(self, domain: str, costs: Costs) -> float:
        return math.exp(float(costs.sum()) / max(1, int(self.tokens[domain].sum())))

    def normalised(self, domain: str, perplexity: float) -> float:
        """100 is what the domain's own expert reaches; more is better."""
        return 100.0 * self.perplexity(domain, domain) / perplexity

    def least(self, domain: str) -> list[int]:
        """For each document, the place of the expert that finds it likeliest."""
        experts = [self.models.index(name) for name in self.domains]
        return [int(place) for place in self.costs[domain][:, experts].argmin(axis=1)]


def from_json(value: Mapping[str, Any]) -> Likelihoods:
    """Law: it gives what to_json was called on, to DIGITS digits."""
    domains, models = tuple(value["domains"]), tuple(value["models"])
    costs = {name: np.array(own, dtype=np.float64).reshape(-1, len(models)) for name, own in value["costs"].items()}
    tokens = {name: np.array(own, dtype=np.int64) for name, own in value["tokens"].items()}
    return Likelihoods(domains, models, costs, tokens, value["about"])
