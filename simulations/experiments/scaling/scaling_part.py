"""The part `scaling`: time, bytes and memory over holders, over the width h and over domains, with
the slope of each.

scaling_costs (mostly in a process of its own) ──▶ figures ──▶ tables, log–log plots, slopes
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from ridgeway.common.base.schema import Mode
from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.simulations.bench.measuring import measured_apart
from ridgeway.simulations.experiments.dataset import in_turn
from ridgeway.simulations.experiments.plan import ExperimentPlan, Tick
from ridgeway.simulations.experiments.report.report_tables import (
    Cell,
    Column,
    Plot,
    ReportPart,
    Series,
    Table,
)
from ridgeway.simulations.experiments.scaling import scaling_costs as costs

KEY = "scaling"
TITLE = "What grows, and how fast"
CODE = 5
MODES: tuple[Mode, ...] = ("masked", "clear")
Point = Mapping[str, Any]
apart: Callable[..., dict[str, Any]] = partial(measured_apart, costs.__name__)
"""Costs by the name of what measures them, and its words."""
CONTEXTUAL = (
    "costs over domains: a contextual encoder has no table to compile a router to, so"
    " they were not measured"
)
METHOD = (
    "Whole rounds in the in-memory engine over random text, so that the protocol is"
    " what counts; then a single message, its masks and the solve over widths; then"
    " releases over domains. Seconds are of this machine, bytes hardly depend on it."
)


@dataclass(frozen=True, slots=True)
class Cost:
    """A figure of every point. factor: from what is measured to the table's unit."""

    name: str
    label: str
    unit: str
    factor: float = 1.0
    digits: int = 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """Costs over one quantity, which every point has under the name `x`. plots: figures that share
    a plot, by title.
    """

    key: str
    title: str
    x: str
    costs: tuple[Cost, ...]
    plots: Mapping[str, tuple[str, ...]]
    note: str = ""

    def table(self, points: Sequence[Point]) -> Table:
        columns = (
            Column(self.x, digits=0),
            *(Column(each.label, each.unit, each.digits) for each in self.costs),
        )
        rows = tuple(
            (point[self.x], *(point[each.name] * each.factor for each in self.costs))
            for point in points
        )
        return Table(f"scaling-{self.key}", self.title, columns, rows, self.note)

    def drawn(self, points: Sequence[Point]) -> tuple[Plot, ...]:
        labels = {each.name: each.label for each in self.costs}
        x = tuple(float(point[self.x]) for point in points)

        def line(name: str) -> Series:
            return Series(
                labels[name],
                x,
                tuple(point[name] if point[name] > 0 else None for point in points),
            )

        def plot(unit: str, names: Sequence[str]) -> Plot:
            key = f"scaling-{self.key}-{unit}"
            title = f"{self.title}: {unit}"
            return Plot(key, title, self.x, unit, tuple(map(line, names)), "log", "log")

        return tuple(plot(unit, names) for unit, names in self.plots.items())

    def slopes(self, points: Sequence[Point]) -> list[tuple[Cell, ...]]:
        """A row for each cost; those that are zero somewhere, or have one point, have none."""
        x = [float(point[self.x]) for point in points]
        found = list[tuple[Cell, ...]]()
        for each in self.costs:
            y = [float(point[each.name]) for point in points]
            if len(y) > 1 and min(y) > 0:
                found.append(
                    (each.label, self.title, len(y), slope(x, y), slope(x[-2:], y[-2:]))
                )
        return found


@dataclass(frozen=True, slots=True)
class ScalingSizes:
    """What is measured over."""

    holders: tuple[int, ...]
    widths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    domains: tuple[int, ...] = (2, 5, 10, 20, 50, 100)


SHORT = ScalingSizes((3, 6, 12, 25, 50))
FULL = ScalingSizes((3, 6, 12, 25, 50, 100, 200))


def _rounds(mode: Mode) -> Sweep:
    return Sweep(
        f"holders-{mode}",
        f"A {mode} round over holders",
        "holders",
        (
            Cost("seconds", "round", "s", digits=2),
            Cost("summing", "summing before it", "s", digits=2),
            Cost("scoring", "scoring", "s", digits=2),
            Cost("solving", "solving", "s", digits=3),
            Cost("holder", "protocol at a holder", "ms", 1e3, 1),
            Cost("coordinator", "protocol at the coordinator", "s", 1, 2),
            Cost("up", "up from a holder", "kB", 1e-3, 1),
            Cost("down", "down to a holder", "kB", 1e-3, 1),
            Cost("total", "through the coordinator", "MB", 1e-6, 2),
            Cost("memory", "peak memory", "MB", 1e3, 0),
        ),
        {"seconds": ("holder", "coordinator"), "bytes": ("up", "down", "total")},
        f"Random text, {costs.DOCUMENTS_PER_HOLDER} documents a holder,"
        f" {costs.ROUND_DOMAINS} domains, h = {costs.ROUND_WIDTH}; all holders of a"
        " round one after the other in one process, its seconds are therefore theirs"
        " together. Bytes are those of packets: headers, signatures and numbers.",
    )


ROUNDS = {mode: _rounds(mode) for mode in MODES}
WIDTHS = Sweep(
    "width",
    "Costs over the width h",
    "h",
    (
        Cost("bytes", "a message", "MB", 1e-6, 2),
        Cost("summing", f"summing {costs.WINDOWS:,} windows", "ms", 1e3, 1),
        Cost("sealing", "sealing", "ms", 1e3, 1),
        Cost("opening", "opening", "ms", 1e3, 1),
        Cost("checking", "checking the total", "ms", 1e3, 1),
        Cost("solving", "solving", "ms", 1e3, 1),
        Cost("holder_memory", "memory at a holder", "MB", 1e3, 0),
        Cost("coordinator_memory", "memory at the coordinator", "MB", 1e3, 0),
    ),
    {
        "seconds": ("summing", "sealing", "opening", "checking", "solving"),
        "bytes": ("bytes",),
    },
    f"A random table of {costs.ROWS:,} tokens; a message in the clear with its column;"
    f" windows of {costs.WINDOW} tokens; masks among {costs.MEMBERS} members,"
    f" {costs.DOMAINS} domains. Memory is the largest resident size beyond that before"
    " the work.",
)
DOMAINS = Sweep(
    "domains",
    "Costs over domains",
    "domains",
    (
        Cost("bytes", "a sealed message", "MB", 1e-6, 3),
        Cost("solving", "solving", "ms", 1e3, 1),
        Cost("release", "a release", "MB", 1e-6, 2),
        Cost("routing", "routing a prompt", "ms", 1e3, 3),
        Cost("tokenising", "of it tokenising", "ms", 1e3, 3),
    ),
    {"seconds": ("solving", "routing"), "bytes": ("bytes", "release")},
    "Texts of the first dataset dealt out to made-up domains; test texts as prompts,"
    " warm, median.",
)


def run(plan: ExperimentPlan) -> ReportPart:
    return measure(plan, FULL if plan.full else SHORT)


def measure(plan: ExperimentPlan, sizes: ScalingSizes) -> ReportPart:
    encoder = find_encoder(plan.encoder)
    static = encoder if isinstance(encoder, TableEncoder) else None
    counts = [
        count
        for count in sizes.domains
        if count <= len(in_turn(plan.datasets[0].train, costs.TEXTS))
    ]
    ticks = (
        len(MODES) * len(sizes.holders)
        + len(sizes.widths)
        + (len(counts) if static else 0)
    )
    with plan.ticking("scaling", ticks) as tick:
        rounds = {
            mode: [_round(plan, count, mode, tick) for count in sizes.holders]
            for mode in MODES
        }
        widths = [_width(plan, width, tick) for width in sizes.widths]
        domains = (
            [_domains(plan, static, count, tick) for count in counts] if static else []
        )
    found = [
        *((ROUNDS[mode], rounds[mode]) for mode in MODES),
        (WIDTHS, widths),
        *[(DOMAINS, domains)] * bool(domains),
    ]
    slopes = slopes_table(
        [row for sweep, points in found for row in sweep.slopes(points)]
    )
    tables = (*(sweep.table(points) for sweep, points in found), slopes)
    plots = tuple(plot for sweep, points in found for plot in sweep.drawn(points))
    facts = {**plan.facts(), **asdict(sizes)}
    return ReportPart(
        KEY, TITLE, (METHOD,), tables, plots, facts, () if static else (CONTEXTUAL,)
    )


def _round(
    plan: ExperimentPlan, holders: int, mode: Mode, tick: Tick
) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="ridgeway-") as folder:
            return apart("round_costs", holders, mode, plan.seed, folder)

    return _kept(
        plan, "round", {"holders": holders, "mode": mode, "seed": plan.seed}, make, tick
    )


def _width(plan: ExperimentPlan, width: int, tick: Tick) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        sides = [
            apart(side, width, plan.seed)
            for side in ("holder_costs", "coordinator_costs")
        ]
        return {"h": width, **sides[0], **sides[1]}

    return _kept(plan, "width", {"width": width, "seed": plan.seed}, make, tick)


def _domains(
    plan: ExperimentPlan, encoder: TableEncoder, count: int, tick: Tick
) -> dict[str, Any]:
    make = partial(
        costs.domain_costs,
        encoder,
        plan.datasets[0],
        count,
        plan.work / f"release-{count}",
    )
    return _kept(
        plan,
        "domains",
        {**plan.facts(), "domains": count, "texts": costs.TEXTS},
        make,
        tick,
    )


def _kept(
    plan: ExperimentPlan,
    name: str,
    key: Mapping[str, Any],
    make: Callable[[], dict[str, Any]],
    tick: Tick,
) -> dict[str, Any]:
    found: dict[str, Any] = plan.cache.kept(
        f"scaling-{name}", {**key, "code": CODE}, make
    )
    tick()
    return found


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y over log x. Law: that of y = a·xᵇ is b, whatever a > 0."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slopes_table(rows: Sequence[tuple[Cell, ...]]) -> Table:
    columns = (
        *(
            Column("what"),
            Column("over"),
            Column("points", digits=0),
            Column("slope", digits=2),
        ),
        Column("slope at the end", digits=2),
    )
    note = (
        "slope: of log y over log x by least squares over all points; at the end:"
        " between the last two. 0 stays, 1 grows in proportion, 2 with the square; what"
        " is fixed flattens the line."
    )
    return Table("scaling-slopes", "How costs grow", columns, tuple(rows), note)
