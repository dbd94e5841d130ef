"""What a wider encoder costs: a message's bytes, and seconds and memory on either side.

Knows how these are shown. What a width costs is measured in a process of its own for each side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulations.lab.findings import Cell, Column, Plot, Table
from simulations.lab.plan import Plan, Tick
from simulations.lab.scaling.apart import apart
from simulations.lab.scaling.one_width import DOMAINS, MEMBERS, ROWS, WINDOW, WINDOWS
from simulations.lab.scaling.slopes import Expected, Grown, grown, in_words, line, log_plot

SHORT, FULL = (256, 512, 1024, 2048, 4096), (256, 512, 1024, 2048, 4096)
SIDES = ("holder", "coordinator")
CODE = 1

EXPECTED = (
    Expected("bytes", "bytes of a message", 2, "the upper triangle has (h + 1)(h + 2) / 2 numbers"),
    Expected("summing", "summing windows", 2, "a product φφᵀ for each window"),
    Expected("sealing", "sealing", 2, "every number of a message is masked"),
    Expected("opening", "opening", 2, "every number of a message is unmasked"),
    Expected("checking", "checking the total", 3, "a Cholesky factor"),
    Expected("solving", "solving", 3, "a Cholesky factor"),
    Expected("holder_memory", "memory at a holder", 2, "the Gram matrix, and the table in proportion to h"),
    Expected("coordinator_memory", "memory at the coordinator", 2, "the Gram matrix"),
)

Widths = Sequence[dict[str, Any]]


def measure(plan: Plan, widths: Sequence[int], tick: Tick) -> Widths:
    return [_kept(plan, width, tick) for width in widths]


def _kept(plan: Plan, width: int, tick: Tick) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        both = [apart("one_width", side, width, plan.seed) for side in SIDES]
        return {"width": width, **both[0], **both[1]}

    found: dict[str, Any] = plan.shelf.kept("scaling-width", {"width": width, "seed": plan.seed, "code": CODE}, make)
    tick()
    return found


def slopes(widths: Widths) -> list[Grown]:
    return grown("h", _x(widths), widths, EXPECTED)


def _x(widths: Widths) -> list[float]:
    return [each["width"] for each in widths]


def table(widths: Widths) -> Table:
    columns = (
        Column("h", digits=0),
        Column("a message", "MB", 2),
        Column(f"summing {WINDOWS:,} windows", "ms"),
        Column("sealing", "ms"),
        Column("opening", "ms"),
        Column("checking", "ms"),
        Column("solving", "ms"),
        Column("memory at a holder", "MB", 0),
        Column("memory at the coordinator", "MB", 0),
    )
    note = (
        f"A drawn table of {ROWS:,} tokens; a message in the clear with its column; windows of {WINDOW} tokens; masks "
        f"among {MEMBERS} members, {DOMAINS} domains. Memory is the largest resident size beyond that before the work. "
        f"{in_words(slopes(widths))}"
    )
    return Table("scaling-width", "Costs over the width h", columns, tuple(map(_row, widths)), note)


def _row(each: dict[str, Any]) -> tuple[Cell, ...]:
    seconds = (each[name] * 1e3 for name in ("summing", "sealing", "opening", "checking", "solving"))
    memory = (each[f"{side}_memory"] * 1e3 for side in SIDES)
    return (each["width"], each["bytes"] / 1e6, *seconds, *memory)


def plots(widths: Widths) -> tuple[Plot, ...]:
    seconds = [line(each.label, _x(widths), widths, each.name) for each in EXPECTED[1:6]]
    size = [line("a message, bytes", _x(widths), widths, "bytes")]
    return (
        log_plot("scaling-width-seconds", "Seconds over the width", "h", "seconds", seconds),
        log_plot("scaling-width-bytes", "Bytes of a message over the width", "h", "bytes", size),
    )


def words(widths: Widths) -> str:
    first, last = widths[0], widths[-1]
    by_name = {each.label: each for each in slopes(widths)}
    growth = ""
    if {"bytes of a message", "solving"} <= set(by_name):
        growth = (
            f" Its bytes grow with h to the power of {by_name['bytes of a message'].last:.2f} at the end, the seconds "
            f"to solve to the power of {by_name['solving'].last:.2f}."
        )
    return (
        f"A message weighs {first['bytes'] / 1e6:.2f} MB at h = {first['width']} and {last['bytes'] / 1e6:.1f} MB at "
        f"h = {last['width']}, whatever the corpus's size.{growth} At h = {last['width']} a total is solved in "
        f"{last['solving']:.1f} s."
    )
