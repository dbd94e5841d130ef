"""The part `membership`: domains that join a federation one after another and leave it again, by `remove` and, beside
that, by `retire`: accuracy after every change, and what the change takes.

Rounds, `remove` and `retire` are production's. That they are exact to the byte is held by tests, not measured here.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ridgeway.client.round.holder import CARD
from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.protocol.invitation import Card, read_paper
from ridgeway.common.routing.evaluation import evaluate
from ridgeway.common.routing.router import router_of
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.membership import Change, remove, retire
from ridgeway.simulations.experiments import experiment_rounds as rounds
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.plan import ExperimentPlan, Tick
from ridgeway.simulations.experiments.report.report_tables import Column, Plot, ReportPart, Series, Table
from ridgeway.simulations.simulated_federation import SimulatedFederation, open_epochs

KEY = "membership"
TITLE = "Domains that join and leave"
SHORT_TRAIN_TEXTS, SHORT_TEST_TEXTS = 1500, 150
"""Of each domain, in a short run."""
FIRST_DOMAINS = 2
"""Domains at the start, and at the end: a router needs them."""
CODE = 3

METHOD = (
    f"A federation begins with {FIRST_DOMAINS} domains, the others join one by one, and then leave, the first to come "
    "first. It runs in the clear, for out of a masked total nobody can take one holder's sums; before a round all that "
    "are there open new epochs, for a holder counts for one router an epoch. `remove` subtracts a holder's sums from "
    "the total and solves anew; `retire`, tried in a copy of the federation, drops a column at once and keeps the text "
    "in the sums until the next round."
)


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """One change. Accuracies are in percent, over the test texts of the domains that are present; times in seconds.

    change:  start, join, leave.
    seconds: of the whole change, as production makes it: a round, or `remove`.
    retired: accuracy where every domain that left was retired instead. retire_seconds: of dropping the column.
    """

    change: str
    domain: str
    present: Sequence[str]
    accuracy: float
    seconds: float
    retired: float | None = None
    retire_seconds: float | None = None


def run(plan: ExperimentPlan) -> ReportPart:
    datasets = rounds.sampled(plan, SHORT_TRAIN_TEXTS, SHORT_TEST_TEXTS)
    usable = [each for each in datasets if len(each.domains) > FIRST_DOMAINS]
    found = {each.name: _changes(plan, each, plan.work / f"{KEY}-{each.name}") for each in usable}
    return ReportPart(
        key=KEY,
        title=TITLE,
        words=(METHOD,),
        tables=tuple(_table(name, changes) for name, changes in found.items()),
        plots=tuple(_plot(name, changes) for name, changes in found.items()),
        facts={"seed": plan.seed, "encoder": plan.encoder, "mode": "clear", "texts": rounds.text_counts(usable)},
        left_out=tuple(
            f"{each.name}: has {len(each.domains)} domains, and a router needs {FIRST_DOMAINS} when one has left"
            for each in datasets
            if each not in usable
        ),
    )


def _changes(plan: ExperimentPlan, dataset: Dataset, folder: Path) -> list[MembershipChange]:
    def make() -> list[dict[str, Any]]:
        steps = 1 + 2 * (len(dataset.domains) - FIRST_DOMAINS)
        with one_blas_thread(), plan.ticking(f"changes, {dataset.name}", steps) as tick:
            made = ChangingFederation(rounds.settled(plan, dataset, folder, "clear"), tick).changes(plan.seed)
        shutil.rmtree(folder, ignore_errors=True)
        return list(map(asdict, made))

    key = {**rounds.decided(plan, dataset), "code": CODE}
    return [MembershipChange(**each) for each in plan.cache.kept(KEY, key, make)]


class ChangingFederation:
    """One federation in the clear, a holder a domain."""

    def __init__(self, simulated: SimulatedFederation, tick: Tick) -> None:
        self._simulated, self._tick = simulated, tick
        self._federation = simulated.federation

    def changes(self, seed: int) -> list[MembershipChange]:
        """Every domain joins; then the first to come leaves first: by `remove`, and beside that by `retire`."""
        order = sorted(self._simulated.nodes)
        random.Random(f"{seed} join").shuffle(order)
        joined = self._joined(order)
        folder = self._simulated.folder / "retiring"
        shutil.copytree(self._federation.folder, folder, symlinks=True)
        return joined + self._left(order, Federation(folder, encoder=self._federation.encoder))

    def _joined(self, order: Sequence[str]) -> list[MembershipChange]:
        first, later = order[:FIRST_DOMAINS], order[FIRST_DOMAINS:]
        for name in later:  # not members yet
            retire(self._federation, name)
        made = [self._change("start", " and ".join(first), first, self._round(first))]
        for count, name in enumerate(later, start=FIRST_DOMAINS + 1):
            self._federation.ledger.admit(name, read_paper(self._simulated.nodes[name] / CARD, Card))
            made.append(self._change("join", name, order[:count], self._round(order[:count])))
        return made

    def _round(self, present: Iterable[str]) -> float:
        """A round with these holders there, each with a new epoch; raises if it makes no release."""
        there = replace(self._simulated, nodes={name: self._simulated.nodes[name] for name in sorted(present)})
        for _ in open_epochs(there):
            pass
        watched = rounds.watched_round(there)
        if watched.refused:
            raise RoundFailed(watched.refused)
        return watched.seconds

    def _left(self, order: Sequence[str], beside: Federation) -> list[MembershipChange]:
        made = []
        for count, name in enumerate(order[:-FIRST_DOMAINS], start=1):
            dropped = _timed(partial(retire, beside, name))
            seconds = _timed(partial(remove, self._federation, name))
            change = self._change("leave", name, order[count:], seconds)
            made.append(replace(change, retired=self._accuracy(beside), retire_seconds=dropped))
        return made

    def _change(self, change: str, domain: str, present: Sequence[str], seconds: float) -> MembershipChange:
        self._tick()
        return MembershipChange(change, domain, sorted(present), self._accuracy(self._federation), seconds)

    def _accuracy(self, federation: Federation) -> float:
        return evaluate(router_of(rounds.newest(federation)), self._simulated.tests).accuracy


def _timed(make: Callable[[], Change]) -> float:
    """How long a change takes that must end in a release."""
    started = time.monotonic()
    assert make().published is not None
    return time.monotonic() - started


# What is shown


def _table(name: str, changes: Sequence[MembershipChange]) -> Table:
    columns = (
        *(Column("change"), Column("domain"), Column("present", digits=0), Column("accuracy", "%", 2)),
        *(Column("time", "s", 2), Column("accuracy after retire", "%", 2), Column("time of retire", "s", 2)),
    )
    rows = tuple(
        (
            *(each.change, each.domain, len(each.present), each.accuracy, each.seconds),
            *(each.retired, each.retire_seconds),
        )
        for each in changes
    )
    note = (
        "Accuracy over the test texts of the domains present. Time: of a whole round, in which holders count for the "
        "router on their held-out text, or of `remove`. λ and selector are the same in all of them."
    )
    return Table(f"{KEY}-{name}", f"Joining and leaving, {name}", columns, rows, note)


def _plot(name: str, changes: Sequence[MembershipChange]) -> Plot:
    x = tuple(map(float, range(len(changes))))
    fullest = max(range(len(changes)), key=lambda place: len(changes[place].present))
    retired = tuple(each.accuracy if place == fullest else each.retired for place, each in enumerate(changes))
    series = (
        Series("joined, then removed", x, tuple(each.accuracy for each in changes)),
        Series("retired instead", x, retired),
    )
    note = f"Domains present, change by change: {', '.join(str(len(each.present)) for each in changes)}."
    title = f"Accuracy as domains join and leave, {name}"
    return Plot(f"{KEY}-steps-{name}", title, "change", "accuracy, %", series, note=note)
