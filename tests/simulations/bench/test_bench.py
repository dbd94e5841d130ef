"""The benchmarks at sizes that mean nothing: that each runs, says what it found, and fails when it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from ridgeway.common.base.errors import InputError, ProcessError
from ridgeway.common.cli.terminal import run
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.statistics.sums import Integers
from ridgeway.simulations.bench import __main__ as command
from ridgeway.simulations.bench import cohorts_bench as cohorts
from ridgeway.simulations.bench import deployment_bench as deployment
from ridgeway.simulations.bench import masking_bench as masking
from ridgeway.simulations.bench import prepare_bench as preparing
from ridgeway.simulations.bench import sums_bench as sums
from ridgeway.simulations.bench.bench_text import bench_text, repeated
from ridgeway.simulations.bench.measuring import BenchOptions, Machine, Row, running
from ridgeway.simulations.bench.random_corpus import draw, random_encoder
from ridgeway.simulations.simulate import simulate
from tests.support.tiny import tiny_encoder
from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).resolve().parents[3]
IDLE = Machine(load=0.1, cores=2)
BUSY = Machine(load=1.1, cores=2)
SMALL = tuple(
    sums.SumsCase(window, 300, 12, tokens=9_000, published=2_000, batch=512, checked=700, aim="≥ 0")
    for window in (8, 1)
)

Bench = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """The command with --json on an idle machine, over a little text: the exit code and what was printed."""
    monkeypatch.setattr(command, "this_machine", lambda: IDLE)
    monkeypatch.setattr(sums, "CPU_CASES", SMALL)
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    write_text(tmp_path / "text")
    named = ("--encoder", f"dir:{tmp_path / 'encoder'}", "--text", str(tmp_path / "text"), "--json")

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = run(typer.main.get_command(command.app), [*words, *named])
        printed = capsys.readouterr().out
        return code, json.loads(printed) if printed else {}

    return call


def write_text(folder: Path) -> None:
    """Two domains of a few lines."""
    folder.mkdir()
    for domain, letter in (("law", "a"), ("code", "b")):
        for part in ("train", "test"):
            lines = [json.dumps({"text": f"{letter * 20} {number}."}) for number in range(30)]
            (folder / f"{domain}.{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def names(report: dict[str, Any]) -> str:
    return "; ".join(row["name"] for row in report["rows"])


# Aims


@pytest.mark.parametrize(
    ("ratio", "aim", "idle", "busy"),
    [
        (2.0, "≥ 2", "yes", "busy"),
        (1.9, "≥ 2", "NO", "NO"),
        (2.0, "≤ 2", "yes", "busy"),
        (2.1, "≤ 2", "NO", "NO"),
        (float("nan"), "≥ 2", "NO", "NO"),
        (float("nan"), "≤ 2", "NO", "NO"),
        (0.0, "", "", ""),
    ],
)
def test_an_aim_is_met_on_an_idle_machine_alone(ratio: float, aim: str, idle: str, busy: str) -> None:
    """At the aim itself it is met; a ratio that is no number meets nothing; a busy machine meets nothing."""
    row = Row("a", "", "", ratio, aim)
    assert (IDLE.verdict(row), BUSY.verdict(row)) == (idle, busy)


def test_a_machine_is_busy_above_half_of_its_cores() -> None:
    """At half of them it is not, and it states its load either way."""
    assert not Machine(load=1.0, cores=2).is_busy
    assert str(IDLE) == "load average 0.10 on 2 cores before the start"
    assert str(BUSY).endswith("busy, so no aim counts as met")


@pytest.mark.parametrize(("machine", "ratio", "code"), [(IDLE, 2, 0), (IDLE, 1, 1), (BUSY, 2, 1)])
def test_what_was_not_met_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], machine: Machine, ratio: float, code: int
) -> None:
    """The table is printed nevertheless, with the load."""
    monkeypatch.setattr(command, "this_machine", lambda: machine)
    monkeypatch.setattr(command, "measured", lambda name, options: [Row("speed", "here", "there", ratio, "≥ 2")])
    assert run(typer.main.get_command(command.app), ["masking"]) == code
    printed = capsys.readouterr().out
    assert printed.startswith(str(machine))
    assert printed.split()[-6:] == [
        str(ratio),
        "≥",
        "2",
        machine.verdict(Row("", "", "", ratio, "≥ 2")),
        "here",
        "there",
    ]


# Benchmarks


def test_prepare_stands_beside_the_bare_tokenizer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case, over text that is repeated as far as was asked."""
    monkeypatch.setattr(preparing, "_ROUNDS", 1)
    _, report = bench("prepare", "--size-mb", "0.01")
    assert [row["name"] for row in report["rows"]] == [
        f"prepare, {case.name}, to the bare tokenizer" for case in preparing._CASES
    ]


def test_sums_stand_beside_the_published_way(bench: Bench) -> None:
    """And are equal to their definition."""
    code, report = bench("sums")
    assert code == 0
    assert "sums, w=8, h=12, to the published way" in names(report)
    assert [row["ratio"] for row in report["rows"] if "bit for bit" in row["name"]] == [1.0, 1.0]


def test_sums_that_are_not_exact_fail_the_benchmark(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference of one in one number is enough, however fast it was."""
    true = sums.defined_gram

    def wrong(*given: Any) -> Integers:
        gram = true(*given)
        gram[2, 3] += 1
        return gram

    monkeypatch.setattr(sums, "defined_gram", wrong)
    code, report = bench("sums")
    assert code == 1
    assert [row["met"] for row in report["rows"]] == ["yes", "NO", "yes", "NO"]


def test_route_measures_a_release(bench: Bench) -> None:
    """The command too, as a process of its own."""
    _, report = bench("route")
    assert "route_many, times as fast as tokenising the batch" in names(report)
    assert "a release, MB" in names(report)


def test_masking_measures_memory_and_cohorts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement, once, on a few numbers."""
    monkeypatch.setattr(masking, "LARGE", 1000)
    monkeypatch.setattr(masking, "MIDDLE", 1000)
    monkeypatch.setattr(masking, "COHORTS", (3, 5))
    monkeypatch.setattr(masking, "_ROUNDS", 1)
    monkeypatch.setattr(masking, "measured_apart", lambda *_: 16_000)
    code, report = bench("masking")
    assert code == 0
    assert [row["name"].split(":")[0] for row in report["rows"]] == [
        "memory while masking, to the vector, which counts in it",
        "masking, 3 of 3 members, 0.001 M numbers",
        "masking, 4 of 5 members, 0.001 M numbers",
    ]
    assert report["rows"][0]["ratio"] == 2.0


def test_memory_is_what_masking_takes_in_a_process_of_its_own() -> None:
    """The vector and its sealed copy, and not much besides."""
    assert 1.8 < masking.memory_row(masking.LARGE).ratio < 3


@pytest.mark.parametrize(("own", "exit_code"), [(0.3, 0), (0.4, 1)])
def test_cohorts_report_seconds_memory_and_one_holders_work(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, own: float, exit_code: int
) -> None:
    """For each size; a holder that works for more than a second in all misses the aim."""
    steps = dict.fromkeys(("share", "seal", "open_sum"), own)
    found = {"seconds": 50.0, "cpu": 90.0, "coordinator_cpu": 20.0, "gb": 1.0, "own": steps, "sent": 1_000_000}
    asked = []

    def measured(module: str, *given: object) -> dict[str, Any]:
        asked.append(given)
        return found

    monkeypatch.setattr(cohorts, "measured_apart", measured)
    code, report = bench("cohorts", "--holders", "100", "--holders", "200", "--drop-rate", "0.1")
    assert (code, asked) == (exit_code, [(100, 0.1), (200, 0.1)])
    assert len(report["rows"]) == 8
    assert report["rows"][7]["ratio"] == 1.0


def test_all_that_one_holder_does_in_a_masked_round_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every exchange, and what it sends is more than its vector."""
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    write_text(tmp_path / "text")
    monkeypatch.setattr(cohorts, "simulate", partial(simulate, data=tmp_path / "text"))
    monkeypatch.setattr(cohorts, "ENCODER", f"dir:{tmp_path / 'encoder'}")
    cohorts.main(4, 0.25)
    printed = json.loads(capsys.readouterr().out)
    steps = ["announce", "share", "seal", "confirm_sum", "open_sum", "evaluate", "deliver"]
    assert list(printed["own"]) == steps
    assert all(seconds > 0 for seconds in printed["own"].values())
    assert printed["sent"] > 2_000
    assert printed["gb"] > 0.05


@pytest.mark.parametrize(("seconds", "exit_code"), [(1.0, 0), (3.0, 1)])
def test_deployment_reports_rounds_and_exchanges(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float, exit_code: int
) -> None:
    """Of a round in each mode: seconds, and the median exchange; slow ones miss their aim."""
    asked: list[tuple[int, str]] = []

    class Told(deployment.LoopbackFederation):
        def call(self, *words: str | Path) -> str:
            return json.dumps({"exchanges": [{"seconds": each} for each in (0.5, seconds, 9.0)]})

    @contextmanager
    def loopback(width: int, mode: str) -> Iterator[deployment.LoopbackFederation]:
        asked.append((width, mode))
        yield Told(Path())

    monkeypatch.setattr(deployment, "loopback", loopback)
    code, report = bench("deployment")
    assert (code, asked) == (exit_code, [(576, "masked"), (576, "private"), (576, "clear")])
    assert [row["ratio"] for row in report["rows"][1::2]] == [seconds] * 3


def test_all_is_everything_that_takes_minutes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one table, with one exit code."""

    class Measures:
        def __init__(self, module: str) -> None:
            self._module = module

        def rows(self, options: BenchOptions) -> list[Row]:
            return [Row(self._module.rpartition(".")[2], "", "", 1.0)]

    monkeypatch.setattr(command, "import_module", Measures)
    code, report = bench("all")
    assert code == 0
    assert names(report) == "route_bench; sums_bench; prepare_bench; masking_bench; serving_bench"


@pytest.mark.parametrize(
    "words",
    [("nothing",), ("sums", "--device", "cuda:99"), ("prepare", "--size-mb", "-1"), ("cohorts", "--holders", "2")],
)
def test_what_cannot_be_measured_is_refused(bench: Bench, words: tuple[str, ...]) -> None:
    """Before anything is measured; nothing is measured in its place."""
    assert bench(*words) == (2, {})


LITTLE_INSTALLED = """
import sys
for name in "flwr cryptography gguf scipy threadpoolctl pydantic pyarrow zstandard huggingface_hub".split():
    sys.modules[name] = None
import typer
from ridgeway.common.cli.terminal import run
from ridgeway.simulations.bench import __main__ as command
from ridgeway.simulations.bench import measuring, sums_bench
command.chosen = lambda word: ("cpu:0",)
command.this_machine = lambda: measuring.Machine(0.0, 2)
sums_bench.GPU_CASES = (sums_bench.SumsCase(8, 300, 12, 9000, 2000, 512, 700, "≥ 0"),)
sys.exit(run(typer.main.get_command(command.app), ["sums", "--device", "cuda", "--json"]))
"""


def test_a_gpu_is_measured_where_little_is_installed(tmp_path: Path) -> None:
    """torch and numpy are enough; the GPU here is really the CPU, through all the code of a GPU."""
    environment = {word: value for word, value in os.environ.items() if word != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_INSTALLED],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [row["met"] for row in json.loads(done.stdout)["rows"]] == ["yes", "yes"]


# What is measured on


@pytest.mark.parametrize("tokens", [1, 5_000, 300_001])
def test_batches_hold_the_ids_that_were_drawn(tokens: int) -> None:
    """All of them, in order, as whole documents; and other ones each time."""
    ids, parts = draw(tokens, 1000)
    assert np.array_equal(np.concatenate([part for part, _ in parts]), ids)
    assert ids.dtype == np.int32
    assert 0 <= ids.min() <= ids.max() < 1000
    assert all(lengths.sum() == len(part) and lengths.min() > 0 for part, lengths in parts)
    if tokens > 1:
        assert not np.array_equal(draw(tokens, 1000)[0], ids)


def test_ids_are_as_uneven_as_words() -> None:
    """The most frequent one of a thousand makes up a tenth."""
    assert 0.08 < np.bincount(draw(200_000, 1000)[0]).max() / 200_000 < 0.12


def test_plain_sums_are_those_of_the_definition() -> None:
    """A rest below half a window joins its neighbour; halves round up."""
    encoder = random_encoder(50, 3)
    ids = np.array([4, 5, 6, 7, 8, 9, 1], dtype=np.int32)
    rows = encoder.table[ids].astype(float)
    means = [np.floor(part.mean(axis=0) + 0.5) for part in (rows[:4], rows[4:7])]
    samples = np.array([[*mean, 1] for mean in means], dtype=np.int64)
    assert np.array_equal(sums.defined_gram(encoder.table, 4, (ids, np.array([7]))), samples.T @ samples)
    assert sums.defined_gram(encoder.table, 4, (ids[:5], np.array([5])))[-1, -1] == 1


def test_text_is_repeated_until_it_is_large_enough(tmp_path: Path) -> None:
    """In files of its own; text that is large enough stays as it is."""
    write_text(tmp_path / "text")
    files = sorted((tmp_path / "text").glob("*.train.jsonl"))
    size = sum(path.stat().st_size for path in files)
    grown = repeated(files, 5 * size / 1e6, tmp_path / "copies")
    assert sum(path.stat().st_size for path in grown) == 5 * size
    assert repeated(files, size / 1e6, tmp_path) is files
    with pytest.raises(InputError, match="no text to measure on"):
        bench_text(BenchOptions(tmp_path, text=tmp_path))


def test_a_command_that_does_not_start_is_said_to(tmp_path: Path) -> None:
    """With its last words, and nothing is left running."""
    command = [sys.executable, "-c", "raise SystemExit('no port')"]
    with pytest.raises(ProcessError, match="did not start"), running(command, "up", tmp_path / "server.log"):
        pass
