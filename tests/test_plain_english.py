"""What people read avoids words that a search engine would not find."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = [
    *(path for room in ("client", "common", "coordinator", "simulations") for path in (ROOT / room).rglob("*.py")),
    *(ROOT / "ridgeway").glob("*.py"),
    *(ROOT / "ridgeway" / "adapters").glob("*.py"),
]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(
        path
        for room in ("client", "common", "coordinator")
        for kind in ("*.js", "*.html")
        for path in (ROOT / room).rglob(kind)
        if "static" in path.parts
    ),
]
FORBIDDEN = {
    r"\banew\b": "again",
    r"\bat hand\b": "current",
    r"\bcan(not)? be had\b": "is (not) available",
    r"\blast words\b": "end of the log",
    r"\bmade ahead\b": "precomputed",
    r"\bmay be given again\b": "repeatable",
    r"\bname (it|them) with --": "use --",
    r"\b(every|first) so many\b|\bso many (tokens|times|units)\b": "every N, the first N",
    r"\b(whence|thence|thither|hither)\b": "from where, from there, there, here",
    r"\b(lest|nigh|nought|naught)\b": "so that … not, near, nothing",
    r"\bshall\b": "must, will",
    r"\bnobody's to\b": "cannot",
    r"\boperator's word\b": "from the operator",
    r"\bwish for\b": "lower, raise",
    r"\bmend (it|them)\b": "fix",
    r"\bstands? (there|here) twice\b|\bstands in the cohort\b": "duplicate",
    r"\bby another way\b": "over another channel",
    r"\bgives? away\b": "reveals",
    r"\bthis very\b": "this",
    r"\breckon": "count, compute",
    r"\bpassed over\b": "skip",
    r"\bunder way\b": "in flight, running",
    r"\bis no (device|origin|port)\b": "is not a, unknown",
}
"""Regular expressions, and plain words instead."""


def shown_strings(path: Path) -> Iterator[tuple[int, str]]:
    """String constants of a module, without docstrings and other strings that are statements."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.lineno, node.value


def read_lines() -> list[tuple[Path, int, str]]:
    strings = [(path, line, text) for path in CODE for line, text in shown_strings(path)]
    pages = [
        (path, number, line)
        for path in PAGES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]
    return strings + pages


@pytest.fixture(scope="module")
def lines() -> list[tuple[Path, int, str]]:
    return read_lines()


def test_what_people_read_is_found(lines: list[tuple[Path, int, str]]) -> None:
    """A scan that finds nothing would let everything pass."""
    said = " ".join(text for _, _, text in lines)
    assert len(CODE) > 200 and len(PAGES) > 40
    assert "repeatable" in said and "not enough free GPU memory" in said


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_quaint_words(lines: list[tuple[Path, int, str]], pattern: str) -> None:
    """In messages, options, logs, pages and docs."""
    met = [
        f"{path.relative_to(ROOT)}:{number}: {text.strip()[:100]}"
        for path, number, text in lines
        if re.search(pattern, text, re.IGNORECASE)
    ]
    assert met == [], f"instead: {FORBIDDEN[pattern]}"
