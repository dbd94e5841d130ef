"""One masked round after another in copies of one federation, some of its holders falling away: what came of each.

Runs the in-memory engine. Knows nothing of tables or words.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.evaluation import evaluate
from common.masking.agreement import threshold_for
from common.release import load_release
from coordinator.ledger import Published, Standing
from coordinator.total import add_weighted
from simulations.falling import STAGES, choose_falls
from simulations.lab.plan import Plan
from simulations.lab.ready import choices_of, words_of
from simulations.lab.rounds import Watched, copied, decided, one_thread, own_sums, settled, sums_digest, watched_round
from simulations.lab.setting import Setting
from simulations.layout import Village

RATES = (0.0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5)
CODE = 1
"""Raised when the same key on the shelf would now hold something else."""


@dataclass(frozen=True, slots=True)
class Fallen:
    """One round and what became of it.

    falls:    who fell away, and at which stage. counted: whose sums are in the total.
    refused:  why there was no release. opened: whether there is a total all the same.
    accuracy: percent over the test texts of all domains; those of a domain that is not in the release are wrong.
    chosen:   the selector and λ of the release, by the held-out text of those who were still there.
    masses:   each domain's part of the mass that the terms give it, in percent.
    total, again: SHA-256 of the opened total, and of the sum of what the counted holders have, made anew.
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
    gathered: float | None
    up: float
    down: float
    accuracy: float | None
    domains: Mapping[str, float]
    masses: Mapping[str, float]
    chosen: str
    total: str
    again: str
    equal: bool | None

    @property
    def needed(self) -> int:
        return threshold_for(self.holders)

    @property
    def left(self) -> int:
        return self.holders - len(self.falls)


def holders_for(domains: int, least: int) -> int:
    """The fewest holders, of at least so many, of whom each domain has the same power of two."""
    each = 1
    while each * domains < least:
        each *= 2
    return each * domains


def rounds_of(plan: Plan, setting: Setting, holders: int, draws: int, folder: Path) -> list[Fallen]:
    """Rounds of every rate, and of each so many as others are drawn to fall; where nobody falls, one."""
    cases = [(rate, draw) for rate in RATES for draw in range(draws if rate else 1)]
    base = _Base(partial(settled, plan, setting, folder / "base", "masked", holders))
    key = {**decided(plan, setting), "holders": holders, "code": CODE}
    found = []
    with one_thread(), plan.ticking(f"rounds of {holders} holders", len(cases)) as tick:
        for rate, draw in cases:
            make = partial(_one, base, folder / f"{rate:g}-{draw}", rate, draw, plan.seed)
            found.append(Fallen(**plan.shelf.kept("fallen", {**key, "rate": rate, "draw": draw}, make)))
            tick()
    shutil.rmtree(folder, ignore_errors=True)
    return found


class _Base:
    """The federation that rounds are run in copies of, made when it is first needed."""

    def __init__(self, make: Callable[[], Village]) -> None:
        self._make, self._made = make, list[Village]()

    def __call__(self) -> Village:
        if not self._made:
            self._made.append(self._make())
        return self._made[0]


def _one(base: Callable[[], Village], folder: Path, rate: float, draw: int, seed: int) -> dict[str, Any]:
    village = copied(base(), folder)
    falls = choose_falls(list(village.nodes), rate, seed + draw)
    watched = watched_round(village, falls)
    measured = measure(village, watched)
    shutil.rmtree(folder)
    stayed = sorted(set(village.nodes) - set(falls))
    up, down = (sum(each.get(name, 0) for name in stayed) / len(stayed) for each in (watched.up, watched.down))
    found = Fallen(
        holders=len(village.nodes),
        rate=rate,
        draw=draw,
        falls={name: STAGES[left] for name, left in sorted(falls.items())},
        refused=watched.refused,
        seconds=watched.seconds,
        work=watched.work,
        gathered=watched.gathered,
        up=up,
        down=down,
        **measured,
    )
    return asdict(found)


def measure(village: Village, watched: Watched) -> dict[str, Any]:
    """What the ledger and the release of a round show, held against the holders' own sums."""
    standing = village.federation.ledger.standing()
    opened = standing.total is not None or bool(standing.opened) or bool(standing.releases)
    if watched.published is None:
        nothing: dict[str, Any] = {"counted": None, "accuracy": None, "domains": {}, "masses": {}, "chosen": ""}
        return nothing | {"opened": opened, "total": "", "again": "", "equal": None}
    folder = village.federation.release_folder(watched.published.number)
    loaded = load_release(folder, key=village.federation.identity.public)
    right = evaluate(loaded.router, village.tests).by_domain
    domains = {name: right.get(name, 0.0) for name in village.tests}
    mass = watched.published.terms.mass
    return {
        "counted": len(watched.published.members),
        "opened": opened,
        "accuracy": sum(domains.values()) / len(domains),
        "domains": domains,
        "masses": {name: 100 * loaded.manifest["masses"].get(name, 0) / mass for name in village.tests},
        "chosen": words_of(choices_of(village.federation, watched.published)),
        **_compared(village, standing, watched.published),
    }


def _compared(village: Village, standing: Standing, published: Published) -> dict[str, Any]:
    """The total that was opened, and the sum of what those counted in it have, each weighted to its share."""
    assert standing.total is not None
    opened = village.federation.ledger.total(standing.total)
    parts = (
        (member.domain, own_sums(village, member.name).statistics.weighted(member.share), member.holdout)
        for member in published.members
    )
    again = add_weighted(parts, published.terms).statistics
    return {"total": sums_digest(opened), "again": sums_digest(again), "equal": opened.equals(again)}
