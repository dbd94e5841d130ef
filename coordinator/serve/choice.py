"""Which expert a decision leads to: the most probable, unless a better or cheaper one is worth more.

Knows decisions and experts. Pure: knows nothing of time, connections or whether an expert is up.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from common.router import Decision
from coordinator.serve.experts import Experts

Reason = Literal["best", "cost", "missing", "abstained", "down", "busy", "forced"]
"""Why an expert is asked. `missing`, `down` and `busy`: the fallback answers in another's place."""


class Choice(NamedTuple):
    expert: str
    reason: Reason


def choose(decision: Decision, experts: Experts) -> Choice | None:
    """The expert that is worth most by probability·quality − mu·cost; where the router abstained, the fallback.

    A domain without an expert is served by the fallback, at its quality and cost. Of equals the more probable domain
    is taken, then the one that the router put ahead, then the first. None if there is nobody, which `Experts.check`
    rules out for the release in use.
    """
    if decision.abstained:
        name = experts.fallback or decision.domain
        return Choice(name, "abstained") if name in experts.experts else None
    best: tuple[float, float, bool] | None = None
    chosen = ""
    for domain, probability in decision.scores.items():
        expert = experts.experts.get(_server(domain, experts))
        if expert is None:
            continue
        worth = (probability * expert.quality - experts.mu * expert.cost, probability, domain == decision.best)
        if best is None or worth > best:
            best, chosen = worth, domain
    if best is None:
        return None
    if chosen != decision.best:
        return Choice(_server(chosen, experts), "cost")
    return Choice(_server(chosen, experts), "best" if chosen in experts.experts else "missing")


def _server(domain: str, experts: Experts) -> str:
    """Who answers for a domain; an empty name if nobody does."""
    return domain if domain in experts.experts else experts.fallback or ""
