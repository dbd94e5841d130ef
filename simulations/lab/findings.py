"""What an experiment found: words, tables and plots, as plain values that survive a trip through JSON.

Knows nothing of how they come about, nor of how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Cell = str | int | float | None
Better = Literal["", "more", "less"]
Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True)
class Column:
    """digits: how many stand behind the point where the column holds numbers. better: what is printed bold."""

    name: str
    unit: str = ""
    digits: int = 1
    better: Better = ""


@dataclass(frozen=True, slots=True)
class Table:
    """key: the name of its files, such as `accuracy-clm`; unlike that of any other table or plot."""

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
    """Lines over one axis. `level` draws a dotted line across, such as a baseline's accuracy, with its name."""

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
class Part:
    """One experiment's findings.

    words:   paragraphs, what is shown and what to see in it. Figures in them are written by the code that measured.
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


def part_from_json(value: Mapping[str, Any]) -> Part:
    """The inverse of Part.to_json, also after JSON has turned tuples into lists. Law: it gives an equal part."""
    tables = tuple(_table(each) for each in value["tables"])
    plots = tuple(_plot(each) for each in value["plots"])
    tuples = {name: tuple(value[name]) for name in ("words", "left_out")}
    return Part(**{**value, **tuples, "tables": tables, "plots": plots})


def _table(value: Mapping[str, Any]) -> Table:
    columns = tuple(Column(**each) for each in value["columns"])
    return Table(**{**value, "columns": columns, "rows": tuple(tuple(row) for row in value["rows"])})


def _plot(value: Mapping[str, Any]) -> Plot:
    series = tuple(Series(each["name"], tuple(each["x"]), tuple(each["y"])) for each in value["series"])
    level = None if value["level"] is None else (value["level"][0], value["level"][1])
    return Plot(**{**value, "series": series, "level": level})
