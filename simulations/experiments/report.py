"""What a part found: words and tables, kept as JSON, shown as Markdown, and in the docs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import IMPORT_ROOT, write_whole
from ridgeway.common.cli.terminal import step

# What a part found: words and tables, kept as JSON and shown as Markdown.


GAP = "–"
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class ReportTable:
    """
    digits: behind the point of a number that is not whole.
    best:   which number of a column is printed bold.
    plot:   columns to draw over each other, the first on a scale of logarithms; the rows' names
            stand in the first column.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    digits: int = 1
    best: Literal["", "more", "less"] = ""
    plot: tuple[str, str] | None = None

    @property
    def picture(self) -> str:
        """The name of the plot's file."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-") + ".svg"

    def column(self, name: str) -> tuple[Cell, ...]:
        index = self.columns.index(name)
        return tuple(row[index] for row in self.rows)


@dataclass(frozen=True, slots=True)
class ReportPart:
    """
    words:    paragraphs above the tables.
    left_out: what could not be done here, each with the reason.
    facts:    what decided the result: seed, sizes, machine.
    """

    title: str
    words: tuple[str, ...]
    tables: tuple[ReportTable, ...]
    left_out: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


# Pictures


def draw(table: ReportTable, path: Path) -> None:
    """The plot of a table, as SVG. Rows that are called alike up to a comma are a curve, others a
    point with its name.
    """
    assert table.plot is not None
    points: dict[str, list[tuple[Cell, Cell]]] = {}
    columns = (table.columns[0], *table.plot)
    for name, across, up in zip(*map(table.column, columns), strict=True):
        points.setdefault(str(name).partition(", ")[0], []).append((across, up))
    with picture(table.title, path, 8, 5) as axes:
        for name, own in points.items():
            if len(own) > 1:
                axes.plot(*zip(*own, strict=True), marker="o", label=name)
                continue
            axes.scatter(*own[0], color="grey")
            axes.annotate(name, own[0], (5, 3), textcoords="offset points", fontsize=7)
        axes.set_xlabel(table.plot[0])
        axes.set_ylabel(table.plot[1])
        axes.margins(x=0.2)


@contextmanager
def picture(title: str, path: Path, width: float, height: float) -> Iterator[Any]:
    """Axes to plot on, over a scale of logarithms, which become an SVG: the same points give the
    same file.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = title
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.set_xscale("log")
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


# JSON


def write_part(path: Path, part: ReportPart) -> None:
    write_whole(path, json.dumps(asdict(part), indent=1, ensure_ascii=False).encode())


def read_part(path: Path) -> ReportPart | None:
    """Law: what write_part has written; None where there is no such file."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(ReportPart).validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


# Markdown


def markdown(part: ReportPart) -> str:
    paragraphs = [f"## {part.title}", *part.words]
    for table in part.tables:
        paragraphs += table_words(table)
        if table.plot:
            paragraphs.append(f"![{table.title}]({table.picture})")
    paragraphs += [f"Left out: {words}" for words in part.left_out]
    if "command" in part.facts:
        paragraphs.append(source_words(part))
    return "\n\n".join(paragraphs) + "\n"


def table_words(table: ReportTable) -> list[str]:
    """A table as paragraphs."""
    return [*filter(None, (f"**{table.title}**", grid(table), table.note))]


def source_words(part: ReportPart) -> str:
    """The command, date, commit and machine that a part's figures come from."""
    facts = part.facts
    words = (
        f"`{facts['command']}`, {facts['date']}, commit {facts['commit']}, on"
        f" {facts['machine']}"
    )
    load = facts["load"]
    return (
        f"{words}, in {facts['seconds']:,.0f} s; load {load['load']:.1f} before the start"
        f" and {load['during']:.1f} during it, {load['others']:.1f} cores taken by other"
        " programs."
    )


def grid(table: ReportTable) -> str:
    """The rows in Markdown, without columns that have nothing in them."""
    filled = [
        name for name in table.columns if any(cell != "" for cell in table.column(name))
    ]
    columns = [_column(name, table.column(name), table) for name in filled]
    lines = ("| " + " | ".join(cells) + " |" for cells in zip(*columns, strict=True))
    return "\n".join(lines)


def _column(name: str, cells: Sequence[Cell], table: ReportTable) -> list[str]:
    """The heading, the rule below it and the cells, all of one width; numbers to the right."""
    words = [_written(cell, table.digits) for cell in cells]
    numbers = [cell for cell in cells if isinstance(cell, int | float)]
    if table.best and len(set(numbers)) > 1:
        top = max(numbers) if table.best == "more" else min(numbers)
        best = _written(top, table.digits)
        words = [f"**{word}**" if word == best else word for word in words]
    width = max(map(len, [name, "--:", *words]))
    if numbers:
        rule = "-" * (width - 1) + ":"
        return [name.rjust(width), rule, *(word.rjust(width) for word in words)]
    return [name.ljust(width), "-" * width, *(word.ljust(width) for word in words)]


def _written(cell: Cell, digits: int) -> str:
    if cell is None:
        return GAP
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    words = f"{cell:,.{digits}f}"
    # a number that would read as zero shows its first digit instead
    return f"{cell:.1g}" if cell and not words.strip("-0.") else words


# The figures of the docs: results that are kept as JSON, and the tables that pages show of them.
#
# experiments, benchmarks ──▶ docs/figures/NAME.json ──▶ `make figures` ──▶ tables in the docs
#
# NAME.json is a ReportPart: title, words, tables (title, columns, rows, note),
# left_out, and the facts of `provenance`: date, commit, machine, load, seconds, command. An
# experiment or a benchmark writes it with `--out docs/figures`; nobody writes it by hand. A page
# has
#
#     <!-- figures: NAME -->            for every table of NAME.json
#     <!-- figures: NAME: TITLE -->     for its table of this title
#     <!-- /figures -->
#
# `make figures` writes what stands between; a test fails where a page differs from the JSON.


_PLACE = re.compile(
    r"<!-- figures: (?P<name>[\w-]+)(?:: (?P<title>.+?))? -->\n.*?<!-- /figures -->",
    re.DOTALL,
)


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def with_figures(text: str, folder: Path) -> str:
    """A page with its tables as the JSON files of a folder have them.

    Raises InputError where a file or a table is not there.
    """
    return _PLACE.sub(lambda match: _filled(match, folder), text)


def _filled(match: re.Match[str], folder: Path) -> str:
    name = match["name"]
    part = read_part(folder / f"{name}.json")
    if part is None:
        raise InputError(
            f"a page shows figures of {name}, and {folder.name}/{name}.json is not"
            " there or no report; run its command with --out"
        )
    tables = [table for table in part.tables if match["title"] in (None, table.title)]
    if not tables:
        titles = "; ".join(table.title for table in part.tables)
        raise InputError(
            f"{name}.json has no table {match['title']!r}; it has: {titles}"
        )
    paragraphs = [words for table in tables for words in table_words(table)]
    first = match[0].partition("\n")[0]
    body = "\n\n".join([*paragraphs, source_words(part)])
    return f"{first}\n\n{body}\n\n<!-- /figures -->"


def main(root: Path = IMPORT_ROOT) -> None:
    """Write the tables of all pages."""
    for path in pages(root):
        text = path.read_text(encoding="utf-8")
        filled = with_figures(text, root / "docs" / "figures")
        if filled != text:
            write_whole(path, filled.encode())
            step("wrote", str(path.relative_to(root)))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
