"""What must be so after masked rounds, whatever happened in them: an oracle that knows every
holder's own sums.

It reads the ledger for what the coordinator claims, the holders' journals for what they have signed
and helped to open, and knows from the definition what router any members' sums come to. It knows
nothing of how either side works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeway.client.round.holder import Holder
from ridgeway.common.base.journal import JournalEntry
from ridgeway.common.protocol.messages import SUM_NAMES
from ridgeway.common.routing.release import ROUTER
from ridgeway.common.statistics import Prepared
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.round.ledger import Standing
from tests.support.faults import (
    check_folders,
    check_received,
    releases_of,
    router_of,
    shares_of,
)
from tests.support.masked_faults import Parts, Witness, needed
from tests.support.simulated_federation import Parties


@dataclass(frozen=True, slots=True)
class Known:
    """What a holder has in an epoch: its raw sums, and how many documents it evaluates on."""

    prepared: Prepared
    documents: int


Routers = dict[tuple[frozenset[tuple[str, str, int]], float], bytes]


@dataclass
class MaskedOracle:
    """Knows every holder's data, by the holder's name and that of the epoch."""

    encoder: TableEncoder
    known: dict[tuple[str, str], Known]
    routers: Routers = field(default_factory=dict)
    _looked_at: dict[str, int] = field(default_factory=dict)

    def check(
        self, parties: Parties, witness: Witness, unevaluated: Iterable[int] = ()
    ) -> int:
        """Raise unless all that the folders say is so; returns how many releases there are.

        It is called after every round, before members are pinned. unevaluated: the releases that
        holders of every domain need not have counted for.
        """
        federation = parties.federation
        federation.ledger.verify()
        holders = [parties.holder(name) for name in parties.homes]
        sums = Sums.of(holders)
        self._check_sizes(holders, sums, witness)
        check_sums(sums, witness)
        number = 0
        for number, (standing, manifest) in enumerate(releases_of(federation), 1):
            content = (federation.release_folder(number) / ROUTER).read_bytes()
            self._check_release(standing, manifest, content, sums, witness)
            self._check_evaluation(manifest, standing, sums, number in set(unevaluated))
        check_folders(federation)
        for holder in holders:
            check_received(holder, federation)
        return number

    def _check_sizes(
        self, holders: Sequence[Holder], sums: Sums, witness: Witness
    ) -> None:
        """What a holder has helped to open since the last look is of enough members that have
        sent.
        """
        for holder in holders:
            key = holder.identity.public
            for entry in sums.opened.get(key, []):
                if entry.number > self._looked_at.get(key, 0):
                    _check_sum(holder, entry, witness)
            self._looked_at[key] = max(
                (noted.number for noted in holder.journal.entries()), default=0
            )

    def _check_release(
        self,
        standing: Standing,
        manifest: Mapping[str, Any],
        router: bytes,
        sums: Sums,
        witness: Witness,
    ) -> None:
        """A release is the router of one total that holders have opened, of those and with the
        shares the ledger says.
        """
        published = standing.releases[-1]
        names = names_of(standing)
        members = {(member.name, member.source) for member in published.members}
        opened = [
            session
            for session, parts in sums.opened_by_enough("statistics")
            if {(names.get(key, ""), epoch) for key, epoch in parts.items()} == members
        ]
        assert opened, f"release {published.number} is of no total that was opened"
        shares = {member.name: member.share for member in published.members}
        assert any(
            self._are_due(standing, names, shares, witness.cohort(session))
            for session in opened
        )
        given = frozenset(
            (member.name, member.source, member.share) for member in published.members
        )
        content = self._router(standing, given, manifest["ridge"]["value"])
        assert router == content, (
            f"release {published.number} is not the router of its total"
        )
        masses = dict.fromkeys(published.domains, 0)
        for name, share in shares.items():
            masses[standing.roster[name].domain] += share
        assert (manifest["masses"], manifest["domains"]) == (
            masses,
            list(published.domains),
        )
        assert manifest["cohort"]["holders"] == len(members)

    def _check_evaluation(
        self,
        manifest: Mapping[str, Any],
        standing: Standing,
        sums: Sums,
        unevaluated: bool,
    ) -> None:
        """It counts the documents of the members of a sum that was opened, each once, and of every
        domain some.
        """
        names = names_of(standing)
        evaluation = manifest["evaluation"]
        if evaluation is None:
            assert unevaluated, "a release was published that nobody has counted for"
            return
        fitting = []
        for _, parts in sums.opened_by_enough("counts"):
            if parts.keys() <= names.keys():
                counted = {(names[key], epoch) for key, epoch in parts.items()}
                documents = sum(self.known[source].documents for source in counted)
                if documents == evaluation["documents"]:
                    fitting.append(
                        {standing.roster[name].domain for name, _ in counted}
                    )
        assert fitting, "a release was evaluated on the documents of no set of members"
        assert unevaluated or any(
            domains.issuperset(manifest["domains"]) for domains in fitting
        ), "nobody has counted for one of the domains"

    def _are_due(
        self,
        standing: Standing,
        names: Mapping[str, str],
        shares: Mapping[str, int],
        cohort: Iterable[str],
    ) -> bool:
        """Whether each member's share is the one that a cohort of these gives it, whoever of them
        has fallen away.
        """
        there = {names[key] for key in cohort if key in names} or set(shares)
        due = shares_of(standing, there)
        return all(due.get(name) == share for name, share in shares.items())

    def _router(
        self, standing: Standing, members: frozenset[tuple[str, str, int]], ridge: float
    ) -> bytes:
        if (members, ridge) not in self.routers:
            given = [
                (
                    standing.roster[name].domain,
                    share,
                    self.known[name, epoch].prepared.statistics,
                )
                for name, epoch, share in members
            ]
            self.routers[members, ridge] = router_of(given, self.encoder, ridge)
        return self.routers[members, ridge]


def names_of(standing: Standing) -> dict[str, str]:
    """The holders on the roster, by their keys."""
    return {holder.key: name for name, holder in standing.roster.items()}


# Sums that were opened


@dataclass(frozen=True)
class Sums:
    """What holders have signed and helped to open, as their journals say.

    opened: a holder's entries, by its key. signed: the epochs of those who have signed, by key, for
    every session and total; what was opened was signed by all who are in it.
    """

    opened: Mapping[str, list[JournalEntry]]
    signed: Mapping[tuple[str, str], Parts]

    @classmethod
    def of(cls, holders: Sequence[Holder]) -> Sums:
        opened: dict[str, list[JournalEntry]] = {}
        signed: dict[tuple[str, str], Parts] = {}
        for holder in holders:
            key = holder.identity.public
            opened[key] = holder.journal.entries("opened")
            for entry in holder.journal.entries("signed"):
                parts = signed.setdefault(
                    (entry.facts["session"], entry.facts["total"]), {}
                )
                parts[key] = entry.facts["epoch"]
        return cls(opened, signed)

    def opened_by_enough(self, lot: str) -> list[tuple[str, Parts]]:
        """The sums that more than two thirds of those in them have opened, each with its
        session.
        """
        openers: dict[tuple[str, str], set[str]] = {}
        for key, entries in self.opened.items():
            for entry in entries:
                if entry.facts["lot"] == lot:
                    openers.setdefault(
                        (entry.facts["session"], entry.facts["total"]), set()
                    ).add(key)
        return [
            (total[0], self.signed[total])
            for total, keys in openers.items()
            if len(keys) >= needed(len(self.signed[total]))
        ]


def check_sums(sums: Sums, witness: Witness) -> None:
    """Every epoch of every holder is in at most one opened total of statistics, and in one of
    counts.
    """
    for key, entries in sums.opened.items():
        for lot in SUM_NAMES:
            totals: dict[str, set[str]] = {}
            for entry in entries:
                if entry.facts["lot"] == lot:
                    totals.setdefault(entry.facts["epoch"], set()).add(
                        entry.facts["total"]
                    )
                    signed = sums.signed[entry.facts["session"], entry.facts["total"]]
                    assert set(entry.facts["members"]) == set(signed), (
                        "a sum was opened that not all in it had signed"
                    )
            assert all(len(total) == 1 for total in totals.values()), (
                f"an epoch of {key} is in two opened totals"
            )
    for lot in SUM_NAMES:
        _check_once(witness.opened(lot))
        _check_once([parts for _, parts in sums.opened_by_enough(lot)])
    for (session, opened, places), givers in witness.revealed.items():
        for giver in givers:
            noted = [
                set(entry.facts["members"])
                for entry in sums.opened[giver]
                if (entry.facts["session"], entry.facts["lot"]) == (session, opened)
            ]
            assert set(witness.parts(session, places)) in noted, (
                "shares left a holder that has not noted which sum"
            )


def _check_once(opened: Sequence[Parts]) -> None:
    """No epoch is in two sums that differ in anything."""
    sums_of: dict[tuple[str, str], Parts] = {}
    for parts in opened:
        for item in parts.items():
            assert sums_of.setdefault(item, parts) == parts, (
                "an epoch is in two opened sums of different members"
            )


def _check_sum(holder: Holder, entry: JournalEntry, witness: Witness) -> None:
    facts = entry.facts
    members, key = set(facts["members"]), holder.identity.public
    assert len(members) >= 3, f"a sum of {len(members)} members was opened"
    assert key in members, "a holder has opened a sum that it is not in"
    pinned = len(holder.pinned_keys)
    assert len(members) >= needed(pinned), (
        f"a sum of {len(members)} of {pinned} pinned members was opened"
    )
    cohort = witness.cohort(facts["session"])
    if cohort:
        assert len(members) >= needed(len(cohort)), (
            f"a sum of {len(members)} of {len(cohort)} members was opened"
        )
        assert members <= witness.sealed[facts["session"], facts["lot"]], (
            "a member is counted that has sent nothing"
        )
