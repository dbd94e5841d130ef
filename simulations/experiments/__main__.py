"""`python -m ridgeway.simulations.experiments`: the expensive pieces, on a machine with a GPU and
little installed.

kNN and the classifier are tried on whole test texts and on their beginnings, and experts are
trained and scored. What is written are files of the cache: copied into the folder `cache` of a
report, `ridgeway experiment … --full` takes them instead of doing the work. Needs numpy,
tokenizers, safetensors, torch, transformers, gguf (for SmolLM2), scikit-learn (for kNN) and typer;
neither Flower nor anything else that federations need.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.terminal import run, step, ticking
from ridgeway.simulations.experiments.baselines.comparison import METHODS
from ridgeway.simulations.experiments.baselines.routing_method import evaluation, tried
from ridgeway.simulations.experiments.dataset import Dataset, folder_dataset
from ridgeway.simulations.experiments.experts.training import (
    FULL,
    SHORT,
    beginnings,
    scored,
)
from ridgeway.simulations.experiments.plan import Cache, ExperimentPlan

EXPERTS = "experts"
PIECES = f"knn,modem,{EXPERTS}"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def pieces(
    data: Annotated[
        list[Path],
        typer.Option(metavar="DIR", help="A folder of corpora; may be given again."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="A folder for the cache's files.")
    ],
    only: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Routers and `experts`, with commas between."
        ),
    ] = PIECES,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What experts start from. (SmolLM2)"),
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="Where tables over tokens come from.")
    ] = "smollm2",
    full: Annotated[
        bool, typer.Option("--full", help="On all text, as much as a GPU can do.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    seed: Annotated[int, typer.Option(help="Everything random is drawn from it.")] = 1,
) -> None:
    """Make pieces of the experiments for the cache of a report."""
    routers = [key for key in only.split(",") if key != EXPERTS]
    for key in routers:
        if key not in METHODS:
            raise InputError(
                f"there is no router {key!r}; there are {', '.join(METHODS)}"
            )
    datasets = tuple(map(folder_dataset, data))
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as work:
        plan = ExperimentPlan(
            datasets, Path(work), Cache(out), encoder, full, device, seed, ticking
        )
        for dataset in datasets:
            _try(plan, dataset, routers)
            if EXPERTS in only.split(","):
                found = scored(plan, dataset, FULL if full else SHORT, model)
                about = found.likelihoods.about
                step(
                    "scored",
                    dataset.name,
                    f"{about['seconds']:.0f} s",
                    about["device"],
                    f"rate {about['rate']:g}",
                )
                if full:
                    _try(plan, beginnings(found.dataset, model), routers)


def _try(plan: ExperimentPlan, dataset: Dataset, routers: list[str]) -> None:
    for key in routers:
        for row in tried(plan, dataset, METHODS[key])["rows"]:
            step(
                "tried",
                row["name"],
                dataset.name,
                f"{evaluation(dataset.domains, row['routed']).accuracy:.1f} %",
            )


if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
