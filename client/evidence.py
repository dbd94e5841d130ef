"""What left a holder's machine, and whether its own records agree: read out of its folder, or a copy of it.

Needs no secret of the holder's and writes nothing, so that a copy without keys, in an archive that may not be written,
will do: client.toml, holder.pub, roster.json, journal.db, log/ and releases/. Knows files and the journal's entries.
Knows nothing of how they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from ridgeway.client.round.holder import CARD, REFUSED_BUNDLE, SETTINGS, HolderSettings, release_folder
from ridgeway.client.round.kept_log import FORKED, fork, kept_log
from ridgeway.client.round.known_keys import known_handovers
from ridgeway.client.round.roster import load_roster
from ridgeway.client.round.sum_memory import SumMemory
from ridgeway.common.base.errors import FormatError, InputError, JournalError, RidgewayError
from ridgeway.common.base.identity import HandOvers
from ridgeway.common.base.journal import Journal, JournalEntry
from ridgeway.common.base.settings_file import read_settings
from ridgeway.common.masking.history import Account, PastSum
from ridgeway.common.protocol.invitation import Card, read_paper
from ridgeway.common.protocol.opened_log import OpenedSum, extend
from ridgeway.common.routing.release import load_release

IN_THE_CLEAR = {"clear_statistics", "scores", "reliability"}
"""The kinds of answers that show this holder's own numbers to the coordinator."""

OpenedState = Literal["", "clear", "no", "perhaps", "yes"]


@dataclass(frozen=True, slots=True)
class SentItem:
    """Something that left, or was refused.

    number:  the operator's number of the round; 0 outside of rounds. round: the nonce that is signed.
    lot:     of a masked sum, what was summed: statistics, scores or reliability.
    sha256:  of the signed header that left, which holds the SHA-256 of everything that left with it.
    members: the keys of those whose sum it is a part of, itself among them; of the cohort, if no sum was signed.
    opened:  `clear`: the coordinator sees it as it is. Of masked sums: `no`, `yes`, or `perhaps` for one that this
             holder has signed, and does not know to be opened. Else empty: nothing of the corpus is in it.
    """

    time: str
    number: int
    round: str
    kind: str
    lot: str
    bytes: int
    sha256: str
    members: tuple[str, ...]
    opened: OpenedState
    code: str = ""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at: what, what was found, and whether it is as it must be."""

    name: str
    words: str
    good: bool = True


class HolderRecord:
    """A holder's folder, or a copy of it, as evidence."""

    def __init__(self, folder: Path) -> None:
        if not (folder / SETTINGS).is_file():
            raise InputError(f"{folder} is not a holder's folder, nor a copy of one: it has no {SETTINGS}")
        self.folder = folder
        self.settings = read_settings(folder / SETTINGS, HolderSettings)
        self.card = read_paper(folder / CARD, Card)
        self.journal = Journal(folder / "journal.db")

    @property
    def key(self) -> str:
        return self.card.key

    @cached_property
    def handovers(self) -> HandOvers:
        return known_handovers(self.journal)

    @cached_property
    def names(self) -> dict[str, str]:
        """How holders are called here, by all the keys that they have had."""
        called = {place.key: place.name for place in load_roster(self.folder)} | {
            self.key: f"{self.card.domain} (self)"
        }
        return {key: name for first, name in called.items() for key in self.handovers.keys(first)}

    def sent(self) -> list[SentItem]:
        """Everything that left, and every refusal, refused bundles among them, in the order of time."""
        entries = self.journal.entries("sent", "cohort", REFUSED_BUNDLE)
        cohorts = {each.facts["session"] or each.facts["cohort"]: each for each in entries if each.kind == "cohort"}
        memory = SumMemory(self.journal, self.key, lambda: self.names, self.handovers)
        accounts = {(each.session, each.lot): each for each in memory.history().accounts}
        logged = {(each.round, each.lot) for each in self._logged()}
        items = []
        for entry in entries:
            facts = entry.facts
            if entry.kind == REFUSED_BUNDLE:
                items.append(_refused_bundle(entry))
            elif entry.kind == "sent":
                account = accounts.get((facts.get("session", ""), facts.get("lot", "")))
                cohort = cohorts.get(facts.get("session") or facts.get("cohort", ""))
                signed = [key for key, _, _ in account.signed[-1].parts] if account and account.signed else None
                members = tuple(signed or (cohort.facts["members"] if cohort else ()))
                opened = _opened(facts["kind"], account, (facts["round"], facts.get("lot", "")) in logged)
                items.append(_sent_item(entry, members, opened))
        return items

    def check(self) -> Iterator[CheckResult]:
        """Look at everything that can be checked without the coordinator; damage is a result, and stops nothing."""
        yield _checked("journal", self._check_journal)
        yield _checked("keys", self._check_keys)
        yield _checked("log", self._check_log)
        yield _checked("sums", self._check_sums)
        for entry in self.journal.entries("received"):
            yield _checked(f"release {entry.facts['number']:04}", partial(self._check_release, entry))

    def _check_journal(self) -> str:
        number = self.journal.verify()
        last = self.journal.entries(after=number - 1)
        return f"{number:,} entries, each with the hash of the one before, up to {last[0].hash if last else 'none'}"

    def _check_keys(self) -> str:
        """Every hand-over that was taken must be signed with the key before it, and none may have been taken twice."""
        known, pinned = self.handovers, self.settings.policy.coordinator
        if not all(link.holds for link in (*known.links, *known.forks)):
            raise JournalError(
                "the journal has a hand-over of a key that is not signed with it; restore it from a copy"
            )
        if known.forks:
            raise JournalError(
                f"the key {known.forks[0].before[:12]}… was handed over twice; the first one holds here, and both are "
                "in the journal: show them to its owner, and to the other members"
            )
        now = known.newest(pinned)
        words = f"the coordinator signs with {now}"
        words += f", to which the pinned key {pinned[:12]}… was handed over" if now != pinned else ", as it is pinned"
        return f"{words}; {len(known.links)} hand-overs are known, each signed with both keys"

    def _check_log(self) -> str:
        if found := fork(self.folder):
            raise JournalError(f"{found['reason']}; the proof is {self.folder / FORKED}: show it to the other members")
        log = kept_log(self.folder)
        if log is None:
            return "no log of opened sums has come yet"
        extend((), log, self.handovers.keys(self.settings.policy.coordinator))
        return f"{log.head.number:,} opened sums up to {log.head.hash}, signed by the coordinator"

    def _check_sums(self) -> str:
        """What the coordinator says to have opened must be what this holder has signed, wherever it is in it."""
        signed = {PastSum.from_facts(entry.facts) for entry in self.journal.entries("signed")}
        opened = [(each.facts["round"], PastSum.from_facts(each.facts)) for each in self.journal.entries("opened")]
        logged = [(each.round, PastSum(lot=each.lot, parts=each.parts)) for each in self._logged()]
        for round_, each in logged:
            if each not in signed:
                raise JournalError(
                    f"the coordinator's log has a sum of {each.lot} of round {round_[:8]} with this holder in it, and "
                    "the journal has no signature for it; keep both, and ask the operator and the other members"
                )
        missing = sum(each not in logged for each in opened)
        words = f"{len(logged)} sums with this holder in them were opened, each signed here before"
        return words + (f"; {missing} more it helped to open, and the log has not got yet" if missing else "")

    def _check_release(self, entry: JournalEntry) -> str:
        folder = release_folder(self.folder, entry.facts["number"])
        if not folder.exists():
            return "not in this folder any more"
        found = load_release(folder)
        if found.id != entry.facts["release"]:
            raise FormatError(f"{folder} is not the release that was received; restore it from a copy")
        if found.signer not in self.handovers.keys(self.settings.policy.coordinator):
            raise FormatError(f"{folder} is signed by {found.signer[:12]}…, which is no key of the coordinator")
        return f"{entry.facts['release']}, whole, and signed by the coordinator"

    def _logged(self) -> list[OpenedSum]:
        """The sums in the coordinator's log that this holder is in."""
        log = kept_log(self.folder)
        own = set(self.handovers.keys(self.key))
        return [each for each in (log.entries if log else ()) if own & set(each.by_key())]


def _checked(name: str, look: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, look())
    except RidgewayError as error:
        return CheckResult(name, str(error), good=False)


def _opened(kind: str, account: Account | None, logged: bool) -> OpenedState:
    if kind != "sealed_sums":
        return "clear" if kind in IN_THE_CLEAR else ""
    if logged or (account and account.opened):
        return "yes"
    return "perhaps" if account and account.signed else "no"


def _sent_item(entry: JournalEntry, members: tuple[str, ...], opened: OpenedState) -> SentItem:
    facts = entry.facts
    return SentItem(
        time=entry.time,
        number=facts.get("number", 0),
        round=facts["round"],
        kind=facts["kind"],
        lot=facts.get("lot", ""),
        bytes=facts["bytes"],
        sha256=facts.get("sha256", ""),
        members=members,
        opened=opened,
        code=facts.get("code", ""),
        reason=facts.get("reason", ""),
    )


def _refused_bundle(entry: JournalEntry) -> SentItem:
    """Code that was not run, and so sent nothing."""
    return SentItem(entry.time, 0, "", REFUSED_BUNDLE, "", 0, "", (), "", "bundle_refused", entry.facts["reason"])
