"""What pages say in figures is what the kept results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.simulations.experiments.report import (
    ReportPart,
    ReportTable,
    main,
    pages,
    read_part,
    with_figures,
    write_part,
)

FIGURES = IMPORT_ROOT / "docs" / "figures"
DECISIONS = "decisions.md"
LOAD = {"load": 0.1, "cores": 2, "during": 1.8, "others": 0.0}
FACTS = {
    "date": "2026-11-18",
    "commit": "abc",
    "machine": "2 cores of a Z80",
    "load": LOAD,
    "seconds": 7.0,
    "command": "python -m speed",
}
TABLES = re.compile(r"<!-- figures: .*?<!-- /figures -->", re.DOTALL)
CODE = re.compile(r"```.*?```|^    .*?$|`[^`]*`", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"(?<![\d.,/])\d{2,}\.\d+(?!\.?\d)")
"""Such as 97.3; neither a version nor a difference of a few points."""
PLACE = "Before.\n\n<!-- figures: speed -->\n{}<!-- /figures -->\n\nAfter.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one result and a page that shows it."""
    tables = tuple(
        ReportTable(title, ("what", "ratio"), (("ours", 2.0),), f"{title}.")
        for title in ("One", "Two")
    )
    write_part(
        tmp_path / "docs" / "figures" / "speed.json",
        ReportPart("Speed", (), tables, facts=FACTS),
    )
    (tmp_path / "README.md").write_text(PLACE.format("old\n"))
    return tmp_path


def test_a_page_shows_the_tables_of_a_result_and_where_they_come_from(
    root: Path,
) -> None:
    """What stood there goes, what stands around stays, and a second time changes nothing."""
    main(root)
    shown = (root / "README.md").read_text()
    assert shown.startswith("Before.\n\n<!-- figures: speed -->\n\n**One**\n")
    assert shown.endswith("<!-- /figures -->\n\nAfter.\n")
    assert "old" not in shown
    assert shown.count("| ours |   2.0 |") == 2
    assert (
        "`python -m speed`, 2026-11-18, commit abc, on 2 cores of a Z80, in 7 s; load 0.1 before"
        in shown
    )
    assert with_figures(shown, root / "docs" / "figures") == shown


def test_a_page_shows_the_table_it_names(root: Path) -> None:
    text = PLACE.replace("speed", "speed: Two").format("")
    shown = with_figures(text, root / "docs" / "figures")
    assert "**Two**" in shown
    assert "**One**" not in shown


@pytest.mark.parametrize("name", ["nothing", "speed: Three"])
def test_a_page_cannot_show_what_is_not_there(root: Path, name: str) -> None:
    with pytest.raises(InputError, match=name.rpartition(": ")[2]):
        with_figures(PLACE.replace("speed", name).format(""), root / "docs" / "figures")


@pytest.mark.parametrize("path", pages(IMPORT_ROOT), ids=lambda path: path.name)
def test_the_docs_say_what_the_results_say(path: Path) -> None:
    """`make figures` would change nothing."""
    text = path.read_text()
    assert with_figures(text, FIGURES) == text


@pytest.mark.parametrize(
    "path",
    [path for path in pages(IMPORT_ROOT) if path.name != DECISIONS],
    ids=lambda path: path.name,
)
def test_a_figure_in_a_sentence_stands_in_a_table_of_its_page(path: Path) -> None:
    """So a sentence that is older than its table is found."""
    text = path.read_text()
    shown = set(FIGURE.findall(" ".join(TABLES.findall(text))))
    said = set(FIGURE.findall(CODE.sub("", TABLES.sub("", text))))
    assert said <= shown


@pytest.mark.parametrize(
    "path", sorted(FIGURES.glob("*.json")), ids=lambda path: path.stem
)
def test_every_result_says_where_it_comes_from_and_is_shown(path: Path) -> None:
    """Date, commit, machine, load and command; a result that no page shows goes."""
    part = read_part(path)
    assert part is not None
    assert set("date commit machine load seconds command".split()) <= set(part.facts)
    assert any(
        f"<!-- figures: {path.stem}" in page.read_text() for page in pages(IMPORT_ROOT)
    )


def test_one_page_alone_has_figures_without_a_command() -> None:
    """The page of decisions."""
    said = {
        page.name
        for page in pages(IMPORT_ROOT)
        if "measured once" in " ".join(page.read_text().lower().split())
    }
    assert said <= {DECISIONS}
