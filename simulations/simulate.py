"""A whole federation on one machine: corpora, holders, a round, a release, and how well it routes
test texts.

Runs the same client and coordinator as a deployment.

And the command: ridgeway simulate.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from flwr.clientapp import ClientApp

from ridgeway.client.sums.ray_engine import check_ray
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_new_folder, whole_folder, without_syncing
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import DEFAULT, ENCODERS, PRIVATE_ENCODER
from ridgeway.common.cli.route_commands import evaluation_lines
from ridgeway.common.cli.terminal import CountingBar, Json, count, option, show, step
from ridgeway.common.privacy.accountant import check_privacy, delta_warning
from ridgeway.common.routing.evaluation import Evaluation, evaluate
from ridgeway.common.routing.release import load_release, refuse_foreign
from ridgeway.common.routing.router import router_of
from ridgeway.coordinator.history import MAX_HOLDERS_BY_NAME, Narrator
from ridgeway.coordinator.round.federation import Abstention, PrivacySettings
from ridgeway.coordinator.round.progress import Event, Watch
from ridgeway.simulations.corpora import EVERYDAY, VISITORS_PROMPTS, read_corpora
from ridgeway.simulations.simulated_federation import (
    STAGES,
    UNMASKED_STAGES,
    choose_dropouts,
    create_simulated_federation,
    open_epochs,
    run_in_memory,
    run_on_flower,
)


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


def simulate_federation(
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
            run_in_memory(simulated, watch, dropouts, app)
        else:
            run_on_flower(simulated, watch, dropouts)
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


# ridgeway simulate: a whole federation on this machine.


def simulate(
    data: Annotated[
        Path | None,
        option(
            "A folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl. (default: text"
            " on this machine)"
        ),
    ] = None,
    holders: Annotated[
        int | None,
        option(
            "Number of holders; holders of one domain share its text. (default: one "
            "per domain)"
        ),
    ] = None,
    engine: Annotated[
        str,
        option("memory: on the cores of this machine; flower: on Flower's engine."),
    ] = "memory",
    drop: Annotated[
        list[str] | None,
        option("A holder that is offline; repeatable."),
    ] = None,
    drop_rate: Annotated[
        float,
        option("Share of holders that drop out, at every stage of the round."),
    ] = 0.0,
    private: Annotated[
        bool,
        option(
            "A private round, the default of a deployment: noise hides any single "
            "document.",
            "--private",
        ),
    ] = False,
    clear: Annotated[
        bool, option("Exact sums without masks: the same router.", "--clear")
    ] = False,
    out: Annotated[Path | None, option("Folder for the release.")] = None,
    work: Annotated[
        Path | None,
        option("New folder for all files of the federation."),
    ] = None,
    encoder: Annotated[
        str | None,
        option(
            f"{ENCODERS}. (default: {DEFAULT.encoder}; with --private {PRIVATE_ENCODER})"
        ),
    ] = None,
    sums: Annotated[
        str | None,
        option("With --private: columns, or full (with products). (default: columns)"),
    ] = None,
    epsilon: Annotated[
        float | None,
        option("With --private: ε of the round. (default: 1)"),
    ] = None,
    prior: Annotated[
        Path | None,
        option("With --private: a file of `prior make`. (default: of built-in text)"),
    ] = None,
    json: Json = False,
) -> None:
    """Run a whole federation on this machine.

    Holders, a coordinator, one round, a release, and a test of it.

    Rounds are masked, as the published method has them: exact sums, under masks. A deployment runs
    private rounds.
    """
    if private and clear:
        raise InputError("--private and --clear exclude each other; give one")
    given = {"--sums": sums, "--epsilon": epsilon, "--prior": prior}
    named = [name for name, value in given.items() if value is not None]
    if named and not private:
        raise InputError(
            f"{' and '.join(named)} needs --private: other rounds have no noise"
        )
    mode: Mode = "private" if private else "clear" if clear else "masked"
    asked = _asked(sums, epsilon)
    with _place(work) as folder:
        done = simulate_federation(
            Path(folder),
            _watch(asked if private else None),
            data=data,
            holders=holders,
            engine=engine,
            drop=drop or [],
            drop_rate=drop_rate,
            out=out,
            encoder=encoder or (PRIVATE_ENCODER if private else DEFAULT.encoder),
            mode=mode,
            privacy=asked,
            prior=prior,
        )
    laps = (
        f"{name.replace('_', ' ')} {lap:.1f} s" for name, lap in done.timings.items()
    )
    show(
        done.to_json(),
        ("took", f"{sum(done.timings.values()):.1f} s", *laps),
        ("wrote", str(out), done.release[:12]) if out else None,
        *evaluation_lines(done.evaluation),
        json=json,
    )


def _asked(sums: str | None, epsilon: float | None) -> PrivacySettings:
    """What private rounds are to be like; what was not named is as in a deployment."""
    usual = PrivacySettings()
    cost = usual.epsilon if epsilon is None else epsilon
    chosen = check_privacy(sums or usual.sums, cost)
    return PrivacySettings(sums=chosen, epsilon=cost)


def _place(work: Path | None) -> AbstractContextManager[str | Path]:
    """The folder of the federation: a new one that is kept, or one that ends with the block."""
    if work is None:
        return tempfile.TemporaryDirectory(prefix="ridgeway-")
    check_new_folder(work)
    return nullcontext(work)


def _watch(asked: PrivacySettings | None) -> Watch:
    """Tells what happens, the federation and who will fall away first."""
    narrator = Narrator()
    bar = CountingBar()

    def settled(event: FederationSettled) -> None:
        holders = event.holders
        away = event.away
        if words := delta_warning(asked.delta, max(holders.values())) if asked else "":
            step("warning", words)
        if len(holders) > MAX_HOLDERS_BY_NAME:
            step("settled", count(len(holders), "holder"))
            return
        for name, documents in holders.items():
            step(
                "holder",
                name,
                count(documents, "document"),
                "not there" if name in away else "",
            )

    def watch(event: Event) -> None:
        match event:
            case EpochOpened(_, opened, holders) if opened < holders:
                bar.advance("summed", holders)
            case EpochOpened(_, _, holders):
                bar.close()
                step("summed", f"text of {count(holders, 'holder')}")
            case FederationSettled():
                settled(event)
            case DropoutsChosen(names):
                for name, stage in names.items():
                    step("will fall", name, stage)
            case _:
                narrator(event)

    return watch
