"""ridgeway bench …: speed and memory, held against what stands beside them.

Knows options and how results are shown; what is measured is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.cli import Json
from common.errors import InputError
from common.terminal import command_group, step

if TYPE_CHECKING:
    from simulations.bench.device import Device
    from simulations.bench.report import Report

app = command_group("Measure ratios side by side; exits with 1 if an aim is missed.")

DeviceWord = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N; a card has aims of its own."),
]
CpuWord = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="This is measured on the CPU in any case; a card named here must be there."
    ),
]
EncoderWord = Annotated[
    str | None, typer.Option("--encoder", help="dir:PATH or another source, to prepare files with. (default: smollm2)")
]
TextFolder = Annotated[
    Path | None,
    typer.Option("--text", help="A folder of DOMAIN.train.jsonl. (default: what this machine has)"),
]
SizeMb = Annotated[float, typer.Option("--size-mb", help="Repeat the text to prepare up to so many megabytes.")]


@app.command()
def prepare(
    device: DeviceWord = "auto",
    encoder: EncoderWord = None,
    text: TextFolder = None,
    size_mb: SizeMb = 0.0,
    json: Json = False,
) -> None:
    """Sums beside the published way and the machine's ceilings, and `client prepare` beside the bare tokenizer."""
    from simulations.bench.suite import Files, add_prepare

    if not 0 <= size_mb <= 1e6:
        raise InputError(f"--size-mb cannot be {size_mb:g}; give 0 to 1000000")
    measured = _device(device)
    _run("prepare", measured, json, lambda report: add_prepare(report, measured, Files(encoder, text, size_mb)))


@app.command()
def route(device: CpuWord = "auto", json: Json = False) -> None:
    """Routing a prompt beside tokenising it, and the whole command."""
    from simulations.bench.suite import add_route

    _run("route", _cpu(device), json, add_route)


@app.command()
def serve(json: Json = False) -> None:
    """Routing over HTTP beside a bare echo, and the gateway beside the expert itself (about five minutes)."""
    from simulations.bench.suite import add_serve

    _run("serve", _cpu("cpu"), json, add_serve)


@app.command()
def solve(device: DeviceWord = "auto", json: Json = False) -> None:
    """Solving for a router beside the bare Cholesky factor, on the CPU and on a card."""
    from simulations.bench.suite import add_solve

    measured = _device(device)
    _run("solve", measured, json, lambda report: add_solve(report, measured))


@app.command()
def features(
    encoder: Annotated[str, typer.Argument(metavar="contextual:DIR", help="A contextual encoder.")],
    text: TextFolder = None,
    json: Json = False,
) -> None:
    """How far a transformer's integer features differ between the CPU and a card."""
    from simulations.bench.suite import add_features

    measured = _device("cuda")
    _run("features", measured, json, lambda report: add_features(report, measured, encoder, text))


@app.command()
def mask(device: CpuWord = "auto", json: Json = False) -> None:
    """Masking and opening beside Flower's SecAgg+ (about two minutes)."""
    from simulations.bench.suite import add_mask

    _run("mask", _cpu(device), json, add_mask)


@app.command()
def federation(json: Json = False) -> None:
    """Whole federations in this process: seconds, memory, and what the protocol adds."""
    from simulations.bench.suite import add_federation

    _run("federation", _cpu("cpu"), json, add_federation)


@app.command()
def large(json: Json = False) -> None:
    """The memory of `client prepare` on a gigabyte of text (several minutes)."""
    from simulations.bench.suite import add_large

    _run("large", _cpu("cpu"), json, add_large)


@app.command(name="all")
def everything(device: DeviceWord = "auto", json: Json = False) -> None:
    """All of these but `large` and `features`."""
    from simulations.bench.suite import Files, add_federation, add_mask, add_prepare, add_route, add_serve, add_solve

    measured = _device(device)

    def measure(report: Report) -> None:
        add_route(report)
        add_serve(report)
        add_prepare(report, measured, Files())
        add_solve(report, measured)
        add_mask(report)
        add_federation(report)

    _run("all", measured, json, measure)


def _device(word: str) -> Device:
    from simulations.bench.device import find_device

    return find_device(word)


def _cpu(word: str) -> Device:
    """The CPU; a card that was asked for must be there, and gets a word."""
    from common.devices import chosen
    from simulations.bench.device import Device

    if word != "auto" and chosen(word):
        step("note", "this has no use for a card; the CPU is measured")
    return Device()


def _run(name: str, device: Device, json: bool, measure: Callable[[Report], None]) -> None:
    from simulations.bench.report import Report
    from simulations.bench.suite import WORK

    WORK.mkdir(exist_ok=True)
    report = Report(name, device.facts())
    measure(report)
    report.show(WORK, as_json=json)
    if not report.reached:
        raise typer.Exit(1)
