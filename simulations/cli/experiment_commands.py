"""ridgeway experiment …: what the experiments find, on the terminal and as a report in a folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import command_group, emit_json, step, ticking
from ridgeway.simulations.experiments.plan import PARTS

if TYPE_CHECKING:
    from ridgeway.simulations.experiments.plan import ExperimentPlan

OUT = Path("report")
SEED = 1
SEEDS = 2**32

app = command_group(
    "Run experiments; results go to the terminal, and tables, plots and a page to a"
    " folder."
)

Data = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help=(
            "DOMAIN.train.jsonl and DOMAIN.test.jsonl; may be given again. (default:"
            " text on this machine)"
        ),
    ),
]
Presets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Texts from a hub: clm, clm-large or reasoning; may be given again.",
    ),
]
Out = Annotated[
    Path,
    typer.Option(metavar="DIR", help="A new folder, or a report to bring up to date."),
]
Full = Annotated[
    bool, typer.Option("--full", help="The whole of it, for hours or a GPU.")
]
DeviceWord = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, cuda or cuda:N, for what can use a GPU.",
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Everything random is drawn from it.")
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Do everything anew, also what an earlier run has finished."
    ),
]


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, as it was written."""

    data: tuple[Path, ...] = ()
    presets: tuple[str, ...] = ()
    out: Path = OUT
    full: bool = False
    device: str = "auto"
    seed: int = SEED
    fresh: bool = False
    json: bool = False

    def command(self, name: str) -> str:
        """The line that makes a part again. `--fresh` and `--json` do not change what comes out."""
        words = [word for folder in self.data for word in ("--data", str(folder))]
        words += [word for preset in self.presets for word in ("--preset", preset)]
        words += ["--out", str(self.out)] * (self.out != OUT) + ["--full"] * self.full
        words += ["--device", self.device] * (self.device != "auto") + [
            "--seed",
            str(self.seed),
        ] * (self.seed != SEED)
        return shlex.join(["ridgeway", "experiment", name, *words])


def _command(names: tuple[str, ...]) -> Callable[..., None]:
    def command(
        data: Data = None,
        preset: Presets = None,
        out: Out = OUT,
        full: Full = False,
        device: DeviceWord = "auto",
        seed: Seed = SEED,
        fresh: Fresh = False,
        json: Json = False,
    ) -> None:
        _run(
            names,
            Options(
                tuple(data or ()),
                tuple(preset or ()),
                out,
                full,
                device,
                seed,
                fresh,
                json,
            ),
        )

    return command


for _name, _words in PARTS.items():
    app.command(_name, help=_words)(_command((_name,)))
app.command("all", help="All of these, one after the other.")(_command(tuple(PARTS)))


def _run(names: tuple[str, ...], options: Options) -> None:
    from ridgeway.simulations.experiments.suite import Show, run_parts, show_part

    _check(options)
    show: Show = (lambda part: None) if options.json else show_part
    done = run_parts(names, _plan(options), options.out, options.command, show)
    step("wrote", str(options.out / "index.html"))
    if options.json:
        parts = [part.to_json() for part in done.parts]
        emit_json(
            {"parts": parts, "failures": done.failures} if len(names) > 1 else parts[0]
        )
    if done.failures:
        raise typer.Exit(1)


def _check(options: Options) -> None:
    """Whatever can be refused without reading a text."""
    from ridgeway.common.base.devices import chosen
    from ridgeway.simulations.experiments.report.report_files import (
        check_drawable,
        check_report_folder,
    )

    if not 0 <= options.seed < SEEDS:
        raise InputError(
            f"--seed cannot be {options.seed}; give a whole number from 0 to"
            f" {SEEDS - 1}"
        )
    for folder in options.data:
        if not folder.is_dir():
            raise InputError(
                f"there is no folder {folder}; name one with DOMAIN.train.jsonl and"
                " DOMAIN.test.jsonl"
            )
    if len({folder.resolve() for folder in options.data}) < len(options.data):
        raise InputError("the same folder is given twice with --data; name each once")
    chosen(options.device)
    check_report_folder(options.out)
    check_drawable()


def _plan(options: Options) -> ExperimentPlan:
    from ridgeway.simulations.experiments.dataset import builtin_dataset, folder_dataset
    from ridgeway.simulations.experiments.hub_datasets import preset_dataset
    from ridgeway.simulations.experiments.plan import Cache, ExperimentPlan
    from ridgeway.simulations.experiments.report.report_files import CACHE
    from ridgeway.simulations.experiments.suite import distinct

    named = [*map(folder_dataset, options.data), *map(preset_dataset, options.presets)]
    datasets = distinct(named or [builtin_dataset()])
    for dataset in datasets:
        step("read", dataset.name, f"{len(dataset.domains)} domains", dataset.source)
    return ExperimentPlan(
        datasets=datasets,
        work=options.out,
        cache=Cache(options.out / CACHE, fresh=options.fresh),
        full=options.full,
        device=options.device,
        seed=options.seed,
        ticking=ticking,
    )
