"""`python -m ridgeway.simulations.experiments [PART …]`: run experiments; JSON and a page go to a
folder.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ridgeway.common.base.devices import chosen
from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.terminal import run, step
from ridgeway.simulations.experiments.dataset import (
    Dataset,
    builtin_dataset,
    folder_dataset,
)
from ridgeway.simulations.experiments.hub_datasets import preset_dataset
from ridgeway.simulations.experiments.plan import (
    SHORT_TEST_TEXTS,
    SHORT_TRAIN_TEXTS,
    ExperimentPlan,
)
from ridgeway.simulations.experiments.suite import PAGE, PARTS, run_parts

FULL_NEEDS = (
    "this takes an hour or more on two cores; kNN on MiniLM, the classifier and the"
    " experts need a GPU and are left out without one; scores and out-of-scope questions"
    " need their files in shared/data beside the project"
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PART]...", help=f"Of {', '.join(PARTS)}. (default: all)"),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help="DOMAIN.train.jsonl and DOMAIN.test.jsonl; may be given again."
        " (default: text on this machine)",
    ),
]
Presets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Texts from a hub: clm or reasoning; may be given again.",
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="The folder of the report.")]
Full = Annotated[bool, typer.Option("--full", help="Everything, for hours or a GPU.")]
DeviceWord = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N."),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=2**32 - 1, help="Everything random is drawn from it."
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Run parts again that have their JSON.")
]


@app.command()
def experiments(
    names: Names = None,
    data: Data = None,
    preset: Presets = None,
    out: Out = Path("report"),
    full: Full = False,
    device: DeviceWord = "auto",
    seed: Seed = 1,
    fresh: Fresh = False,
) -> None:
    """Run experiments; tables go to the terminal, to DIR/PART.json and to DIR/report.md."""
    for name in names or ():
        if name not in PARTS:
            raise InputError(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    chosen(device)
    if full:
        step("full", FULL_NEEDS)
    found = [*map(folder_dataset, data or ()), *map(preset_dataset, preset or ())]
    datasets = distinct(found or [builtin_dataset()])
    for dataset in datasets:
        step("read", dataset.name, f"{len(dataset.domains)} domains", dataset.source)
    if not full:
        datasets = [
            each.sampled(seed, train=SHORT_TRAIN_TEXTS, test=SHORT_TEST_TEXTS)
            for each in datasets
        ]
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as work:
        plan = ExperimentPlan(
            tuple(datasets), Path(work), full=full, device=device, seed=seed
        )
        failures = run_parts(names or PARTS, plan, out, fresh=fresh)
    step("wrote", str(out / PAGE))
    if failures:
        raise typer.Exit(1)


def distinct(datasets: Iterable[Dataset]) -> list[Dataset]:
    """The same datasets, where those of one name are numbered."""
    found: dict[str, Dataset] = {}
    for dataset in datasets:
        name = dataset.name
        number = 1
        while name in found:
            number += 1
            name = f"{dataset.name}-{number}"
        found[name] = replace(dataset, name=name)
    return list(found.values())


if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
