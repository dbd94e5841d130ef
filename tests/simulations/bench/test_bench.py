"""The benchmarks at sizes that mean nothing: that each runs, says what it found, and fails when it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from ridgeway.common.base.devices import gpus
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import Sampling
from ridgeway.common.cli.terminal import run
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.statistics.sums import Integers
from ridgeway.simulations.bench import bench_text as text
from ridgeway.simulations.bench import cohort_bench as cohorts
from ridgeway.simulations.bench import deployment_bench as deployment
from ridgeway.simulations.bench import masking_bench as masking
from ridgeway.simulations.bench import prepare_bench as preparing
from ridgeway.simulations.bench import round_bench as federation
from ridgeway.simulations.bench import solve_bench as solving
from ridgeway.simulations.bench import sums_bench as sums
from ridgeway.simulations.bench.bench_text import BenchText, folder_text, repeated
from ridgeway.simulations.bench.device import Device
from ridgeway.simulations.bench.measuring import BenchReport, Result, at_least, at_most, exactly, figure
from ridgeway.simulations.bench.random_corpus import Kind, draw, random_encoder
from ridgeway.simulations.bench.sum_methods import DefinedSums
from ridgeway.simulations.cli import bench_commands as bench_cli
from ridgeway.simulations.simulate import simulate
from tests.support.tiny import tiny_encoder
from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).resolve().parents[3]
SMALL = (
    sums.Case(8, 300, 12, tokens=9_000, published=2_000, checked=700, aim=0.0),
    sums.Case(1, 300, 12, tokens=9_000, published=2_000, checked=700, aim=0.0),
)

Bench = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`ridgeway bench … --json` at small sizes, on a little text of its own: the exit code and what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sums, "CPU_CASES", SMALL)
    monkeypatch.setattr(solving, "CPU_WIDTHS", (5, 20))
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    monkeypatch.setattr(bench_cli, "DEFAULT_ENCODER", f"dir:{tmp_path / 'encoder'}")
    monkeypatch.setattr(text, "bench_text", lambda work: little_text(tmp_path / "text"))

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = run(typer.main.get_command(bench_cli.app), [*words, "--json"])
        printed = capsys.readouterr().out
        return code, json.loads(printed) if printed else {}

    return call


def little_text(folder: Path) -> BenchText:
    """Two domains of a few lines."""
    folder.mkdir(exist_ok=True)
    for domain, letter in (("law", "a"), ("code", "b")):
        for part in ("train", "test"):
            lines = [json.dumps({"text": f"{letter * 20} {number}."}) for number in range(30)]
            (folder / f"{domain}.{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder_text(folder)


def names(report: dict[str, Any]) -> str:
    return "; ".join(result["name"] for result in report["results"])


# Aims


@pytest.mark.parametrize(
    ("result", "reached"),
    [
        (at_least("a", 2.0, 2.0, "", ""), True),
        (at_least("a", 1.9, 2.0, "", ""), False),
        (at_most("a", 2.0, 2.0, "", ""), True),
        (at_most("a", 2.1, 2.0, "", ""), False),
        (exactly("a", 1.0, 1.0, "", ""), True),
        (exactly("a", 0.0, 1.0, "", ""), False),
        (at_least("a", float("nan"), 2.0, "", ""), False),
        (at_most("a", float("nan"), 2.0, "", ""), False),
        (figure("a", 0.0, "", ""), True),
    ],
)
def test_an_aim_is_reached_or_missed(result: Result, reached: bool) -> None:
    """At the aim itself it is reached; a ratio that is no number reaches nothing; a bare figure has no aim."""
    assert result.reached is reached


def test_one_missed_aim_fails_a_report() -> None:
    """However many were reached."""
    report = BenchReport("a", {}, [at_least("a", 2, 1, "", ""), at_most("b", 2, 1, "", "")])
    assert not report.reached
    assert [result["reached"] for result in report.to_json()["results"]] == [True, False]


def test_a_missed_aim_is_the_exit_code(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are printed and written nevertheless."""
    monkeypatch.setitem(bench_cli.BENCHES, "solve", lambda report, _: report.add([at_least("a", 1, 2, "", "")]))
    code, report = bench("solve", "--device", "cpu")
    assert (code, report["reached"]) == (1, False)
    assert json.loads(Path("bench-run/solve.json").read_bytes()) == report


# Commands


def test_prepare_measures_sums_and_files(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU with the CPU's cases; the text is repeated as far as was asked."""
    monkeypatch.setattr(sums, "GPU_CASES", ())
    little_text(tmp_path / "own")
    named = ("--encoder", f"dir:{tmp_path / 'encoder'}", "--text", str(tmp_path / "own"), "--size-mb", "0.01")
    _, report = bench("prepare", "--device", "cpu", *named)
    assert "sums, w=8, h=12, Zipf ids, to the published way" in names(report)
    assert all(f"prepare, {name}, to the bare tokenizer" in names(report) for name in preparing.CPU_AIMS)
    assert [result["reached"] for result in report["results"] if "bit for bit" in result["name"]] == [True] * 4
    assert report["text"].endswith("own, repeated to 0 MB")
    assert (report["device"], report["left_out"]) == ("cpu", [])
    assert json.loads(Path("bench-run/prepare.json").read_bytes()) == report


def test_sums_that_are_not_exact_fail_the_benchmark(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference of one in one number is enough, however fast it was."""
    true = DefinedSums.gram

    def wrong(self: DefinedSums, parts: Any) -> Integers:
        gram = true(self, parts)
        gram[2, 3] += 1
        return gram

    monkeypatch.setattr(DefinedSums, "gram", wrong)
    monkeypatch.setattr(bench_cli, "_add_files", lambda *_: None)
    code, report = bench("prepare", "--device", "cpu")
    missed = [result["name"] for result in report["results"] if not result["reached"]]
    assert code == 1
    assert len(missed) == 4
    assert all("equal bit for bit" in name for name in missed)


def test_prepare_from_files_is_left_out_with_a_word_where_no_encoder_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is measured; an encoder that was named must be there."""
    monkeypatch.setattr(bench_cli, "DEFAULT_ENCODER", "dir:nowhere")
    code, report = bench("prepare", "--device", "cpu")
    assert code == 0
    assert report["left_out"][0].startswith("prepare from files: ")
    assert bench("prepare", "--device", "cpu", "--encoder", "dir:nowhere")[0] == 2


def test_solve_measures_every_width(bench: Bench) -> None:
    """Beside the bare factor."""
    code, report = bench("solve", "--device", "cpu")
    assert code == 0
    assert "solve, h=5, bare Cholesky to ours, CPU; solve, h=20" in names(report)


def test_route_measures_a_release(bench: Bench) -> None:
    """The command too, as a process of its own."""
    _, report = bench("route")
    assert "route_many, to tokenising the batch" in names(report)
    assert "a release, MB" in names(report)


def test_mask_measures_an_upload_memory_and_cohorts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement, once, on a few numbers."""
    for name in ("LARGE", "MIDDLE", "SMALL"):
        monkeypatch.setattr(masking, name, 1000)
    monkeypatch.setattr(masking, "COHORTS", (3,))
    medians = masking._medians
    monkeypatch.setattr(masking, "_medians", lambda rounds, prepare: medians(1, prepare))
    monkeypatch.setattr(masking, "measured_apart", lambda *_: 16_000)
    _, report = bench("mask")
    assert [result["name"].split(",")[0] for result in report["results"]] == [
        "a sealed upload",
        "memory while masking",
        "masking",
    ]
    assert report["results"][1]["ratio"] == 2.0


def test_memory_is_what_masking_takes_in_a_process_of_its_own() -> None:
    """The vector and its sealed copy, and not much besides."""
    assert 1.8 < masking._memory().ratio < 3


def test_federation_reports_seconds_and_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """From figures that processes of their own print."""
    figures = dict.fromkeys((*federation.WORK, "summing", "overhead", "round", "memory", "whole"), 1.0)
    monkeypatch.setattr(federation, "_measured", lambda *_: figures)
    code, report = bench("federation")
    assert code == 0
    assert len(report["results"]) == 3


@pytest.mark.parametrize(("own", "exit_code"), [(0.3, 0), (0.4, 1)])
def test_cohorts_report_seconds_memory_and_one_holders_work(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, own: float, exit_code: int
) -> None:
    """For each size; a holder that works for more than a second in all misses the aim."""
    found = cohorts.CohortFigures(
        50.0, 40.0, 90.0, 20.0, 1.0, dict.fromkeys(("share", "seal", "open_sum"), own), 1 << 20
    )
    asked = []

    def measured(*given: object) -> cohorts.CohortFigures:
        asked.append(given)
        return found

    monkeypatch.setattr(cohorts, "_measured", measured)
    code, report = bench("cohorts", "--holders", "100", "--holders", "200", "--drop-rate", "0.1")
    assert (code, asked) == (exit_code, [(100, 0.1), (200, 0.1)])
    assert len(report["results"]) == 8
    assert report["results"][7]["ratio"] == 1.0


def test_all_that_one_holder_does_in_a_masked_round_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every exchange, and what it sends is more than its vector."""
    save_encoder(tiny_encoder(), tmp_path / "encoder")
    little_text(tmp_path / "text")
    monkeypatch.setattr(cohorts, "simulate", partial(simulate, data=tmp_path / "text"))
    monkeypatch.setattr(cohorts, "ENCODER", f"dir:{tmp_path / 'encoder'}")
    cohorts.main(4, 0.25)
    printed = json.loads(capsys.readouterr().out)
    steps = ["announce", "share", "seal", "confirm_sum", "open_sum", "evaluate", "deliver"]
    assert list(printed["own"]) == steps
    assert all(seconds > 0 for seconds in printed["own"].values())
    assert printed["up"] > 2_000
    assert printed["gb"] > 0.05


@pytest.mark.parametrize(("seconds", "exit_code"), [(1.0, 0), (3.0, 1)])
def test_deployment_reports_rounds_and_exchanges(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float, exit_code: int
) -> None:
    """Of a round in each of three federations: seconds, CPU seconds, the median exchange; slow ones miss their aim."""
    asked: list[tuple[int, str]] = []

    class Measured(deployment.LoopbackFederation):
        def round(self) -> deployment.RoundFigures:
            peaks = {"SuperLink": 7_000_000, "gate": 1}
            return deployment.RoundFigures(9.0, 8.0, (0.5, seconds, 9.0), {"SuperLink": 5.0, "gate": 0.0}, peaks)

    @contextmanager
    def loopback(folder: Path, width: int, mode: str) -> Iterator[deployment.LoopbackFederation]:
        asked.append((width, mode))
        yield Measured(folder)

    monkeypatch.setattr(deployment, "loopback", loopback)
    code, report = bench("deployment")
    assert (code, asked) == (exit_code, [(576, "masked"), (576, "private"), (4096, "masked")])
    assert len(report["results"]) == 10
    assert {each["ratio"] for each in report["results"]} == {9.0, 8.0, seconds, 7.0}


BUSY = "import time\nwhile time.process_time() < 0.4: pass\n"
FAMILY = f"""import subprocess, sys
{BUSY}
subprocess.run([sys.executable, "-c", {BUSY!r}])
print("done", flush=True)
time.sleep(60)
"""


def test_cpu_seconds_are_those_of_all_processes_also_of_those_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that works, and one below it that has worked and ended."""
    monkeypatch.setattr(deployment, "COMMAND", [sys.executable, "-c"])
    federation = deployment.LoopbackFederation(tmp_path)
    try:
        federation.start("busy", "done", FAMILY)
        assert 0.7 <= sum(federation._spent().values()) < 30
        with federation._peaks() as peaks:
            time.sleep(4 * deployment.LOOK_SECONDS)
        assert 1_000_000 < peaks["supervisors"] < 1_000_000_000
    finally:
        federation.stop()


def test_large_measures_memory(bench: Bench, smollm2_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the whole command, on text that is repeated."""
    monkeypatch.setattr(preparing, "LARGE_BYTES", 10_000)
    monkeypatch.setenv("RIDGEWAY_CACHE", str(smollm2_cache))
    code, report = bench("large")
    assert code == 0
    assert "memory in GB" in names(report)
    assert 0.02 < report["results"][0]["ratio"] < 1


def test_all_is_everything_in_one_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table, one file, one exit code."""

    def noting(name: str) -> Callable[..., None]:
        return lambda report, *_: report.add([at_least(name, 1, 1, "", "")])

    parts = ["route", "serve", "prepare", "solve", "mask", "federation"]
    for name in parts:
        monkeypatch.setitem(bench_cli.BENCHES, name, noting(name))
    code, report = bench("all", "--device", "cpu")
    assert code == 0
    assert names(report) == "; ".join(parts)
    assert Path("bench-run/all.json").exists()


def test_a_table_is_printed_without_json(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missed aim stands out."""
    missed = at_least("speed", 1, 2, "here", "there")
    monkeypatch.setitem(bench_cli.BENCHES, "mask", lambda report, _: report.add([missed]))
    assert run(typer.main.get_command(bench_cli.app), ["mask"]) == 1
    assert capsys.readouterr().out.split()[-7:] == ["speed", "1", "≥", "2", "NO", "here", "there"]


@pytest.mark.skipif(bool(gpus()), reason="a CUDA device is here")
@pytest.mark.parametrize("name", ["prepare", "solve", "all"])
def test_a_gpu_that_is_not_there_is_not_measured(bench: Bench, name: str) -> None:
    """Nothing is measured in its place."""
    assert bench(name, "--device", "cuda") == (2, {})


@pytest.mark.parametrize("size", ["-1", "nan", "1e9"])
def test_an_impossible_size_is_refused(bench: Bench, size: str) -> None:
    """Before anything is measured."""
    assert bench("prepare", "--device", "cpu", "--size-mb", size) == (2, {})


LITTLE_INSTALLED = """
import dataclasses
import sys
import time
for name in "flwr cryptography gguf scipy threadpoolctl pydantic pyarrow zstandard huggingface_hub".split():
    sys.modules[name] = None
from ridgeway.__main__ import main
from ridgeway.simulations.bench import device, solve_bench, sum_methods, sums_bench
from ridgeway.simulations.cli import bench_commands
device.find_device = lambda word: device.Device("cpu:0")
device.Device.wait = lambda self: None
device.Device.peak_bytes = lambda self, work: (work(), 100)[1]
device.Device.facts = lambda self: {"device": self.name}
sum_methods.GPU_BATCHES = (512,)
case = sums_bench.Case(8, 300, 12, 9000, 2000, 700, 0.0)
sums_bench.GPU_CASES = case, dataclasses.replace(case, window=1)
solve_bench.GPU_WIDTHS = 5, 20
bench_commands._add_contextual = lambda *_: None
main(["bench", *sys.argv[1:], "--device", "cuda", "--json"])
"""


@pytest.mark.parametrize("name", ["prepare", "solve"])
def test_a_gpu_is_measured_where_little_is_installed(tmp_path: Path, name: str) -> None:
    """torch and numpy are enough; the GPU here is really the CPU, through all the code of a GPU."""
    environment = {word: value for word, value in os.environ.items() if word != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", LITTLE_INSTALLED, name]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=MAX_WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    wanted = {
        "prepare": ["ids, to the published way", "ids, equal bit for bit", "peak memory"],
        "solve": ["torch on the CPU", "the CPU to the GPU", "weights of the GPU, to the CPU's"],
    }
    assert all(words in names(report) for words in wanted[name])


# What is measured on


@pytest.mark.parametrize("kind", ["uniform", "Zipf"])
@pytest.mark.parametrize("tokens", [1, 5_000, 300_001])
def test_batches_hold_the_ids_that_were_drawn(kind: Kind, tokens: int) -> None:
    """All of them, in order, as whole documents; and other ones each time."""
    ids, parts = draw(kind, tokens, 1000)
    assert np.array_equal(np.concatenate([part for part, _ in parts]), ids)
    assert ids.dtype == np.int32
    assert 0 <= ids.min() <= ids.max() < 1000
    assert all(lengths.sum() == len(part) and lengths.min() > 0 for part, lengths in parts)
    if tokens > 1:
        assert not np.array_equal(draw(kind, tokens, 1000)[0], ids)


def test_zipf_ids_are_as_uneven_as_words() -> None:
    """The most frequent one of a thousand makes up a tenth; of equally likely ones it does not."""
    shares = {kind: np.bincount(draw(kind, 200_000, 1000)[0]).max() / 200_000 for kind in sums.KINDS}
    assert 0.08 < shares["Zipf"] < 0.12
    assert shares["uniform"] < 0.005


def test_plain_sums_are_those_of_the_definition() -> None:
    """A rest below half a window joins its neighbour; halves round up."""
    encoder = random_encoder(50, 3)
    ids = np.array([4, 5, 6, 7, 8, 9, 1], dtype=np.int32)
    rows = encoder.table[ids].astype(float)
    means = [np.floor(part.mean(axis=0) + 0.5) for part in (rows[:4], rows[4:7])]
    samples = np.array([[*mean, 1] for mean in means], dtype=np.int64)
    found = DefinedSums(encoder.table, Sampling(window=4)).gram([(ids, np.array([7]))])
    assert np.array_equal(found, samples.T @ samples)
    one = DefinedSums(encoder.table, Sampling(window=4)).gram([(ids[:5], np.array([5]))])
    assert one[-1, -1] == 1


def test_text_is_repeated_until_it_is_large_enough(tmp_path: Path) -> None:
    """In files of its own; text that is large enough stays as it is."""
    little = little_text(tmp_path / "text")
    size = sum(path.stat().st_size for path in little.files)
    grown = repeated(little, 5 * size / 1e6, tmp_path)
    assert sum(path.stat().st_size for path in grown.files) >= 5 * size
    assert len(grown.documents) >= 5 * len(little.documents)
    assert repeated(little, size / 1e6, tmp_path) is little
    with pytest.raises(InputError, match="no text to measure on"):
        folder_text(tmp_path)


def test_contextual_sums_stand_beside_bare_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model on the CPU: the same windows in the same passes, and one ratio."""
    from ridgeway.simulations.bench import transformer_bench

    shape = {"vocab_size": 90, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    ticks: list[int] = []
    monkeypatch.setattr(transformer_bench, "ticking", lambda label, total: nullcontext(lambda: ticks.append(total)))
    (found,) = transformer_bench.bench_contextual(Device(), 2, shape | {"intermediate_size": 8}, 5_000)
    assert ticks == [transformer_bench.ROUNDS] * transformer_bench.ROUNDS
    assert found.aim == "≤ 0.1"
