"""`python -m ridgeway.simulations.experiments [PART …]`: run experiments; JSON and a page go to a
folder.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ridgeway import __version__
from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.machine import chosen
from ridgeway.common.cli.terminal import run, step
from ridgeway.simulations.bench.measuring import MachineWatch, provenance
from ridgeway.simulations.experiments.dataset import (
    SHORT_TEST_TEXTS,
    SHORT_TRAIN_TEXTS,
    ExperimentPlan,
    builtin_dataset,
    folder_dataset,
)
from ridgeway.simulations.experiments.report import (
    ReportPart,
    draw,
    markdown,
    read_part,
    write_part,
)

PARTS = {
    "summary": "privacy_part",
    "accuracy": "accuracy_part",
    "epsilon": "privacy_part",
    "privacy": "privacy_part",
    "experts": "accuracy_part",
    "scores": "scores_part",
}
"""In the order of a report. The part NAME is the function run_NAME of a module."""
PAGE = "report.md"
FULL_NEEDS = (
    "this takes an hour or more on two cores; kNN on MiniLM, the classifier and the"
    " experts need a GPU and are left out without one; scores need their files in"
    " shared/data beside the project"
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def experiments(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...", help=f"Of {', '.join(PARTS)}. (default: all)"
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="DOMAIN.train.jsonl and DOMAIN.test.jsonl; repeatable."
            " (default: text on this machine)",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of the report.")
    ] = Path("report"),
    full: Annotated[
        bool, typer.Option("--full", help="Everything, for hours or a GPU.")
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run parts again that have their JSON.")
    ] = False,
) -> None:
    """Run experiments; tables go to the terminal, to DIR/PART.json and to DIR/report.md."""
    for name in names or ():
        if name not in PARTS:
            raise InputError(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    chosen(device)
    if full:
        step("full", FULL_NEEDS)
    datasets = [*map(folder_dataset, data or ())] or [builtin_dataset()]
    if len({dataset.name for dataset in datasets}) < len(datasets):
        raise InputError("two folders of texts have one name; rename one of them")
    for dataset in datasets:
        step("read", dataset.name, f"{len(dataset.domains)} domains", dataset.source)
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as work:
        plan = ExperimentPlan(tuple(datasets), Path(work), full=full, device=device)
        if not full:
            datasets = [
                dataset.sampled(
                    plan.seed, train=SHORT_TRAIN_TEXTS, test=SHORT_TEST_TEXTS
                )
                for dataset in datasets
            ]
            plan = replace(plan, datasets=tuple(datasets))
        failures = run_parts(names or list(PARTS), plan, out, fresh=fresh)
    step("wrote", str(out / PAGE))
    if failures:
        raise typer.Exit(1)


def run_parts(
    names: Sequence[str], plan: ExperimentPlan, out: Path, *, fresh: bool = False
) -> dict[str, str]:
    """Run parts one after the other; each leaves OUT/NAME.json and brings OUT/report.md up to date.

    The others go on when one fails. Gives the failures, by part.
    """
    failures = {}
    for name in names:
        try:
            part = _finished(name, plan, out / f"{name}.json", fresh)
        except RidgewayError as error:
            failures[name] = str(error)
            step("failed", name, str(error))
            continue
        print(markdown(part))
        parts = [read_part(out / f"{part_name}.json") for part_name in PARTS]
        pages = [markdown(part) for part in parts if part]
        write_whole(out / PAGE, "\n".join(["# Experiments\n", *pages]).encode())
    return failures


def _finished(name: str, plan: ExperimentPlan, path: Path, fresh: bool) -> ReportPart:
    """A part that is run, or read from the JSON of an earlier run."""
    key = {**plan.key(), "ridgeway": __version__}
    kept = read_part(path)
    if kept and kept.facts.get("key") == key and not fresh:
        step("kept", name)
        return kept
    step("running", name)
    watch = MachineWatch()
    with _packages_needed(name):
        module = import_module(f"{__package__}.{PARTS[name]}")
        part: ReportPart = getattr(module, f"run_{name}")(plan)
    facts = {"key": key, **provenance(watch, __package__, plan.device)}
    part = replace(part, facts={**part.facts, **facts})
    write_part(path, part)
    for table in part.tables:
        if table.plot:
            draw(table, path.parent / table.picture)
    step("ran", name, f"{facts['seconds']} s")
    return part


@contextmanager
def _packages_needed(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name} needs the package {error.name}; run make setup"
        ) from error


if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
