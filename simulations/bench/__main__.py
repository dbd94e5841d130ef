"""`python -m ridgeway.simulations.bench NAME`: the command of the benchmarks.

Imports a benchmark when it is to run, so that one that needs little runs where little is installed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.machine import chosen
from ridgeway.common.cli.terminal import TextTable, run, show, step
from ridgeway.simulations.bench.measuring import (
    ROW_HEADINGS,
    USUAL_TABLE,
    BenchOptions,
    MachineWatch,
    Row,
    provenance,
)
from ridgeway.simulations.experiments.report import ReportPart, ReportTable, write_part

MINUTES = ("route", "sums", "prepare", "sentences", "masking", "serving")
"""What `all` runs; the others take longer."""
NAMES = (*MINUTES, "deployment", "peers")
SHARED_MODULES = {
    "route": "sums",
    "prepare": "sums",
    "masking": "rounds",
    "deployment": "rounds",
}
"""The benchmark NAME is the function NAME_rows of the module NAME_bench, or of one of these."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"{', '.join(NAMES)}, or all ({', '.join(MINUTES)})."
        ),
    ],
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N, for prepare.")
    ] = "cpu",
    encoder: Annotated[
        str, typer.Option(help="The table of prepare, route and serving.")
    ] = USUAL_TABLE,
    text: Annotated[
        Path | None,
        typer.Option(
            help="A folder of DOMAIN.train.jsonl and DOMAIN.test.jsonl. (default: text"
            " of this machine)"
        ),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Of peers: means, sums, gateway or routing.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also write the rows to DIR/NAME.json, one by one."
        ),
    ] = None,
) -> None:
    """Measure speed and memory, next to another way; exits with 1 unless every aim is met.

    Run nothing else on the machine meanwhile: on a busy one, no aim is judged.
    """
    if name not in (*NAMES, "all"):
        raise InputError(
            f"there is no benchmark {name!r}; there are {', '.join(NAMES)}"
        )
    gpus = chosen(device)[:1]
    all_met = True
    with tempfile.TemporaryDirectory(prefix="ridgeway-bench-") as work:
        options = BenchOptions(Path(work), gpus, encoder, text, only)
        for benchmark in MINUTES if name == "all" else (name,):
            watch = MachineWatch()
            step("machine", str(watch.before()))
            words = [benchmark, only, *(gpu.partition(":")[0] for gpu in gpus)]
            kept = "-".join(filter(None, words))
            rows = []
            for row in measured(benchmark, options):
                step("measured", row.name, row.ours)
                watch.machine()
                rows.append(row)
                if out:
                    part = figure(benchmark, rows, watch, device)
                    write_part(out / f"{kept}.json", part)
            machine = watch.machine()
            cells = [row.cells(machine) for row in rows]
            table = TextTable(ROW_HEADINGS, cells, title=str(machine))
            show({}, table, json=False)
            all_met &= all(row.verdict(machine) in ("yes", "") for row in rows)
    if not all_met:
        raise typer.Exit(1)


def measured(name: str, options: BenchOptions) -> Iterator[Row]:
    """The rows of one benchmark."""
    module = SHARED_MODULES.get(name, name)
    bench = import_module(f"ridgeway.simulations.bench.{module}_bench")
    yield from getattr(bench, f"{name}_rows")(options)


def figure(
    name: str, rows: Sequence[Row], watch: MachineWatch, device: str
) -> ReportPart:
    """What a page of the docs shows of a benchmark."""
    facts = provenance(watch, "ridgeway.simulations.bench", device)
    cells = tuple(row.cells(watch.machine()) for row in rows)
    table = ReportTable(f"Benchmark {name}", ROW_HEADINGS, cells)
    return ReportPart(table.title, (), (table,), facts=facts)


if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
