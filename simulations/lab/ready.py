"""Sums that lie ready, one domain's each: a running total changed by + and −, and routers made of it, or anew.

Solves, compiles and signs with the coordinator's own code. Knows nothing of rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from common.release import ROUTER, load_release
from common.router import Confidence
from common.settings import Ridge, Selector
from common.statistics import Statistics
from common.statistics_file import Prepared
from coordinator.federation import Federation
from coordinator.ledger import Published
from coordinator.publish import Choices, compose, publish, sign
from coordinator.solve import solve
from coordinator.total import total_of


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Made:
    """A total and the file of the router that came of it; seconds from sums that lie ready to the signed release."""

    statistics: Statistics
    router: bytes
    seconds: float

    def equals(self, other: Made) -> bool:
        """Byte for byte, times apart."""
        return self.statistics.equals(other.statistics) and self.router == other.router


def choices_of(federation: Federation, published: Published) -> Choices:
    """What was chosen for a release, as its manifest says."""
    manifest = load_release(federation.release_folder(published.number), key=federation.identity.public).manifest
    return Choices(
        weighting=manifest["weighting"],
        ridge=Ridge(**manifest["ridge"]),
        normalise_columns=manifest["normalise_columns"],
        selector=Selector(**manifest["selector"]),
        confidence=Confidence(**manifest["confidence"]),
    )


def words_of(choices: Choices) -> str:
    """`average, λ 0.001`, as it stands in a table."""
    voters = f" of {choices.selector.k}" if choices.selector.name == "entropy" else ""
    columns = ", columns normalised" if choices.normalise_columns else ""
    return f"{choices.selector.name}{voters}, λ {choices.ridge.value:g}{columns}"


class Ready:
    """The running total, and a folder for releases that nobody gets.

    own: every domain's raw sums, by domain.
    """

    def __init__(self, federation: Federation, own: Mapping[str, Prepared], folder: Path) -> None:
        self._federation, self._own, self._folder = federation, own, folder
        self._terms = federation.terms
        self._domains = tuple(sorted(own))
        self._placed = {name: self._weighted(name) for name in self._domains}
        self._sums = reduce(add, self._placed.values()) - reduce(add, self._placed.values())
        self._present: set[str] = set()

    def _weighted(self, name: str) -> Statistics:
        raw, mass = self._own[name].statistics, self._terms.mass
        weighted = raw.weighted(mass) if mass else raw
        return weighted.placed(self._domains.index(name), len(self._domains))

    def change_to(self, present: Iterable[str], choices: Choices) -> Made:
        """Add whoever came, subtract whoever left, and make a router of what is then there."""
        started, wanted = time.monotonic(), set(present)
        for name in sorted(wanted - self._present):
            self._sums = self._sums + self._placed[name]
        for name in sorted(self._present - wanted):
            self._sums = self._sums - self._placed[name]
        self._present = wanted
        return self._made(self._sums, sorted(wanted), choices, started)

    def in_order(self, order: Sequence[str], choices: Choices) -> Made:
        """The domains added up in this order, beside the running total."""
        started = time.monotonic()
        return self._made(reduce(add, (self._placed[name] for name in order)), sorted(order), choices, started)

    def anew(self, present: Sequence[str], choices: Choices) -> Made:
        """As from files of statistics, in the order given: nothing of any earlier total is in it."""
        started = time.monotonic()
        encoder, identity = self._federation.encoder, self._federation.identity
        made = publish([self._own[name] for name in present], encoder, choices, identity, self._folder)
        return Made(made.total.statistics, self._router(), time.monotonic() - started)

    def _made(self, sums: Statistics, domains: Sequence[str], choices: Choices, started: float) -> Made:
        places = [self._domains.index(name) for name in domains]
        statistics = Statistics(sums.gram, np.ascontiguousarray(sums.cross[:, places]))
        holdout = {name: [self._own[name].holdout] for name in domains}
        total = total_of(tuple(domains), statistics, self._terms, len(domains), holdout)
        encoder = self._federation.encoder
        draft = compose(total, encoder, choices, solve(statistics, encoder.scale, choices.ridge))
        sign(draft, self._federation.identity, self._folder)
        return Made(statistics, self._router(), time.monotonic() - started)

    def _router(self) -> bytes:
        return (self._folder / ROUTER).read_bytes()
