"""Parts are run once and kept, and what goes wrong costs no more than its own part."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.cli.terminal import run
from ridgeway.simulations.experiments import __main__ as command
from ridgeway.simulations.experiments.__main__ import PARTS, run_parts
from ridgeway.simulations.experiments.report import (
    ReportPart,
    ReportTable,
    draw,
    grid,
    markdown,
    read_part,
    write_part,
)
from tests.support.corpora_on_disk import write_jsonl
from tests.support.experiment_settings import tiny_dataset, tiny_plan

TABLE = ReportTable(
    "Routers",
    ("router", "accuracy", "texts"),
    (("ours", 97.25, 1_200), ("kNN", None, 7)),
    "A note.",
    best="more",
)
cells = (
    st.none()
    | st.text(max_size=9)
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e9, 1e9)
)
tables = st.lists(st.tuples(cells, cells), max_size=4).map(
    lambda rows: ReportTable("t", ("a", "b"), tuple(rows))
)


class FakeParts:
    """Parts that say how often they were run, in place of the true ones."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.wrong = ""
        self._modules: dict[str, ModuleType] = {}
        for name, module_name in PARTS.items():
            module = self._modules.setdefault(module_name, ModuleType(module_name))
            vars(module)[f"run_{name}"] = lambda plan, name=name: self._run(name)
            patch.setitem(
                sys.modules, f"ridgeway.simulations.experiments.{module_name}", module
            )

    def _run(self, name: str) -> ReportPart:
        self.ran.append(name)
        if name == self.wrong:
            raise RoundFailed("no round")
        return ReportPart(f"About {name}", ("Words.",), (TABLE,), ("kNN: no time",))


@pytest.fixture
def fake_parts(monkeypatch: pytest.MonkeyPatch) -> FakeParts:
    return FakeParts(monkeypatch)


@given(found=st.lists(tables, max_size=2))
def test_a_part_survives_json(
    found: list[ReportTable], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("part") / "part.json"
    part = ReportPart("title", ("words",), tuple(found), facts={"seed": 1})
    write_part(path, part)
    assert read_part(path) == part


def test_a_table_is_markdown() -> None:
    """Numbers to the right with their digits, gaps as dashes, and the best of a column bold."""
    part = ReportPart(
        "About", (), (replace(TABLE, rows=(*TABLE.rows, ("none", 3.0, 0))),)
    )
    lines = markdown(part).splitlines()
    assert lines[4:9] == [
        "| router | accuracy |     texts |",
        "| ------ | -------: | --------: |",
        "| ours   | **97.2** | **1,200** |",
        "| kNN    |        – |         7 |",
        "| none   |      3.0 |         0 |",
    ]


def test_a_column_without_anything_is_not_shown() -> None:
    table = ReportTable(
        "t", ("what", "aim", "ours"), (("speed", "", 2.0), ("size", "", None))
    )
    assert grid(table).splitlines() == [
        "| what  | ours |",
        "| ----- | ---: |",
        "| speed |  2.0 |",
        "| size  |    – |",
    ]


def test_a_table_is_drawn(tmp_path: Path) -> None:
    """A row is a point with its name, several of one name a curve, and the page shows the
    picture.
    """
    rows = (
        ("kNN, k = 1", 2.0, 90.0),
        ("kNN, k = 5", 3.0, 91.0),
        ("Ridgeway (ours)", 0.05, 97.0),
    )
    table = ReportTable(
        "Cost on clm",
        ("router", "a prompt, ms", "accuracy"),
        rows,
        plot=("a prompt, ms", "accuracy"),
    )
    draw(table, tmp_path / table.picture)
    drawn = (tmp_path / "cost-on-clm.svg").read_text()
    assert [
        drawn.count(f"<!-- {name} -->")
        for name in ("kNN", "Ridgeway (ours)", "kNN, k = 1")
    ] == [1, 1, 0]
    assert "![Cost on clm](cost-on-clm.svg)" in markdown(ReportPart("t", (), (table,)))


def test_a_part_is_run_once_and_then_kept(
    fake_parts: FakeParts, tmp_path: Path
) -> None:
    """Another seed, text, encoder or size runs it anew, and so does `fresh`; the page holds every
    part once.
    """
    plan = tiny_plan(tmp_path)
    others = [
        replace(plan, seed=2),
        replace(plan, full=True),
        replace(plan, encoder="other"),
        replace(plan, datasets=(tiny_dataset(train=9),)),
    ]
    assert run_parts(["epsilon", "epsilon"], plan, tmp_path / "out") == {}
    assert len(fake_parts.ran) == 1
    for count, other in enumerate(others, start=2):
        run_parts(["epsilon", "epsilon"], other, tmp_path / "out")
        assert len(fake_parts.ran) == count
    run_parts(["epsilon"], others[-1], tmp_path / "out", fresh=True)
    assert len(fake_parts.ran) == 2 + len(others)
    assert (tmp_path / "out" / "report.md").read_text().count("About epsilon") == 1


def test_a_part_that_fails_costs_no_other(
    fake_parts: FakeParts, tmp_path: Path
) -> None:
    fake_parts.wrong = "epsilon"
    assert run_parts(list(PARTS), tiny_plan(tmp_path), tmp_path) == {
        "epsilon": "no round"
    }
    assert fake_parts.ran == list(PARTS)
    assert not (tmp_path / "epsilon.json").exists()
    page = (tmp_path / "report.md").read_text()
    assert [name for name in PARTS if f"About {name}" in page] == [
        name for name in PARTS if name != "epsilon"
    ]


def call(words: str) -> int:
    return run(typer.main.get_command(command.app), words.split())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, texts in tiny_dataset().train.items():
        for part in ("train", "test"):
            write_jsonl(tmp_path / "data" / f"{name}.{part}.jsonl", texts)
    return tmp_path / "data"


def test_the_command_runs_parts_over_folders(
    fake_parts: FakeParts,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of them unless some are named; tables go to stdout, each part to its JSON."""
    assert call(f"--data {data} --out {tmp_path}/out --device cpu") == 0
    assert fake_parts.ran == list(PARTS)
    assert "| ours " in capsys.readouterr().out
    part = read_part(tmp_path / "out" / "accuracy.json")
    assert part is not None
    assert set(part.facts["key"]["datasets"]) == {"data"}


def test_the_command_says_what_is_wrong(
    fake_parts: FakeParts,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A part that there is not, a folder that there is not, two of one name; exit 1 where a part
    failed.
    """
    assert call("oracle") == 2
    assert "there is no part 'oracle'; there are summary" in capsys.readouterr().err
    assert call(f"--data {tmp_path}/nowhere") == 2
    assert call(f"--data {data} --data {data}") == 2
    fake_parts.wrong = "privacy"
    assert call(f"privacy --data {data} --out {tmp_path}/out --device cpu") == 1
