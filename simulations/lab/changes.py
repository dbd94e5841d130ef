"""Domains that join a federation one after another and leave it again: what every change makes and what it costs.

    rounds, remove and retire as production makes them  ·  a running total by + and −  ·  routers made anew

Compares their bytes. Knows nothing of tables or words.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from client.setup import CARD
from common.errors import RoundFailed
from common.evaluation import evaluate
from common.files import sha256
from common.invite import Card, read_paper
from common.release import ROUTER, load_release
from coordinator.federation import Federation
from coordinator.ledger import Published
from coordinator.membership import Change, remove, retire
from simulations.lab.plan import Tick
from simulations.lab.ready import Ready, choices_of, words_of
from simulations.lab.rounds import mixed, own_sums, sums_digest, watched_round
from simulations.layout import Village

FIRST = 2
"""So many domains are there at the start, and are left at the end: a router needs them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change. Accuracies are in percent, over the test texts of the domains that are present; times in seconds.

    change:  start, join, leave.
    seconds: of the whole change, as production makes it: a round, or `remove`.
    sums:    of the same out of sums that lie ready: add or subtract, solve, compile, sign.
    total, router: SHA-256 of the sums and of the router's file.
    chosen:  the selector and λ of the release.
    equal:   whether both are, byte for byte, those made anew from the sums of those present.
    retired: accuracy where everybody who left was retired and nobody removed. retire_seconds: of dropping the column.
    """

    change: str
    domain: str
    present: Sequence[str]
    accuracy: float
    seconds: float
    sums: float
    total: str
    router: str
    chosen: str
    equal: bool
    retired: float | None = None
    retire_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """The domains added in some order. equal: to what the joins came to, byte for byte."""

    domains: Sequence[str]
    total: str
    router: str
    equal: bool


@dataclass(frozen=True, slots=True)
class Later:
    """A round after the retirements. equal: to a router made anew. as_before: to that of the last join."""

    what: str
    present: Sequence[str]
    accuracy: float
    seconds: float
    chosen: str
    equal: bool
    as_before: bool


def steps_in(domains: int) -> int:
    """How often a story ticks."""
    return 1 + 2 * (domains - FIRST)


class Story:
    """One federation in the clear, a holder a domain, all of them settled and their text summed."""

    def __init__(self, village: Village, seed: int, tick: Tick) -> None:
        self._village, self._seed, self._tick = village, seed, tick
        self._federation = village.federation
        own = {name: own_sums(village, name) for name in village.nodes}
        self._all = tuple(sorted(own))
        self._ready = Ready(self._federation, own, village.folder / "ready")

    def tell(self, orders: int) -> dict[str, Any]:
        """Everybody joins; then who came first leaves first: by `remove`, and beside that by `retire`."""
        joining = mixed(self._all, self._seed, "join")
        leaving = joining[:-FIRST]
        steps = self._joined(joining)
        fullest = _newest(self._federation)
        beside = self._copy()
        steps += self._left(leaving, beside)
        later = self._afterwards(leaving, beside, fullest)
        tried = self._orders(orders, fullest)
        return {name: list(map(asdict, each)) for name, each in (("steps", steps), ("orders", tried), ("later", later))}

    # Joining

    def _joined(self, joining: Sequence[str]) -> list[Step]:
        for name in joining[FIRST:]:  # those who come later are not members yet
            retire(self._federation, name)
        seconds = self._round(self._federation, joining[:FIRST])
        steps = [self._step("start", " and ".join(joining[:FIRST]), joining[:FIRST], seconds)]
        for count, name in enumerate(joining[FIRST:], start=FIRST + 1):
            self._admit(self._federation, name)
            seconds = self._round(self._federation, joining[:count])
            steps.append(self._step("join", name, joining[:count], seconds))
        return steps

    def _admit(self, federation: Federation, name: str) -> None:
        federation.ledger.admit(name, read_paper(self._village.nodes[name] / CARD, Card), weight=1)

    def _round(self, federation: Federation, present: Iterable[str]) -> float:
        """A round with these holders there; raises if it makes no release."""
        nodes = {name: self._village.nodes[name] for name in sorted(present)}
        watched = watched_round(replace(self._village, federation=federation, nodes=nodes))
        if watched.refused:
            raise RoundFailed(watched.refused)
        return watched.seconds

    # Leaving

    def _left(self, leaving: Sequence[str], beside: Federation) -> list[Step]:
        steps = []
        for count, name in enumerate(leaving, start=1):
            present = sorted(set(self._all) - set(leaving[:count]))
            dropped = _timed(partial(retire, beside, name))
            seconds = _timed(partial(remove, self._federation, name))
            step = self._step("leave", name, present, seconds)
            steps.append(replace(step, retired=self._accuracy(beside), retire_seconds=dropped))
        return steps

    def _copy(self) -> Federation:
        folder = self._village.folder / "retiring"
        shutil.copytree(self._federation.folder, folder, symlinks=True)
        return Federation(folder, encoder=self._federation.encoder)

    def _afterwards(self, leaving: Sequence[str], beside: Federation, fullest: Published) -> list[Later]:
        """Rounds where domains were retired: the next one is without their text, and they may come back."""
        left = sorted(set(self._all) - set(leaving))
        later = [self._later("the next round after retiring", left, beside, fullest)]
        for name in leaving:
            self._admit(beside, name)
        return [*later, self._later("a round after all were admitted again", self._all, beside, fullest)]

    def _later(self, what: str, present: Sequence[str], beside: Federation, fullest: Published) -> Later:
        seconds = self._round(beside, present)
        newest = _newest(beside)
        router = _router(beside, newest)
        choices = choices_of(beside, newest)
        equal = router == self._ready.anew(present, choices).router
        as_before = router == _router(self._federation, fullest)
        return Later(what, present, self._accuracy(beside), seconds, words_of(choices), equal, as_before)

    # Comparing

    def _step(self, change: str, domain: str, present: Sequence[str], seconds: float) -> Step:
        """What production has just made, beside the running total and what is made anew."""
        newest = _newest(self._federation)
        choices = choices_of(self._federation, newest)
        running, anew = self._ready.change_to(present, choices), self._ready.anew(present, choices)
        router = _router(self._federation, newest)
        self._tick()
        return Step(
            change=change,
            domain=domain,
            present=sorted(present),
            accuracy=self._accuracy(self._federation),
            seconds=seconds,
            sums=running.seconds,
            total=sums_digest(running.statistics),
            router=sha256(router),
            chosen=words_of(choices),
            equal=running.equals(anew) and router == anew.router,
        )

    def _accuracy(self, federation: Federation) -> float:
        folder = federation.release_folder(_newest(federation).number)
        return evaluate(load_release(folder, key=federation.identity.public).router, self._village.tests).accuracy

    def _orders(self, orders: int, fullest: Published) -> list[Order]:
        choices, router = choices_of(self._federation, fullest), _router(self._federation, fullest)
        anew = self._ready.anew(self._all, choices)
        found = []
        for place in range(orders):
            order = mixed(self._all, self._seed, f"order {place}")
            made = self._ready.in_order(order, choices)
            equal = made.equals(anew) and made.router == router
            found.append(Order(order, sums_digest(made.statistics), sha256(made.router), equal))
        return found


def _newest(federation: Federation) -> Published:
    newest = federation.newest
    assert newest is not None
    return newest


def _router(federation: Federation, published: Published) -> bytes:
    return (federation.release_folder(published.number) / ROUTER).read_bytes()


def _timed(make: Callable[[], Change]) -> float:
    """How long a change takes that must end in a release."""
    started = time.monotonic()
    assert make().published is not None
    return time.monotonic() - started
