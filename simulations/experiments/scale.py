"""How costs grow: points over documents, holders, domains, features, prompts and clients.

    python -m ridgeway.simulations.experiments.scale [AXIS] --up-to N --out docs/figures

measures the points of an axis that DIR/scale-AXIS.json lacks, up to N, and writes the file anew,
with the slopes of log y over log x, and DIR/scale-AXIS.svg beside it. Without an axis, it draws
all plots again from the files.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.terminal import run, step
from ridgeway.simulations.bench.measuring import (
    MachineWatch,
    measured_apart,
    provenance,
)
from ridgeway.simulations.experiments.report import (
    ReportPart,
    ReportTable,
    picture,
    read_part,
    write_part,
)

_POINTS_MODULE = "ridgeway.simulations.experiments.scale_points"
_HOLDERS = (3, 10, 30, 100, 300, 1000, 5000)
POINTS: dict[str, tuple[int, ...]] = {
    "documents": (1, 3, 10, 30, 100, 300, 1000, 10_000),
    "masked-holders": _HOLDERS,
    "private-holders": _HOLDERS,
    "domains": (2, 5, 10, 30, 100, 300, 1000),
    "features": (64, 128, 256, 512, 1024, 2048, 4096),
    "prompt-tokens": (8, 32, 128, 512, 2048, 8192),
    "clients": (1, 4, 16, 64, 256),
}
_LOAD = "load"
"""The column that says what the machine's load was after a point."""
_Numbers = NDArray[np.float64]
_LAST = 3
"""As many points at the end of an axis give its slope there."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def scale(
    axis: Annotated[str, typer.Argument(help=f"Of {', '.join(POINTS)}.")] = "",
    up_to: Annotated[int, typer.Option(help="The largest point to measure.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Of points and plots.")] = (
        Path("docs/figures")
    ),
) -> None:
    """Measure points that are missing; draw the plots of all that are there."""
    if axis and axis not in POINTS:
        raise InputError(f"there is no axis {axis!r}; there are {', '.join(POINTS)}")
    if axis:
        measure(axis, up_to, out)
    for name in POINTS:
        part = read_part(points_file(out, name))
        if part is not None:
            draw_curves(part.tables[0], points_file(out, name).with_suffix(".svg"))


def points_file(out: Path, axis: str) -> Path:
    return out / f"scale-{axis}.json"


def measure(axis: str, up_to: int, out: Path) -> None:
    """Each point is kept as soon as it is there, with the slopes of all."""
    path = points_file(out, axis)
    for value in POINTS[axis]:
        kept = read_part(path)
        rows = list(kept.tables[0].rows) if kept else []
        if value > up_to or any(row[0] == value for row in rows):
            continue
        watch = MachineWatch()
        found = measured_apart(_POINTS_MODULE, axis, value)
        rows.append((*found.values(), watch.machine().during))
        table = ReportTable(
            f"Costs over {axis.replace('-', ' ')}",
            (*found, _LOAD),
            tuple(sorted(rows)),
            digits=3,
        )
        table = replace(table, note=slope_words(table))
        facts = provenance(watch, "ridgeway.simulations.experiments.scale", "cpu")
        write_part(path, ReportPart(table.title, (), (table,), facts=facts))
        step("measured", axis, str(value))


def slope_words(table: ReportTable) -> str:
    """The slopes over all points and over the last ones: b of y = a·xᵇ."""
    words = []
    for name in table.columns[1:-1]:
        places, values = curve(table, name)
        if len(places) > 1 and all(values):
            whole = fitted_slope(places, values)
            end = fitted_slope(places[-_LAST:], values[-_LAST:])
            words.append(f"{name} {whole:.2f} ({end:.2f})")
    if not words:
        return ""
    return (
        "Slopes of log y over log x, over all points and (over the last"
        f" {_LAST}): {'; '.join(words)}."
    )


def curve(table: ReportTable, name: str) -> tuple[_Numbers, _Numbers]:
    """The places and values of a column, where it has any."""
    columns = (table.column(heading) for heading in (table.columns[0], name))
    places, values = (np.array(cells, dtype=np.float64) for cells in columns)
    there = ~np.isnan(values)
    return places[there], values[there]


def fitted_slope(places: _Numbers, values: _Numbers) -> float:
    """By least squares over logarithms."""
    return float(np.polyfit(np.log(places), np.log(values), 1)[0])


def draw_curves(table: ReportTable, path: Path) -> None:
    """Every column over the first, both on scales of logarithms, as SVG."""
    with picture(table.title, path, 6, 4) as axes:
        for name in table.columns[1:-1]:
            axes.plot(*curve(table, name), marker="o", label=name)
        axes.set_yscale("log")
        axes.set_xlabel(table.columns[0])


if __name__ == "__main__":
    sys.exit(run(typer.main.get_command(app)))
