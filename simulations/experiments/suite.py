"""The parts of a report: each is run, or read from the JSON of an earlier run, and shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeway import __version__
from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.files import write_whole
from ridgeway.common.cli.terminal import step
from ridgeway.simulations.bench.provenance import MachineWatch, provenance
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import (
    ReportPart,
    draw,
    markdown,
    read_part,
    write_part,
)

PARTS = (
    "summary",
    "accuracy",
    "robustness",
    "epsilon",
    "privacy",
    "experts",
    "scores",
)
"""In the order of a report. The part NAME is the function `run` of the module NAME_part."""
PAGE = "report.md"


def run_parts(
    names: Sequence[str], plan: ExperimentPlan, out: Path, *, fresh: bool = False
) -> dict[str, str]:
    """Run parts one after the other; each leaves OUT/NAME.json and brings OUT/report.md up to date.

    The others go on when one fails. Gives the failures, by part.
    """
    failures = {}
    for name in names:
        try:
            part = _finished(name, plan, out / f"{name}.json", fresh)
        except RidgewayError as error:
            failures[name] = str(error)
            step("failed", name, str(error))
            continue
        print(markdown(part))
        _write_page(out)
    return failures


def _finished(name: str, plan: ExperimentPlan, path: Path, fresh: bool) -> ReportPart:
    key = {**plan.key(), "ridgeway": __version__}
    kept = read_part(path)
    if kept and kept.facts.get("key") == key and not fresh:
        step("kept", name)
        return kept
    step("running", name)
    watch = MachineWatch()
    with _packages_needed(name):
        module: Any = import_module(f"{__package__}.{name}_part")
        part: ReportPart = module.run(plan)
    facts = {"key": key, **provenance(watch, __package__, plan.device)}
    part = replace(part, facts={**part.facts, **facts})
    write_part(path, part)
    for table in part.tables:
        if table.plot:
            draw(table, path.parent / table.picture)
    step("ran", name, f"{facts['seconds']} s")
    return part


@contextmanager
def _packages_needed(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name} needs the package {error.name}; run make setup"
        ) from error


def _write_page(out: Path) -> None:
    parts = [read_part(out / f"{name}.json") for name in PARTS]
    pages = [markdown(part) for part in parts if part]
    write_whole(out / PAGE, "\n".join(["# Experiments\n", *pages]).encode())
