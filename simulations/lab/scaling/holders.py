"""Rounds over more and more holders, clear and masked: seconds, bytes and memory.

Knows how rounds are shown. What a round costs is measured in a process of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from common.cohort import Mode
from simulations.lab.findings import Cell, Column, Plot, Table
from simulations.lab.plan import Plan, Tick
from simulations.lab.scaling.apart import apart
from simulations.lab.scaling.drawn import DOCUMENTS, DOMAINS, WIDTH
from simulations.lab.scaling.slopes import Expected, Grown, grown, in_words, line, log_plot

SHORT, FULL = (3, 6, 12, 25, 50), (3, 6, 12, 25, 50, 100, 200)
MODES: tuple[Mode, ...] = ("masked", "clear")
CODE = 1

Rounds = Mapping[Mode, Sequence[dict[str, Any]]]

EXPECTED: dict[Mode, tuple[Expected, ...]] = {
    "masked": (
        Expected("holder", "protocol at a holder", 1, "keys, shares and signatures of every other member"),
        Expected("coordinator", "protocol at the coordinator", 2, "every member's envelope for every other passes"),
        Expected("up", "bytes up from a holder", 1, "an envelope and a share for every other member"),
        Expected("down", "bytes down to a holder", 1, "keys, envelopes and signatures of every other member"),
        Expected("total", "bytes through the coordinator", 2, "n holders, each with something for every other"),
        Expected("memory", "peak memory", None, "one member's message at a time, in one process with the holders"),
    ),
    "clear": (
        Expected("holder", "protocol at a holder", 0, "a holder hears of the others by name alone"),
        Expected("coordinator", "protocol at the coordinator", 1, "one message after the other"),
        Expected("up", "bytes up from a holder", 0, "its own sums and counts"),
        Expected("down", "bytes down to a holder", 1, "the cohort's list names every member"),
        Expected("total", "bytes through the coordinator", 2, "n holders, each told of every other"),
        Expected("memory", "peak memory", None, "one member's message at a time, in one process with the holders"),
    ),
}


def measure(plan: Plan, counts: Sequence[int], tick: Tick) -> Rounds:
    return {mode: [_kept(plan, count, mode, tick) for count in counts] for mode in MODES}


def _kept(plan: Plan, holders: int, mode: Mode, tick: Tick) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="ridgeway-") as folder:
            return apart("one_round", holders, mode, plan.seed, folder)

    key = {"holders": holders, "mode": mode, "seed": plan.seed, "code": CODE}
    found: dict[str, Any] = plan.shelf.kept("scaling-round", key, make)
    tick()
    return found


def slopes(rounds: Rounds) -> list[Grown]:
    return [each for mode in MODES for each in _slopes(rounds, mode)]


def _slopes(rounds: Rounds, mode: Mode) -> list[Grown]:
    return grown(f"holders, {mode}", _counts(rounds, mode), rounds[mode], EXPECTED[mode])


def _counts(rounds: Rounds, mode: Mode) -> list[float]:
    return [each["holders"] for each in rounds[mode]]


def tables(rounds: Rounds) -> tuple[Table, ...]:
    return (*(_table(rounds, mode) for mode in MODES), _kinds_table(rounds))


def _table(rounds: Rounds, mode: Mode) -> Table:
    columns = (
        Column("holders", digits=0),
        Column("round", "s", 2),
        Column("summing and scoring", "s", 2),
        Column("solving", "s", 3),
        Column("protocol at a holder", "ms", 1),
        Column("protocol at the coordinator", "s", 2),
        Column("up from a holder", "kB"),
        Column("down to a holder", "kB"),
        Column("through the coordinator", "MB", 2),
        Column("peak memory", "MB", 0),
    )
    note = (
        f"Drawn text, {DOCUMENTS} documents a holder, {DOMAINS} domains, h = {WIDTH}; all holders one after the other "
        "in one process, the round's seconds are therefore theirs together. Bytes are those of Flower's messages. "
        f"{in_words(_slopes(rounds, mode))}"
    )
    return Table(
        f"scaling-holders-{mode}", f"A {mode} round over holders", columns, tuple(map(_row, rounds[mode])), note
    )


def _row(each: Mapping[str, Any]) -> tuple[Cell, ...]:
    seconds = (each["seconds"], each["summing"], each["solving"], each["holder"] * 1e3, each["coordinator"])
    bytes_ = (each["up"] / 1e3, each["down"] / 1e3, each["total"] / 1e6)
    return (each["holders"], *seconds, *bytes_, each["memory"] * 1e3)


def _kinds_table(rounds: Rounds) -> Table:
    """Where the bytes go in the largest round."""
    rows: list[tuple[Cell, ...]] = []
    for mode in MODES:
        largest = rounds[mode][-1]
        for kind, (down, up) in largest["kinds"].items():
            rows.append((mode, kind, down / 1e3, up / 1e3))
    columns = (Column("round"), Column("request"), Column("down to a holder", "kB"), Column("up from a holder", "kB"))
    holders = rounds[MODES[0]][-1]["holders"]
    return Table("scaling-messages", f"Where the bytes of a round of {holders} holders go", columns, tuple(rows))


def plots(rounds: Rounds) -> tuple[Plot, ...]:
    def lines(mode: Mode, names: Mapping[str, str]) -> list[Any]:
        return [line(f"{word}, {mode}", _counts(rounds, mode), rounds[mode], name) for name, word in names.items()]

    def both(names: Mapping[str, str]) -> list[Any]:
        return [each for mode in MODES for each in lines(mode, names)]

    seconds = {"holder": "protocol at a holder", "coordinator": "protocol at the coordinator"}
    traffic = {"up": "up from a holder", "down": "down to a holder", "total": "through the coordinator"}
    return (
        log_plot("scaling-holders-seconds", "Seconds over holders", "holders", "seconds", both(seconds)),
        log_plot("scaling-holders-bytes", "Bytes over holders", "holders", "bytes", both(traffic)),
    )


def words(rounds: Rounds) -> str:
    masked, clear = rounds["masked"][-1], rounds["clear"][-1]
    return (
        f"A masked round of {masked['holders']} holders takes {masked['holder']:.2f} s of protocol at each holder and "
        f"{masked['coordinator']:.1f} s at the coordinator, in the clear {clear['holder']:.2f} s and "
        f"{clear['coordinator']:.1f} s. A holder sends {masked['up'] / 1e3:.0f} kB and gets "
        f"{masked['down'] / 1e3:.0f} kB ({clear['up'] / 1e3:.0f} and {clear['down'] / 1e3:.0f} kB in the clear)."
        f"{_each_further(rounds['masked'])}"
    )


def _each_further(rounds: Sequence[Mapping[str, Any]]) -> str:
    if len(rounds) < 2:
        return ""
    before, last = rounds[-2:]
    more = last["holders"] - before["holders"]
    up, down = ((last[name] - before[name]) / more for name in ("up", "down"))
    return (
        f" At that size every further member of a masked round costs each holder {up:,.0f} bytes up and "
        f"{down:,.0f} bytes down."
    )
