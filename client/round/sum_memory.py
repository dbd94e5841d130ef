"""What a holder remembers of masked sums: those it signed, those it helped to open, those that others told it of.

All of it stands in the holder's journal, written before the signature or the share leaves. Knows the journal's entries
for sums. Knows nothing of messages or of sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ridgeway.common.base.identity import HandOvers
from ridgeway.common.base.journal import Journal, JournalEntry
from ridgeway.common.masking.history import Account, History, PastSum, possible_sums


class SumMemory:
    """Law: a sum that this holder signed is remembered until it is known that it was not opened.

    pinned:    gives the keys of the members whose word is believed; asked only where others have told of sums.
    handovers: which keys are one holder's; under whichever it signed, it is the same one.
    """

    def __init__(self, journal: Journal, own: str, pinned: Callable[[], Collection[str]], handovers: HandOvers) -> None:
        self._journal, self._own, self._pinned, self._handovers = journal, own, pinned, handovers

    def sign(self, session: str, signed: PastSum, away: Sequence[str]) -> None:
        """Write down a sum that is about to be signed. away: the session's members that are not in it."""
        self._journal.append(("signed", {"session": session, "away": list(away), **dict(signed)}))

    def lock(self, session: str, locked: PastSum) -> None:
        """Write down a sum that is about to be locked: it may be opened from then on, and no other of its lot."""
        self._journal.append(("locked", {"session": session, **dict(locked)}))

    def open(self, session: str, round_: str, opened: PastSum) -> None:
        """Write down a sum whose shares are about to be revealed."""
        self._journal.append(("opened", {"round": round_, "session": session, **dict(opened)}))

    def take_in(self, told: Mapping[str, History]) -> None:
        """Remember what the members of a session tell: sums that may have been opened, and own ones that were not."""
        own = self.history()
        possible = possible_sums({**told, self._own: own}, self._handovers)
        heard = set(own.heard)
        mine = {each for account in own.accounts for each in account.possible}
        self._journal.append(
            *(
                ("learned", {**each.model_dump(mode="json"), "from": sorted(by)})
                for each, by in possible.items()
                if each not in mine | heard
            ),
            *(("void", each.model_dump(mode="json")) for each in mine if each not in possible),
        )

    def sums(self, lots: Collection[str], but_for: str = "") -> list[PastSum]:
        """The sums of these lots that may have been opened, but for those of one session."""
        history = self.history(but_for)
        known = [*(each for account in history.accounts for each in account.possible), *history.heard]
        return [each for each in dict.fromkeys(known) if each.lot in lots]

    def history(self, but_for: str = "") -> History:
        """All that is known: what this holder did itself, and what it was told by members that are still pinned.

        but_for: a session whose own account is left out.
        """
        accounts: dict[tuple[str, str], Account] = {}
        heard: dict[PastSum, None] = {}
        kinds = ("sent", "signed", "locked", "opened", "void", "learned")
        for entry in self._journal.entries(*kinds, but_for=("session", but_for) if but_for else None):
            for account in _accounts(entry, accounts):
                accounts[account.session, account.lot] = account
            if entry.kind == "learned" and self._owners(self._pinned()) & self._owners(entry.facts["from"]):
                heard[PastSum.from_facts(entry.facts)] = None
        handovers = (*self._handovers.links, *self._handovers.forks)
        return History(accounts=tuple(accounts.values()), heard=tuple(heard), handovers=handovers)

    def _owners(self, keys: Iterable[str]) -> set[str]:
        return {self._handovers.owner(key) for key in keys}

    def keys(self) -> set[str]:
        """Whoever is in a sum that is known, or was to be."""
        history = self.history()
        own = {key for account in history.accounts for key in account.members}
        return own | {key for each in history.heard for key, _, _ in each.parts}

    def own_sources(self) -> set[str]:
        """What has stood for this holder's own data, under any of its keys."""
        keys = set(self._handovers.keys(self._own))
        sums = [each for account in self.history().accounts for each in account.signed]
        sent = {entry.facts["source"] for entry in self._journal.entries("sent") if "source" in entry.facts}
        return sent | {source for each in sums for key, source, _ in each.parts if key in keys}


def _accounts(entry: JournalEntry, before: Mapping[tuple[str, str], Account]) -> Iterator[Account]:
    """The accounts that an entry changes, as they are after it."""
    facts = entry.facts
    if entry.kind == "void":
        gone = PastSum.from_facts(facts)
        for account in before.values():
            if gone in account.signed and not account.opened:
                left = tuple(each for each in account.signed if each != gone)
                yield account.model_copy(
                    update={"signed": left, "locked": account.locked and gone != account.signed[-1]}
                )
    if "session" not in facts or "lot" not in facts:
        return
    known = before.get((facts["session"], facts["lot"])) or Account(session=facts["session"], lot=facts["lot"])
    if entry.kind == "sent":
        yield known
    if entry.kind in ("signed", "locked", "opened"):
        past = PastSum.from_facts(facts)
        signed = (*(each for each in known.signed if each != past), past)
        if entry.kind == "signed":  # whatever was locked or opened before never left: the holder was killed
            changes = {"away": tuple(facts["away"]), "locked": False, "opened": False}
        else:
            changes = {entry.kind: True}
        yield known.model_copy(update={"signed": signed, **changes})
