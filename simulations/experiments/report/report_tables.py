"""What an experiment found: words, tables and plots as plain values that survive a trip through
JSON, and how a table's values are written for people: digits, thousands, gaps, and which of a
column is the best.

A report holds the parts found so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ridgeway.common.base.files import sha256
from ridgeway.simulations.experiments.plan import PARTS

KIND = "ridgeway report"
VERSION = 1
GAP = "–"

Cell = str | int | float | None
Better = Literal["", "more", "less"]
Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True)
class Column:
    """digits: how many stand behind the point where the column holds numbers. better: what is
    printed bold.
    """

    name: str
    unit: str = ""
    digits: int = 1
    better: Better = ""


@dataclass(frozen=True, slots=True)
class Table:
    """key: the name of its files, such as `accuracy-clm`; unlike that of any other table or
    plot.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def column(self, name: str) -> tuple[Cell, ...]:
        place = [column.name for column in self.columns].index(name)
        return tuple(row[place] for row in self.rows)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot; where y is None there is a gap."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over one axis. `level` draws a dotted line across, such as a baseline's accuracy, with
    its name.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    note: str = ""
    level: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ReportPart:
    """One experiment's findings.

    words:   paragraphs, what is shown and what to see in it. Figures in them are written by the
             code that measured.
    facts:   what decided the result: seeds, sizes, devices; small and printable.
    command: what makes this part again. seconds: how long it took.
    left_out: what could not be done here, each with the reason.
    """

    key: str
    title: str
    words: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    command: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def part_from_json(value: Any) -> ReportPart:
    """The inverse of ReportPart.to_json, also after JSON has made lists of tuples. Law: it gives an
    equal part.
    """
    from pydantic import TypeAdapter

    return TypeAdapter(ReportPart).validate_python(value)


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    """Everything found so far.

    facts:    versions, machine, seed and date of the last command.
    failures: for parts that could not be run the last time, the reason.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[ReportPart, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    def having(self, part: ReportPart) -> ExperimentReport:
        """With this part in its place; an older one of its name gives way."""
        places = {key: place for place, key in enumerate(PARTS)}
        others = (each for each in self.parts if each.key != part.key)
        parts = sorted(
            [part, *others], key=lambda each: places.get(each.key, len(places))
        )
        failures = {
            key: reason for key, reason in self.failures.items() if key != part.key
        }
        return ExperimentReport(self.facts, tuple(parts), failures)

    def failing(self, key: str, reason: str) -> ExperimentReport:
        """With the reason why a part is missing; one of an earlier run stays."""
        return ExperimentReport(self.facts, self.parts, {**self.failures, key: reason})

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "version": VERSION, **asdict(self)}


def file_name(key: str) -> str:
    """The key itself where it is a plain name; otherwise one that is, and unlike that of any other
    key.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", key)
    return (
        plain
        if plain == key != ""
        else f"{plain}-{sha256(key.encode(errors='replace'))[:8]}"
    )


# How values are written


def is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def holds_numbers(cells: Sequence[Cell]) -> bool:
    """Whether a column is one of numbers: it has some, and nothing else but gaps."""
    found = [cell for cell in cells if cell is not None]
    return bool(found) and all(is_number(cell) for cell in found)


def heading(column: Column) -> str:
    """The name, with its unit behind it."""
    return f"{column.name} ({column.unit})" if column.unit else column.name


def written(cells: Sequence[Cell], column: Column) -> list[str]:
    """A column's cells. Where one number has a fraction, all of them show the same digits."""
    whole = all(isinstance(cell, int) for cell in cells if is_number(cell))
    return [_written(cell, 0 if whole else column.digits) for cell in cells]


def _written(cell: Cell, digits: int) -> str:
    if cell is None:
        return GAP
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    words = f"{cell or 0:,.{digits}f}"  # zero has no sign
    return (
        words
        if cell == 0 or any(figure in "123456789" for figure in words)
        else f"{cell:.1g}"
    )


def best(cells: Sequence[Cell], column: Column) -> list[bool]:
    """Which cells are the best of their column: all that read like the best one, and none if all
    read the same.
    """
    numbers = [
        cell for cell in cells if isinstance(cell, int | float) and is_number(cell)
    ]
    words = written(cells, column)
    if not column.better or not numbers:
        return [False] * len(cells)
    top = words[cells.index(max(numbers) if column.better == "more" else min(numbers))]
    marks = [
        is_number(cell) and word == top for cell, word in zip(cells, words, strict=True)
    ]
    return marks if sum(marks) < len(numbers) else [False] * len(cells)


def cells_by_column(table: Table) -> list[tuple[Cell, ...]]:
    """Also where it has no rows."""
    return [
        tuple(row[place] for row in table.rows) for place in range(len(table.columns))
    ]


def written_rows(table: Table) -> list[list[str]]:
    """A table's cells, written, by row."""
    return list(
        map(
            list, zip(*map(written, cells_by_column(table), table.columns), strict=True)
        )
    )
