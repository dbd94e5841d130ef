"""The part `scaling`: time, bytes and memory over holders, over the width h and over domains, with the slope of each.

holders ─ one_round (a process) ─┐
widths ── one_width (a process) ─┼──▶ figures ──▶ slopes, tables, log–log plots
domains ─────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from common.encoder import Encoder
from simulations.lab.findings import Part
from simulations.lab.plan import Plan
from simulations.lab.scaling import domains, holders, widths
from simulations.lab.scaling.slopes import slopes_table

KEY = "scaling"
TITLE = "What grows, and how fast"
CODE = 1
CONTEXTUAL = "costs over domains: a contextual encoder has no table to compile a router to, so they were not measured"


@dataclass(frozen=True, slots=True)
class Size:
    """What is measured over."""

    holders: tuple[int, ...]
    widths: tuple[int, ...]
    domains: tuple[int, ...]


SHORT = Size(holders.SHORT, widths.SHORT, domains.COUNTS)
FULL = Size(holders.FULL, widths.FULL, domains.COUNTS)


def run(plan: Plan) -> Part:
    return measure(plan, FULL if plan.full else SHORT)


def measure(plan: Plan, size: Size) -> Part:
    from common.encoder_sources import find_encoder

    encoder = find_encoder(plan.encoder)
    static = encoder if isinstance(encoder, Encoder) else None
    ticks = len(holders.MODES) * len(size.holders) + len(size.widths) + len(size.domains) * (static is not None)
    with plan.ticking("scaling", ticks) as tick:
        rounds = holders.measure(plan, size.holders, tick)
        by_width = widths.measure(plan, size.widths, tick)
        by_domain = domains.measure(plan, static, size.domains, tick) if static else []
    grown = list(chain(holders.slopes(rounds), widths.slopes(by_width), domains.slopes(by_domain)))
    tables = [*holders.tables(rounds), widths.table(by_width)]
    plots = [*holders.plots(rounds), *widths.plots(by_width)]
    words = [holders.words(rounds), widths.words(by_width)]
    if static and by_domain:
        tables.append(domains.table(by_domain, static, plan.settings[0]))
        plots.extend(domains.plots(by_domain))
        words.append(domains.words(by_domain))
    facts = {**plan.facts(), "holders": size.holders, "widths": size.widths, "domains": size.domains}
    left_out = () if static else (CONTEXTUAL,)
    return Part(KEY, TITLE, (*words, INTRODUCTION), (*tables, slopes_table(grown)), tuple(plots), facts, left_out)


INTRODUCTION = (
    "Whole rounds in the in-memory engine over drawn text, so that the protocol is what counts; then a single message, "
    "its masks and the solve over widths; then releases over domains. Seconds are of this machine, bytes "
    "hardly depend on it."
)
