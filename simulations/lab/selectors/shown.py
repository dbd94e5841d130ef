"""Curves as plots, tables and words. Every figure in the words is read from the curves.

Knows nothing of how they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.lab.findings import Better, Column, Plot, Scale, Series, Table
from simulations.lab.selectors.measured import HELD, TEST, Curve, Measure, Row


@dataclass(frozen=True, slots=True)
class Figure:
    """What is measured and how it reads.

    usual: the label of what the preset has, which wins among equals; "" where routers are compared, nothing chosen.
    """

    key: str
    title: str
    x_label: str
    measure: Measure
    usual: str = ""
    x_scale: Scale = "log"
    note: str = ""


def plot(figure: Figure, curve: Curve, setting: str, key: str) -> Plot:
    """Values without a place on the axis become lines across: the first a level, the others flat series."""
    placed = [row for row in curve.rows if row.x is not None]
    across = [row for row in curve.rows if row.x is None]
    lines = (
        Series(name, tuple(row.x or 0.0 for row in placed), tuple(row.values[place] for row in placed))
        for place, name in enumerate(curve.series)
    )
    level = across[0] if across else None
    return Plot(
        key=key,
        title=f"{figure.title}: {setting}",
        x_label=figure.x_label,
        y_label="accuracy, %",
        series=(*lines, *(_flat(row, curve, placed) for row in across[1:])),
        x_scale=figure.x_scale,
        note=figure.note,
        level=None if level is None or level.values[0] is None else (_across(level, curve), level.values[0]),
    )


def _across(row: Row, curve: Curve) -> str:
    return f"{row.label}, {curve.series[0]}"


def _flat(row: Row, curve: Curve, placed: Sequence[Row]) -> Series:
    return Series(_across(row, curve), tuple(each.x or 0.0 for each in placed), (row.values[0],) * len(placed))


def table(figure: Figure, curve: Curve, setting: str, key: str) -> Table:
    marked: Better = "more" if figure.usual else ""
    columns = (Column(figure.x_label), *(Column(name, "%", 1, marked) for name in curve.series))
    rows = tuple((row.label, *row.values) for row in curve.rows)
    return Table(key, f"{figure.title}: {setting}", columns, rows, figure.note)


def words(figure: Figure, curve: Curve) -> str:
    """One sentence on a figure."""
    found = _choice(figure, curve) if figure.usual else _comparison(curve)
    return f"{figure.title}: {found}."


@dataclass(frozen=True, slots=True)
class Best:
    """The row that one series would choose, and how many rows are level with it."""

    row: Row
    level: int


def best(curve: Curve, series: str, usual: str) -> Best | None:
    """The row of the highest value; among equals the usual one, else the first. None where nothing was measured."""
    values = curve.column(series)
    known = [value for value in values if value is not None]
    if not known:
        return None
    equal = [row for row, value in zip(curve.rows, values, strict=True) if value == max(known)]
    return Best(next((row for row in equal if row.label == usual), equal[0]), len(equal))


def _choice(figure: Figure, curve: Curve) -> str:
    test, held = best(curve, TEST, figure.usual), best(curve, HELD, figure.usual)
    usual = next((row for row in curve.rows if row.label == figure.usual), None)
    said = [
        *([] if held is None else [f"held-out text chooses {_named(held)}"]),
        *([] if test is None else [f"the test itself would choose {_named(test)}"]),
        *([] if usual is None else [f"the preset has {usual.label} ({_percent(usual.values[0])})"]),
    ]
    return "; ".join(said) or "nothing could be measured"


def _named(found: Best) -> str:
    level = f", level with {found.level - 1} more" if found.level > 1 else ""
    return f"{found.row.label} ({_percent(found.row.values[0])}{level})"


def _comparison(curve: Curve) -> str:
    return "; ".join(f"at {row.label} {_each(row, curve)}" for row in _ends(curve.rows)) or "nothing could be measured"


def _ends(rows: Sequence[Row]) -> Sequence[Row]:
    return rows if len(rows) < 3 else (rows[0], rows[len(rows) // 2], rows[-1])


def _each(row: Row, curve: Curve) -> str:
    return ", ".join(f"{name} {_percent(value)}" for name, value in zip(curve.series, row.values, strict=True))


def _percent(value: float | None) -> str:
    return "no router" if value is None else f"{value:.1f} %"
