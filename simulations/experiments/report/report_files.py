"""A report as a folder: report.json, tables as CSV and JSON, plots as SVG, and one page that shows
it all.

    OUT/index.html   OUT/report.json   OUT/tables/KEY.csv   OUT/tables/KEY.json   OUT/plots/KEY.svg
    OUT/cache/

The page is one of HTML that needs nothing else: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeway.common.base.errors import FormatError, InputError
from ridgeway.common.base.files import write_whole
from ridgeway.common.cli.plots import figure_class
from ridgeway.simulations.experiments.report.report_plots import svg
from ridgeway.simulations.experiments.report.report_tables import (
    KIND,
    VERSION,
    Cell,
    Column,
    ExperimentReport,
    ReportPart,
    Table,
    best,
    cells_by_column,
    file_name,
    heading,
    holds_numbers,
    part_from_json,
    written,
)

if TYPE_CHECKING:
    from markupsafe import Markup

MARK = "report.json"
PAGE = "index.html"
CACHE = "cache"
WIDE = 90
"""Letters in a line from which a table is set smaller in print."""
TALL = 25
"""Rows from which a table may be broken between two pages."""
LONG = 28
"""Letters from which a cell's words may be broken into lines."""
MINUTE = 60


def check_drawable() -> None:
    """Raise unless pages and their plots can be made here."""
    figure_class()
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise InputError(
            "writing a report needs the package jinja2; install ridgeway[simulation]"
        ) from None


def check_report_folder(folder: Path) -> None:
    """Raise unless a report may be written here: where there is nothing, or no more than a cache,
    or a report.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the report")
    others = (
        {path.name for path in folder.iterdir()} - {CACHE} if folder.is_dir() else set()
    )
    if others and not (folder / MARK).is_file():
        raise InputError(
            f"{folder} exists and is not a report, for it has no {MARK}; name a new"
            " folder with --out"
        )
    read_report(folder)


def read_report(folder: Path) -> ExperimentReport:
    """What a folder holds; an empty report where there is none. Raises FormatError for anything
    else.
    """
    path = folder / MARK
    if not path.exists():
        return ExperimentReport()
    try:
        found = json.loads(path.read_bytes())
        if (found["kind"], found["version"]) != (KIND, VERSION):
            raise ValueError
        parts = tuple(part_from_json(each) for each in found["parts"])
        return ExperimentReport(dict(found["facts"]), parts, dict(found["failures"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(
            f"{path} is not a report that this version of Ridgeway can read; name a new"
            " folder with --out"
        ) from None


def write_report(folder: Path, report: ExperimentReport) -> None:
    """Bring a folder up to date, the mark that it is a report first. Files of tables and plots that
    are no longer in the report go away.
    """
    before = read_report(folder)
    _write(folder / MARK, _json_text(report.to_json()))
    contents = {path: make for part in report.parts for path, make in _files(part)}
    for path, make in contents.items():
        _write(folder / path, make())
    _write(folder / PAGE, page(report))
    for path in {
        path for part in before.parts for path, _ in _files(part)
    } - contents.keys():
        (folder / path).unlink(missing_ok=True)


def _files(part: ReportPart) -> Iterator[tuple[str, Callable[[], str]]]:
    """The files of a part, each with what makes its content."""
    for table in part.tables:
        yield f"tables/{file_name(table.key)}.csv", partial(csv_text, table)
        yield f"tables/{file_name(table.key)}.json", partial(_json_text, asdict(table))
    for plot in part.plots:
        yield f"plots/{file_name(plot.key)}.svg", partial(svg, plot)


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def csv_text(table: Table) -> str:
    """Every value as it was measured, not rounded; a gap is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([heading(column) for column in table.columns])
    writer.writerows(table.rows)
    return text.getvalue()


def _write(path: Path, words: str) -> None:
    """What is there already is left alone."""
    content = words.encode(errors="replace")
    if not path.is_file() or path.read_bytes() != content:
        write_whole(path, content)


# The page


def page(report: ExperimentReport) -> str:
    """The whole page. Text of the report is shown as it is, whatever signs it holds."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("ridgeway.simulations.experiments.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        words=_words,
        sentence=_sentence,
        duration=duration,
        lines=_lines,
        file_name=file_name,
    )
    environment.filters.update(shown=_shown, svg=lambda plot: Markup(svg(plot)))
    tables = [table for part in report.parts for table in part.tables]
    return environment.get_template("page.html").render(
        parts=report.parts,
        failures=report.failures,
        facts={"date": "", "ridgeway": "", **report.facts},
        surroundings=report.facts,
        bold=any(
            any(best(*each))
            for table in tables
            for each in zip(cells_by_column(table), table.columns, strict=True)
        ),
    )


def _shown(table: Table) -> dict[str, Any]:
    """A table's headings and rows of cells, and whether it is wide or tall."""
    columns = list(map(_column, cells_by_column(table), table.columns))
    widths = [
        max([len(cell["words"]) for cell in cells] + [len(head["name"]) // 2]) + 2
        for head, cells in columns
    ]
    return {
        "columns": [head for head, _ in columns],
        "rows": list(zip(*(cells for _, cells in columns), strict=True)),
        "wide": sum(widths) > WIDE,
        "tall": len(table.rows) > TALL,
    }


def _column(
    cells: tuple[Cell, ...], column: Column
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A heading and its cells."""
    numeric = holds_numbers(cells)
    words = [
        re.sub("^-", "−", word) if numeric else word for word in written(cells, column)
    ]
    look = (
        "number"
        if numeric
        else "long"
        if max(map(len, words), default=0) > LONG
        else ""
    )
    marked = zip(words, best(cells, column), strict=True)
    shown = [{"words": word, "best": mark, "class": look} for word, mark in marked]
    return {"name": column.name, "unit": column.unit, "class": look}, shown


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), MINUTE)
    hours, some = divmod(minutes, MINUTE)
    return (
        f"{hours} h {some} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


def _lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _in_words(value)) for name, value in facts.items()]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_in_words(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        "–"
        if value is None
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
    )


def _words(text: str) -> Markup:
    """Text in which `words between backticks` are code."""
    from markupsafe import Markup, escape

    pieces = re.split(r"`([^`]+)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )


def _sentence(text: str) -> str:
    """With a large letter at its start and a stop at its end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
