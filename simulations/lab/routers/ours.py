"""Our router as it comes: a masked round of a simulated federation with one holder a domain, all settings at their
defaults, and the release that comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from common.router import Router
from common.settings import DEFAULT
from simulations import corpora
from simulations.lab.routers.tables import table_shape
from simulations.lab.routers.task import Line, Method, Places, Task, Trained, Variant

if TYPE_CHECKING:
    from common.cohort import Mode

KEY = "ridgeway"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Released(Trained):
    """A release's router. places: where each of its domains stands among the setting's."""

    router: Router
    places: Mapping[str, int]

    def routed(self, prompts: Sequence[str]) -> Iterator[Places]:
        decisions = self.router.route_many(prompts)
        yield np.array([self.places[decision.best] for decision in decisions], dtype=np.int64)


def _fit(task: Task) -> Trained:
    from common.masking.agreement import SMALLEST_COHORT
    from simulations.simulate import simulate

    data, release = task.work / "data", task.work / "release"
    corpora.write(task.setting.corpora, data)
    mode: Mode = "masked" if len(task.domains) >= SMALLEST_COHORT else "clear"
    done = simulate(task.work / "federation", _unseen, data=data, out=release, encoder=task.encoder, mode=mode)
    router = Router.load(release)
    selector, ridge = router.selector, done.manifest["ridge"]
    chosen = f"λ = {ridge['value']:g}, selector {selector.name}"
    return Released(
        variants=[Variant("ours", chosen, table_shape(selector))],
        note=f"{mode} round of {done.holders} holders; chosen by them on held-out text: {chosen}",
        aside=done.timings["evaluation"],
        router=router,
        places={name: place for place, name in enumerate(task.domains)},
    )


def _unseen(event: str, facts: Mapping[str, Any]) -> None:
    """A watch that does not look."""


OURS = Method(
    KEY,
    "windows of embeddings, ridge regression",
    _fit,
    {"ours": Line(chosen="Ridgeway (ours)")},
    gathers=False,
    decides=repr(DEFAULT),
)
