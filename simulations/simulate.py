"""A whole federation on one machine: corpora, holders, a round, a release, and how well it routes test texts.

Runs the same client and coordinator as a deployment. Knows nothing of how results are shown.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.cohort import Mode
from common.errors import InputError
from common.evaluation import Evaluation, evaluate
from common.files import whole_folder, write_whole
from common.release import load_release, refuse_foreign
from coordinator.leverage import companion
from coordinator.talk import Watch
from simulations import engines, layout
from simulations.falling import choose_falls
from simulations.reading import read_corpora


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
        return {
            **self.evaluation.to_json(),
            "release": self.release,
            "holders": self.holders,
            "absent": list(self.absent),
            "fallen": list(self.fallen),
            "mode": self.mode,
            "engine": self.engine,
            "timings": {name: round(seconds, 3) for name, seconds in self.timings.items()},
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
    encoder: str = "smollm2",
    mode: Mode = "masked",
) -> Simulated:
    """Run one round of a federation that is made in the folder `work`; the release is copied to `out`.

    drop: holders that are not there at all. drop_rate: the part of the others that fall away in the middle.
    """
    if engine not in ("memory", "flower"):
        raise InputError(f"there is no engine {engine!r}; there are memory and flower")
    if out is not None:
        refuse_foreign(out)
    clock = _Clock()
    found = read_corpora(data)
    clock.note("corpora")
    village = layout.settle(work, found, holders=holders, drop=drop, encoder=encoder, mode=mode)
    falls = choose_falls(list(village.nodes), drop_rate)
    watch("settled", {"holders": dict(village.sizes), "away": sorted(set(village.sizes) - set(village.nodes))})
    watch("falling", {"names": falls})
    clock.note("set_up")
    {"memory": engines.run_in_memory, "flower": engines.run_on_flower}[engine](village, watch, falls)
    clock.note("round")
    newest = village.federation.newest
    assert newest is not None
    folder = village.federation.release_folder(newest.number)
    loaded = load_release(folder, key=village.federation.identity.public)
    router = loaded.router
    evaluation = evaluate(router, {name: village.tests[name] for name in router.domains})
    clock.note("evaluation")
    if out is not None:
        _copy_companion(folder, out)
        _copy(folder, out)
    return Simulated(
        release=loaded.id,
        evaluation=evaluation,
        holders=len(village.nodes),
        absent=tuple(sorted(drop)),
        fallen=tuple(sorted(falls)),
        mode=mode,
        engine=engine,
        timings=clock.laps,
        manifest=loaded.manifest,
    )


def _copy(folder: Path, out: Path) -> None:
    with whole_folder(out) as draft:
        for path in folder.iterdir():
            shutil.copyfile(path, draft / path.name)


def _copy_companion(folder: Path, out: Path) -> None:
    """Before the release, so that whoever sees the one finds the other."""
    if companion(folder).exists():
        write_whole(companion(out), companion(folder).read_bytes(), private=True)
    else:
        companion(out).unlink(missing_ok=True)


class _Clock:
    """Laps by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def note(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now
