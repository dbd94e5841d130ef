"""Which measurements a benchmark is made of, and what each needs: text, an encoder, a device.

Imports a measurement when it is to be made, so that one that needs little runs where little is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import EncoderError
from common.terminal import step, ticking
from common.threads import cores
from simulations.bench.device import Device
from simulations.bench.report import Report

if TYPE_CHECKING:
    from common.encoder import Encoder
    from simulations.bench.text import BenchText

WORK = Path("bench-run")
DEFAULT_ENCODER = "smollm2"


@dataclass(frozen=True, slots=True)
class Files:
    """What the whole of `prepare` is measured on.

    encoder: a source such as `dir:PATH`, or nothing for the usual one.
    text:    a folder of DOMAIN.train.jsonl, or nothing for the usual text.
    size_mb: text is repeated until there are so many megabytes.
    """

    encoder: str | None = None
    text: Path | None = None
    size_mb: float = 0.0


def add_prepare(report: Report, device: Device, files: Files) -> None:
    """Sums, contextual sums on a card, and the whole of `prepare` from files."""
    from simulations.bench import sums
    from simulations.bench.text import folder_text

    if files.text is not None:
        folder_text(files.text)  # what cannot be measured is said before anything is
    cases = sums.CARD_CASES if device.is_card else sums.CPU_CASES
    step("measuring", "sums", device.name)
    with ticking("sums", sums.ticks(cases)) as tick:
        report.add(sums.bench_sums(device, cases, cores(), tick))
    if device.is_card:
        _add_contextual(report, device)
    _add_files(report, device, files)


def _add_contextual(report: Report, device: Device) -> None:
    if find_spec("transformers") is None:
        report.leave_out("contextual sums", "transformers is not installed")
        return
    from simulations.bench.contextual import ROUNDS, bench_contextual

    step("measuring", "contextual sums", device.name)
    with ticking("contextual", ROUNDS) as tick:
        report.add(bench_contextual(device, cores(), tick))


def _add_files(report: Report, device: Device, files: Files) -> None:
    """Left out where no encoder was named and the usual one, or a package that reading files needs, is not here."""
    try:
        encoder, text = _found(files)
        step("measuring", "prepare", text.name)
        from simulations.bench.preparing import bench_prepare, ticks

        with ticking("prepare", ticks(text)) as tick:
            results = bench_prepare(encoder, text, WORK, device, cores(), tick)
    except ModuleNotFoundError as error:
        report.leave_out("prepare from files", f"the package {error.name} is not installed")
    except EncoderError as error:
        if files.encoder is not None:
            raise
        report.leave_out("prepare from files", str(error))
    else:
        report.facts["text"] = text.name
        report.add(results)


def _found(files: Files) -> tuple[Encoder, BenchText]:
    from common.contextual import needs_table
    from common.encoder_sources import find_encoder
    from simulations.bench.text import bench_text, folder_text, repeated

    encoder = needs_table(find_encoder(files.encoder or DEFAULT_ENCODER), "this benchmark")
    text = bench_text(WORK) if files.text is None else folder_text(files.text)
    return encoder, repeated(text, files.size_mb, WORK)


def add_route(report: Report) -> None:
    from common.contextual import needs_table
    from common.encoder_sources import find_encoder
    from simulations.bench.routing import bench_command, bench_route, make_release
    from simulations.bench.text import bench_text

    text = bench_text(WORK)
    report.facts["text"] = text.name
    encoder = needs_table(find_encoder(DEFAULT_ENCODER), "this benchmark")
    release = make_release(encoder, text, WORK)
    step("measuring", "route", text.name)
    report.add([*bench_route(release, text), *bench_command(release)])


def add_serve(report: Report) -> None:
    """The routing API and the gateway under load from other processes; left out where wrk is not installed."""
    from common.contextual import needs_table
    from common.encoder_sources import find_encoder
    from simulations.bench.routing import make_release
    from simulations.bench.serving import gateway, routes, wrk
    from simulations.bench.text import bench_text

    if not wrk.is_here():
        report.leave_out("serving", "the load generator wrk is not installed")
        return
    text = bench_text(WORK)
    report.facts["text"] = text.name
    release = make_release(needs_table(find_encoder(DEFAULT_ENCODER), "this benchmark"), text, WORK)
    prompts = routes.prompts_of(release, text.documents)
    step("measuring", "routing over HTTP", text.name)
    with ticking("routes", routes.ticks()) as tick:
        report.add(routes.bench_routes(release, prompts, WORK, tick))
    step("measuring", "the gateway", text.name)
    with ticking("gateway", gateway.ticks()) as tick:
        report.add(gateway.bench_gateway(release, prompts, WORK, tick))


def add_solve(report: Report, device: Device) -> None:
    from simulations.bench.solving import bench_solve, ticks

    step("measuring", "solve", device.name)
    with ticking("solve", ticks(device)) as tick:
        report.add(bench_solve(device, tick))


def add_features(report: Report, device: Device, source: str, folder: Path | None) -> None:
    from common.contextual import ContextualEncoder
    from common.encoder_sources import find_encoder
    from common.errors import InputError
    from common.transformer import transformer
    from simulations.bench.features import bench_features
    from simulations.bench.text import bench_text, folder_text

    encoder = find_encoder(source)
    if not isinstance(encoder, ContextualEncoder):
        raise InputError(f"{source} has a table, which is the same everywhere; name a contextual encoder")
    text = bench_text(WORK) if folder is None else folder_text(folder)
    report.facts["text"] = text.name
    step("measuring", "features", text.name)
    here, there = transformer(encoder, "cpu"), transformer(encoder, device.name)
    report.add(bench_features(encoder, text.by_domain, here, there))


def add_mask(report: Report) -> None:
    from simulations.bench.masking import bench_masking, ticks

    step("measuring", "masking", "random numbers")
    with ticking("masking", ticks()) as tick:
        report.add(bench_masking(tick))


def add_large(report: Report) -> None:
    from simulations.bench.memory import bench_memory
    from simulations.bench.text import bench_text

    text = bench_text(WORK)
    report.facts["text"] = text.name
    step("measuring", "memory", text.name)
    report.add(bench_memory(text, WORK))


def add_federation(report: Report) -> None:
    from simulations.bench.federation import RUNS, bench_federation

    step("measuring", "a federation", "built-in text")
    with ticking("federation", RUNS) as tick:
        report.add(bench_federation(tick))
