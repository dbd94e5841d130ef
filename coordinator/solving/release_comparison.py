"""Whether a new router does worse than the last release, by more than chance explains.

Both have routed the same held-out documents, so only those matter on which they differ: if neither
is better, each of these is as likely lost as won (McNemar's exact test, one-sided). Masks hide a
false sum, but not what it does to a router.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIGNIFICANCE = 1e-3
"""How often, at most, a round in which no domain got worse is called worse in any: it is shared
among the domains.
"""
LEAST_LOSS = 0.02
"""A smaller share of a domain's documents is not called worse, however sure it is."""


@dataclass(frozen=True, slots=True)
class DomainChange:
    """lost, won: how many of a domain's documents only the last release, and only the new router,
    routed rightly.
    """

    domain: str
    lost: int
    won: int
    documents: int


def worse(changes: Sequence[DomainChange]) -> list[DomainChange]:
    """The domains that got worse."""
    # the binomial distribution, without the second that scipy.stats takes to import
    from scipy.special import bdtrc

    return [
        change
        for change in changes
        if change.lost - change.won >= max(1, LEAST_LOSS * change.documents)
        and bdtrc(change.lost - 1, change.lost + change.won, 0.5)
        < SIGNIFICANCE / len(changes)
    ]
