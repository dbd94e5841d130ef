"""The benchmarks at sizes that mean nothing: that each runs, says what it found, and fails when it
should.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from ridgeway.common.cli.terminal import run
from ridgeway.common.statistics import Integers
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.simulations.bench import __main__ as command
from ridgeway.simulations.bench import (
    measuring,
    rounds_bench,
    sentences_bench,
    sums_bench,
)
from ridgeway.simulations.bench.bench_inputs import plain_tokens, random_encoder
from ridgeway.simulations.bench.measuring import (
    Machine,
    MachineWatch,
    Row,
    command_words,
    runs_in_turns,
    spread_of,
)
from ridgeway.simulations.experiments.report import read_part
from tests.support.corpora_on_disk import write_domains
from tests.support.native import needs_native
from tests.support.sentence_networks import encoder_of, random_network
from tests.support.tiny import tiny_encoder, tiny_library_tokenizer

IDLE = Machine(load=0.1, cores=2)
BUSY = Machine(load=1.1, cores=2)
CROWDED = Machine(load=0.1, cores=2, during=3.1, others=0.6)
SMALL = tuple(
    sums_bench.SumsCase(
        window,
        300,
        12,
        tokens=9_000,
        published=2_000,
        batch=512,
        checked=700,
        aim="≥ 0",
    )
    for window in (8, 1)
)

Rows = dict[str, dict[str, str]]
Bench = Callable[..., tuple[int, Rows]]


def watch_of(machine: Machine) -> Callable[[], MachineWatch]:
    """A watch that has seen this load, in place of the true one."""

    class FixedWatch(MachineWatch):
        def before(self) -> Machine:
            return machine

        def machine(self) -> Machine:
            return machine

    return FixedWatch


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The command on an idle machine, over a little text: the exit code, and rows by their
    names.
    """
    monkeypatch.setattr(command, "MachineWatch", watch_of(IDLE))
    monkeypatch.setattr(sums_bench, "SUMS_CASES", SMALL)
    monkeypatch.setattr(sums_bench, "bare_tokenizer", tiny_library_tokenizer)
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    write_domains(tmp_path / "text", 30, 30)
    folders = f"--text {tmp_path / 'text'} --out {tmp_path / 'out'}"
    named = f"--encoder dir:{tmp_path / 'encoder'} {folders}".split()

    def call(name: str, *words: str) -> tuple[int, Rows]:
        code = run(typer.main.get_command(command.app), [name, *words, *named])
        part = read_part(tmp_path / "out" / f"{name}.json")
        if part is None:
            return code, {}
        [table] = part.tables
        return code, {
            str(row[0]): dict(zip(table.columns, map(str, row), strict=True))
            for row in table.rows
        }

    return call


# Aims


@pytest.mark.parametrize(
    ("ratio", "aim", "idle", "busy"),
    [
        (2.0, "≥ 2", "yes", "not judged"),
        (1.9, "≥ 2", "NO", "NO"),
        (2.0, "≤ 2", "yes", "not judged"),
        (2.1, "≤ 2", "NO", "NO"),
        (float("nan"), "≥ 2", "NO", "NO"),
        (float("nan"), "≤ 2", "NO", "NO"),
        (0.0, "", "", ""),
    ],
)
def test_an_aim_is_met_on_an_idle_machine_alone(
    ratio: float, aim: str, idle: str, busy: str
) -> None:
    """At the aim itself it is met; a ratio that is no number meets nothing; a busy machine meets
    nothing.
    """
    row = Row("a", "", "", ratio, aim)
    assert [row.verdict(machine) for machine in (IDLE, BUSY, CROWDED)] == [
        idle,
        busy,
        busy,
    ]


@pytest.mark.parametrize(
    ("machine", "ratio", "code"),
    [(IDLE, 2, 0), (IDLE, 1, 1), (BUSY, 2, 1), (CROWDED, 2, 1)],
)
def test_what_was_not_met_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    machine: Machine,
    ratio: float,
    code: int,
) -> None:
    """The table is printed nevertheless, with the load."""
    monkeypatch.setattr(command, "MachineWatch", watch_of(machine))
    monkeypatch.setattr(
        command,
        "measured",
        lambda name, options: [Row("speed", "here", "there", ratio, "≥ 2")],
    )
    assert run(typer.main.get_command(command.app), ["masking"]) == code
    assert capsys.readouterr().out.startswith(str(machine))


def test_what_takes_no_time_is_judged_on_any_machine() -> None:
    """A size, a share of exact runs: other work does not change them."""
    row = Row("a", "", "", 1.0, "≥ 1", timed=False)
    assert (row.verdict(BUSY), replace(row, ratio=0.9).verdict(BUSY)) == ("yes", "NO")


def test_a_machine_says_why_it_is_not_judged() -> None:
    assert str(BUSY) == "not judged: load 1.1 on 2 cores before the start"
    assert str(CROWDED).endswith("3.1 during it, 0.6 cores taken by other programs")


def test_other_programs_work_is_seen_and_own_work_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of nine CPU seconds in four, five were of this process: others took a core."""
    seen = {"_busy_seconds": iter([100.0, 109.0]), "_own_seconds": iter([1.0, 6.0])}
    for name, values in seen.items():
        monkeypatch.setattr(measuring, name, partial(next, values))
    monkeypatch.setattr(MachineWatch, "seconds", 4.0)
    assert MachineWatch().machine().others == 1.0


def test_a_ratio_has_the_spread_of_its_runs() -> None:
    """Runs are paired by turns; the untimed first one is in neither."""
    calls = []
    ours, theirs = runs_in_turns(
        lambda: calls.append("a"), lambda: calls.append("b"), rounds=2
    )
    assert calls == ["a", "b"] * 3
    assert len(ours) == len(theirs) == 2
    assert spread_of([2.0, 9.0], [1.0, 3.0]) == (2.0, 3.0)
    assert Row("a", "", "", 2.5, spread=(2.0, 3.0)).cells(IDLE)[1:3] == ("2.5", "2–3")


def test_a_benchmark_leaves_its_rows_and_where_they_come_from(
    bench: Bench, tmp_path: Path
) -> None:
    """As a part of a report, which the docs show."""
    bench("sums")
    part = read_part(tmp_path / "out" / "sums.json")
    assert part is not None
    assert set(part.facts) == set("date commit machine load seconds command".split())
    assert part.facts["load"]["load"] == IDLE.load


def test_a_command_is_told_without_the_paths_of_a_machine() -> None:
    words = "route --text /home/me/clm --out /tmp/x --out=docs --full".split()
    assert command_words("m", words) == "python -m m route --text clm --full"


# Benchmarks


def test_sums_stand_beside_the_published_way(bench: Bench) -> None:
    """And are equal to their definition."""
    code, rows = bench("sums")
    assert code == 0
    assert next(iter(rows)) == "sums, w=8, h=12, to the published way"
    assert [row["ratio"] for name, row in rows.items() if "bit for bit" in name] == [
        "1",
        "1",
    ]


def test_sums_that_are_not_exact_fail_the_benchmark(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference of one in one number is enough, however fast it was."""
    true = sums_bench.defined_gram

    def wrong(*given: Any) -> Integers:
        gram = true(*given)
        gram[2, 3] += 1
        return gram

    monkeypatch.setattr(sums_bench, "defined_gram", wrong)
    code, rows = bench("sums")
    assert code == 1
    assert [row["met"] for row in rows.values()] == ["yes", "NO", "yes", "NO"]


@pytest.mark.parametrize("words", ["nothing", "prepare --device cuda:99"])
def test_what_cannot_be_measured_is_refused(bench: Bench, words: str) -> None:
    """Before anything is measured; nothing is measured in its place."""
    assert bench(*words.split()) == (2, {})


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("prepare", len(sums_bench._CASES)),
        ("route", 5),
        ("masking", 3),
        pytest.param("sentences", 2, marks=needs_native),
    ],
)
def test_every_benchmark_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    """On a few numbers and little text: each row has a name and a figure."""
    for module, sizes in (
        (sums_bench, {"_ROUNDS": 1}),
        (sentences_bench, {"_ROUNDS": 1}),
        (
            rounds_bench,
            {"_ROUNDS": 1, "COHORTS": (3, 5), "LARGE": 1000, "MIDDLE": 1000},
        ),
    ):
        for word, value in sizes.items():
            monkeypatch.setattr(module, word, value)
    monkeypatch.setattr(rounds_bench, "measured_apart", lambda *_: 16_000)
    numbers = random_network(1, 0.02)
    monkeypatch.setattr(sentences_bench, "find_use", lambda: encoder_of(numbers))
    _, found = bench(name)
    assert len(found) >= rows
    assert all(found) and all(row["ours"] for row in found.values())


def test_plain_sums_are_those_of_the_definition() -> None:
    """A rest below half a window joins its neighbour; halves round up."""
    encoder = random_encoder(50, 3)
    ids = np.array([4, 5, 6, 7, 8, 9, 1], dtype=np.int32)
    rows = encoder.table[ids].astype(float)
    means = [np.floor(part.mean(axis=0) + 0.5) for part in (rows[:4], rows[4:7])]
    samples = np.array([[*mean, 1] for mean in means], dtype=np.int64)
    assert np.array_equal(
        sums_bench.defined_gram(encoder.table, 4, plain_tokens(ids, np.array([7]))),
        samples.T @ samples,
    )
    short = plain_tokens(ids[:5], np.array([5]))
    assert sums_bench.defined_gram(encoder.table, 4, short)[-1, -1] == 1
