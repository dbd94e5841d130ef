"""Masked rounds in which more and more holders fall away: what is left of them, and whether the sums stay exact.

Knows what the rounds came to. Knows nothing of how they are run, nor of how findings are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simulations.falling import STAGES
from simulations.lab.fallen import CODE as CODE
from simulations.lab.fallen import RATES, Fallen, holders_for, rounds_of
from simulations.lab.findings import Column, Part, Plot, Series, Table
from simulations.lab.plan import Plan
from simulations.lab.rounds import short
from simulations.lab.setting import Setting

KEY = "dropouts"
TITLE = "Holders that fall away in the middle of a round"
SHORT_HOLDERS, FULL_HOLDERS = (12,), (12, 24, 48)
"""At least so many; each domain has a power of two of them, so that shares are equal and every run has the same."""
SHORT_DRAWS, FULL_DRAWS = 2, 5
SHORT_TRAIN, SHORT_TEST = 600, 100
"""Of each domain's texts, in a short run."""


def run(plan: Plan) -> Part:
    settings = [_sampled(plan, setting) for setting in plan.settings]
    sizes = FULL_HOLDERS if plan.full else SHORT_HOLDERS
    found = {setting.name: _rounds(plan, setting, sizes, place) for place, setting in enumerate(settings)}
    tables, plots = [], list[Plot]()
    for name, rounds in found.items():
        tables += [_by_rate(name, rounds), _by_round(name, rounds)]
        plots += _plots(name, rounds)
    return Part(
        key=KEY,
        title=TITLE,
        words=tuple(words for name, rounds in found.items() for words in described(name, rounds)),
        tables=tuple(tables),
        plots=tuple(plots),
        facts=_facts(plan, settings),
        left_out=tuple(_too_small(plan, settings, sizes)),
    )


def _facts(plan: Plan, settings: Sequence[Setting]) -> dict[str, Any]:
    texts = {each.name: {name: len(own) for name, own in each.train.items()} for each in settings}
    return {"seed": plan.seed, "encoder": plan.encoder, "rates": list(RATES), "draws": _draws(plan), "texts": texts}


def _sampled(plan: Plan, setting: Setting) -> Setting:
    return setting if plan.full else setting.sampled(plan.seed, train=SHORT_TRAIN, test=SHORT_TEST)


def _draws(plan: Plan) -> int:
    return FULL_DRAWS if plan.full else SHORT_DRAWS


# How many holders


def _fits(setting: Setting, holders: int) -> bool:
    return holders // len(setting.domains) <= min(len(texts) for texts in setting.train.values())


def _sizes(setting: Setting, sizes: Sequence[int]) -> list[int]:
    return sorted({holders_for(len(setting.domains), least) for least in sizes})


def _too_small(plan: Plan, settings: Sequence[Setting], sizes: Sequence[int]) -> Iterator[str]:
    for setting in settings:
        for holders in _sizes(setting, sizes):
            if not _fits(setting, holders):
                yield f"{setting.name} with {holders} holders: a domain has fewer texts than holders"


def _rounds(plan: Plan, setting: Setting, sizes: Sequence[int], place: int) -> list[Fallen]:
    found: list[Fallen] = []
    for holders in _sizes(setting, sizes):
        if _fits(setting, holders):
            found += rounds_of(plan, setting, holders, _draws(plan), plan.work / f"{KEY}-{place}-{holders}")
    return found


# Tables and plots


def _by_rate(name: str, rounds: Sequence[Fallen]) -> Table:
    groups = {(each.holders, each.rate): list[Fallen]() for each in rounds}
    for each in rounds:
        groups[each.holders, each.rate].append(each)
    columns = (
        Column("holders", digits=0),
        Column("must be left", digits=0),
        Column("drop rate", "%", 0),
        Column("fell", digits=0),
        Column("rounds", digits=0),
        Column("released", digits=0),
        Column("accuracy", "%", better="more"),
        Column("least", "%"),
        Column("exact", digits=0),
        Column("time", "s", 2),
        Column("computing", "s", 2),
        Column("up", "kB", 0),
        Column("down", "kB", 0),
    )
    note = (
        "Accuracy over the test texts of all domains: mean and least of the rounds that ended in a release. Exact: how "
        "many opened totals equal, byte for byte, the sum of what the counted holders have. Bytes: of a holder that "
        "stayed. Computing: of all holders and the coordinator together, in one process."
    )
    return Table(f"{KEY}-{name}", f"Rounds under growing drop-out, {name}", columns, _rate_rows(groups), note)


def _rate_rows(groups: Mapping[tuple[int, float], Sequence[Fallen]]) -> tuple[tuple[Any, ...], ...]:
    rows = []
    for (holders, rate), own in sorted(groups.items()):
        right = [each.accuracy for each in own if each.accuracy is not None]
        rows.append(
            (
                *(holders, own[0].needed, 100 * rate, len(own[0].falls), len(own), len(right)),
                *(mean(right), min(right, default=None), sum(each.equal is True for each in own)),
                *(mean([each.seconds for each in own]), mean([each.work for each in own])),
                *(mean([each.up / 1000 for each in own]), mean([each.down / 1000 for each in own])),
            )
        )
    return tuple(rows)


def _by_round(name: str, rounds: Sequence[Fallen]) -> Table:
    columns = (
        Column("holders", digits=0),
        Column("fell", digits=0),
        Column("at which stages"),
        Column("counted", digits=0),
        Column("lightest domain", "% of its mass"),
        Column("accuracy", "%"),
        Column("chosen"),
        Column("until the total", "s", 2),
        Column("SHA-256 of the total"),
        Column("equal to the sum made anew"),
        Column("what the round said"),
    )
    rows = tuple(
        (
            *(each.holders, len(each.falls), stages(each.falls), each.counted, min(each.masses.values(), default=None)),
            *(
                each.accuracy,
                each.chosen,
                each.gathered,
                short(each.total),
                _yes(each.equal),
                each.refused or "released",
            ),
        )
        for each in rounds
    )
    return Table(f"{KEY}-rounds-{name}", f"Every round, {name}", columns, rows)


def stages(falls: Mapping[str, str]) -> str:
    """`before sharing 2, after sending 1`, in the order of the stages."""
    met = Counter(falls.values())
    return ", ".join(f"{stage} {met[stage]}" for stage in STAGES.values() if met[stage]) or "nobody"


def _plots(name: str, rounds: Sequence[Fallen]) -> list[Plot]:
    notes = "A gap: no round of this rate ended in a release."
    both = "All rounds, those that were refused among them."
    right = [_series(rounds, holders, lambda each: each.accuracy) for holders in _all_holders(rounds)]
    long = [_series(rounds, holders, lambda each: each.seconds) for holders in _all_holders(rounds)]
    return [
        Plot(f"{KEY}-accuracy-{name}", f"Accuracy, {name}", "drop rate, %", "accuracy, %", tuple(right), note=notes),
        Plot(f"{KEY}-seconds-{name}", f"Time of a round, {name}", "drop rate, %", "seconds", tuple(long), note=both),
    ]


def _all_holders(rounds: Sequence[Fallen]) -> list[int]:
    return sorted({each.holders for each in rounds})


def _series(rounds: Sequence[Fallen], holders: int, of: Callable[[Fallen], float | None]) -> Series:
    own = [each for each in rounds if each.holders == holders]
    rates = sorted({each.rate for each in own})
    values = [[of(each) for each in own if each.rate == rate] for rate in rates]
    means = [mean([value for value in some if value is not None]) for some in values]
    return Series(f"{holders} holders", tuple(100 * rate for rate in rates), tuple(means))


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


# Words


def described(name: str, rounds: Sequence[Fallen]) -> Iterator[str]:
    yield f"{name}: {_outcome(rounds)}"
    released = [each for each in rounds if each.accuracy is not None]
    exact = sum(each.equal is True for each in released)
    yield (
        f"{exact} of {len(released)} opened totals equal, byte for byte, the sum of what those counted in them have, "
        "made anew from their own sums."
    )
    yield from _accuracy(released)
    yield (
        f"These are masked rounds of {' and '.join(map(str, _all_holders(rounds)))} holders, as many in every domain, "
        "of whom a growing part falls away in the middle: before sharing secrets, after sharing, after sending "
        "their sums, or before opening. Every round runs in a fresh copy of the same federation."
    )


def _outcome(rounds: Sequence[Fallen]) -> str:
    enough = [each for each in rounds if each.left >= each.needed]
    few = [each for each in rounds if each.left < each.needed]
    made = sum(each.accuracy is not None for each in enough)
    kept = sum(bool(each.refused) and not each.opened for each in few)
    return (
        f"more than two thirds of those who began must be left. Of {len(enough)} rounds with that many left, {made} "
        f"ended in a release; of {len(few)} with fewer, {kept} ended with a sentence and nothing opened."
    )


def _accuracy(released: Sequence[Fallen]) -> Iterator[str]:
    whole = [each for each in released if not each.falls]
    for base in whole:
        own = [each for each in released if each.holders == base.holders and each.falls]
        if own:
            yield _against(base, own)


def _against(base: Fallen, own: Sequence[Fallen]) -> str:
    """What falling away does to accuracy, domain by domain, beside the round in which nobody fell."""
    assert base.accuracy is not None
    least = min(own, key=lambda each: each.accuracy or 0.0)
    groups = {"whole": list[float](), "lighter": list[float](), "missing": list[float]()}
    for each in own:
        for name, mass in each.masses.items():
            kind = "missing" if mass == 0 else "lighter" if mass < 100 else "whole"
            groups[kind].append(each.domains[name] - base.domains[name])
    words = f"With {base.holders} holders, {base.accuracy:.1f} % is reached when nobody falls. "
    words += f"The worst of the {len(own)} other releases reaches {least.accuracy:.1f} %, "
    words += f"with {len(least.falls)} fallen ({stages(least.falls)}). "
    if not groups["lighter"] and not groups["missing"]:
        return words + "All who fell had sent their sums, so that no domain lost weight."
    words += "Whoever falls before sending is not in the total, and its domain weighs less by its share: "
    return words + ", ".join(filter(None, map(_changed, groups.items()))) + "."


def _changed(group: tuple[str, Sequence[float]]) -> str:
    kind, changes = group
    if not changes:
        return ""
    times = f"{len(changes)} {'time' if len(changes) == 1 else 'times'}"
    if kind == "missing":
        return f"a domain lost all its holders {times} and is not in the release, so that its texts are routed wrongly"
    change = sum(changes) / len(changes)
    return f"the accuracy on domains that were {kind} ({times}) changed by {change:+.1f} points on average"
