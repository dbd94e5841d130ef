"""Parts are run once and kept, reports grow part by part, and what goes wrong costs no more than its own part."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from ridgeway.common.base.errors import FormatError, InputError, RoundFailed
from ridgeway.common.cli.terminal import run
from ridgeway.simulations.cli import experiment_commands as experiment_cli
from ridgeway.simulations.experiments.plan import PARTS, Cache, ExperimentPlan, part_module
from ridgeway.simulations.experiments.report.report_files import (
    check_report_folder,
    csv_text,
    read_report,
    write_report,
)
from ridgeway.simulations.experiments.report.report_tables import ExperimentReport, ReportPart, file_name
from ridgeway.simulations.experiments.suite import distinct, finished, run_parts
from tests.support.corpora_on_disk import write_jsonl
from tests.support.report_samples import a_dataset, a_part, a_table

DATASET = a_dataset()


class FakeParts:
    """Parts that say how often they were run, in place of the true ones."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.plans: list[tuple[str, ExperimentPlan]] = []
        self.wrong: dict[str, BaseException] = {}
        for name in PARTS:
            patch.setitem(sys.modules, part_module(name), self._module(name))

    def _module(self, name: str) -> ModuleType:
        module = ModuleType(part_module(name))
        vars(module).update(KEY=name, TITLE=f"About {name}", run=lambda plan: self._run(name, plan))
        return module

    def _run(self, name: str, plan: ExperimentPlan) -> ReportPart:
        assert plan.work.is_dir() and not any(plan.work.iterdir())
        (plan.work / "scratch").write_text("x")
        self.plans.append((name, plan))
        if name in self.wrong:
            raise self.wrong[name]
        return a_part(name, facts={}, command="", seconds=0.0)

    @property
    def ran(self) -> list[str]:
        return [name for name, _ in self.plans]


@pytest.fixture
def fake_parts(monkeypatch: pytest.MonkeyPatch) -> FakeParts:
    return FakeParts(monkeypatch)


def a_plan(folder: Path, **changes: Any) -> ExperimentPlan:
    return ExperimentPlan(
        **{"datasets": (DATASET,), "work": folder, "cache": Cache(folder / "cache"), "device": "cpu", **changes}
    )


def unseen(part: ReportPart) -> None:
    """Nobody looks."""


def run_all(folder: Path, *names: str, **changes: Any) -> ExperimentReport:
    return run_parts(names or tuple(PARTS), a_plan(folder, **changes), folder, "ridgeway experiment {}".format, unseen)


# Running


def test_a_part_is_run_once_and_then_kept(fake_parts: FakeParts, tmp_path: Path) -> None:
    """With the seconds of the time it ran and the command of the time it is asked for; its scratch is gone."""
    first = finished("scaling", a_plan(tmp_path), "a")
    again = finished("scaling", a_plan(tmp_path), "b")
    assert fake_parts.ran == ["scaling"]
    assert (first.command, again.command) == ("a", "b")
    assert replace(again, command="a") == first and first.seconds > 0
    assert not fake_parts.plans[0][1].work.exists()


@pytest.mark.parametrize(
    "changes", [{"seed": 2}, {"full": True}, {"encoder": "other"}, {"datasets": (a_dataset(count=9),)}]
)
def test_what_decides_a_result_runs_it_anew(fake_parts: FakeParts, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Another seed, size, encoder or text, and also other code."""
    finished("scaling", a_plan(tmp_path), "")
    finished("scaling", a_plan(tmp_path, **changes), "")
    vars(sys.modules[part_module("scaling")])["CODE"] = 2
    finished("scaling", a_plan(tmp_path), "")
    assert len(fake_parts.ran) == 3


def test_fresh_runs_what_is_kept(fake_parts: FakeParts, tmp_path: Path) -> None:
    """And keeps what it finds."""
    for fresh in (False, True, False):
        finished("scaling", a_plan(tmp_path, cache=Cache(tmp_path / "cache", fresh=fresh)), "")
    assert len(fake_parts.ran) == 2


def test_a_number_that_is_none_becomes_a_gap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is kept and what is written is strict JSON."""
    FakeParts(monkeypatch)
    bad = a_part("scaling", tables=(a_table(rows=(("a", math.nan, math.inf, 1),)),))
    monkeypatch.setattr(sys.modules[part_module("scaling")], "run", lambda plan: bad)
    assert finished("scaling", a_plan(tmp_path), "").tables[0].rows == (("a", None, None, 1),)


def test_all_parts_go_on_when_one_fails(fake_parts: FakeParts, tmp_path: Path) -> None:
    """The report says which and why, and has all the others."""
    fake_parts.wrong["dropouts"] = RoundFailed("nobody came")
    done = run_all(tmp_path)
    report = read_report(tmp_path)
    assert fake_parts.ran == list(PARTS)
    assert done.failures == report.failures == {"dropouts": "nobody came"}
    assert [part.key for part in report.parts] == [name for name in PARTS if name != "dropouts"]
    assert "Nobody came." in (tmp_path / "index.html").read_text()


def test_a_missing_package_is_a_part_left_out(fake_parts: FakeParts, tmp_path: Path) -> None:
    """Not the end of everything."""
    fake_parts.wrong["experts"] = ModuleNotFoundError("no", name="datasets")
    assert "package datasets" in run_all(tmp_path).failures["experts"]


def test_one_part_alone_that_fails_is_an_error(fake_parts: FakeParts, tmp_path: Path) -> None:
    """And the report knows it until the part succeeds."""
    fake_parts.wrong["dropouts"] = RoundFailed("nobody came")
    with pytest.raises(RoundFailed):
        run_all(tmp_path, "dropouts")
    assert read_report(tmp_path).failures == {"dropouts": "nobody came"}
    fake_parts.wrong.clear()
    run_all(tmp_path, "dropouts")
    assert read_report(tmp_path).failures == {}


def test_an_interrupt_leaves_what_was_finished(fake_parts: FakeParts, tmp_path: Path) -> None:
    """The same command goes on from there."""
    fake_parts.wrong["dropouts"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt, match="interrupted in dropouts"):
        run_all(tmp_path)
    assert [part.key for part in read_report(tmp_path).parts] == ["accuracy", "robustness", "selectors"]
    fake_parts.wrong.clear()
    run_all(tmp_path)
    assert fake_parts.ran == [*list(PARTS)[:4], *list(PARTS)[3:]]


def test_settings_of_one_name_are_numbered() -> None:
    """So that no table takes another's place, also where a folder has such a number already."""
    named = [a_dataset(name) for name in ("clm", "clm-2", "clm", "clm", "other")]
    assert [dataset.name for dataset in distinct(named)] == ["clm", "clm-2", "clm-3", "clm-4", "other"]


# Files


def test_a_report_comes_back_from_its_folder(tmp_path: Path) -> None:
    """Parts in the order of the fake_parts, whatever the order they came in."""
    report = ExperimentReport({"seed": 1}, (), {"privacy": "no"})
    for name in ("experts", "dropouts", "accuracy"):
        report = report.having(a_part(name))
    write_report(tmp_path, report)
    assert read_report(tmp_path) == report
    assert [part.key for part in report.parts] == ["accuracy", "dropouts", "experts"]


def test_a_part_replaces_its_own_files_and_no_others(tmp_path: Path) -> None:
    """Tables that are gone take their files with them; what somebody else put there stays."""
    write_report(tmp_path, ExperimentReport().having(a_part()).having(a_part("scaling")))
    (tmp_path / "tables" / "mine.csv").write_text("x")
    write_report(tmp_path, read_report(tmp_path).having(a_part(tables=(a_table("new"),))))
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {"mine.csv", "new.csv", "new.json", "scaling-table.csv", "scaling-table.json"}


def test_csv_holds_what_was_measured(tmp_path: Path) -> None:
    """Not rounded, a gap empty, and the unit in the heading."""
    read = list(csv.reader(csv_text(a_table()).splitlines()))
    assert read[0] == ["router", "accuracy (%)", "time (ms)", "texts"]
    assert read[1:] == [
        ["windows <b>&amp;", "97.25", "0.5", "1200"],
        ["`paper`", "91.5", "0.125", "1200"],
        ["kNN", "", "12.0", "7"],
    ]


def test_any_key_gives_a_file_name_of_its_own() -> None:
    """No key leads out of the folder, and none takes another's place."""
    keys = ["a b", "a-b", "a/b", "../a", "", "ü", "."]
    names = [file_name(key) for key in keys]
    assert len(set(names)) == len(keys)
    assert file_name("accuracy-clm") == "accuracy-clm"
    assert all(name and "/" not in name and not name.startswith(".") for name in names)


def test_a_folder_that_is_no_report_is_refused(tmp_path: Path) -> None:
    """Nothing of somebody else's is ever written over; an empty folder and a report will do."""
    check_report_folder(tmp_path)
    check_report_folder(tmp_path / "new")
    (tmp_path / "brought" / "cache").mkdir(parents=True)
    check_report_folder(tmp_path / "brought")  # what another machine has made, to be taken over
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not a report"):
        check_report_folder(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        check_report_folder(tmp_path / "letter.txt")
    for damage in ("{", "[]", "{}", '{"kind": "ridgeway report", "version": 99}'):
        (tmp_path / "report.json").write_text(damage)
        with pytest.raises(FormatError, match=r"report\.json"):
            check_report_folder(tmp_path)
    write_report(tmp_path / "report", ExperimentReport())
    check_report_folder(tmp_path / "report")


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of texts of the same name; the report goes beside them."""
    for place in ("one", "two"):
        for domain, texts in DATASET.train.items():
            for side in ("train", "test"):
                write_jsonl(tmp_path / place / "texts" / f"{domain}.{side}.jsonl", texts)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def experiment(*words: str) -> int:
    return run(typer.main.get_command(experiment_cli.app), [*words, "--device", "cpu"])


def test_a_part_prints_its_tables_and_writes_a_report(
    fake_parts: FakeParts, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results alone on stdout, steps on stderr, and files beside the page."""
    assert experiment("dropouts", "--data", "one/texts", "--seed", "3") == 0
    out, err = capsys.readouterr()
    assert "First of dropouts." in out and "97.2" in out and "accuracy (%)" in out.replace("\n", " ")
    assert "running   dropouts" in err and "wrote     report/index.html" in err and "97.2" not in err
    files = {path.relative_to(folder / "report").as_posix() for path in (folder / "report").rglob("*.*")}
    wanted = {"index.html", "report.json", "tables/dropouts-table.csv", "tables/dropouts-table.json"}
    assert {*wanted, "plots/dropouts-plot.svg"} <= files
    (part,) = read_report(folder / "report").parts
    assert part.command == "ridgeway experiment dropouts --data one/texts --device cpu --seed 3"
    assert fake_parts.plans[0][1].seed == 3


def test_a_second_part_joins_the_report(
    fake_parts: FakeParts, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first stays, and is taken from the cache when asked for again."""
    for name in ("dropouts", "accuracy", "dropouts"):
        assert experiment(name, "--data", "one/texts") == 0
    assert fake_parts.ran == ["dropouts", "accuracy"]
    assert "kept      dropouts" in capsys.readouterr().err
    assert [part.key for part in read_report(folder / "report").parts] == ["accuracy", "dropouts"]
    facts = read_report(folder / "report").facts
    assert facts["seed"] == 1 and {"ridgeway", "python", "packages", "machine", "date"} <= facts.keys()


def test_json_stands_alone_on_stdout(fake_parts: FakeParts, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One part as itself, all of them as a list with what failed; the exit code says whether all is there."""
    fake_parts.wrong["experts"] = InputError("no experts")
    assert experiment("dropouts", "--data", "one/texts", "--json") == 0
    assert json.loads(capsys.readouterr().out)["key"] == "dropouts"
    assert experiment("all", "--data", "one/texts", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [part["key"] for part in found["parts"]] == [name for name in PARTS if name != "experts"]
    assert found["failures"] == {"experts": "no experts"}


def test_two_folders_of_one_name_are_two_settings(fake_parts: FakeParts, folder: Path) -> None:
    """In the order they were given."""
    assert experiment("scaling", "--data", "one/texts", "--data", "two/texts") == 0
    assert [dataset.name for dataset in fake_parts.plans[0][1].datasets] == ["texts", "texts-2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "-1"], "--seed cannot be -1"),
        (["--seed", str(2**32)], "--seed cannot be"),
        (["--seed", "x"], "--seed"),
        (["--data", "nowhere"], "there is no folder nowhere"),
        (["--data", "one/texts", "--data", "two/../one/texts"], "given twice"),
        (["--data", "one"], "at least two"),
        (["--data", "one/texts", "--out", "one"], "one exists and is not a report"),
        (["--device", "cuda:99x"], "is no device"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_runs(
    fake_parts: FakeParts, folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """In one sentence; no folder is made."""
    device = [] if "--device" in words else ["--device", "cpu"]
    assert run(typer.main.get_command(experiment_cli.app), ["all", *words, *device]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.strip().splitlines()) == 1
    assert fake_parts.ran == [] and not (folder / "report").exists()


def test_the_commands_are_the_parts_and_all() -> None:
    """None is forgotten."""
    assert [command.name for command in experiment_cli.app.registered_commands] == [*PARTS, "all"]
