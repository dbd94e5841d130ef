"""What members know of sums that were or may have been opened, told to one another, so that all judge by the same.

A member sees only the sums that it took part in. Sums of different cohorts can be combined, so each member shows in a
session what it knows, signed by its advert, and every other takes it in. A member that has signed a sum does not always
learn whether it was opened: `possible_sums` says which may have been, from what all members say of themselves.

A history names sums by their ids, which are digests of them; the sums themselves travel beside it, each once, and not
at all where the reader has them. A history of which a sum is missing is not read. Pure; knows nothing of files or
transport.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.base.identity import HandOver, HandOvers
from ridgeway.common.base.schema import Digest, PublicKey, Record, record_json
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.common.masking.differencing import Parts

MAX_TOLD = 128
"""The most sums that a member tells of, the newest ones; one that tells of more is refused."""
MAX_HANDOVERS = 20_000
REMEMBERED = 16
MAX_HISTORY_BYTES = 1 << 26
Weight = Annotated[int, Field(ge=1, le=1 << 37)]
Lot = Annotated[str, Field(max_length=40)]


class PastSum(Record):
    """A sum: of what, and what each member put in (its key, what stands for its data, the weight)."""

    lot: Lot
    parts: tuple[tuple[PublicKey, Digest, Weight], ...]

    @classmethod
    def of(cls, lot: str, parts: Parts) -> PastSum:
        return _past_sum(lot, tuple((key, source, weight) for key, (source, weight) in sorted(parts.items())))

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> PastSum:
        """As a journal keeps it, perhaps among other facts."""
        return _past_sum(facts["lot"], tuple((key, source, weight) for key, source, weight in facts["parts"]))

    @cached_property
    def id(self) -> str:
        return sha256(record_json({"lot": self.lot, "parts": self.parts}))

    @cached_property
    def data(self) -> str:
        """Stands for whose data is in the sum, under whatever weights."""
        return sha256(record_json([[key, source] for key, source, _ in self.parts]))

    def by_key(self) -> dict[str, tuple[str, int]]:
        return {key: (source, weight) for key, source, weight in self.parts}


@lru_cache(maxsize=REMEMBERED)
def _past_sum(lot: str, parts: tuple[tuple[str, str, int], ...]) -> PastSum:
    """Pure, so that a sum is checked and named once, however often it is spoken of, and by many in one process."""
    return PastSum(lot=lot, parts=parts)


class Account(Record):
    """What a member says of its own part in one lot of one session: it sealed, and signed these sums one after another.

    away:   the session's members that are not in the last of these sums.
    locked: whether the member has said that it reveals its shares for the last sum that it signed, and for no other.
    opened: whether it has revealed them.
    """

    session: Digest
    lot: Lot
    signed: tuple[PastSum, ...] = ()
    away: tuple[PublicKey, ...] = ()
    locked: bool = False
    opened: bool = False

    @property
    def members(self) -> set[str]:
        return {*self.away, *(key for each in self.signed for key, _, _ in each.parts)}

    @property
    def possible(self) -> tuple[PastSum, ...]:
        """The sums of this lot that may have been opened, as far as this member knows alone.

        If it has helped to open one, no larger one was: all who are in it had signed it, and so given up the larger. To
        have locked one says nothing of the larger, which others may open.
        """
        return self.signed[-1:] if self.opened else self.signed

    def denies(self, past: PastSum) -> bool:
        """Whether the member says that it has not revealed, and will not reveal, its shares for this sum."""
        return not (self.locked or self.opened) or self.signed[-1] != past


class History(Record):
    """accounts: of the member itself. heard: sums that it knows from others.

    handovers: by which it knows keys, also of such as are not there, to be one holder's.
    """

    accounts: tuple[Account, ...] = ()
    heard: tuple[PastSum, ...] = ()
    handovers: tuple[HandOver, ...] = ()

    def told(self) -> History:
        """As much of it as is told to others: the newest, and of its own first."""
        accounts = self.accounts[-MAX_TOLD:]
        left = MAX_TOLD - len(accounts)
        heard = self.heard[len(self.heard) - min(left, len(self.heard)) :]
        return History(accounts=accounts, heard=heard, handovers=self.handovers[-MAX_HANDOVERS:])


class ToldAccount(Record):
    """An account in which ids stand for the sums."""

    session: Digest
    lot: Lot
    signed: tuple[Digest, ...] = ()
    away: tuple[PublicKey, ...] = ()
    locked: bool = False
    opened: bool = False


class ToldHistory(Record):
    """A history in which ids stand for the sums and hand-overs: what a member signs the digest of."""

    accounts: tuple[ToldAccount, ...] = ()
    heard: tuple[Digest, ...] = ()
    handovers: tuple[Digest, ...] = ()

    @classmethod
    def of(cls, history: History) -> ToldHistory:
        accounts = (
            ToldAccount(**{**dict(each), "signed": tuple(past.id for past in each.signed)}) for each in history.accounts
        )
        heard, handovers = (tuple(each.id for each in told) for told in (history.heard, history.handovers))
        return cls(accounts=tuple(accounts), heard=heard, handovers=handovers)

    def whole(self, sums: Mapping[str, PastSum], handovers: Mapping[str, HandOver]) -> History:
        """The history that it stands for; raises Refused if something of it is not there."""
        try:
            accounts = (
                Account(**{**dict(each), "signed": tuple(sums[past] for past in each.signed)}) for each in self.accounts
            )
            return History(
                accounts=tuple(accounts),
                heard=tuple(sums[past] for past in self.heard),
                handovers=tuple(handovers[link] for link in self.handovers),
            )
        except KeyError:
            raise Refused("history_withheld", "something that a member knows was kept from this reader") from None

    def to_bytes(self) -> bytes:
        return record_json(self.model_dump(mode="json", exclude=None if self.handovers else {"handovers"}))


class HistoryPool(Record):
    """Histories of one member or more, and the sums and hand-overs that they name."""

    histories: tuple[ToldHistory, ...]
    sums: tuple[PastSum, ...] = ()
    handovers: tuple[HandOver, ...] = ()

    def with_sums(self, known: Mapping[str, PastSum]) -> dict[str, PastSum]:
        return {**known, **{each.id: each for each in self.sums}}

    def links(self) -> dict[str, HandOver]:
        return {each.id: each for each in self.handovers}


NOTHING: Mapping[str, PastSum] = MappingProxyType({})


def history_bytes(history: History) -> bytes:
    """What a member signs the digest of: a digest of each sum, and so all of them."""
    return ToldHistory.of(history).to_bytes()


def pool_bytes(histories: Iterable[History], known: Collection[str] = ()) -> bytes:
    """Several histories together, each that differs once; and their sums, but for those whose ids the reader knows."""
    whole = list(histories)
    told = {each.to_bytes(): each for each in map(ToldHistory.of, whole)}
    named = [past for each in whole for past in (*each.heard, *(past for own in each.accounts for past in own.signed))]
    sums = {past.id: past for past in dict.fromkeys(named)}
    left = tuple(sums[past] for past in sorted(sums) if past not in known)
    links = {link.id: link for each in whole for link in each.handovers}
    pool = HistoryPool(
        histories=tuple(told[each] for each in sorted(told)),
        sums=left,
        handovers=tuple(links[each] for each in sorted(links)),
    )
    return record_json(pool.model_dump(mode="json"))


def read_history(content: bytes | memoryview, known: Mapping[str, PastSum] = NOTHING) -> History:
    """The one history of a pool; one that is longer than is told, or lacks a sum that is not known, raises Refused."""
    pool = _read(content)
    if len(pool.histories) != 1:
        raise Refused("malformed", "a member tells one history")
    return _checked(pool.histories[0].whole(pool.with_sums(known), pool.links()))


def read_pool(content: bytes | memoryview, wanted: Mapping[str, str]) -> dict[str, History]:
    """What every member tells, by its key; raises Refused if one's history, or a sum in it, is missing.

    wanted: the digest of each member's history, as it has signed it, by the member's key.
    """
    pool = _read(content)
    histories = {sha256(each.to_bytes()): each for each in pool.histories}
    if not set(wanted.values()) <= set(histories):
        raise Refused("history_withheld", "what a member knows of earlier sums was kept from this holder")
    sums, links = pool.with_sums(NOTHING), pool.links()
    whole = {digest: _checked(histories[digest].whole(sums, links)) for digest in set(wanted.values())}
    return {key: whole[digest] for key, digest in wanted.items()}


def possible_sums(histories: Mapping[str, History], handovers: HandOvers | None = None) -> dict[PastSum, set[str]]:
    """The sums that may have been opened, by what these members tell, and who tells of each.

    handovers: by which a member that speaks under a new key is known in sessions where it had another.

    A sum was opened only if a threshold of its session's members revealed shares for it, and each reveals for one sum
    of a lot at most; in a large cohort, a threshold locked it. So a sum was not opened if a threshold of them say that
    they did so for another, or for none: among these are more honest ones than could be missing, as long as fewer than
    a third lie.
    """
    owner = (handovers or HandOvers()).owner
    told = {
        (account.session, account.lot, owner(key)): account
        for key, history in histories.items()
        for account in history.accounts
    }
    found: dict[PastSum, set[str]] = {}
    for (session, lot, key), account in told.items():
        members = {owner(other) for other in account.members}
        spoken = [told[session, lot, other] for other in members if (session, lot, other) in told]
        for each in account.possible:
            denied = sum(other.denies(each) for other in spoken)
            if denied < threshold_for(len(account.members)):
                found.setdefault(each, set()).add(key)
    for key, history in histories.items():
        for each in history.heard:
            found.setdefault(each, set()).add(key)
    return found


def _checked(history: History) -> History:
    if len(history.accounts) + len(history.heard) > MAX_TOLD or len(history.handovers) > MAX_HANDOVERS:
        raise Refused("history_too_long", f"a member tells of more than {MAX_TOLD} sums; it runs other code than this")
    distinct = {(account.session, account.lot) for account in history.accounts}
    unsigned = any((each.locked or each.opened) and not each.signed for each in history.accounts)
    if len(distinct) < len(history.accounts) or unsigned:
        raise Refused("malformed", "a member speaks twice of one sum, or says that it opened one which it never signed")
    return history


def _read(content: bytes | memoryview) -> HistoryPool:
    if memoryview(content).nbytes > MAX_HISTORY_BYTES:
        raise Refused("too_large", "a history of opened sums is larger than any that this version of Ridgeway sends")
    try:
        return HistoryPool.model_validate_json(bytes(content))
    except ValidationError:
        raise Refused("malformed", "a history of opened sums does not have the form of one") from None
