"""The page: sound HTML that needs nothing from elsewhere, in which every finding is to be seen."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeway.simulations.experiments.report.report_files import duration, page, write_report
from ridgeway.simulations.experiments.report.report_tables import (
    GAP,
    Column,
    ExperimentReport,
    ReportPart,
    best,
    heading,
    written,
    written_rows,
)
from tests.support.report_samples import a_part, a_table, parts

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reader(HTMLParser):
    """Reads a page; whatever is opened must be closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        self.links += [value for key in ("href", "src", "xlink:href") if (value := named.get(key))]
        self.ids += [value for key, value in attrs if key == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())

    def count(self, tag: str, **wanted: str) -> int:
        return sum(name == tag and wanted.items() <= attrs.items() for name, attrs in self.tags)


def a_report(*found: ReportPart, **failures: str) -> ExperimentReport:
    report = ExperimentReport({"ridgeway": "9.9", "seed": 7, "date": "today", "machine": {"cores": 2}}, (), failures)
    for part in found:
        report = report.having(part)
    return report


@settings(max_examples=8)
@given(found=st.lists(parts, max_size=2, unique_by=lambda part: part.key))
def test_any_report_is_sound_html(found: list[ReportPart]) -> None:
    """Balanced, in English, with each id once, and nothing that a browser would fetch."""
    keyed = {plot.key for part in found for plot in part.plots}
    read = Reader(page(a_report(*found)))
    assert ("html", {"lang": "en"}) in read.tags
    if len(keyed) == sum(len(part.plots) for part in found):
        assert len(read.ids) == len(set(read.ids))
    assert not [link for link in read.links if re.match(r"[a-z]+:|//", link)]
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in read.tags}


def test_every_finding_is_to_be_seen() -> None:
    """Words, cells, notes, what was left out, the command and the seconds; the first words in the summary, too."""
    read = Reader(page(a_report(a_part(), a_part("dropouts"), privacy="there is no such model")))
    said = ["Second.", "97.2", "A note.", "Mean.", "kNN: no time", "ridgeway experiment dropouts", "1.5 s", "1,200"]
    assert all(words in read.text for words in [*said, "There is no such model.", "9.9", "cores 2"])
    assert read.text.count("First of dropouts.") == 2


def test_signs_are_shown_and_not_obeyed() -> None:
    """A name that looks like HTML stands there as it is; words between backticks are code."""
    text = page(a_report(a_part(words=("<script>x</script> & `a < b`",))))
    assert "&lt;script&gt;" in text and "<script" not in text
    assert "<code>a &lt; b</code>" in text and "<code>paper</code>" in text


def test_tables_are_made_for_those_who_hear_them() -> None:
    """A caption, headings of columns and of rows, and a plot that is told as a picture with words."""
    read = Reader(page(a_report(a_part())))
    assert (read.count("caption"), read.count("th", scope="col"), read.count("th", scope="row")) == (1, 4, 3)
    assert (read.count("svg", role="img"), read.count("figcaption"), read.count("desc")) == (1, 1, 1)


def test_the_best_of_a_column_is_bold() -> None:
    """The most where more is better, the least where less is, and nothing elsewhere."""
    text = page(a_report(a_part(words=())))
    assert re.findall(r"<td[^>]*><strong>(.*?)</strong>", text) == ["97.2", "0.12"]


def test_links_lead_to_files_that_are_there(tmp_path: Path) -> None:
    """Relative to the page, and to places in it."""
    write_report(tmp_path, a_report(a_part(), a_part("privacy", tables=(a_table("ü b/../c"),))))
    read = Reader((tmp_path / "index.html").read_text())
    assert len({link for link in read.links if not link.startswith("#")}) == 1 + 4 + 2
    for link in read.links:
        assert link[1:] in read.ids if link.startswith("#") else (tmp_path / link).is_file()


def test_a_report_of_nothing_says_so() -> None:
    """A run that was stopped at once leaves a page that can be opened."""
    assert "No part has been finished yet." in Reader(page(ExperimentReport())).text


def test_an_older_part_beside_a_failure_is_said_to_be_older() -> None:
    """Numbers of another run are not passed off as those of the last."""
    text = Reader(page(a_report(a_part()).failing("accuracy", "the disk is full"))).text
    assert "what stands here is older. The disk is full." in text


# Cells


@pytest.mark.parametrize(
    ("cells", "digits", "words"),
    [
        ([1, 2_000, None], 1, ["1", "2,000", GAP]),
        ([1, 2.25], 1, ["1.0", "2.2"]),
        ([0.004, -0.0, -0.004, 0.0], 2, ["0.004", "0.00", "-0.004", "0.00"]),
        ([True, "x", False], 1, ["yes", "x", "no"]),
        ([1234.5], 0, ["1,234"]),
    ],
)
def test_cells_are_written_alike_in_a_column(cells: list[float], digits: int, words: list[str]) -> None:
    """Whole columns stay whole; what would round to nothing shows its first figure; zero has no sign."""
    assert written(cells, Column("a", digits=digits)) == words


@given(cells=st.lists(st.none() | st.floats(-100, 100), min_size=1), more=st.booleans())
def test_nothing_reads_better_than_what_is_bold(cells: list[float | None], more: bool) -> None:
    """All that read like the best are marked; if that is every one of them, none is."""
    column = Column("a", digits=1, better="more" if more else "less")
    marks = best(cells, column)
    known = [cell for cell in cells if cell is not None]
    bold = [cell for cell, mark in zip(cells, marks, strict=True) if mark and cell is not None]
    if bold:
        assert (max if more else min)(known) in bold and len(bold) < len(known)
        assert len({word for word, mark in zip(written(cells, column), marks, strict=True) if mark}) == 1
    else:
        assert len({word for word, cell in zip(written(cells, column), cells, strict=True) if cell is not None}) <= 1


def test_headings_carry_units() -> None:
    """And a table's rows are its cells, written."""
    assert [heading(column) for column in a_table().columns] == ["router", "accuracy (%)", "time (ms)", "texts"]
    assert written_rows(a_table())[2] == ["kNN", GAP, "12.00", "7"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.44, "0.4 s"), (12.3, "12 s"), (59.9, "1 min 0 s"), (200, "3 min 20 s"), (7_500, "2 h 5 min")],
)
def test_durations_are_short(seconds: float, words: str) -> None:
    """No more than two units."""
    assert duration(seconds) == words
