"""Federated equals centralised: the same text, dealt out to few holders or many, gives the same bytes.

Compared by their SHA-256 are the total (the numbers that travel), the weights and the compiled table of the release.
Rounds are production's, in this process, in the clear and masked. Knows nothing of accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from common.cohort import Mode
from common.files import sha256
from common.masking.agreement import SMALLEST_COHORT
from common.release import ROUTER, load_release
from common.router import Confidence
from common.settings import DEFAULT, Ridge, Selector, Weighting
from common.statistics import Statistics
from common.statistics_file import Prepared
from coordinator.federation import Federation
from coordinator.gathering import cohort_of
from coordinator.publish import Choices, compose
from coordinator.solve import solve
from coordinator.total import Total, add_up, add_weighted
from simulations.lab.findings import Column, Table
from simulations.lab.plan import Plan, Tick
from simulations.lab.rounds import own_sums, short, sums_digest
from simulations.lab.routers.ridge import prepared
from simulations.lab.setting import Setting
from simulations.layout import Village, settle

MANY, EACH = 50, 4
"""Dealt out to one holder a domain, to so many a domain, and to so many in all."""
FEW, SOME = 80, 200
"""So many training texts of a domain are dealt out in a short run, and in a full one: more would show nothing else."""
CODE = 2
WEIGHTINGS: tuple[Weighting, ...] = ("tokens", "equal")
PLAIN, EQUAL, SHARED = "plain sums", "equal domains", "equal shares of {} holders"
ONE, FILES, SHARES = "all text on one machine", "files of sums, added", "all sums on one machine"
ROUNDS: Mapping[Mode, str] = {"clear": "a round in the clear", "masked": "a masked round"}

Printed = tuple[str, str, str]
"""SHA-256 of a total, of the weights and of the table."""


@dataclass(frozen=True, slots=True)
class Prints:
    """Fingerprints of what was made one way. group: those made under the same terms; the first is the reference."""

    group: str
    holders: int
    way: str
    total: str
    weights: str
    table: str

    @property
    def bytes(self) -> Printed:
        return self.total, self.weights, self.table


@dataclass(frozen=True, slots=True)
class Equality:
    table: Table
    words: str


def compare(plan: Plan, setting: Setting) -> Equality:
    """Every way to make a router of a setting, and whether they come to the same."""
    key = {"setting": setting.digest, "encoder": plan.encoder, "full": plan.full, "seed": plan.seed}
    key |= {"decides": repr(DEFAULT), "code": CODE}
    small = setting.sampled(plan.seed, train=SOME) if plan.full else smaller(setting, plan.seed)

    def make() -> list[dict[str, Any]]:
        steps = sum(len(deals(small, weighting, plan.full)) for weighting in WEIGHTINGS)
        with plan.ticking(f"federated and centralised, {setting.name}", steps) as tick:
            return [asdict(each) for each in prints(small, plan, tick)]

    found = [Prints(**each) for each in plan.shelf.kept("pooled", key, make)]
    return Equality(_table(setting, small, found), _words(setting, found))


def smaller(setting: Setting, seed: int) -> Setting:
    """What a short run deals out: few domains, and few texts of each."""
    names = setting.domains[:SMALLEST_COHORT]
    kept = [{name: texts[name] for name in names} for texts in (setting.train, setting.test)]
    return replace(setting, train=kept[0], test=kept[1]).sampled(seed, train=FEW)


def deals(setting: Setting, weighting: Weighting, full: bool) -> list[int]:
    """To how many holders the text is dealt; only so many that each has some, and to many once in a short run."""
    count, least = len(setting.domains), min(map(len, setting.train.values()))
    many = [max(MANY, count)] if full or weighting == "tokens" else []
    return sorted(holders for holders in {count, EACH * count, *many} if -(-holders // count) <= least)


def prints(setting: Setting, plan: Plan, tick: Tick) -> Iterator[Prints]:
    """By group; within one, the way that sees all text in one place comes first."""
    found: list[Prints] = []
    for weighting in WEIGHTINGS:
        for holders in deals(setting, weighting, plan.full):
            village = _village(setting, plan, holders, weighting)
            quick = not plan.full and holders == MANY
            modes: Sequence[Mode] = ("masked",) if quick else tuple(ROUNDS)
            pooled = _pooled(setting, village) if holders == len(setting.domains) else None
            found += _of_village(village, weighting, modes, pooled)
            tick()
    order = list(dict.fromkeys(each.group for each in found))
    return iter(sorted(found, key=lambda each: order.index(each.group)))


def _village(setting: Setting, plan: Plan, holders: int, weighting: Weighting) -> Village:
    folder = plan.work / f"pooled-{setting.name}-{weighting}-{holders}"
    made = settle(folder, setting.corpora, holders=holders, encoder=plan.encoder, mode="clear", weighting=weighting)
    return replace(made, federation=Federation(made.federation.folder, encoder=made.federation.encoder))


def _pooled(setting: Setting, village: Village) -> list[Prepared]:
    """Each domain's sums, by one who reads all of the text in one place."""
    federation = village.federation
    sampling = federation.terms.sampling.sampling
    return prepared(setting.train, federation.encoder, village.folder / "pooled", sampling, DEFAULT.holdout)


def _of_village(
    village: Village, weighting: Weighting, modes: Sequence[Mode], pooled: Sequence[Prepared] | None
) -> Iterator[Prints]:
    """What the rounds of a village come to, and what its text comes to without a round.

    pooled: the sums of all text in one place, where every domain has one holder.
    """
    rounds = list(_rounds(village, modes))
    own = [own_sums(village, name) for name in village.nodes]
    count, group = len(own), PLAIN if weighting == "tokens" else EQUAL
    if pooled is not None:
        yield Prints(group, 1, ONE, *_solved(village, add_up(pooled, weighting)))
    yield Prints(group, count, FILES, *_solved(village, add_up(own, weighting)))
    if pooled is None and weighting == "equal":
        group = SHARED.format(count)
        yield Prints(group, count, SHARES, *_solved(village, _shared_out(village, own)))
    for mode, printed in rounds:
        yield Prints(group, count, ROUNDS[mode], *printed)


def _rounds(village: Village, modes: Sequence[Mode]) -> Iterator[tuple[Mode, Printed]]:
    """Rounds of the same holders, a masked one only if they are enough; each total with its release."""
    for mode in modes:
        if mode == "masked" and len(village.nodes) < SMALLEST_COHORT:
            continue
        _run(village, mode)
        newest = village.federation.newest
        assert newest is not None
        arrays = load_file(village.federation.release_folder(newest.number) / ROUTER)
        yield mode, (sums_digest(_round_total(village, mode)), *_digests(arrays))


def _run(village: Village, mode: Mode) -> None:
    from client.app import app
    from coordinator.app import GridTransport
    from coordinator.rounds import run_round
    from simulations.local_grid import LocalGrid

    grid = LocalGrid(app, dict(enumerate(village.nodes.values(), start=1)))
    run_round(village.federation, GridTransport(grid, _unseen, poll_s=0.0), _unseen, mode)


def _unseen(event: str, facts: Mapping[str, Any]) -> None:
    """A watch that does not look."""


def _round_total(village: Village, mode: Mode) -> Statistics:
    """What the coordinator added up: the total that was opened, or the sums that it was sent."""
    ledger, newest = village.federation.ledger, village.federation.newest
    assert newest is not None
    if mode == "masked":
        stored = ledger.standing().total
        assert stored is not None
        return ledger.total(stored)
    parts = ((each.domain, ledger.sums(each), each.holdout) for each in newest.members)
    return add_weighted(parts, newest.terms).statistics


def _shared_out(village: Village, own: Sequence[Prepared]) -> Total:
    """The holders' sums, each weighted to its share, by one who has them all."""
    federation = village.federation
    active = federation.ledger.standing().active
    cohort = cohort_of(federation.terms, active, list(active))
    shares = {active[name].key: name for name in active}
    share_of = {shares[member.key]: member.share for member in cohort.members}
    named = zip(village.nodes, own, strict=True)
    parts = ((each.domain, each.statistics.weighted(share_of[name]), each.holdout) for name, each in named)
    return add_weighted(parts, federation.terms)


def _solved(village: Village, total: Total) -> Printed:
    """What a total comes to with the λ and the columns that the holders' release has."""
    encoder, newest = village.federation.encoder, village.federation.newest
    assert newest is not None
    manifest = load_release(village.federation.release_folder(newest.number)).manifest
    choices = Choices(
        manifest["weighting"],
        Ridge(**manifest["ridge"]),
        manifest["normalise_columns"],
        Selector(**manifest["selector"]),
        Confidence(),
    )
    made = compose(total, encoder, choices, solve(total.statistics, encoder.scale, choices.ridge))
    arrays = {"weights": made.solution.weights, **made.compiled.arrays()}
    return sums_digest(total.statistics), *_digests(arrays)


def _digests(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, str]:
    """Of the weights, and of all else that a release keeps of a router."""
    table = [np.ascontiguousarray(arrays[name]).data for name in sorted(arrays) if name != "weights"]
    return sha256(np.ascontiguousarray(arrays["weights"]).data), sha256(*table)


# How it is shown


def references(found: Sequence[Prints]) -> dict[str, Prints]:
    """The first of each group."""
    return {each.group: each for each in reversed(found)}


def _table(setting: Setting, dealt: Setting, found: Sequence[Prints]) -> Table:
    first = references(found)
    names = ("sums", "holders", "made by", "total", "weights", "table", "same bytes")
    rows = tuple(
        (
            each.group,
            each.holders,
            each.way,
            *(short(digest) for digest in each.bytes),
            "reference" if each is first[each.group] else "yes" if each.bytes == first[each.group].bytes else "NO",
        )
        for each in found
    )
    texts = sum(map(len, dealt.train.values()))
    note = (
        f"{texts:,} training texts of {len(dealt.domains)} domains, dealt out like cards. The total is the sums' upper "
        "triangle and columns as they travel; weights and table are those of the release. Shown are the first digits "
        "of SHA-256; all of them are compared with the first row of the same sums."
    )
    columns = tuple(Column(name) for name in names)
    return Table(f"pooled-{setting.name}", f"Federated and centralised on {setting.name}", columns, rows, note)


def _words(setting: Setting, found: Sequence[Prints]) -> str:
    first = references(found)
    others = [each for each in found if each is not first[each.group]]
    unlike = [each for each in others if each.bytes != first[each.group].bytes]
    what = f"on {setting.name}, {len(others)} totals with the weights and tables that come of them were held against"
    if unlike:
        return f"Federated against centralised: {what} those of one machine, and {len(unlike)} are NOT the same bytes."
    return (
        f"Federated equals centralised: {what} those of one machine that has all text or all sums, and all are the "
        "same, byte for byte. Plain sums, and files of sums under equal weighting, give what the pooled text gives, "
        f"however many holders it lies with (up to {max(each.holders for each in found)} here). In a round under equal "
        "weighting a holder weights its own sums to its share of the domain's mass and rounds them, so that holders of "
        "one domain count alike whatever their size: with several of them that is another total than the pooled "
        "text's, and the very one of a machine that has all holders' sums and does the same. Masks change nothing."
    )
