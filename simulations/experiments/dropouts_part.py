"""The part `dropouts`: masked rounds in which more and more holders fall away, what is left of
them, and whether the sums stay exact. Every round runs in a fresh copy of one federation.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.routing.evaluation import evaluate
from ridgeway.common.routing.release import load_release
from ridgeway.common.routing.router import router_of
from ridgeway.coordinator.solving.total import add_weighted
from ridgeway.simulations.dropouts import STAGES, choose_dropouts
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.experiment_rounds import (
    WatchedRound,
    copied,
    decided,
    own_sums,
    sampled,
    settled,
    text_counts,
    watched_round,
)
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report.report_tables import (
    Column,
    Plot,
    ReportPart,
    Series,
    Table,
)
from ridgeway.simulations.simulated_federation import SimulatedFederation

KEY = "dropouts"
TITLE = "Holders that fall away in the middle of a round"
RATES = (0.0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5)
SHORT_HOLDERS = (12,)
FULL_HOLDERS = (12, 24, 48)
"""At least this many; each domain has a power of two of them, so that shares are equal and every
run has the same.
"""
SHORT_DRAWS = 2
FULL_DRAWS = 5
SHORT_TRAIN_TEXTS = 600
SHORT_TEST_TEXTS = 100
"""Of each domain, in a short run."""
CODE = 3
"""Raised when the same key in the cache would now hold something else."""

METHOD = (
    "Masked rounds, as many holders in every domain, of whom a growing part falls away"
    " in the middle: before sharing secrets, after sharing, after sending their sums,"
    " or before opening. More than two thirds of those who began must be left. A holder"
    " that falls before sending is not in the total, and its domain weighs less by its"
    " share."
)


@dataclass(frozen=True, slots=True)
class DropoutRound:
    """One round and what became of it.

    falls:    who fell away, and at which stage. counted: whose sums are in the total.
    refused:  why there was no release. opened: whether there is a total all the same.
    accuracy: percent over the test texts of all domains; those of a domain that is not in the
              release are wrong.
    masses:   each domain's part of the mass that the terms give it, in percent.
    equal:    whether the opened total is the sum of what the counted holders have, made anew.
    """

    holders: int
    rate: float
    draw: int
    falls: Mapping[str, str]
    counted: int | None
    refused: str
    opened: bool
    seconds: float
    work: float
    up: float
    down: float
    accuracy: float | None
    domains: Mapping[str, float]
    masses: Mapping[str, float]
    equal: bool | None

    @property
    def needed(self) -> int:
        return threshold_for(self.holders)


def run(plan: ExperimentPlan) -> ReportPart:
    datasets = sampled(plan, SHORT_TRAIN_TEXTS, SHORT_TEST_TEXTS)
    counts, draws = (
        (FULL_HOLDERS, FULL_DRAWS) if plan.full else (SHORT_HOLDERS, SHORT_DRAWS)
    )
    found: dict[str, list[DropoutRound]] = {}
    left_out = []
    for dataset in datasets:
        least = min(map(len, dataset.train.values()))
        for holders in sorted(
            {holders_for(len(dataset.domains), count) for count in counts}
        ):
            if holders // len(dataset.domains) > least:
                left_out.append(
                    f"{dataset.name} with {holders} holders: a domain has fewer texts"
                    " than holders"
                )
            else:
                found.setdefault(dataset.name, []).extend(
                    rounds_of(plan, dataset, holders, draws)
                )
    return ReportPart(
        key=KEY,
        title=TITLE,
        words=(METHOD,),
        tables=tuple(
            each
            for name, rounds in found.items()
            for each in (_by_rate(name, rounds), _said(name, rounds))
        ),
        plots=tuple(
            plot for name, rounds in found.items() for plot in _plots(name, rounds)
        ),
        facts={
            "seed": plan.seed,
            "encoder": plan.encoder,
            "rates": list(RATES),
            "draws": draws,
        }
        | {"texts": text_counts(datasets)},
        left_out=tuple(left_out),
    )


def holders_for(domains: int, least: int) -> int:
    """The fewest holders, of at least this many, of whom each domain has the same power of two."""
    return domains << (-(-least // domains) - 1).bit_length()


# Rounds


def rounds_of(
    plan: ExperimentPlan, dataset: Dataset, holders: int, draws: int
) -> list[DropoutRound]:
    """Rounds of every rate, several draws of each; where nobody falls, one."""
    folder = plan.work / f"{KEY}-{dataset.name}-{holders}"
    cases = [(rate, draw) for rate in RATES for draw in range(draws if rate else 1)]
    base = cache(lambda: settled(plan, dataset, folder / "base", "masked", holders))
    key = {**decided(plan, dataset), "holders": holders, "code": CODE}
    found = []
    with (
        one_blas_thread(),
        plan.ticking(f"rounds of {holders} holders", len(cases)) as tick,
    ):
        for rate, draw in cases:
            make = partial(
                _one, base, folder / f"{rate:g}-{draw}", rate, draw, plan.seed
            )
            found.append(
                DropoutRound(
                    **plan.cache.kept(
                        "fallen", {**key, "rate": rate, "draw": draw}, make
                    )
                )
            )
            tick()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _one(
    base: Callable[[], SimulatedFederation],
    folder: Path,
    rate: float,
    draw: int,
    seed: int,
) -> dict[str, Any]:
    simulated = copied(base(), folder)
    falls = choose_dropouts(list(simulated.nodes), rate, seed + draw)
    watched = watched_round(simulated, falls)
    measured = measure(simulated, watched)
    shutil.rmtree(folder)
    stayed = sorted(set(simulated.nodes) - set(falls))
    up, down = (
        sum(each.get(name, 0) for name in stayed) / len(stayed)
        for each in (watched.up, watched.down)
    )
    fell = {name: STAGES[left] for name, left in sorted(falls.items())}
    facts: dict[str, Any] = {
        "holders": len(simulated.nodes),
        "rate": rate,
        "draw": draw,
        "falls": fell,
    }
    facts |= {
        "refused": watched.refused,
        "seconds": watched.seconds,
        "work": watched.work,
        "up": up,
        "down": down,
    }
    return facts | measured


def measure(simulated: SimulatedFederation, watched: WatchedRound) -> dict[str, Any]:
    """What the ledger and the release of a round show; the total against the sum of the counted
    holders' own sums.
    """
    ledger = simulated.federation.ledger
    published = watched.published
    standing = ledger.standing()
    opened = bool(standing.totals)
    if published is None:
        return {
            "counted": None,
            "accuracy": None,
            "domains": {},
            "masses": {},
            "opened": opened,
            "equal": None,
        }
    folder = simulated.federation.release_folder(published.number)
    loaded = load_release(folder, key=simulated.federation.identity.public)
    right = evaluate(router_of(loaded), simulated.tests).by_domain
    domains = {name: right.get(name, 0.0) for name in simulated.tests}
    masses = loaded.manifest["masses"]
    total = ledger.total(standing.totals[-1])
    parts = (
        (
            member.domain,
            own_sums(simulated, member.name).statistics.weighted(member.share),
            member.holdout,
        )
        for member in published.members
    )
    return {
        "counted": len(published.members),
        "opened": opened,
        "accuracy": sum(domains.values()) / len(domains),
        "domains": domains,
        "masses": {
            name: 100 * masses.get(name, 0) / published.terms.mass for name in domains
        },
        "equal": total.equals(add_weighted(parts, published.terms).statistics),
    }


# What is shown


def _by_rate(name: str, rounds: Sequence[DropoutRound]) -> Table:
    columns = (
        *(
            Column("holders", digits=0),
            Column("must be left", digits=0),
            Column("drop rate", "%", 0),
        ),
        *(
            Column("fell", digits=0),
            Column("rounds", digits=0),
            Column("opened", digits=0),
        ),
        *(
            Column("released", digits=0),
            Column("accuracy", "%", better="more"),
            Column("least", "%"),
        ),
        Column("exact", digits=0),
        Column("lightest domain", "% of its mass"),
        *(
            Column("time", "s", 2),
            Column("computing", "s", 2),
            Column("up", "kB", 0),
            Column("down", "kB", 0),
        ),
    )
    rows = []
    for holders, rate in sorted({(each.holders, each.rate) for each in rounds}):
        own = [each for each in rounds if (each.holders, each.rate) == (holders, rate)]
        right = [each.accuracy for each in own if each.accuracy is not None]
        rows.append(
            (
                *(holders, own[0].needed, 100 * rate, len(own[0].falls), len(own)),
                *(sum(each.opened for each in own), len(right)),
                *(
                    mean(right),
                    min(right, default=None),
                    sum(each.equal is True for each in own),
                ),
                min(
                    (mass for each in own for mass in each.masses.values()),
                    default=None,
                ),
                *(
                    mean([each.seconds for each in own]),
                    mean([each.work for each in own]),
                ),
                *(
                    mean([each.up / 1000 for each in own]),
                    mean([each.down / 1000 for each in own]),
                ),
            )
        )
    note = (
        "Accuracy over the test texts of all domains: mean and least of the rounds that"
        " ended in a release. Exact: how many opened totals equal, byte for byte, the"
        " sum of what the counted holders have. Bytes: of a holder that stayed."
        " Computing: of all holders and the coordinator together, in one process."
    )
    return Table(
        f"{KEY}-{name}",
        f"Rounds under growing drop-out, {name}",
        columns,
        tuple(rows),
        note,
    )


def _said(name: str, rounds: Sequence[DropoutRound]) -> Table:
    columns = (
        *(Column(each, digits=0) for each in ("holders", "fell")),
        Column("at which stages"),
        Column("what came of it"),
    )
    rows = tuple(
        (each.holders, len(each.falls), stages(each.falls), each.refused or "released")
        for each in rounds
    )
    return Table(f"{KEY}-rounds-{name}", f"Every round, {name}", columns, rows)


def stages(falls: Mapping[str, str]) -> str:
    """`before sharing 2, after sending 1`, in the order of the stages."""
    met = Counter(falls.values())
    return (
        ", ".join(f"{stage} {met[stage]}" for stage in STAGES.values() if met[stage])
        or "nobody"
    )


def _plots(name: str, rounds: Sequence[DropoutRound]) -> Iterator[Plot]:
    def lines(of: Callable[[DropoutRound], float | None]) -> Iterator[Series]:
        for holders in sorted({each.holders for each in rounds}):
            own = [each for each in rounds if each.holders == holders]
            rates = sorted({each.rate for each in own})
            values = [[of(each) for each in own if each.rate == rate] for rate in rates]
            means = (
                mean([value for value in some if value is not None]) for some in values
            )
            yield Series(
                f"{holders} holders", tuple(100 * rate for rate in rates), tuple(means)
            )

    right = tuple(lines(lambda each: each.accuracy))
    seconds = tuple(lines(lambda each: each.seconds))
    gap = "A gap: no round of this rate ended in a release."
    every = "All rounds, those that were refused among them."
    yield Plot(
        f"{KEY}-accuracy-{name}",
        f"Accuracy, {name}",
        "drop rate, %",
        "accuracy, %",
        right,
        note=gap,
    )
    yield Plot(
        f"{KEY}-seconds-{name}",
        f"Time of a round, {name}",
        "drop rate, %",
        "seconds",
        seconds,
        note=every,
    )


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
