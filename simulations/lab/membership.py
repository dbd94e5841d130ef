"""Accuracy as domains join and leave one after another, what each change costs, and whether it is exact to the byte.

Knows what the changes came to. Knows nothing of how they are made, nor of how findings are shown.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.candidates import Grid
from simulations.lab.changes import FIRST, Later, Order, Step, Story, steps_in
from simulations.lab.findings import Column, Part, Plot, Series, Table
from simulations.lab.plan import Plan
from simulations.lab.rounds import decided, one_thread, settled, short
from simulations.lab.setting import Setting

KEY = "membership"
TITLE = "Domains that join and leave"
SHORT_TRAIN, SHORT_TEST = 1500, 150
"""Of each domain's texts, in a short run."""
SHORT_ORDERS, FULL_ORDERS = 3, 20
CODE = 1
"""Raised when the same key on the shelf would now hold something else."""


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one setting."""

    name: str
    steps: tuple[Step, ...]
    orders: tuple[Order, ...]
    later: tuple[Later, ...]

    @property
    def joins(self) -> list[Step]:
        return [step for step in self.steps if step.change == "join"]

    @property
    def leaves(self) -> list[Step]:
        return [step for step in self.steps if step.change == "leave"]


def run(plan: Plan) -> Part:
    settings = {place: _sampled(plan, setting) for place, setting in enumerate(plan.settings)}
    usable = {place: setting for place, setting in settings.items() if len(setting.domains) > FIRST}
    found = [_found(plan, setting, plan.work / f"{KEY}-{place}") for place, setting in usable.items()]
    return Part(
        key=KEY,
        title=TITLE,
        words=tuple(words for each in found for words in described(each)),
        tables=tuple(table for each in found for table in _tables(each)),
        plots=tuple(_plot(each) for each in found),
        facts=_facts(plan, list(usable.values())),
        left_out=tuple(
            f"{setting.name}: has {len(setting.domains)} domains, and a router needs {FIRST} when one has left"
            for place, setting in settings.items()
            if place not in usable
        ),
    )


def _facts(plan: Plan, settings: Sequence[Setting]) -> dict[str, Any]:
    texts = {each.name: {name: len(own) for name, own in each.train.items()} for each in settings}
    return {"seed": plan.seed, "encoder": plan.encoder, "mode": "clear", "texts": texts}


def _sampled(plan: Plan, setting: Setting) -> Setting:
    return setting if plan.full else setting.sampled(plan.seed, train=SHORT_TRAIN, test=SHORT_TEST)


def _found(plan: Plan, setting: Setting, folder: Path) -> Found:
    orders = FULL_ORDERS if plan.full else SHORT_ORDERS
    key = {**decided(plan, setting), "orders": orders, "code": CODE}
    told: Mapping[str, Any] = plan.shelf.kept(KEY, key, partial(_told, plan, setting, folder, orders))
    return Found(
        setting.name,
        tuple(Step(**each) for each in told["steps"]),
        tuple(Order(**each) for each in told["orders"]),
        tuple(Later(**each) for each in told["later"]),
    )


def _told(plan: Plan, setting: Setting, folder: Path, orders: int) -> dict[str, Any]:
    with one_thread(), plan.ticking(f"changes, {setting.name}", steps_in(len(setting.domains))) as tick:
        told = Story(settled(plan, setting, folder, "clear"), plan.seed, tick).tell(orders)
    shutil.rmtree(folder, ignore_errors=True)
    return told


# Tables and plots


def _tables(found: Found) -> Iterator[Table]:
    yield _changes(found)
    yield _leaving(found)
    yield _later(found)
    yield _orders(found)


def _changes(found: Found) -> Table:
    columns = (
        Column("change"),
        Column("domain"),
        Column("present", digits=0),
        Column("accuracy", "%"),
        Column("whole change", "s", 2),
        Column("sums to release", "s", 2),
        Column("chosen"),
        Column("SHA-256 of the total"),
        Column("SHA-256 of the router"),
        Column("equal to one built anew"),
    )
    rows = tuple(
        (
            *(step.change, step.domain, len(step.present), step.accuracy, step.seconds, step.sums),
            *(step.chosen, short(step.total), short(step.router), _yes(step.equal)),
        )
        for step in found.steps
    )
    note = (
        "Accuracy over the test texts of the domains present. Whole change: a round, in which holders evaluate "
        f"{len(Grid().candidates())} candidates, or `remove`. Sums to release: add or subtract, solve, compile and "
        "sign, from sums that lie ready. Equal: the total kept by adding and subtracting, its router, and that of the "
        "round or of `remove` are, byte for byte, what the statistics of those present give, nothing of an earlier "
        "total in it."
    )
    return Table(f"{KEY}-{found.name}", f"Joining and leaving, {found.name}", columns, rows, note)


def _leaving(found: Found) -> Table:
    columns = (
        Column("leaves"),
        Column("present", digits=0),
        Column("after remove", "%", 2, "more"),
        Column("after retire", "%", 2, "more"),
        Column("difference", "points", 2),
        Column("remove", "s", 2, "less"),
        Column("retire", "s", 2, "less"),
    )
    rows = tuple(
        (
            *(step.domain, len(step.present), step.accuracy, step.retired, _gap(step)),
            *(step.seconds, step.retire_seconds),
        )
        for step in found.leaves
    )
    note = "Whoever left before was removed in the one federation, and only retired in the other."
    return Table(f"{KEY}-leaving-{found.name}", f"Remove against retire, {found.name}", columns, rows, note)


def _later(found: Found) -> Table:
    columns = (
        Column("after the retirements"),
        Column("present", digits=0),
        Column("accuracy", "%"),
        Column("time", "s", 2),
        Column("chosen"),
        Column("equal to one built anew"),
        Column("equal to the router of the last join"),
    )
    rows = tuple(
        (each.what, len(each.present), each.accuracy, each.seconds, each.chosen, _yes(each.equal), _yes(each.as_before))
        for each in found.later
    )
    note = (
        "A round chooses λ and selector anew, by the holders' held-out text; `retire` and `remove` keep those of the "
        "release before."
    )
    return Table(f"{KEY}-later-{found.name}", f"Rounds after retiring, {found.name}", columns, rows, note)


def _orders(found: Found) -> Table:
    columns = (
        Column("order of joining"),
        Column("SHA-256 of the total"),
        Column("SHA-256 of the router"),
        Column("equal to the joins above"),
    )
    rows = tuple(
        (", ".join(each.domains), short(each.total), short(each.router), _yes(each.equal)) for each in found.orders
    )
    return Table(f"{KEY}-orders-{found.name}", f"Other orders, {found.name}", columns, rows)


def _plot(found: Found) -> Plot:
    x = tuple(float(place) for place, _ in enumerate(found.steps))
    joined = len(found.steps) - len(found.leaves)
    dropped = tuple(
        step.accuracy if place == joined - 1 else step.retired if place >= joined else None
        for place, step in enumerate(found.steps)
    )
    series = (
        Series("joined, then removed", x, tuple(step.accuracy for step in found.steps)),
        Series("retired instead", x, dropped),
    )
    title = f"Accuracy as domains join and leave, {found.name}"
    counts = ", ".join(str(len(step.present)) for step in found.steps)
    note = f"Domains present, change by change: {counts}."
    return Plot(f"{KEY}-steps-{found.name}", title, "change", "accuracy, %", series, note=note)


def _gap(step: Step) -> float:
    """From the removed router's accuracy to the retired one's, without what floating point adds."""
    assert step.retired is not None
    return round(step.retired - step.accuracy, 9) + 0.0


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# Words


def described(found: Found) -> Iterator[str]:
    first, fullest = found.steps[0], max(found.steps, key=lambda step: len(step.present))
    accuracies = [step.accuracy for step in found.steps]
    yield (
        f"{found.name}: accuracy on the domains present is {first.accuracy:.1f} % with {len(first.present)}, "
        f"{fullest.accuracy:.1f} % with all {len(fullest.present)}, and lies between {min(accuracies):.1f} and "
        f"{max(accuracies):.1f} %."
    )
    yield _exactness(found)
    yield _difference(found)
    yield _times(found)
    yield (
        f"The federation begins with {len(first.present)} domains, the others join one by one until there are "
        f"{len(fullest.present)}, and then leave, the first to come first, until {FIRST} are left. It runs in the "
        "clear, for out of a masked total nobody can take one holder's sums; every holder sums its text once."
    )


def _exactness(found: Found) -> str:
    steps, orders = (sum(each.equal for each in some) for some in (found.steps, found.orders))
    back = [each for each in found.later if each.as_before]
    words = (
        f"After {steps} of {len(found.steps)} changes, the total and the router are byte for byte those built anew "
        f"from the domains present; {orders} of {len(found.orders)} other orders of joining give the same bytes."
    )
    if back:
        words += " When all who were retired are admitted again, the next round gives the router they left behind."
    return words


def _difference(found: Found) -> str:
    changes = [_gap(step) for step in found.leaves]
    words = "`retire` drops a column at once and keeps the text of whoever left in the sums; `remove` subtracts it. "
    if not any(changes):
        words += f"After each of {len(changes)} departures both routers are right equally often."
    else:
        average = sum(changes) / len(changes)
        words += f"Over {len(changes)} departures the retired router's accuracy is {average:+.2f} points from the "
        words += f"other's on average, from {min(changes):+.2f} to {max(changes):+.2f}."
    if found.later[0].equal:
        words += " The next round after retiring takes the text out, to the last bit, and chooses λ and selector anew."
    return words


def _times(found: Found) -> str:
    def average(values: Sequence[float | None]) -> float:
        known = [value for value in values if value is not None]
        return sum(known) / len(known)

    joins, leaves = found.joins, found.leaves
    return (
        f"On average a join takes {average([step.seconds for step in joins]):.2f} s as a whole round, with all "
        f"holders' evaluation, and {average([step.sums for step in joins]):.2f} s from sums that lie ready to the "
        f"signed release; `remove` takes {average([step.seconds for step in leaves]):.2f} s and `retire` "
        f"{average([step.retire_seconds for step in leaves]):.2f} s."
    )
