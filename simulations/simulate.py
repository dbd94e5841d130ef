"""A whole federation on one machine: corpora, holders, a round, a release, and how well it routes
test texts.

Runs the same client and coordinator as a deployment.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeway.client.sums.ray_engine import check_ray
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import whole_folder, without_syncing
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.routing.evaluation import Evaluation, evaluate
from ridgeway.common.routing.release import load_release, refuse_foreign
from ridgeway.common.routing.router import router_of
from ridgeway.coordinator.round.federation import Abstention
from ridgeway.coordinator.round.progress import Event, Watch
from ridgeway.simulations import engines
from ridgeway.simulations.corpora import EVERYDAY, VISITORS_PROMPTS, read_corpora
from ridgeway.simulations.engines import STAGES, UNMASKED_STAGES, choose_dropouts
from ridgeway.simulations.simulated_federation import (
    create_simulated_federation,
    open_epochs,
)

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


class FederationSettled(Event, kind="settled"):
    """The holders are there, each with its number of documents; `away` are those that take no
    part.
    """

    holders: Mapping[str, int]
    away: Sequence[str]


class EpochOpened(Event, kind="epoch_opened"):
    """A holder's owner has opened an epoch: its corpus is summed, and stands ready.

    opened: of how many that is true by now. holders: of how many it will be.
    """

    name: str
    opened: int
    holders: int


class DropoutsChosen(Event, kind="falling"):
    """The holders that will fall away, and at which stage of the round."""

    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation came to. Timings are in seconds."""

    release: str
    evaluation: Evaluation
    holders: int
    absent: tuple[str, ...]
    fallen: tuple[str, ...]
    mode: str
    engine: str
    timings: Mapping[str, float]
    manifest: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        named = "release", "holders", "absent", "fallen", "mode", "engine"
        return {
            **self.evaluation.to_json(),
            **{name: getattr(self, name) for name in named},
            "timings": {
                name: round(seconds, 3) for name, seconds in self.timings.items()
            },
            "held_out": self.manifest["evaluation"],
        }


def simulate(
    work: Path,
    watch: Watch,
    *,
    data: Path | None = None,
    holders: int | None = None,
    engine: str = "memory",
    drop: Sequence[str] = (),
    drop_rate: float = 0.0,
    out: Path | None = None,
    encoder: str = DEFAULT.encoder,
    mode: Mode = "masked",
    app: ClientApp | None = None,
    prior: Path | None = None,
    **settings: Any,
) -> Simulated:
    """Run one round of a federation that is made in the folder `work`; the release is copied to
    `out`.

    drop: holders that are not there at all. drop_rate: the part of the others that fall away in the
          middle.
    app:  in place of the holders' own, on the memory engine.
    settings: others of coordinator.toml.
    """
    if engine not in ("memory", "flower"):
        raise InputError(f"there is no engine {engine!r}; there are memory and flower")
    if engine == "flower":
        check_ray()
    if out is not None:
        refuse_foreign(out)
    clock = _Clock()
    corpora = read_corpora(data, holders or 0)
    clock.note("corpora")
    with without_syncing():
        simulated = create_simulated_federation(
            work,
            corpora,
            holders=holders,
            drop=drop,
            encoder=encoder,
            mode=mode,
            prior=prior,
            abstention=Abstention(outside=() if data else (EVERYDAY,)),
            examples=() if data else VISITORS_PROMPTS,
            **settings,
        )
        stages = STAGES if simulated.federation.terms.uses_masks else UNMASKED_STAGES
        dropouts = choose_dropouts(list(simulated.nodes), drop_rate, stages=stages)
        watch(
            FederationSettled(
                dict(simulated.sizes),
                sorted(set(simulated.sizes) - set(simulated.nodes)),
            )
        )
        watch(
            DropoutsChosen(
                {name: stages[answers] for name, answers in dropouts.items()}
            )
        )
        clock.note("set_up")
        for opened, name in enumerate(open_epochs(simulated), start=1):
            watch(EpochOpened(name, opened, len(simulated.nodes)))
        clock.note("summing")
        if engine == "memory":
            engines.run_in_memory(simulated, watch, dropouts, app)
        else:
            engines.run_on_flower(simulated, watch, dropouts)
        clock.note("round")
    folder = simulated.newest_release
    loaded = load_release(folder, key=simulated.federation.identity.public)
    router = router_of(loaded)
    evaluation = evaluate(
        router, {name: simulated.tests[name] for name in router.domains}
    )
    clock.note("evaluation")
    if out is not None:
        _copy(folder, out)
    return Simulated(
        release=loaded.id,
        evaluation=evaluation,
        holders=len(simulated.nodes),
        absent=tuple(sorted(drop)),
        fallen=tuple(sorted(dropouts)),
        mode=mode,
        engine=engine,
        timings=clock.laps,
        manifest=loaded.manifest,
    )


def _copy(folder: Path, out: Path) -> None:
    with whole_folder(out) as draft:
        for path in folder.iterdir():
            shutil.copyfile(path, draft / path.name)


class _Clock:
    """Laps by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def note(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now
