"""Which expert a decision leads to: the one that is worth most by the expected quality of its
answers and their cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.experts_file import (
    Experts,
    FallbackReason,
    read_experts,
)
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.router import Router

Reason = (
    Literal[
        "best", "quality", "cost", "missing", "abstained", "forced", "rule", "sticky"
    ]
    | FallbackReason
)
"""Why an expert is asked. `missing`, and what experts.toml calls reasons: it answers in another's
place.
"""


class ExpertChoice(NamedTuple):
    """quality: what is expected of the expert's answer, where that was measured."""

    expert: str
    reason: Reason
    quality: float | None = None

    def to_json(self) -> dict[str, Any]:
        facts = {"expert": self.expert, "expert_reason": self.reason}
        return (
            facts if self.quality is None else facts | {"expert_quality": self.quality}
        )


class ExpertChooser:
    """Chooses the expert e of the largest quality[e] · Σ over d of p(d)·table[d, e] − mu·cost[e].

    p(d) is a decision's probability of the domain d, the table says how good e is in d, and
    quality[e], cost[e] and mu stand in experts.toml. Where nothing was measured, the table has what
    experts.toml says of the experts that name a domain, 1 for the expert of the domain's name, or
    for the fallback if there is none, and else 0.

    names, quality: the experts that can be chosen, and domains × experts, quality[e] · table[d, e].
    """

    def __init__(
        self,
        experts: Experts,
        domains: Sequence[str],
        table: QualityTable | None = None,
    ) -> None:
        self._experts = experts
        self._servers = {domain: experts.servers(domain) for domain in domains}
        measured = experts.measured(table)
        self.is_measured = measured is not None
        if measured is not None:
            scored = measured.of_domains(domains)
            self.names = scored.experts
            self._known = scored.counts > 0
            quality = scored.expected
        else:
            self.names = tuple(
                name
                for name in experts.experts
                if any(name in servers for servers in self._servers.values())
            )
            served = np.array(
                [
                    [self._servers[domain].get(name, np.nan) for name in self.names]
                    for domain in domains
                ]
            )
            self._known = ~np.isnan(served)
            quality = np.where(self._known, served, 0.0)
        chosen = [experts.experts[name] for name in self.names]
        self._factors = np.array([expert.quality for expert in chosen])
        self.quality = quality * self._factors
        self._costs = experts.mu * np.array([expert.cost for expert in chosen])

    @classmethod
    def load(cls, path: str | Path, router: Router) -> ExpertChooser:
        """The one of a file, experts.toml, for a router; raises if a decision could find no
        expert.
        """
        experts, beside = read_experts(Path(path))
        experts.check(router, beside)
        return cls(experts, router.domains, beside or router.quality)

    def choose(self, decision: Decision) -> ExpertChoice | None:
        """The expert that is worth most; where the router abstained, the fallback, if one was
        named.

        Of equals that one is taken which was measured in the more probable domains, or serves them;
        then the expert of the domain that the router put first; then the first of the file. None if
        there is no expert, which `check` rules out for the release in use.
        """
        if decision.abstained:
            name = self._experts.fallback or decision.domain
            if name in self._experts.experts:
                return ExpertChoice(name, "abstained")
            if decision.domain is not None:
                return None
        if not self.names:
            return None
        chances = np.array(list(decision.scores.values()))[:, None]
        # Row by row, so that experts of the same qualities are worth the same bits.
        summed = np.add.reduce(chances * self.quality, 0)
        expected: list[float] = summed.tolist()
        worth: list[float] = (summed - self._costs).tolist()
        most = max(worth)
        equals = [index for index, value in enumerate(worth) if value == most]
        servers = self._servers[decision.best]
        if len(equals) > 1:
            known = np.add.reduce(chances * self._known, 0).tolist()
            index = max(
                equals, key=lambda index: (known[index], self.names[index] in servers)
            )
        else:
            [index] = equals
        name = self.names[index]
        if self.is_measured:
            reason: Reason = "quality" if expected[index] == max(expected) else "cost"
            factor = float(self._factors[index])
            return ExpertChoice(
                name, reason, expected[index] / factor if factor else None
            )
        if name not in servers or expected[index] < max(
            expected[self.names.index(server)] for server in servers
        ):
            return ExpertChoice(name, "cost")
        return ExpertChoice(
            name,
            (
                "missing"
                if decision.best not in self._experts.experts[name].serves(name)
                else "best"
            ),
        )

    def of_domain(self, domain: str) -> list[str]:
        """The experts that serve a domain, the worthiest first."""
        losses = {
            name: self._experts.mu * expert.cost - served[domain] * expert.quality
            for name, expert in self._experts.experts.items()
            if domain in (served := expert.serves(name))
        }
        return sorted(losses, key=losses.__getitem__)

    def peers(self, decision: Decision) -> list[str]:
        """The experts whose `domains` name the domain ahead, the worthiest first: any of them may
        answer in another's place.
        """
        known = self._experts.experts
        servers = self.of_domain(decision.best)
        return [name for name in servers if known[name].domains is not None]
