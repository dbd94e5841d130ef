"""All routers on one setting, tried and timed: the figures that tables are made of.

Knows trials and times. Knows nothing of how figures are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import RidgewayError
from common.evaluation import Evaluation
from simulations.lab.plan import Plan
from simulations.lab.routers import ours
from simulations.lab.routers.registry import METHODS
from simulations.lab.routers.task import Method, Task, task_of
from simulations.lab.routers.timing import PASSES, milliseconds
from simulations.lab.routers.trying import Outcome, among, evaluation, tried
from simulations.lab.setting import Setting

TIMING = 2
"""Counted up when times would change."""


@dataclass(frozen=True, slots=True)
class Row:
    """A router's figures.

    shown: on the texts that all were compared on. whole: on all test texts, where it was given them.
    """

    method: Method
    name: str
    variant: str
    note: str
    shown: Evaluation
    whole: Evaluation | None
    seconds: float
    milliseconds: float | None
    machine: str


@dataclass(frozen=True, slots=True)
class Compared:
    """All routers on one setting."""

    setting: Setting
    task: Task
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]

    def of(self, key: str) -> list[Row]:
        return [row for row in self.rows if row.method.key == key]

    @property
    def ours(self) -> Row:
        return self.of(ours.KEY)[0]


def compare(plan: Plan, setting: Setting) -> Compared:
    """Try every router; one that cannot be had is left out, unless it is our own."""
    outcomes: dict[str, Outcome] = {}
    left_out = []
    with plan.ticking(f"routers on {setting.name}", len(METHODS)) as tick:
        for key, method in METHODS.items():
            try:
                outcomes[key] = tried(plan, setting, method)
            except RidgewayError as error:
                if key == ours.KEY:
                    raise
                left_out.append(f"{key} on {setting.name}: {error}")
            tick()
    task = task_of(plan, setting, plan.work / f"{setting.name}-times")
    times = _times(plan, task, outcomes)
    rows = [row for key, outcome in outcomes.items() for row in _rows(task, METHODS[key], outcome, times)]
    return Compared(setting, task, tuple(rows), tuple(left_out))


def _times(plan: Plan, task: Task, outcomes: Mapping[str, Outcome]) -> list[tuple[Any, float | None]]:
    """Each shape of a router with its milliseconds for one prompt, all measured in one go."""
    shapes = unlike([row["shape"] for outcome in outcomes.values() for row in outcome["rows"]])
    key = {
        "setting": task.setting.digest,
        "encoder": plan.encoder,
        "full": plan.full,
        "seed": plan.seed,
        "code": TIMING,
    }

    def make() -> list[float | None]:
        with plan.ticking(f"time for a prompt of {task.setting.name}", PASSES) as tick:
            return milliseconds(task, shapes, tick)

    return list(zip(shapes, plan.shelf.kept("router-times", {**key, "shapes": shapes}, make), strict=True))


def unlike(values: Sequence[Any]) -> list[Any]:
    """Each value once, in its order."""
    return [value for place, value in enumerate(values) if value not in values[:place]]


def _rows(task: Task, method: Method, outcome: Outcome, times: Sequence[tuple[Any, float | None]]) -> Iterator[Row]:
    for row in outcome["rows"]:
        routed = row["routed"]
        whole = evaluation(task.domains, routed) if outcome["tested"] == "all" else None
        yield Row(
            method=method,
            name=row["name"],
            variant=row["variant"],
            note=row["note"],
            shown=evaluation(task.domains, _shown(task, routed) if whole else routed),
            whole=whole,
            seconds=outcome["seconds"],
            milliseconds=next(time for shape, time in times if shape == row["shape"]),
            machine=outcome["machine"],
        )


def _shown(task: Task, routed: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Of what was done with all test texts, that with the ones that are shown."""
    places = {name: among(task.setting.test[name], task.shown[name]) for name in task.domains}
    return {name: [routed[name][place] for place in places[name]] for name in task.domains}
