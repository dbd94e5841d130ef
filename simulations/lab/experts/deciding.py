"""Where every router sends the test texts that experts were scored on.

Takes outcomes of trials, which are kept on the shelf. Knows nothing of experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import RidgewayError
from simulations.lab.plan import Plan
from simulations.lab.routers.registry import method
from simulations.lab.routers.task import task_of
from simulations.lab.routers.trying import Outcome, among, tried
from simulations.lab.setting import Setting, Texts

Decisions = Mapping[str, Sequence[int]]
"""By domain, for each test text the place of the domain it is sent to."""


@dataclass(frozen=True, slots=True)
class Decided:
    """by_router: in the order of a table. left_out: routers that could not be tried, and why."""

    by_router: Mapping[str, Decisions] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def decided(plan: Plan, setting: Setting, tests: Texts, keys: Sequence[str]) -> Decided:
    """tests: some of the test texts that routers are shown, in their order."""
    found: dict[str, Decisions] = {}
    missing: list[str] = []
    with plan.ticking("routing", len(keys)) as tick:
        for key in keys:
            try:
                found |= of_outcome(tried(plan, setting, method(key)), _shown(plan, setting), setting.test, tests)
            except RidgewayError as error:
                missing.append(f"{method(key).made_of} in {setting.name}: {error}")
            tick()
    return Decided(found, tuple(missing))


def of_outcome(outcome: Outcome, shown: Texts, whole: Texts, tests: Texts) -> dict[str, Decisions]:
    """The decisions of each row of an outcome on some of the texts that it was tested on."""
    there = whole if outcome["tested"] == "all" else shown
    places = {name: among(there[name], own) for name, own in tests.items()}
    return {
        row["name"]: {name: [row["routed"][name][place] for place in own] for name, own in places.items()}
        for row in outcome["rows"]
    }


def _shown(plan: Plan, setting: Setting) -> Texts:
    return task_of(plan, setting, plan.work).shown
