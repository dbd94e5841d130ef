"""What left a holder's machine, and whether its own records agree: read out of its folder, or a
copy of it.

Needs no secret of the holder's and writes nothing, so that a copy without keys, in an archive that
may
not be written, will do: client.toml, holder.pub, invite.json, roster.json, journal.db and
                         releases/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from ridgeway.client.round.epochs import OPENED, OPENED_EPOCH, SIGNED
from ridgeway.client.round.holder import (
    CARD,
    CLIENT_TOML,
    REFUSED_BUNDLE,
    HolderFiles,
    account_of,
)
from ridgeway.client.round.policy import known_handovers, load_roster
from ridgeway.client.round.spending import SPENT, Account
from ridgeway.common.base.errors import (
    FormatError,
    InputError,
    JournalError,
    RidgewayError,
)
from ridgeway.common.base.identity import HandOvers
from ridgeway.common.base.journal import JournalEntry
from ridgeway.common.protocol.cohort import (
    INVITE,
    Card,
    Invite,
    Terms,
    read_signed_json,
)
from ridgeway.common.routing.release import load_release

OpenedState = Literal["", "clear", "noisy", "no", "perhaps", "yes"]


@dataclass(frozen=True, slots=True)
class SentItem:
    """Something that left, or was refused.

    number:  the operator's number of the round; 0 outside of rounds. round: the nonce that is
             signed.
    mode:    of the round, where the request said it.
    lot:     of a sum under masks, what was summed: statistics or counts.
    epoch:   the data that it was made of, where it was made of data and this is known.
    sha256:  of the signed header that left, which holds the SHA-256 of everything that left with
    it.
    members: the keys of those whose sum it is a part of, itself among them; of the cohort, if no
             sum was signed.
    opened:  `clear`: the coordinator sees it as it is. `noisy`: so too, under all of the noise. Of
             sums
             under masks: `no`, `yes`, or `perhaps` for one that this holder has signed, and does
                          not know to be opened. Else empty: nothing of the corpus is in it.
    """

    time: str
    number: int = 0
    round: str = ""
    kind: str = ""
    mode: str = ""
    lot: str = ""
    epoch: str = ""
    bytes: int = 0
    sha256: str = ""
    members: tuple[str, ...] = ()
    opened: OpenedState = ""
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at: what, what was found, and whether it is as it must be."""

    name: str
    words: str
    good: bool = True


class HolderRecord(HolderFiles):
    """A holder's folder, or a copy of it, as evidence."""

    def __init__(self, folder: Path) -> None:
        if not (folder / CLIENT_TOML).is_file():
            raise InputError(
                f"{folder} is not a holder's folder, nor a copy of one: {CLIENT_TOML} "
                "is missing"
            )
        super().__init__(folder)
        self.card = read_signed_json(folder / CARD, Card)

    @property
    def key(self) -> str:
        return self.card.key

    @cached_property
    def handovers(self) -> HandOvers:
        return known_handovers(self.journal)

    @cached_property
    def names(self) -> dict[str, str]:
        """How holders are called here, by all the keys that they have had."""
        called = {member.key: member.name for member in load_roster(self.folder)}
        called[self.key] = f"{self.card.domain} (self)"
        return {
            key: name
            for first, name in called.items()
            for key in self.handovers.keys(first)
        }

    @cached_property
    def account(self) -> Account:
        """What the corpus has cost its documents, as far as this folder and the shared file
        know.
        """
        return account_of(self.settings, self.journal)

    @property
    def terms(self) -> Terms | None:
        """The terms of the invitation that was taken up last; None where it is not in this copy."""
        path = self.folder / INVITE
        return read_signed_json(path, Invite).terms if path.exists() else None

    def epochs(self) -> list[JournalEntry]:
        """The epochs that were opened, the current one last."""
        return self.journal.entries(OPENED_EPOCH)

    def sent(self) -> list[SentItem]:
        """Everything that left, and every refusal, refused bundles among them, in the order of
        time.
        """
        entries = self.journal.entries("sent", "cohort", SIGNED, OPENED, REFUSED_BUNDLE)
        cohorts = {
            entry.facts["session"] or entry.facts["cohort"]: entry.facts["members"]
            for entry in entries
            if entry.kind == "cohort"
        }
        signed = _by_sum(entries, SIGNED)
        opened = _by_sum(entries, OPENED)
        items = []
        for entry in entries:
            facts = entry.facts
            # code that was not run has sent nothing
            if entry.kind == REFUSED_BUNDLE:
                said = {"kind": entry.kind, "reason": facts["reason"]}
                said["code"] = "bundle_refused"
            elif entry.kind == "sent":
                names = {field.name for field in fields(SentItem)}
                said = {name: facts[name] for name in names & facts.keys()}
                session = facts.get("session", "")
                of_sum = session, facts.get("lot", "")
                last = signed.get(of_sum, {})
                cohort = cohorts.get(session or facts.get("cohort", ""), ())
                said |= {
                    "members": tuple(last.get("members", cohort)),
                    "epoch": str(facts.get("epoch") or last.get("epoch", "")),
                    "opened": _opened(facts, of_sum in signed, of_sum in opened),
                }
            else:
                continue
            items.append(SentItem(entry.time, **said))
        return items

    def check(self) -> Iterator[CheckResult]:
        """Look at all that can be checked without the coordinator; damage is a result, and stops
        nothing.
        """
        yield _checked("journal", self._check_journal)
        yield _checked("keys", self._check_keys)
        yield _checked("sums", self._check_sums)
        yield _checked("spending", self._check_spending)
        for entry in self.releases():
            yield _checked(
                f"release {entry.facts['number']:04}",
                partial(self._check_release, entry),
            )

    def _check_journal(self) -> str:
        number = self.journal.verify()
        last = self.journal.entries(after=number - 1)
        head = last[0].hash if last else "none"
        return f"{number:,} entries, each with the hash of the one before, up to {head}"

    def _check_keys(self) -> str:
        """Every hand-over must be signed with the key before it, and none may have been taken
        twice.
        """
        known = self.handovers
        pinned = self.policy.coordinator
        if not all(link.holds for link in (*known.links, *known.forks)):
            raise JournalError(
                "the journal has a key hand-over without a valid signature; restore "
                "it from a backup"
            )
        if known.forks:
            raise JournalError(
                f"the key {known.forks[0].before[:12]}… was handed over twice; the "
                "first hand-over is valid here, and both are in the journal: show "
                "them to its owner and the other members"
            )
        now = known.newest(pinned)
        since = "as it is pinned"
        if now != pinned:
            since = f"to which the pinned key {pinned[:12]}… was handed over"
        return (
            f"the coordinator signs with {now}, {since}; {len(known.links)} "
            "hand-overs, each signed with both keys"
        )

    def _check_sums(self) -> str:
        """What was opened must have been signed before, and be the one total of its epoch and
        lot.
        """
        signed = set[tuple[str, str, str]]()
        opened = dict[tuple[str, str], str]()
        for entry in self.journal.entries(SIGNED, OPENED):
            facts = entry.facts
            total = facts["total"]
            name = facts["session"], facts["lot"], total
            if entry.kind == SIGNED:
                signed.add(name)
                continue
            if name not in signed:
                raise JournalError(
                    f"a sum of {facts['lot']} of round {facts['round'][:8]} was "
                    "opened without an earlier signature in the journal; restore the "
                    "journal from a backup"
                )
            if opened.setdefault((facts["epoch"], facts["lot"]), total) != total:
                raise JournalError(
                    f"two totals of {facts['lot']} with the data of epoch "
                    f"{facts['epoch'][:12]} were opened, and only one is allowed; "
                    "keep this journal, and report it"
                )
        return (
            f"{len(opened)} totals with this holder in them were opened, one for each"
            " epoch and lot, each signed before"
        )

    def _check_spending(self) -> str:
        """Whatever holds numbers of the corpus and was seen must have been paid for."""
        paid = set()
        left = set()
        for entry in self.journal.entries(SPENT, OPENED, "sent"):
            facts = entry.facts
            if entry.kind == SPENT:
                paid.add((facts["epoch"], facts["output"]))
            elif entry.kind == OPENED:
                left.add((facts["epoch"], facts["lot"]))
            elif facts["kind"] in ("clear_statistics", "noisy_statistics"):
                left.add((facts["epoch"], "statistics"))
        if missing := sorted(left - paid):
            epoch, output = missing[0]
            raise JournalError(
                f"the {output} of epoch {epoch[:12]} have left, and the journal has "
                "no payment for them; restore it from a backup"
            )
        return f"{len(paid)} outputs were paid for, those that left among them"

    def _check_release(self, entry: JournalEntry) -> str:
        folder = self.release_folder(entry.facts["number"])
        if not folder.exists():
            return "no longer in this folder"
        release = load_release(folder)
        if release.id != entry.facts["release"]:
            raise FormatError(
                f"{folder} is not the release that was received; restore it from a "
                "backup"
            )
        if release.signer not in self.handovers.keys(self.policy.coordinator):
            raise FormatError(
                f"{folder} is signed by {release.signer[:12]}…, which is not a key of "
                "the coordinator"
            )
        return f"{entry.facts['release']}, whole, and signed by the coordinator"


def _checked(name: str, look: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, look())
    except RidgewayError as error:
        return CheckResult(name, str(error), good=False)


def _by_sum(
    entries: list[JournalEntry], kind: str
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The last entry of a kind for each session and lot."""
    return {
        (entry.facts["session"], entry.facts["lot"]): entry.facts
        for entry in entries
        if entry.kind == kind
    }


def _opened(facts: Mapping[str, Any], signed: bool, opened: bool) -> OpenedState:
    kind = facts["kind"]
    if kind == "clear_statistics":
        return "clear"
    if kind == "noisy_statistics":
        return "noisy"
    if kind == "counted":
        return "noisy" if facts.get("mode") == "private" else "clear"
    if kind != "sealed_sums":
        return ""
    if opened:
        return "yes"
    return "perhaps" if signed else "no"
