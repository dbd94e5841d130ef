"""How a cost grows: the slope of its logarithm over that of what is varied, and what one would expect.

Knows numpy. Knows nothing of what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulations.lab.findings import Cell, Column, Plot, Series, Table

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Expected:
    """name: of the figure. exponent: the power it grows with once what is fixed no longer counts; None: unknown."""

    name: str
    label: str
    exponent: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Grown:
    """slope: over all points, by least squares; last: between the last two.

    explained, fixed: of y = a + b·xᵖ with the expected power p, the share of the variance that it explains, and the
    share of a in the last point, both in percent. None where p is 0 or unknown, or y does not vary.
    """

    label: str
    over: str
    points: int
    slope: float
    last: float
    exponent: float | None
    explained: float | None
    fixed: float | None
    why: str


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y over log x. Law: that of y = a·xᵇ is b, whatever a > 0."""
    across, up = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    across = across - across.mean()
    return float(across @ (up - up.mean()) / (across @ across))


def grown(over: str, x: Sequence[float], figures: Sequence[Figures], expected: Sequence[Expected]) -> list[Grown]:
    """The growth of every expected figure; of those that are zero somewhere, or have one point, there is none."""
    found = []
    for each in expected:
        y = [figure[each.name] for figure in figures]
        if len(y) > 1 and min(y) > 0:
            lines = slope(x, y), slope(x[-2:], y[-2:])
            found.append(Grown(each.label, over, len(y), *lines, each.exponent, *power(x, y, each.exponent), each.why))
    return found


def power(x: Sequence[float], y: Sequence[float], exponent: float | None) -> tuple[float | None, float | None]:
    """How much of the variance of y the best a + b·xᵖ explains, and the share of a in the last y, in percent."""
    if not exponent or len(y) < 3 or len(set(y)) == 1:
        return None, None
    across, up = np.asarray(x, dtype=float) ** exponent, np.asarray(y, dtype=float)
    terms = np.stack([np.ones_like(across), across / across[-1]], axis=1)
    best = np.linalg.lstsq(terms, up, rcond=None)[0]
    missed = float(((up - terms @ best) ** 2).sum() / ((up - up.mean()) ** 2).sum())
    return 100 * (1 - missed), 100 * min(1.0, max(0.0, float(best[0] / up[-1])))


def slopes_table(rows: Sequence[Grown]) -> Table:
    cells: list[tuple[Cell, ...]] = [
        (each.label, each.over, each.points, each.slope, each.last, each.exponent, each.explained, each.fixed, each.why)
        for each in rows
    ]
    return Table(
        "scaling-slopes",
        "How costs grow",
        (
            Column("what"),
            Column("over"),
            Column("points", digits=0),
            Column("slope", digits=2),
            Column("slope at the end", digits=2),
            Column("expected power p", digits=0),
            Column("explained by a + b·xᵖ", "%"),
            Column("a, of the last point", "%"),
            Column("why"),
        ),
        tuple(cells),
        "slope: of log y over log x by least squares over all points; at the end: between the last two. 0 stays, "
        "1 grows in proportion, 2 with the square. The power p is what is expected once a, which is fixed, no longer "
        "counts; until then a flattens the line.",
    )


def in_words(rows: Sequence[Grown]) -> str:
    """The slopes of one table, for its note."""
    parts = [f"{each.label} {each.slope:.2f} (at the end {each.last:.2f}{_beside(each)})" for each in rows]
    return "Slopes: " + ", ".join(parts) + "."


def _beside(each: Grown) -> str:
    return "" if each.exponent is None else f", expected {each.exponent:g}"


def log_plot(key: str, title: str, x_label: str, y_label: str, lines: Sequence[Series]) -> Plot:
    return Plot(key, title, x_label, y_label, tuple(lines), x_scale="log", y_scale="log")


def line(name: str, x: Sequence[float], figures: Sequence[Figures], key: str) -> Series:
    return Series(name, tuple(x), tuple(figure[key] if figure[key] > 0 else None for figure in figures))
