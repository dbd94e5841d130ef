"""The totals that a holder has signed for: its data of one epoch is in one opened total, ever.

A total is named by all that decides its bytes: its terms, its members, their epochs and their
shares of the mass, and for counts what was asked. So the same total may be signed again after a
session that failed, and no other. Written in the journal before a signature or a share leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.schema import record_json
from ridgeway.common.protocol.messages import SumName

SIGNED = "signed"
OPENED = "opened"
FEW_MEMBERS = 3
"""Fewer members than this that joined or left between two totals are worth a notice."""


def used_up(sum_name: SumName) -> Refused:
    """Why an epoch takes part in no other sum."""
    if sum_name == "statistics":
        return Refused(
            "epoch_used",
            "this holder's epoch is already in another total",
        )
    return Refused(
        "already_counted",
        "this holder has already counted for another router in this epoch",
    )


@dataclass(frozen=True, slots=True)
class SignedTotal:
    """A total that a holder is asked to sign.

    epoch:    the holder's own. epochs: those of all members, by the owners of their keys.
    shares:   of sums, each member's share of its domain's mass: those of the cohort, whoever fell
              away.
    question: what was asked, where counts are summed.
    """

    sum_name: SumName
    terms: str
    epoch: str
    epochs: Mapping[str, str]
    shares: Mapping[str, int] = field(default_factory=dict)
    question: str = ""

    @property
    def id(self) -> str:
        members = sorted(self.epochs.items()), sorted(self.shares.items())
        return sha256(record_json([self.sum_name, self.terms, self.question, *members]))

    def facts(self) -> dict[str, Any]:
        members = sorted(self.epochs)
        return {
            "lot": self.sum_name,
            "epoch": self.epoch,
            "total": self.id,
            "members": members,
        }


class SignedTotals:
    """Law: whatever is asked in whatever order, the totals of one epoch and name that can be opened
    are one.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def sign(self, total: SignedTotal, session: str, *, paid: bool) -> None:
        """Write down a total that is about to be signed; raises Refused if the epoch is in another
        one.

        paid: whether a total of this epoch and name was paid for. If the journal does not know
              which, it is an older copy, and the epoch is in a total that nobody here remembers.

        Within one session a member signs smaller and smaller sets and opens the last one, so totals
        of this very session do not count. If one was opened, the larger ones before it never were.
        """
        noted = [
            entry
            for entry in self._journal.entries(SIGNED, OPENED)
            if (entry.facts["lot"], entry.facts["epoch"])
            == (total.sum_name, total.epoch)
        ]
        opened = {entry.facts["total"] for entry in noted if entry.kind == OPENED}
        signed = {
            entry.facts["total"] for entry in noted if entry.facts["session"] != session
        }
        if (opened or signed) - {total.id} or (paid and not noted):
            raise used_up(total.sum_name)
        self._journal.append((SIGNED, {"session": session, **total.facts()}))

    def open(self, total: SignedTotal, session: str, round_: str) -> None:
        """Write down a total whose shares are about to be revealed."""
        self._journal.append(
            (OPENED, {"round": round_, "session": session, **total.facts()})
        )

    def has_signed(self, sum_name: SumName, epoch: str) -> bool:
        """Whether this epoch's data is, or may be, in an opened total."""
        entries = self._journal.entries(SIGNED)
        return any(
            (entry.facts["lot"], entry.facts["epoch"]) == (sum_name, epoch)
            for entry in entries
        )

    def epochs(self) -> set[str]:
        """The epochs that are, or may be, in an opened total of sums or of counts."""
        return {str(entry.facts["epoch"]) for entry in self._journal.entries(SIGNED)}

    def notices(self) -> list[dict[str, Any]]:
        """Pairs of opened totals, one after the other, that few members joined or left between: for
        the owner.

        What only these members gave, and what the others changed, follows from the difference of
        the two.
        """
        totals = [
            entry.facts
            for entry in self._journal.entries(OPENED)
            if entry.facts["lot"] == "statistics"
        ]
        notices = []
        for before, after in pairwise(totals):
            differ = set(before["members"]) ^ set(after["members"])
            if before["total"] != after["total"] and len(differ) < FEW_MEMBERS:
                rounds = {"before": before["round"], "after": after["round"]}
                notices.append(rounds | {"members": sorted(differ)})
        return notices
