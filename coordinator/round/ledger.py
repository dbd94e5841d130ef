"""The coordinator's ledger: who was admitted, what they sent, which releases came of it.
Crash-safe, hash-chained.

The journal is the truth; what stands here is read out of it. In clear rounds the sums lie beside it
as files, each named by its digest and written whole before the journal speaks of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ridgeway.common.base.errors import InputError, JournalError
from ridgeway.common.base.files import sha256, write_whole
from ridgeway.common.base.identity import HandOver, HandOvers
from ridgeway.common.base.journal import Clock, Journal, JournalEntry, system_clock
from ridgeway.common.protocol.cohort import Card, Leaving, Terms
from ridgeway.common.protocol.messages import HeardOutputs, HeldRelease
from ridgeway.common.statistics import (
    Integers,
    Statistics,
    single_domain,
    unpacked,
)

MAX_TOTALS = 4
"""How many masked totals are kept, the newest ones: a file of gram's size each."""

MADE_BY_ROUND = "round"
ROLLED_BACK = "rolled back to"
"""What releases come of, before a number: that of the round, or of the earlier release."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A holder on the roster.

    key:    the Ed25519 key it signs with. node: the key its SuperNode logs in with.
    """

    name: str
    domain: str
    key: str
    node: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """A holder's accepted sums: of which epoch, under which share of the mass, in which file.

    source: the name of the epoch.
    digest: names the file; empty where the sums are hidden in a masked total.
    """

    name: str
    domain: str
    source: str
    share: int
    terms: str
    holdout: float
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Totalled:
    """A masked total that was opened: whose sums are in it, in which order its columns stand, in
    which file it lies.
    """

    members: tuple[Contribution, ...]
    domains: tuple[str, ...]
    terms: str
    digest: str


@dataclass(frozen=True, slots=True)
class KeptCounts:
    """Counts about a total that were opened: in answer to which question, in which file, and of
    whom.
    """

    total: str
    question: str
    digest: str
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerRelease:
    """A release in the ledger.

    cause:   what it came of. terms: those of its cohort.
    members: the very sums that it was solved from.
    choices: stands for the settings that it was made with.
    """

    number: int
    release: str
    cause: str
    domains: tuple[str, ...]
    members: tuple[Contribution, ...]
    terms: Terms
    choices: str = ""
    time: str = ""

    def to_json(self) -> dict[str, Any]:
        """What the ledger keeps; the time is the entry's own."""
        facts = {**asdict(self), "terms": self.terms.model_dump(mode="json")}
        del facts["time"]
        return facts


Kept = TypeVar("Kept")
_adapter = cache(TypeAdapter)


def _read(kind: type[Kept], facts: Mapping[str, Any]) -> Kept:
    """A record as an entry tells it, which may say more."""
    key: Any = kind
    record: Kept = _adapter(key).validate_json(json.dumps(facts))
    return record


@dataclass(slots=True)
class Standing:
    """What the entries so far add up to.

    retired: holders, by name, that rounds leave out until they are admitted again: their domain
             was retired, or they have left.
    left:    those that have left.
    pruned:  the numbers of releases of which the manifest alone is kept.
    delivered: the release that each holder has, as it said last.
    gone:    keys of holders that were removed, and of SuperNodes that were replaced; none comes
             back.
    totals:  the newest masked totals, as long as all their members are active; the newest last.
    counts:  what was counted about each of them, by its digest.
    totalled_epochs: the epochs that were ever in an opened total.
    counted_epochs: without masks, the epochs in which a holder has counted, each with what stands
                    for the router.
    rolled_back: the number of the release that was rolled back to, as long as that holds.
    signing: the total that members were last asked to sign: its terms, and their epochs by name.
    names:   the names of all holders that were ever admitted, by key.
    sums_of, counts_of: the epochs of which each holder's sums, and its counts, have come.
    handovers: of the coordinator's keys, and of those of holders.
    """

    roster: dict[str, Admitted] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    contributions: dict[str, Contribution] = field(default_factory=dict)
    releases: list[LedgerRelease] = field(default_factory=list)
    pruned: set[int] = field(default_factory=set)
    delivered: dict[str, HeldRelease] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    totals: list[Totalled] = field(default_factory=list)
    counts: dict[str, KeptCounts] = field(default_factory=dict)
    totalled_epochs: set[str] = field(default_factory=set)
    counted_epochs: dict[str, str] = field(default_factory=dict)
    rolled_back: int | None = None
    signing: tuple[str, dict[str, str]] | None = None
    names: dict[str, str] = field(default_factory=dict)
    sums_of: dict[str, set[str]] = field(default_factory=dict)
    counts_of: dict[str, set[str]] = field(default_factory=dict)
    handovers: HandOvers = field(default_factory=HandOvers)
    rounds: int = 0

    def take_in(self, entry: JournalEntry) -> None:
        facts = entry.facts
        match entry.kind:
            case "handed_over":
                self.handovers = self.handovers.merged_with(
                    [HandOver.of(facts)], own_record=True
                )
            case "admitted":
                holder = Admitted(**facts)
                before = self.roster.get(holder.name)
                if before:
                    self.gone |= {before.node, before.key} - {holder.node, holder.key}
                self.roster[holder.name] = holder
                self.names[holder.key] = holder.name
                self.retired.discard(holder.name)
                self.left.discard(holder.name)
            case "removed":
                name = facts["name"]
                removed = self.roster.pop(name, None)
                self.gone |= {removed.key, removed.node} if removed else set()
                self.contributions.pop(name, None)
                self.delivered.pop(name, None)
                self.sums_of.pop(name, None)
                self.counts_of.pop(name, None)
                self.retired.discard(name)
                self.left.discard(name)
                self._forget_totals_with(name)
            case "retired":
                for name, holder in self.roster.items():
                    if holder.domain == facts["domain"]:
                        self._leave_out(name)
                        self.left.discard(name)  # the operator has let its domain go
            case "left":
                self._leave_out(facts["name"])
                self.left.add(facts["name"])
                self.gone.add(self.roster[facts["name"]].node)
            case "opened":
                self.rounds += 1
            case "contributed":
                given = _read(Contribution, facts)
                self.contributions[given.name] = given
                self.sums_of.setdefault(given.name, set()).add(given.source)
            case "signing":
                self.signing = facts["terms"], dict(facts["members"])
            case "totalled":
                total = _read(Totalled, facts)
                self.totalled_epochs |= {member.source for member in total.members}
                for member in total.members:
                    self.sums_of.setdefault(member.name, set()).add(member.source)
                # it is opened again only where files were lost
                self.counts.pop(total.digest, None)
                beside = facts["beside"]
                kept = [other for other in self.totals if other.digest in beside]
                self._keep_totals([*kept, total])
            case "counted":
                counts = _read(KeptCounts, facts)
                self.counts[counts.total] = counts
                self._note_counted(
                    member.source
                    for total in self.totals
                    if total.digest == counts.total
                    for member in total.members
                    if member.name in counts.holders
                )
            case "counted_for":
                self.counted_epochs |= dict.fromkeys(facts["epochs"], facts["router"])
                self._note_counted(facts["epochs"])
            case "released":
                made = _read(LedgerRelease, {**facts, "time": entry.time})
                self.releases.append(made)
                cause, _, number = made.cause.rpartition(" ")
                if cause == ROLLED_BACK:
                    self.rolled_back = int(number)
                elif cause == MADE_BY_ROUND:
                    self.rolled_back = None
            case "pruned":
                self.pruned |= set(facts["releases"])
            case "delivered":
                self.delivered[facts["name"]] = HeldRelease(
                    number=facts["number"], release=facts["release"]
                )

    def _note_counted(self, epochs: Iterable[str]) -> None:
        counted = set(epochs)
        for name, summed in self.sums_of.items():
            self.counts_of.setdefault(name, set()).update(summed & counted)

    def _leave_out(self, name: str) -> None:
        self.retired.add(name)
        self.contributions.pop(name, None)
        self._forget_totals_with(name)

    def _forget_totals_with(self, name: str) -> None:
        self._keep_totals(
            [
                total
                for total in self.totals
                if name not in {member.name for member in total.members}
            ]
        )

    def _keep_totals(self, totals: list[Totalled]) -> None:
        """Keep these, and of the counts those that are about them."""
        self.totals = totals
        for digest in set(self.counts) - {total.digest for total in totals}:
            del self.counts[digest]

    @property
    def holder_handovers(self) -> tuple[HandOver, ...]:
        """Those by which the holders on the roster have the keys that they have."""
        return tuple(
            link
            for holder in self.roster.values()
            for link in self.handovers.leading_to(holder.key)
        )

    @property
    def heard(self) -> tuple[HeardOutputs, ...]:
        """How much of each active holder has come so far."""
        return tuple(
            HeardOutputs(
                key=holder.key,
                sums=len(self.sums_of.get(name, ())),
                counts=len(self.counts_of.get(name, ())),
            )
            for name, holder in self.active.items()
            if name in self.sums_of or name in self.counts_of
        )

    @property
    def active(self) -> dict[str, Admitted]:
        """The holders that rounds count on, by name."""
        return {
            name: holder
            for name, holder in self.roster.items()
            if name not in self.retired
        }

    @property
    def ahead(self) -> dict[str, HeldRelease]:
        """What active holders hold that the newest release cannot replace: others, of its number or
        a later one.

        So it is after an older copy of the coordinator's folder was restored.
        """
        newest = self.newest
        active = self.active
        return {
            name: held
            for name, held in self.delivered.items()
            if name in active
            and newest
            and held.number >= newest.number
            and held.release != newest.release
        }

    @property
    def domain_of(self) -> dict[str, str]:
        """The domains of the active holders, by name."""
        return {name: holder.domain for name, holder in self.active.items()}

    @property
    def kept_domains(self) -> dict[str, str]:
        """The domains that no router may lose in silence, by the names of their holders: those
        that have left are among them until the operator lets their domain go.
        """
        left = {name: self.roster[name].domain for name in self.left}
        return self.domain_of | left

    @property
    def newest(self) -> LedgerRelease | None:
        return self.releases[-1] if self.releases else None

    @property
    def needed(self) -> list[Contribution]:
        """The sums that later rounds, or a removal from the newest release, may need."""
        newest = self.newest.members if self.newest else ()
        in_newest = [member for member in newest if member.name in self.roster]
        return [
            sums for sums in (*self.contributions.values(), *in_newest) if sums.digest
        ]


class Ledger:
    """Law: after a crash at any moment, what was accepted is there once, and the chain holds."""

    def __init__(self, folder: Path, clock: Clock = system_clock) -> None:
        self.journal = Journal(folder / "ledger.db", clock)
        self._sums = folder / "contributions"
        self._standing = Standing()
        self._read = 0
        self._whole: set[str] = set()

    def standing(self) -> Standing:
        """What the journal says now; entries that were read before are not read again."""
        for entry in self.journal.entries(after=self._read):
            try:
                self._standing.take_in(entry)
            except (KeyError, TypeError, ValueError) as error:
                raise JournalError(
                    f"cannot read entry {entry.number} of the ledger ({entry.kind}),"
                    " which another version of Ridgeway wrote; use that version, or"
                    " start a new federation"
                ) from error
            self._read = entry.number
        return self._standing

    def note(self, kind: str, **facts: Any) -> None:
        self.journal.append((kind, facts))

    def admit(self, name: str, card: Card) -> Admitted:
        """Put a holder on the roster, or back on it if its domain was retired; no name or key
        stands there twice.

        Its SuperNode may come with another key, since the card is signed with the holder's own; the
        one before is gone. The holder's own may be another one too, if the hand-overs on its card
        lead there from the key on the roster.
        """
        holder = Admitted(name, card.domain, card.key, card.node)
        standing = self.standing()
        known = standing.handovers.merged_with(card.handovers)
        owner = known.owner(card.key)
        if {card.key, card.node} & standing.gone:
            raise InputError(
                "this card has a removed or replaced key, which cannot be admitted"
                " again; ask the holder for its newest card, or for the card of a new"
                " folder"
            )
        for other in standing.roster.values():
            if other.name == name and known.newest(other.key) == card.key:
                continue
            if other.name == name and known.owner(other.key) == owner:
                raise InputError(
                    f"the key of {name!r} was handed over twice, and this is not the"
                    " first successor; someone else may have its old key: ask its"
                    " owner over another channel"
                )
            if other.name == name:
                raise InputError(
                    f"{name!r} is already on the roster with another key; choose"
                    " another --name"
                )
            if known.owner(other.key) == owner or other.node == card.node:
                raise InputError(
                    f"this key is already on the roster as {other.name!r}; admit each"
                    " holder once"
                )
        if standing.active.get(name) == holder:
            return holder
        new = known.links[len(standing.handovers.links) :]
        self.journal.append(
            *(("handed_over", link.to_json()) for link in new),
            ("admitted", asdict(holder)),
        )
        return holder

    def leave(self, signed: Leaving) -> str | None:
        """Note that a holder has left; returns its name, or None where this counts for nobody."""
        standing = self.standing()
        founder = self.journal.entries("founded")[0].facts["coordinator"]
        if standing.handovers.owner(signed.coordinator) != founder:
            return None
        for name, holder in standing.active.items():
            if (holder.key, holder.node) == (signed.key, signed.node):
                self.note("left", name=name)
                return name
        return None

    # Sums

    def contribute(
        self, round_: str, given: Contribution, statistics: Statistics
    ) -> Contribution:
        """Store accepted sums: the file first, then the entry that speaks of it."""
        stored = replace(given, digest=self._write_sums(gram=statistics.packed()[0]))
        mass = statistics.mass
        self.note("contributed", round=round_, mass=mass, **asdict(stored))
        return stored

    def keep_total(
        self, round_: str, given: Totalled, statistics: Statistics
    ) -> Totalled:
        """Store an opened total, likewise."""
        gram, cross = statistics.packed()
        stored = replace(given, digest=self._write_sums(gram=gram, cross=cross))
        digests = [total.digest for total in self.standing().totals]
        others = [digest for digest in digests if digest != stored.digest]
        beside = others[-(MAX_TOTALS - 1) :]
        self.note("totalled", round=round_, beside=beside, **asdict(stored))
        return stored

    def total(self, stored: Totalled) -> Statistics:
        """The sums of a masked total, held against their digest."""
        content = self._read_sums(
            stored.digest, "the sums of the masked total", ("gram", "cross")
        )
        return unpacked(content["gram"], content["cross"])

    def keep_counts(self, round_: str, given: KeptCounts, counts: Integers) -> None:
        """Store opened counts, likewise."""
        stored = replace(given, digest=self._write_sums(counts=counts))
        self.note("counted", round=round_, **asdict(stored))

    def counts(self, stored: KeptCounts) -> Integers:
        content = self._read_sums(
            stored.digest, "the counts of the masked total", ("counts",)
        )
        return content["counts"]

    def has_sums(self, contribution: Contribution) -> bool:
        """Whether the stored sums are there and whole; if not, the holder is asked for them
        again.
        """
        if contribution.digest in self._whole:
            return True
        try:
            self.sums(contribution)
        except JournalError:
            return False
        self._whole.add(contribution.digest)
        return True

    def sums(self, contribution: Contribution) -> Statistics:
        """The stored sums of one domain's holder, held against their digest."""
        content = self._read_sums(
            contribution.digest, f"the sums of {contribution.name!r}", ("gram",)
        )
        triangle = content["gram"]
        # F features have F(F + 1)/2 numbers in the triangle
        features = (int(np.sqrt(8 * triangle.size + 1)) - 1) // 2
        no_cross = np.zeros((features, 1), dtype=np.int64)
        return single_domain(unpacked(triangle, no_cross).gram)

    def _write_sums(self, **arrays: Integers) -> str:
        """Write a file of sums, and return the digest that names it."""
        content = {
            name: np.ascontiguousarray(array, dtype="<i8")
            for name, array in arrays.items()
        }
        digest = _digest(content)
        write_whole(self._path(digest), save(content), private=True)
        return digest

    def _read_sums(
        self, digest: str, whose: str, names: Sequence[str]
    ) -> dict[str, Integers]:
        path = self._path(digest)
        try:
            content = load_file(path)
            arrays = {name: content[name] for name in names}
        except (FileNotFoundError, SafetensorError, KeyError) as error:
            raise JournalError(
                f"{whose} are missing or damaged ({path.name}); restore them from a"
                " backup, or run a round with the holders online"
            ) from error
        is_whole = all(array.dtype == np.int64 for array in arrays.values())
        if not is_whole or _digest(arrays) != digest:
            raise JournalError(
                f"{whose} were altered after they were accepted ({path.name})"
            )
        return arrays

    def erase_outdated(self) -> None:
        """Delete sums that nothing needs any more, and what a killed process may have left of
        some.
        """
        needed = self.file_names()
        for path in self._sums.iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def file_names(self) -> set[str]:
        """The names of the files of sums that are still needed."""
        standing = self.standing()
        stored: list[Contribution | Totalled | KeptCounts] = [
            *standing.needed,
            *standing.totals,
            *standing.counts.values(),
        ]
        return {self._path(sums.digest).name for sums in stored}

    def _path(self, digest: str) -> Path:
        return self._sums / f"{digest}.sums"

    def verify(self) -> dict[str, int]:
        """The chain, and every stored sum against its digest."""
        entries = self.journal.verify()
        standing = self.standing()
        for contribution in standing.needed:
            self.sums(contribution)
        for total in standing.totals:
            self.total(total)
        for counts in standing.counts.values():
            self.counts(counts)
        return {
            "entries": entries,
            "contributions": len(standing.contributions),
            "totals": len(standing.totals),
        }


def _digest(arrays: Mapping[str, Integers]) -> str:
    """Of the numbers of a file of sums, which are little-endian int64."""
    return sha256(*(array.data for array in arrays.values()))
