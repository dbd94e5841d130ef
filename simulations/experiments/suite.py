"""The parts of a report: each is run or taken from the cache, and shown on the terminal.

Imports a part when it is to be run.
"""

from __future__ import annotations

import json
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeway import __version__
from ridgeway.common.base.devices import chosen
from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.cli.terminal import step, table
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.plan import (
    ExperimentPlan,
    machine_in_words,
    part_module,
    surroundings,
)
from ridgeway.simulations.experiments.report.report_files import (
    read_report,
    write_report,
)
from ridgeway.simulations.experiments.report.report_tables import (
    ExperimentReport,
    ReportPart,
    cells_by_column,
    heading,
    holds_numbers,
    part_from_json,
    written_rows,
)

LINE_LETTERS = 100
HEADING_LETTERS = 14
"""A long heading stands in several lines, so that it does not widen its column."""

Show = Callable[[ReportPart], None]
Command = Callable[[str], str]


def run_parts(
    names: Sequence[str], plan: ExperimentPlan, out: Path, command: Command, show: Show
) -> ExperimentReport:
    """Run parts one after the other; the report is brought up to date after each, so that a stop
    loses one at most.

    One that fails among several is told in the report, and the others go on; one alone raises.
    Gives what was run now.
    """
    report = replace(
        read_report(out),
        facts={**surroundings(plan.device), "seed": plan.seed, "date": _now()},
    )
    write_report(out, report)
    done = ExperimentReport()
    for name in names:
        try:
            part = finished(name, plan, command(name))
        except RidgewayError as error:
            report = report.failing(name, str(error))
            write_report(out, report)
            if len(names) == 1:
                raise
            step("failed", name, str(error))
            done = done.failing(name, str(error))
        except KeyboardInterrupt:
            kept = (
                f"{out} holds the parts that were finished, and the same command goes"
                " on from there"
            )
            raise KeyboardInterrupt(f"interrupted in {name}; {kept}") from None
        else:
            report = report.having(part)
            write_report(out, report)
            show(part)
            done = done.having(part)
    return done


def finished(name: str, plan: ExperimentPlan, command: str) -> ReportPart:
    """A part, run now or kept from an earlier time. Its seconds are those of the time when it was
    run.
    """
    with _needs(name):
        module: Any = import_module(part_module(name))
    device = "gpu" if chosen(plan.device) else "cpu"
    key = {
        **plan.facts(),
        "device": device,
        "ridgeway": __version__,
        "code": getattr(module, "CODE", 0),
    }
    run_now = []

    def make() -> Any:
        run_now.append(name)
        step("running", name, module.TITLE)
        begin = time.perf_counter()
        with (
            tempfile.TemporaryDirectory(prefix="ridgeway-") as work,
            _needs("this part"),
        ):
            part = module.run(replace(plan, work=Path(work)))
        seconds = time.perf_counter() - begin
        facts = {
            "seed": plan.seed,
            "device": device,
            "date": _now(),
            "machine": machine_in_words(plan.device),
        }
        written = json.dumps(
            replace(part, seconds=seconds, facts={**facts, **part.facts}).to_json()
        )
        return json.loads(
            written, parse_constant=lambda _: None
        )  # a number that is none is a gap

    part = part_from_json(plan.cache.kept(f"part-{name}", key, make))
    step("ran" if run_now else "kept", name, f"{part.seconds:.1f} s")
    return replace(part, command=command)


@contextmanager
def _needs(what: str) -> Iterator[None]:
    """A package that is missing is told in one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        words = (
            f"{what} needs the package {error.name}, which is not installed; install"
            " ridgeway[dev]"
        )
        raise InputError(words) from error


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def distinct(datasets: Iterable[Dataset]) -> tuple[Dataset, ...]:
    """The same datasets, where those of one name are numbered, so that tables tell them apart."""
    named: dict[str, Dataset] = {}
    for dataset in datasets:
        names = (
            dataset.name,
            *(f"{dataset.name}-{number}" for number in range(2, len(named) + 3)),
        )
        name = next(each for each in names if each not in named)
        named[name] = replace(dataset, name=name)
    return tuple(named.values())


def show_part(part: ReportPart) -> None:
    """Print a part: its words, then its tables."""
    print(f"\n{part.title}\n")
    for words in part.words:
        print(textwrap.fill(words, LINE_LETTERS) + "\n")
    for each in part.tables:
        numbers = [holds_numbers(cells) for cells in cells_by_column(each)]
        headings = [
            textwrap.wrap(heading(column), HEADING_LETTERS, break_long_words=False)
            for column in each.columns
        ]
        table(
            ["\n".join(lines) for lines in headings],
            written_rows(each),
            numbers=numbers,
            title=each.title,
        )
        if each.note:
            print(textwrap.fill(each.note, LINE_LETTERS) + "\n")
    for words in part.left_out:
        print(textwrap.fill(f"left out: {words}", LINE_LETTERS))
