"""ridgeway bench …: speed and memory, held against what stands beside them.

 Imports a measurement when it is to be made, so that one
that needs little runs where little is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.common.base.errors import EncoderError, InputError
from ridgeway.common.base.threads import cores
from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import command_group, step

if TYPE_CHECKING:
    from ridgeway.common.encoding.table_encoder import TableEncoder
    from ridgeway.simulations.bench.bench_text import BenchText
    from ridgeway.simulations.bench.device import Device
    from ridgeway.simulations.bench.measuring import BenchReport

WORK = Path("bench-run")
DEFAULT_ENCODER = "smollm2"

app = command_group("Measure ratios side by side; exits with 1 if an aim is missed.")

DeviceWord = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, cuda or cuda:N; a GPU has aims of its own.",
    ),
]
EncoderWord = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="dir:PATH or another source, to prepare files with. (default: smollm2)",
    ),
]
TextFolder = Annotated[
    Path | None,
    typer.Option(
        "--text",
        help="A folder of DOMAIN.train.jsonl. (default: what this machine has)",
    ),
]
SizeMb = Annotated[
    float,
    typer.Option(
        "--size-mb", help="Repeat the text to prepare up to so many megabytes."
    ),
]


@app.command()
def prepare(
    device: DeviceWord = "auto",
    encoder: EncoderWord = None,
    text: TextFolder = None,
    size_mb: SizeMb = 0.0,
    json: Json = False,
) -> None:
    """Sums beside the published way, and `client prepare` beside the bare tokenizer."""
    if not 0 <= size_mb <= 1e6:
        raise InputError(f"--size-mb cannot be {size_mb:g}; give 0 to 1000000")
    _run("prepare", json, device, encoder=encoder, text=text, size_mb=size_mb)


@app.command()
def features(
    encoder: Annotated[
        str, typer.Argument(metavar="contextual:DIR", help="A contextual encoder.")
    ],
    text: TextFolder = None,
    json: Json = False,
) -> None:
    """How far a transformer's integer features differ between the CPU and a GPU."""
    _run("features", json, "cuda", encoder=encoder, text=text)


@app.command()
def cohorts(
    holders: Annotated[
        list[int] | None,
        typer.Option(
            help="How many holders; may be given again. (default: 50 to 1000)",
            min=3,
            max=10_000,
        ),
    ] = None,
    drop_rate: Annotated[
        float,
        typer.Option(
            help="The part of the holders that fall away in the middle of the round.",
            min=0,
            max=0.99,
        ),
    ] = 0.0,
    json: Json = False,
) -> None:
    """Masked federations of growing size: seconds, memory, and what one holder does and sends
    (about ten minutes).
    """
    _run("cohorts", json, holders=tuple(holders or ()), drop_rate=drop_rate)


def _on_cpu(name: str) -> Callable[..., None]:
    def command(json: Json = False) -> None:
        _run(name, json)

    return command


def _on_any(name: str) -> Callable[..., None]:
    def command(device: DeviceWord = "auto", json: Json = False) -> None:
        _run(name, json, device)

    return command


def _run(name: str, json: bool, device: str = "cpu", **options: Any) -> None:
    """Measure, show and keep the results."""
    from ridgeway.simulations.bench.device import find_device
    from ridgeway.simulations.bench.measuring import BenchReport

    found = find_device(device)
    WORK.mkdir(exist_ok=True)
    report = BenchReport(name, found.facts())
    BENCHES[name](report, BenchOptions(found, **options))
    report.show(WORK, as_json=json)
    if not report.reached:
        raise typer.Exit(1)


# What each benchmark measures


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What is measured, and on what.

    encoder: a source such as `dir:PATH`, or nothing for the usual one.
    text:    a folder of DOMAIN.train.jsonl, or nothing for the usual text.
    size_mb: text to prepare is repeated until it has this size.
    holders: the sizes of cohorts, or nothing for the usual ones. drop_rate: the part of each that
             falls away.
    """

    device: Device
    encoder: str | None = None
    text: Path | None = None
    size_mb: float = 0.0
    holders: tuple[int, ...] = ()
    drop_rate: float = 0.0

    def find_text(self) -> BenchText:
        from ridgeway.simulations.bench import bench_text

        return (
            bench_text.bench_text(WORK)
            if self.text is None
            else bench_text.folder_text(self.text)
        )

    def find_encoder(self) -> TableEncoder:
        from ridgeway.common.encoding.encoder_sources import find_encoder
        from ridgeway.common.encoding.transformer_encoder import needs_table

        return needs_table(
            find_encoder(self.encoder or DEFAULT_ENCODER), "this benchmark"
        )


def add_prepare(report: BenchReport, options: BenchOptions) -> None:
    """Sums, contextual sums on a GPU, and the whole of `prepare` from files."""
    from ridgeway.simulations.bench import sums_bench

    if options.text is not None:
        options.find_text()  # what cannot be measured is said before anything is
    step("measuring", "sums", options.device.name)
    report.add(sums_bench.bench_sums(options.device, cores()))
    if options.device.is_gpu:
        _add_contextual(report, options.device)
    _add_files(report, options)


def _add_contextual(report: BenchReport, device: Device) -> None:
    if find_spec("transformers") is None:
        report.leave_out("contextual sums", "transformers is not installed")
        return
    from ridgeway.simulations.bench.transformer_bench import bench_contextual

    step("measuring", "contextual sums", device.name)
    report.add(bench_contextual(device, cores()))


def _add_files(report: BenchReport, options: BenchOptions) -> None:
    """Left out where no encoder was named and the usual one, or a package that reading files needs,
    is not here.
    """
    try:
        encoder = options.find_encoder()
        from ridgeway.simulations.bench.bench_text import repeated
        from ridgeway.simulations.bench.prepare_bench import bench_prepare

        text = repeated(options.find_text(), options.size_mb, WORK)
        step("measuring", "prepare", text.name)
        results = bench_prepare(encoder, text, WORK, options.device, cores())
    except ModuleNotFoundError as error:
        report.leave_out(
            "prepare from files", f"the package {error.name} is not installed"
        )
    except EncoderError as error:
        if options.encoder is not None:
            raise
        report.leave_out("prepare from files", str(error))
    else:
        report.facts["text"] = text.name
        report.add(results)


def add_route(report: BenchReport, options: BenchOptions) -> None:
    """The tokenizer, routing a prompt beside tokenising it, and the whole command."""
    from ridgeway.simulations.bench.route_bench import (
        bench_command,
        bench_route,
        bench_tokenizer,
        bench_words,
        make_release,
    )

    text = _text(report, options, "route")
    encoder = options.find_encoder()
    release = make_release(encoder, text, WORK)
    report.add(
        [
            *bench_tokenizer(encoder, text),
            *bench_route(release, text),
            *bench_words(encoder, text),
        ]
    )
    report.add(bench_command(release))


def add_serve(report: BenchReport, options: BenchOptions) -> None:
    """Routing over HTTP beside a bare echo, and the gateway beside the expert itself (about four
    minutes).
    """
    from ridgeway.common.base.settings import WordFeatures
    from ridgeway.common.encoding.table_encoder import with_words
    from ridgeway.simulations.bench.route_bench import make_release
    from ridgeway.simulations.bench.serving import gateway_bench, load, serving_bench

    if not load.wrk_is_installed():
        report.leave_out("serving", "the load generator wrk is not installed")
        return
    text = _text(report, options, "routing over HTTP")
    release = make_release(
        with_words(options.find_encoder(), WordFeatures()), text, WORK
    )
    prompts = serving_bench.prompts_by_size(release, text.documents)
    report.add(serving_bench.bench_routes(release, prompts, WORK))
    step("measuring", "the gateway", text.name)
    report.add(
        gateway_bench.bench_gateway(release, prompts[serving_bench.TOKENS], WORK)
    )


def _text(report: BenchReport, options: BenchOptions, measured: str) -> BenchText:
    """The text, noted in the report, after a word on what is measured on it."""
    text = options.find_text()
    report.facts["text"] = text.name
    step("measuring", measured, text.name)
    return text


def add_solve(report: BenchReport, options: BenchOptions) -> None:
    """Solving for a router beside the bare Cholesky factor, on the CPU and on a GPU."""
    from ridgeway.simulations.bench.solve_bench import bench_solve

    step("measuring", "solve", options.device.name)
    report.add(bench_solve(options.device))


def add_features(report: BenchReport, options: BenchOptions) -> None:
    from ridgeway.common.encoding.encoder_sources import find_encoder
    from ridgeway.common.encoding.transformer import transformer
    from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
    from ridgeway.simulations.bench.transformer_bench import bench_features

    encoder = find_encoder(options.encoder or DEFAULT_ENCODER)
    if not isinstance(encoder, ContextualEncoder):
        raise InputError(
            f"{options.encoder} has a table, which is the same everywhere; name a"
            " contextual encoder"
        )
    text = _text(report, options, "features")
    here = transformer(encoder, "cpu")
    there = transformer(encoder, options.device.name)
    report.add(bench_features(encoder, text.by_domain, here, there))


def add_mask(report: BenchReport, options: BenchOptions) -> None:
    """Masking: the size of an upload, memory, and the seconds of cohorts of 3 to 100 members."""
    from ridgeway.simulations.bench.masking_bench import bench_masking

    step("measuring", "masking", "random numbers")
    report.add(bench_masking())


def add_large(report: BenchReport, options: BenchOptions) -> None:
    """The memory of `client prepare` on a gigabyte of text (several minutes)."""
    from ridgeway.simulations.bench.prepare_bench import bench_memory

    report.add(bench_memory(_text(report, options, "memory"), WORK))


def add_federation(report: BenchReport, options: BenchOptions) -> None:
    """Whole federations in this process: seconds, memory, and what the protocol adds."""
    from ridgeway.simulations.bench.round_bench import bench_federation

    step("measuring", "a federation", "built-in text")
    report.add(bench_federation())


def add_cohorts(report: BenchReport, options: BenchOptions) -> None:
    from ridgeway.simulations.bench.cohort_bench import SLOPE, bench_cohorts

    step("measuring", "cohorts", "built-in text")
    report.add(bench_cohorts(options.holders or SLOPE, options.drop_rate))


def add_deployment(report: BenchReport, options: BenchOptions) -> None:
    """Rounds of three holders and a coordinator as processes on loopback: seconds, CPU seconds,
    exchanges.
    """
    from ridgeway.simulations.bench.deployment_bench import bench_deployment

    step("measuring", "a deployment", "random text")
    report.add(bench_deployment())


def add_all(report: BenchReport, options: BenchOptions) -> None:
    """All of these but `cohorts`, `deployment`, `large` and `features`."""
    for name in ("route", "serve", "prepare", "solve", "mask", "federation"):
        BENCHES[name](report, options)


BENCHES: dict[str, Callable[[BenchReport, BenchOptions], None]] = {
    "prepare": add_prepare,
    "route": add_route,
    "serve": add_serve,
    "solve": add_solve,
    "features": add_features,
    "mask": add_mask,
    "federation": add_federation,
    "cohorts": add_cohorts,
    "deployment": add_deployment,
    "large": add_large,
    "all": add_all,
}

for _name in ("route", "serve", "mask", "federation", "deployment", "large"):
    app.command(_name, help=BENCHES[_name].__doc__)(_on_cpu(_name))
for _name in ("solve", "all"):
    app.command(_name, help=BENCHES[_name].__doc__)(_on_any(_name))
