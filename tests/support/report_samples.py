"""Findings made up for a test: parts, tables and plots of every shape, and small settings."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.report.report_tables import Cell, Column, Plot, ReportPart, Series, Table
from tests.support.corpora_on_disk import ALPHABETS, sentences

COLUMNS = (Column("router"), Column("accuracy", "%", 1, "more"), Column("time", "ms", 2, "less"), Column("texts"))
ROWS: tuple[tuple[Cell, ...], ...] = (
    ("windows <b>&amp;", 97.25, 0.5, 1_200),
    ("`paper`", 91.5, 0.125, 1_200),
    ("kNN", None, 12.0, 7),
)


def a_table(key: str = "routers", **changes: Any) -> Table:
    return Table(**{"key": key, "title": "Routers", "columns": COLUMNS, "rows": ROWS, "note": "A note.", **changes})


def a_plot(key: str = "over-holders", **changes: Any) -> Plot:
    lines = (Series("windows", (2, 4, 100), (97.0, None, 95.0)), Series("paper", (2, 4, 100), (91.0, 90.0, 88.0)))
    usual = {"title": "Accuracy", "x_label": "holders", "y_label": "accuracy (%)", "series": lines, "note": "Mean."}
    return Plot(**{"key": key, **usual, **changes})


def a_part(key: str = "accuracy", **changes: Any) -> ReportPart:
    usual = {"title": f"About {key}", "words": (f"First of {key}.", "Second."), "left_out": ("kNN: no time",)}
    own = {"tables": (a_table(f"{key}-table"),), "plots": (a_plot(f"{key}-plot"),), "facts": {"seed": 1}}
    made = {"key": key, "command": f"ridgeway experiment {key}", "seconds": 1.5}
    return ReportPart(**{**made, **usual, **own, **changes})


def a_dataset(name: str = "letters", count: int = 40) -> Dataset:
    train = {domain: tuple(sentences(domain, count)) for domain in ALPHABETS}
    test = {domain: tuple(f"{text} again" for text in texts[:5]) for domain, texts in train.items()}
    return Dataset(name, "made up", train, test)


words = st.text(max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
cells = st.none() | words | st.booleans() | st.integers(-(10**12), 10**12) | numbers
columns = st.builds(Column, words, words, st.integers(0, 4), st.sampled_from(("", "more", "less")))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    heads = tuple(draw(st.lists(columns, min_size=1, max_size=4)))
    rows = draw(st.lists(st.tuples(*(cells for _ in heads)), max_size=5))
    return Table(draw(words), draw(words), heads, tuple(rows), draw(words))


measured = st.just(0.0) | st.floats(1e-6, 1e6)


@st.composite
def series(draw: st.DrawFn) -> Series:
    x = draw(st.lists(measured, min_size=1, max_size=6))
    y = draw(st.lists(st.none() | measured | measured.map(lambda value: -value), min_size=len(x), max_size=len(x)))
    return Series(draw(words), tuple(x), tuple(y))


scales = st.sampled_from(("linear", "log"))
plots = st.builds(
    Plot,
    key=words,
    title=words,
    x_label=words,
    y_label=words,
    series=st.lists(series(), max_size=4).map(tuple),
    x_scale=scales,
    y_scale=scales,
    note=words,
    level=st.none() | st.tuples(words, measured),
)
parts = st.builds(
    ReportPart,
    key=words,
    title=words,
    words=st.lists(words, max_size=3).map(tuple),
    tables=st.lists(tables(), max_size=2).map(tuple),
    plots=st.lists(plots, max_size=2).map(tuple),
    facts=st.dictionaries(words, cells, max_size=3),
    left_out=st.lists(words, max_size=2).map(tuple),
    command=words,
    seconds=st.floats(0, 1e5),
)
