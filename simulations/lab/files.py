"""A report as a folder: report.json, tables as CSV and JSON, plots as SVG, and one page that shows it all.

    OUT/index.html   OUT/report.json   OUT/tables/KEY.csv   OUT/tables/KEY.json   OUT/plots/KEY.svg   OUT/cache/

Knows files. Knows nothing of how findings come about, nor of what a page looks like.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from common.errors import FormatError, InputError
from common.files import write_whole
from simulations.lab.cells import heading
from simulations.lab.drawing import svg
from simulations.lab.findings import Table, part_from_json
from simulations.lab.page import page
from simulations.lab.report import KIND, VERSION, Report, plot_path, table_path

MARK = "report.json"
PAGE = "index.html"
CACHE = "cache"


def check_report_folder(folder: Path) -> None:
    """Raise unless a report may be written here: where there is nothing, or no more than a cache, or a report."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the report")
    others = {path.name for path in folder.iterdir()} - {CACHE} if folder.is_dir() else set()
    if others and not (folder / MARK).is_file():
        raise InputError(f"{folder} exists and is not a report, for it has no {MARK}; name a new folder with --out")
    read_report(folder)


def read_report(folder: Path) -> Report:
    """What a folder holds; an empty report where there is none. Raises FormatError for anything else."""
    path = folder / MARK
    if not path.exists():
        return Report()
    try:
        found = json.loads(path.read_bytes())
        if (found["kind"], found["version"]) != (KIND, VERSION):
            raise ValueError
        parts = tuple(part_from_json(each) for each in found["parts"])
        return Report(dict(found["facts"]), parts, dict(found["failures"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(
            f"{path} is not a report that this version of Ridgeway can read; name a new folder with --out"
        ) from None


def write_report(folder: Path, report: Report) -> None:
    """Bring a folder up to date, the mark that it is a report first. Files of tables and plots that are no longer in
    the report go away."""
    before = _paths(read_report(folder))
    _write(folder / MARK, json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    contents = dict(_contents(report))
    for path, content in contents.items():
        _write(folder / path, content)
    _write(folder / PAGE, page(report))
    for path in before - contents.keys():
        (folder / path).unlink(missing_ok=True)


def csv_text(table: Table) -> str:
    """Every value as it was measured, not rounded; a gap is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([heading(column) for column in table.columns])
    writer.writerows(table.rows)
    return text.getvalue()


def _paths(report: Report) -> set[str]:
    tables = [table_path(table.key, kind) for part in report.parts for table in part.tables for kind in ("csv", "json")]
    return {*tables, *(plot_path(plot.key) for part in report.parts for plot in part.plots)}


def _contents(report: Report) -> Iterator[tuple[str, str]]:
    for part in report.parts:
        for table in part.tables:
            words = json.dumps(asdict(table), indent=1, ensure_ascii=False) + "\n"
            yield table_path(table.key, "csv"), csv_text(table)
            yield table_path(table.key, "json"), words
        for plot in part.plots:
            yield plot_path(plot.key), svg(plot)


def _write(path: Path, words: str) -> None:
    """What is there already is left alone."""
    content = words.encode(errors="replace")
    if not path.is_file() or path.read_bytes() != content:
        write_whole(path, content)
