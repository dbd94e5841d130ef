"""What must be so after masked rounds, whatever happened in them: an oracle that knows every holder's own sums.

It reads the ledger for what the coordinator claims, the holders' journals for what they have helped to open, and knows
from the definition what router any members' sums come to. It knows nothing of how either side works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

from ridgeway.client.round.holder import Holder
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.masking.differencing import set_apart
from ridgeway.common.masking.history import possible_sums
from ridgeway.common.protocol.messages import LOTS
from ridgeway.common.routing.release import ROUTER, load_release
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import Standing
from tests.support.faults import check_folders, check_received, router_of, shares_of
from tests.support.masked_faults import Parts, Witness, needed
from tests.support.simulated_federation import Parties

JOINED_OR_LEFT = "since an earlier masked total only"
TOLD_BY_ALL = "so holders refuse it"
"""Where no two totals show what one member has, but all of them together do."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a holder has under one name for its data: its raw sums, and how many documents it evaluates on."""

    prepared: Prepared
    documents: int


@dataclass
class MaskedOracle:
    """Knows every holder's data, by the holder's name and by what stands for the data."""

    encoder: TableEncoder
    known: Mapping[tuple[str, str], Known]
    _routers: dict[tuple[frozenset[tuple[str, str, int]], float], bytes] = field(default_factory=dict)

    def check(self, parties: Parties, witness: Witness) -> int:
        """Raise unless all that the folders say is so; returns how many releases there are."""
        federation = parties.federation()
        federation.ledger.verify()
        holders = [parties.holder(name) for name in parties.homes]
        sums = Sums.of(holders)
        check_sums(sums, witness)
        standing, parent = Standing(), None
        for entry in federation.ledger.journal.entries():
            standing.take_in(entry)
            if entry.kind == "released":
                assert entry.facts["number"] == len(standing.releases), "the numbers of releases have a gap"
                self._check_release(federation, standing, parent, sums, witness)
                parent = standing.releases[-1].release
        check_folders(federation)
        for holder in holders:
            check_received(holder, federation)
        return len(standing.releases)

    def _check_release(
        self, federation: Federation, standing: Standing, parent: str | None, sums: Sums, seen: Witness
    ) -> None:
        """A release is the router of one sum that holders have opened, of those and with the shares the ledger says."""
        published = standing.releases[-1]
        folder = federation.release_folder(published.number)
        loaded = load_release(folder, key=federation.identity.public)
        assert (loaded.id, loaded.manifest["parent"]) == (published.release, parent)
        assert loaded.manifest["number"] == published.number
        content, ridge = (folder / ROUTER).read_bytes(), loaded.manifest["ridge"]["value"]
        names = {holder.key: name for name, holder in standing.roster.items()}
        exact = {
            frozenset((names[key], source, share) for key, (source, share) in parts.items())
            for session, parts in sums.opened_by_enough("statistics")
            if self._has_due_shares(standing, names, parts, seen.cohort(session) or parts.keys())
            and self._router(standing, names, parts, ridge) == content
        }
        assert len(exact) == 1, f"release {published.number} is not the router of any sum that was opened"
        made_of = exact.pop()
        assert made_of == {(each.name, each.source, each.share) for each in published.members}
        masses = dict.fromkeys(published.domains, 0)
        for name, _, share in made_of:
            masses[standing.roster[name].domain] += share
        assert (loaded.manifest["masses"], loaded.manifest["domains"]) == (masses, list(published.domains))
        assert loaded.manifest["cohort"]["holders"] == len(made_of)
        self._check_evaluation(loaded.manifest["evaluation"], names, sums)

    def _check_evaluation(self, evaluation: Mapping[str, int] | None, names: Mapping[str, str], sums: Sums) -> None:
        """It counts the documents of the members of a sum that was opened, each once."""
        if evaluation is None:
            return
        met = {
            sum(self.known[names[key], source].documents for key, (source, _) in parts.items())
            for _, parts in sums.opened_by_enough("scores")
            if parts.keys() <= names.keys()
        }
        assert evaluation["documents"] in met, "a release was evaluated on the documents of no set of members"

    def _has_due_shares(
        self, standing: Standing, names: Mapping[str, str], parts: Parts, cohort: Iterable[str]
    ) -> bool:
        """Whether each member's share is the one that a cohort of these gives it, whoever of them has fallen away."""
        if not set(cohort) <= names.keys():  # a later sum, with members who came since
            return False
        due = shares_of(standing, {names[key] for key in cohort})
        return all(due[names[key]] == share for key, (_, share) in parts.items())

    def _router(self, standing: Standing, names: Mapping[str, str], parts: Parts, ridge: float) -> bytes:
        members = frozenset((names[key], source, share) for key, (source, share) in parts.items())
        if (members, ridge) not in self._routers:
            given = [
                (standing.roster[name].domain, share, self.known[name, source].prepared.statistics)
                for name, source, share in members
            ]
            self._routers[members, ridge] = router_of(given, self.encoder, ridge)
        return self._routers[members, ridge]

    def foresee(self, parties: Parties) -> str:
        """How a round without faults must end while everybody is there: "" for a release, else words of why not."""
        federation = parties.federation()
        standing = federation.ledger.standing()
        shares = shares_of(standing, set(standing.active))
        present = {name: parties.holder(name) for name in standing.active}
        sources = {name: holder.source(holder.ready(federation.terms)) for name, holder in present.items()}
        if standing.total and {each.name: (each.source, each.share) for each in standing.total.members} == {
            name: (sources[name], shares[name]) for name in present
        }:
            return ""
        parts = {standing.active[name].key: (sources[name], shares[name]) for name in present}
        earlier = [dict(each) for each in standing.opened.get("statistics", [])]
        told = {holder.identity.public: holder.memory.history().told() for holder in present.values()}
        earlier += [each.by_key() for each in possible_sums(told) if each.lot == "statistics"]
        if not set_apart(earlier, parts, 2):
            return ""
        return JOINED_OR_LEFT if any(_differing(each, parts) < 2 for each in earlier) else TOLD_BY_ALL


# Sums that were opened


def _written(parts: Iterable[tuple[str, str, int]]) -> Parts:
    """As a journal has them."""
    return {key: (source, weight) for key, source, weight in parts}


@dataclass(frozen=True)
class Sums:
    """The sums that holders have helped to open, each with its session, as their journals say: by key and lot."""

    opened: Mapping[tuple[str, str], list[tuple[str, Parts]]]

    @classmethod
    def of(cls, holders: Sequence[Holder]) -> Sums:
        opened: dict[tuple[str, str], list[tuple[str, Parts]]] = {}
        for holder in holders:
            for entry in holder.journal.entries():
                if entry.kind == "opened":
                    parts = _written(entry.facts["parts"])
                    own = opened.setdefault((holder.identity.public, entry.facts["lot"]), [])
                    own.append((entry.facts["session"], parts))
        return cls(opened)

    def of_one(self, key: str, lot: str) -> list[Parts]:
        return [parts for _, parts in self.opened.get((key, lot), [])]

    def opened_by_enough(self, lot: str) -> list[tuple[str, Parts]]:
        """The sums that more than two thirds of those in them have opened."""
        openers: dict[tuple[str, frozenset[tuple[str, tuple[str, int]]]], set[str]] = {}
        for (key, of), own in self.opened.items():
            for session, parts in own if of == lot else ():
                openers.setdefault((session, frozenset(parts.items())), set()).add(key)
        return [(session, dict(parts)) for (session, parts), keys in openers.items() if len(keys) >= needed(len(parts))]


def check_sums(sums: Sums, witness: Witness) -> None:
    """No sum is of few, of others than have sent, or says something of one member beside the others."""
    for (key, lot), own in sums.opened.items():
        for session, parts in own:
            _check_sum(key, witness, session, lot, parts)
        _check_apart(sums.of_one(key, lot))
        assert not alone(sums.of_one(key, lot)), "a combination of opened sums shows what one member has"
    for lot in LOTS:
        _check_apart(witness.opened(lot))
    for (session, of, places), givers in witness.revealed.items():
        parts = witness.parts(session, of, places)
        noted = all((session, parts) in sums.opened.get((giver, of), []) for giver in givers)
        assert noted, "shares left a holder that has not noted which sum they open"


def _check_sum(key: str, witness: Witness, session: str, lot: str, parts: Parts) -> None:
    assert len(parts) >= 3, f"a sum of {len(parts)} members was opened"
    assert key in parts, "a holder has opened a sum that it is not in"
    cohort = witness.cohort(session)
    if cohort:
        assert len(parts) >= needed(len(cohort)), f"a sum of {len(parts)} of {len(cohort)} members was opened"
        assert parts.keys() <= witness.sealed[session, lot], "a member is counted that has sent nothing"


def _check_apart(sums: Sequence[Parts]) -> None:
    """No two sums differ in what one member gave."""
    for one, other in combinations(sums, 2):
        assert _differing(one, other) != 1, "two sums were opened that differ in one member"


def _differing(one: Parts, other: Parts) -> int:
    return sum(one.get(key) != other.get(key) for key in one.keys() | other.keys())


def alone(sums: Sequence[Parts]) -> set[str]:
    """The members whose own part is a combination of the sums: leaving its data out makes their rank smaller."""
    distinct = [parts for place, parts in enumerate(sums) if parts not in sums[:place]]
    columns = sorted({(key, source) for parts in distinct for key, (source, _) in parts.items()})
    rows = [
        [parts[key][1] if parts.get(key, ("",))[0] == source else 0 for key, source in columns] for parts in distinct
    ]
    whole = _rank(rows)
    found = set()
    for member in {key for key, _ in columns}:
        others = [place for place, (key, _) in enumerate(columns) if key != member]
        if _rank([[row[place] for place in others] for row in rows]) < whole:
            found.add(member)
    return found


def _rank(rows: Sequence[Sequence[int]]) -> int:
    """By elimination, exactly."""
    left = [[Fraction(value) for value in row] for row in rows]
    rank = 0
    while left:
        row = left.pop()
        pivot = next((place for place, value in enumerate(row) if value), None)
        if pivot is None:
            continue
        rank += 1
        left = [
            [value - each[pivot] / row[pivot] * mine for value, mine in zip(each, row, strict=True)] for each in left
        ]
    return rank
