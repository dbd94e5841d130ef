"""A report as one page of HTML that needs nothing else: no script, no font, no picture from elsewhere.

Knows jinja2, which is imported when a page is made, and its template. Knows nothing of files or experiments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from common.errors import InputError
from simulations.lab.cells import best, columns, holds_numbers, written
from simulations.lab.drawing import check_matplotlib, svg
from simulations.lab.findings import Cell, Column, Part, Plot, Table
from simulations.lab.report import Report, file_name, plot_path, table_path

if TYPE_CHECKING:
    from markupsafe import Markup

WIDE = 90
"""Letters in a line from which a table is set smaller in print."""
TALL = 25
"""Rows from which a table may be broken between two pages."""
LONG = 28
"""Letters from which a cell's words may be broken into lines."""
MINUTE = 60


def check_drawable() -> None:
    """Raise unless pages and their plots can be made here."""
    check_matplotlib()
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise InputError("writing a report needs the package jinja2; install ridgeway[simulation]") from None


def page(report: Report) -> str:
    """The whole page. Text of the report is shown as it is, whatever signs it holds."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("simulations.lab", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(words=_words, sentence=_sentence)
    parts = [_part(part, report.failures.get(part.key, "")) for part in report.parts]
    facts = {"date": "", "ridgeway": "", **report.facts}
    return environment.get_template("page.html").render(
        parts=parts,
        failures=report.failures,
        facts=facts,
        surroundings=list(_lines(report.facts)),
        bold=any(cell["best"] for part in parts for table in part["tables"] for row in table["rows"] for cell in row),
    )


def _part(part: Part, failure: str) -> dict[str, Any]:
    return {
        "id": f"part-{file_name(part.key)}",
        "title": part.title,
        "words": part.words,
        "tables": [_table(table) for table in part.tables],
        "plots": [_plot(plot) for plot in part.plots],
        "left_out": part.left_out,
        "failure": failure,
        "command": part.command,
        "seconds": duration(part.seconds),
        "facts": list(_lines(part.facts)),
    }


def _plot(plot: Plot) -> dict[str, Any]:
    from markupsafe import Markup

    return {"title": plot.title, "note": plot.note, "path": plot_path(plot.key), "svg": Markup(svg(plot))}


def _table(table: Table) -> dict[str, Any]:
    shown = [_column(cells, column, place == 0) for place, (cells, column) in enumerate(_with_cells(table))]
    widths = [max([len(cell["words"]) for cell in cells] + [len(head["name"]) // 2]) + 2 for head, cells in shown]
    return {
        "title": table.title,
        "note": table.note,
        "columns": [head for head, _ in shown],
        "rows": list(zip(*(cells for _, cells in shown), strict=True)),
        "wide": sum(widths) > WIDE,
        "tall": len(table.rows) > TALL,
        "csv": table_path(table.key, "csv"),
        "json": table_path(table.key, "json"),
    }


def _with_cells(table: Table) -> Iterator[tuple[tuple[Cell, ...], Column]]:
    return zip(columns(table), table.columns, strict=True)


def _column(cells: tuple[Cell, ...], column: Column, first: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A heading and its cells; the first column heads the rows."""
    numeric = holds_numbers(cells)
    words = [_minus(word) if numeric else word for word in written(cells, column)]
    long = max((len(word) for word in words), default=0) > LONG
    look = "number" if numeric else "long" if long else ""
    marks = best(cells, column)
    shown = [
        {"words": word, "best": mark, "class": look, "heads": first} for word, mark in zip(words, marks, strict=True)
    ]
    return {"name": column.name, "unit": column.unit, "class": look}, shown


def _minus(word: str) -> str:
    return word.replace("-", "−", 1) if word.startswith("-") else word


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), MINUTE)
    hours, some = divmod(minutes, MINUTE)
    return f"{hours} h {some} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        yield name.replace("_", " "), _in_words(value)


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_in_words(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _words(text: str) -> Markup:
    """Text in which `words between backticks` are code."""
    from markupsafe import Markup, escape

    pieces = re.split(r"`([^`]+)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece) for place, piece in enumerate(pieces)
    )


def _sentence(text: str) -> str:
    """With a large letter at its start and a stop at its end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
