"""The figures of the docs: results that are kept as JSON, and the tables that pages show of them.

    experiments, benchmarks ──▶ docs/figures/NAME.json ──▶ `make figures` ──▶ tables in the docs

NAME.json is a ReportPart (report.py): title, words, tables (title, columns, rows, note), left_out,
and the facts of bench/provenance.py: date, commit, machine, load, seconds, command. An experiment
or a benchmark writes it with `--out docs/figures`; nobody writes it by hand. A page has

    <!-- figures: NAME -->            for every table of NAME.json
    <!-- figures: NAME: TITLE -->     for its table of this title
    <!-- /figures -->

`make figures` writes what stands between; a test fails where a page differs from the JSON.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import IMPORT_ROOT, write_whole
from ridgeway.common.cli.terminal import step
from ridgeway.simulations.experiments.report import (
    read_part,
    source_words,
    table_words,
)

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
