"""Which parts a report is made of, how one is run or taken from the shelf, and how it reads on a terminal.

Imports a part when it is to be run. Knows nothing of what parts do.
"""

from __future__ import annotations

import math
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from common.errors import InputError, RidgewayError
from common.terminal import step, table
from simulations.lab.cells import columns, heading, holds_numbers, rows
from simulations.lab.files import read_report, write_report
from simulations.lab.findings import Part, Table, part_from_json
from simulations.lab.machine import device_kind, surroundings
from simulations.lab.plan import Plan
from simulations.lab.setting import Setting

WIDTH, HEADING = 100, 14

Show = Callable[[Part], None]
Command = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Done:
    """What one command came to: parts that were finished, and for the others the reason."""

    parts: tuple[Part, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"parts": [part.to_json() for part in self.parts], "failures": dict(self.failures)}


def run_parts(names: Sequence[str], plan: Plan, out: Path, command: Command, show: Show) -> Done:
    """Run parts one after the other; the report is brought up to date after each, so that a stop loses one at most.

    One that fails among several is told in the report, and the others go on; one alone raises.
    """
    report = replace(read_report(out), facts={**surroundings(plan.device), "seed": plan.seed, "date": _now()})
    write_report(out, report)
    done = Done()
    for name in names:
        try:
            part = finished(name, plan, command(name))
        except RidgewayError as error:
            report = report.failing(name, str(error))
            write_report(out, report)
            if len(names) == 1:
                raise
            step("failed", name, str(error))
            done = Done(done.parts, {**done.failures, name: str(error)})
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_stopped(name, out)) from None
        else:
            report = report.having(part)
            write_report(out, report)
            show(part)
            done = Done((*done.parts, part), done.failures)
    return done


def finished(name: str, plan: Plan, command: str) -> Part:
    """A part, run now or kept from an earlier time. Its seconds are those of the time when it was run."""
    module = _module(name)
    device = device_kind(plan.device)
    known = surroundings(plan.device)
    key = {**plan.facts(), "device": device, "ridgeway": known["ridgeway"], "code": getattr(module, "CODE", 0)}
    run_now = []

    def make() -> Any:
        run_now.append(name)
        step("running", name, module.TITLE)
        part, seconds = _timed(module.run, plan)
        facts = {"seed": plan.seed, "device": device, "date": _now(), "machine": _in_words(known["machine"])}
        return _plain(replace(part, seconds=seconds, facts={**facts, **part.facts}).to_json())

    part = part_from_json(plan.shelf.kept(f"part-{name}", key, make))
    step("ran" if run_now else "kept", name, f"{part.seconds:.1f} s")
    return replace(part, command=command)


def _module(name: str) -> Any:
    try:
        return import_module(f"simulations.lab.{name}")
    except ModuleNotFoundError as error:
        raise _missing(name, error) from error


def _timed(run: Callable[[Plan], Part], plan: Plan) -> tuple[Part, float]:
    """In a scratch folder of its own."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as work:
        try:
            part = run(replace(plan, work=Path(work)))
        except ModuleNotFoundError as error:
            raise _missing("this part", error) from error
    return part, time.perf_counter() - begin


def _missing(what: str, error: ModuleNotFoundError) -> InputError:
    return InputError(f"{what} needs the package {error.name}, which is not installed; install ridgeway[dev]")


def _stopped(name: str, out: Path) -> str:
    return f"interrupted in {name}; {out} holds the parts that were finished, and the same command goes on from there"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _in_words(machine: Mapping[str, Any]) -> str:
    return ", ".join(
        [f"{machine['cores']} cores", machine["processor"], *([machine["card"]] if "card" in machine else [])]
    )


def _plain(value: Any) -> Any:
    """As strict JSON has it: a number that is none is a gap."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def distinct(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """The same settings, where those of one name are numbered, so that tables tell them apart."""
    named: dict[str, Setting] = {}
    for setting in settings:
        name = next(each for each in _names(setting.name) if each not in named)
        named[name] = replace(setting, name=name)
    return tuple(named.values())


def _names(name: str) -> Iterable[str]:
    yield name
    for number in range(2, 1_000_000):
        yield f"{name}-{number}"


def show_part(part: Part) -> None:
    """Print a part: its words, then its tables."""
    print(f"\n{part.title}\n")
    for words in part.words:
        print(textwrap.fill(words, WIDTH) + "\n")
    for each in part.tables:
        show_table(each)
    for words in part.left_out:
        print(textwrap.fill(f"left out: {words}", WIDTH))


def show_table(each: Table) -> None:
    numbers = [holds_numbers(cells) for cells in columns(each)]
    headings = [_stacked(heading(column)) for column in each.columns]
    table(headings, rows(each), numbers=numbers, title=each.title)
    if each.note:
        print(textwrap.fill(each.note, WIDTH) + "\n")


def _stacked(words: str) -> str:
    """In lines, so that a long heading does not widen its column."""
    return "\n".join(textwrap.wrap(words, HEADING, break_long_words=False))
