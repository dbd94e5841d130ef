"""How a table's values are written for people: digits, thousands, gaps, and which of a column is the best.

Knows nothing of where they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulations.lab.findings import Cell, Column, Table

GAP = "–"


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
    return words if cell == 0 or any(figure in "123456789" for figure in words) else f"{cell:.1g}"


def best(cells: Sequence[Cell], column: Column) -> list[bool]:
    """Which cells are the best of their column: all that read like the best one, and none if all read the same."""
    numbers = [cell for cell in cells if isinstance(cell, int | float) and is_number(cell)]
    words = written(cells, column)
    if not column.better or not numbers:
        return [False] * len(cells)
    top = words[cells.index(max(numbers) if column.better == "more" else min(numbers))]
    marks = [is_number(cell) and word == top for cell, word in zip(cells, words, strict=True)]
    return marks if sum(marks) < len(numbers) else [False] * len(cells)


def columns(table: Table) -> list[tuple[Cell, ...]]:
    """A table's cells by column, also where it has no rows."""
    return [tuple(row[place] for row in table.rows) for place in range(len(table.columns))]


def rows(table: Table) -> list[list[str]]:
    """A table's cells, written, by row."""
    by_column = [written(cells, column) for cells, column in zip(columns(table), table.columns, strict=True)]
    return [list(row) for row in zip(*by_column, strict=True)]
