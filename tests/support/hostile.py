"""A coordinator that plays a masked session step by step with real holders, and can lie at any of
them.

It signs with the key that the holders have pinned, so whatever a hostile operator could send can be
sent here. Played without a lie it opens the very sums that an honest coordinator opens. Holders are
opened anew for every message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeway.client.round.answers import answer
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import Ridge
from ridgeway.common.masking.agreement import Advert, Agreement, threshold_for
from ridgeway.common.masking.opening import Opening
from ridgeway.common.masking.shares import (
    SHARE_BYTES,
    Sealed,
    neighbourhood_for,
    pack_by_member,
    unpack_by_member,
)
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from ridgeway.common.protocol.messages import (
    ENVELOPE_BYTES,
    SUM_NAMES,
    Announce,
    Confirmed,
    ConfirmSum,
    Evaluate,
    Held,
    Hold,
    Locked,
    LockSum,
    Message,
    Offer,
    OpenSum,
    Refusal,
    Revealed,
    Seal,
    SealedSums,
    Share,
    SumName,
)
from ridgeway.common.protocol.packet import (
    Blob,
    Opened,
    Packet,
    open_packet,
    seal_packet,
    weights_blob,
)
from ridgeway.common.statistics import Integers, from_vector
from ridgeway.coordinator.solving.solve import solve
from tests.support.simulated_federation import Parties, found, populate

MEMBERS = {
    "code-1": "code",
    "code-2": "code",
    "law-1": "law",
    "law-2": "law",
    "medicine": "medicine",
}
"""Five holders, of whom four open a sum."""
ALL = list(MEMBERS)
WITHOUT = {name: [other for other in ALL if other != name] for name in ALL}
FEWER = WITHOUT["medicine"]
OTHERS = WITHOUT["code-1"]
VICTIM = "law-1"
NEWCOMERS = {"law-3": "law", "poetry": "poetry"}
BULKY = ("cache", "logs")
FEATURES = 7
WEIGHTS = weights_blob(np.eye(FEATURES, 3))
"""Such as no total is solved to."""
ANNOUNCE, SHARE, SEAL, CONFIRM, LOCK, OPEN, OVER = range(7)
"""The steps with a sum, by their order; in a small cohort nothing is locked, so nothing lies
between LOCK and OPEN.
"""

TakenSteps = list[tuple[int, SumName]]
"""Steps that were taken, each with its lot."""
Names = Collection[str] | None
"""Holders; None for all who have come so far."""
Reveals = dict[int, dict[int, bytes]]
"""Shares, by the place of who gave them and of whose they are."""


def code_of(opened: Opened[Any]) -> str:
    """The code of the refusal that an answer must be."""
    assert isinstance(opened.message, Refusal), (
        f"{opened.message.kind} where a refusal belongs"
    )
    return opened.message.code


@dataclass
class Hostile:
    """One round with some holders of a federation.

    replies: whatever any holder answered, in its order, with the name of the holder.
    weights: what the opened total was solved to.
    """

    parties: Parties
    names: Sequence[str]
    round: str = "cd" * 16
    adverts: dict[str, Advert] = field(default_factory=dict)
    envelopes: dict[str, bytes] = field(default_factory=dict)
    sealed: dict[SumName, dict[str, Blob]] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    signatures: dict[int, str] = field(default_factory=dict)
    locks: dict[int, str] = field(default_factory=dict)
    weights: Blob = WEIGHTS
    replies: list[tuple[str, Opened[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        federation = self.parties.federation
        self.identity: Identity = federation.identity
        self.terms: Terms = federation.terms
        standing = federation.ledger.standing()
        self._roster = standing.roster
        self.handovers = tuple(standing.holder_handovers)
        self.key_of = {name: holder.key for name, holder in self._roster.items()}

    # One message

    def packet(self, message: Message, blobs: Sequence[Blob] = ()) -> Packet:
        return seal_packet(message, self.identity, round=self.round, blobs=blobs)

    def send(self, name: str, packet: Packet) -> Opened[Any]:
        """A holder's answer, whatever it is; it must be signed by that holder and name the
        request.
        """
        opened = open_packet(answer(self.parties.holder(name), packet))
        assert (opened.sender, opened.reply_to) == (self.key_of[name], packet.digest)
        self.replies.append((name, opened))
        return opened

    def ask(
        self, name: str, message: Message, blobs: Sequence[Blob] = ()
    ) -> Opened[Any]:
        return self.send(name, self.packet(message, blobs))

    def refused(self, name: str, packet: Packet) -> str:
        """The code of the refusal that a holder answers with."""
        return code_of(self.send(name, packet))

    def refusal(self, name: str, message: Message, blobs: Sequence[Blob] = ()) -> str:
        return self.refused(name, self.packet(message, blobs))

    def refused_step(self, step: int) -> str:
        """The code of the victim's refusal of a step with the statistics."""
        return self.refused(VICTIM, self.request(step, SUM_NAMES[0], VICTIM))

    def refused_sum(self, name: str, lot: SumName, sent: Collection[str]) -> str:
        """The code of a holder's refusal to sign the sum of these members."""
        return self.refusal(name, self.confirm_request(lot, sent))

    def refused_opening(self, name: str, *asked: Any) -> str:
        """The code of a holder's refusal of an `open_request`."""
        return self.refusal(name, self.open_request(*asked))

    def refused_announcement(self) -> str:
        return self.refusal(VICTIM, Announce(terms=self.terms))

    def allow_tokens(self) -> Terms:
        """Let the victim agree to weighting by tokens, too; the terms with it."""
        both = 'weightings = ["equal", "tokens"]'
        self.parties.rewrite(VICTIM, 'weightings = ["equal"]', both)
        return self.terms.model_copy(update={"weighting": "tokens", "mass": 0})

    def gave(self, kind: type[Message], lot: SumName | None = None) -> list[str]:
        """Who has answered with a message of this kind, and for this lot."""
        return [
            name
            for name, opened in self.replies
            if isinstance(opened.message, kind)
            and lot in (None, getattr(opened.message, "lot", lot))
        ]

    # What is shown to the members

    def cohort(self, names: Names = None, terms: Terms | None = None) -> Cohort:
        members = {
            self.key_of[name]: self._roster[name] for name in names or self.names
        }
        return form_cohort(
            terms or self.terms, {key: holder.domain for key, holder in members.items()}
        )

    def agreement(self, cohort: Cohort | None = None, **changes: Any) -> Agreement:
        shown = cohort or self.cohort()
        by_key = {advert.key: advert for advert in self.adverts.values()}
        keys = sorted(member.key for member in shown.members)
        plain = Agreement(
            terms=shown.terms.id,
            cohort=shown.id,
            round=self.round,
            lots=SUM_NAMES,
            threshold=threshold_for(len(keys)),
            adverts=tuple(by_key[key] for key in keys),
        )
        return plain.model_copy(update=changes) if changes else plain

    @property
    def session(self) -> str:
        return self.agreement().id.hex()

    def place(self, name: str) -> int:
        return sorted(self.names, key=self.key_of.__getitem__).index(name) + 1

    def places(self, names: Collection[str]) -> tuple[int, ...]:
        return tuple(sorted(self.place(name) for name in names))

    def in_order(self, names: Collection[str]) -> list[str]:
        return sorted(names, key=self.place)

    # The steps, each with everybody unless told otherwise; every answer must be the one that is
    # asked for

    def announce_request(self) -> Announce:
        return Announce(terms=self.terms, handovers=self.handovers)

    def announce(self, names: Names = None) -> None:
        for name in names or self.names:
            offer = self.ask(name, self.announce_request()).message
            assert isinstance(offer, Offer), offer
            assert offer.advert is not None
            self.adverts[name] = offer.advert

    def share_request(self, cohort: Cohort | None = None, **changes: Any) -> Share:
        shown = cohort or self.cohort()
        return Share(cohort=shown, agreement=self.agreement(shown, **changes))

    def share(self, names: Names = None, request: Share | None = None) -> None:
        for name in names or self.names:
            self.envelopes[name] = self._bulk(name, request or self.share_request())
        self.shared = tuple(self.in_order(self.envelopes))

    def post(self, name: str, shared: Names = None) -> bytes:
        """What the others have sent to a member."""
        recipient, senders = self.place(name), shared or self.shared
        dealt = {
            self.place(sender): self.dealt(sender)
            for sender in senders
            if sender != name
        }
        return pack_by_member(
            {
                place: parts[recipient]
                for place, parts in dealt.items()
                if recipient in parts
            }
        )

    def dealt(self, name: str) -> dict[int, bytes]:
        """The envelopes that a member has made, by the place of whom they are for."""
        return unpack_by_member(self.envelopes[name], ENVELOPE_BYTES)

    def holders(self) -> dict[int, set[int]]:
        """Who holds shares of each member that has shared; in a small cohort itself, too."""
        complete = self.agreement().neighbourhood is None
        places = {self.place(name): set(self.dealt(name)) for name in self.shared}
        return {place: {*to, place} if complete else to for place, to in places.items()}

    def hold_request(self, kind: type[Hold], shared: Names = None) -> Hold:
        return kind(session=self.session, shared=self.places(shared or self.shared))

    def seal(self, names: Names = None) -> None:
        for name in names or self.shared:
            self._keep("statistics", name, self.hold_request(Seal), (self.post(name),))

    def hold(self) -> None:
        """Let everybody keep its shares, and send nothing: the total is known already."""
        for name in self.shared:
            assert isinstance(
                self.ask(name, self.hold_request(Hold), (self.post(name),)).message,
                Held,
            )

    def question(self, other: bool = False) -> tuple[Evaluate, tuple[Blob, ...]]:
        """What is asked about the router of the opened total, or something else that might be."""
        asked = Evaluate(
            terms=self.terms,
            domains=tuple(sorted({self._roster[name].domain for name in self.names})),
            selector="all" if other else "average",
            k=10,
            temperatures=(1.0,),
            session=self.session,
        )
        return asked, (self.weights,)

    def count(self, names: Names = None, *, other: bool = False) -> None:
        for name in names or self.shared:
            self._keep("counts", name, *self.question(other))

    def seal_lot(self, lot: SumName, names: Names = None) -> None:
        """Let these members seal a lot, whichever it is."""
        if lot == "statistics":
            self.seal(names)
        else:
            self.count(names)

    def confirm_request(self, lot: SumName, sent: Collection[str]) -> ConfirmSum:
        return ConfirmSum(session=self.session, lot=lot, sent=self.places(sent))

    def confirm(
        self, lot: SumName, names: Collection[str], sent: Names = None
    ) -> dict[int, str]:
        """These members sign that those have sent."""
        return self._signatures(
            names, self.confirm_request(lot, sent or names), Confirmed
        )

    def _signatures(
        self,
        names: Collection[str],
        request: Message,
        kind: type[Confirmed] | type[Locked],
    ) -> dict[int, str]:
        signatures = {}
        for name in names:
            reply = self.ask(name, request).message
            assert isinstance(reply, kind), reply
            signatures[self.place(name)] = reply.signature
        return signatures

    def lock_request(self, lot: SumName, sent: Collection[str]) -> LockSum:
        return LockSum(session=self.session, lot=lot, sent=self.places(sent))

    def lock(
        self, lot: SumName, names: Collection[str], sent: Names = None
    ) -> dict[int, str]:
        """These members sign that they will open this sum and no other; in a small cohort nobody is
        asked to.
        """
        asked = names if self.agreement().neighbourhood else ()
        return self._signatures(asked, self.lock_request(lot, sent or names), Locked)

    def open_request(
        self,
        lot: SumName,
        sent: Collection[str],
        signatures: Mapping[int, str],
        locks: Mapping[int, str] | None = None,
    ) -> OpenSum:
        """locks: those of the sum that was played so far, unless told otherwise."""
        pairs = tuple(sorted(signatures.items()))
        locked = tuple(sorted((self.locks if locks is None else locks).items()))
        return OpenSum(
            session=self.session,
            lot=lot,
            sent=self.places(sent),
            confirmations=pairs,
            locks=locked,
        )

    def open(
        self,
        lot: SumName,
        names: Collection[str],
        sent: Collection[str],
        signatures: Mapping[int, str],
    ) -> Reveals:
        """The shares that these members reveal, by place; in a large cohort they lock the sum
        before.
        """
        reveals: Reveals = {}
        locks = self.lock(lot, names, sent)
        for name in names:
            content = self._bulk(name, self.open_request(lot, sent, signatures, locks))
            reveals[self.place(name)] = unpack_by_member(content, SHARE_BYTES)
        return reveals

    def total(self, lot: SumName, sent: Collection[str], reveals: Reveals) -> Integers:
        size = memoryview(self.sealed[lot][next(iter(sent))]).nbytes // 8
        opening = Opening(self.agreement(), lot, self.holders(), size)
        for name in sent:
            opening.add(
                self.place(name), Sealed.of_bytes(bytes(self.sealed[lot][name]))
            )
        return opening.total(reveals)

    def plain_sum(self, names: Collection[str]) -> Integers:
        return plain_sum(self.parties, self.cohort(), names)

    # Honest play

    def begin(self) -> None:
        """Everybody advertises and deals its secrets out."""
        self.announce()
        self.share()

    def finish(self, lot: SumName, sent: Names = None) -> Integers:
        """Confirm and open the sum of those who have sealed."""
        there = sent or self.shared
        signatures = self.confirm(lot, there)
        total = self.total(lot, there, self.open(lot, there, there, signatures))
        if lot == "statistics":
            self.learn(total)
        return total

    def learn(self, total: Integers) -> None:
        """Solve an opened total, as it is to be asked about."""
        sums = from_vector(total, self.terms.features, len(self.cohort().domains))
        self.weights = weights_blob(
            solve(sums, self.parties.encoder.scale, Ridge()).weights
        )

    def play(self, *lots: SumName) -> dict[SumName, Integers]:
        """A whole session without a lie; the statistics come first."""
        self.until(CONFIRM)
        sums: dict[SumName, Integers] = {}
        for lot in lots:
            if lot != "statistics":
                self.count()
            sums[lot] = self.finish(lot)
        return sums

    def until(self, step: int) -> None:
        """Everything honestly, up to but without one of the steps with the statistics."""
        for taken in steps_before(step, "statistics"):
            self.take(*taken)

    def take(self, step: int, lot: SumName) -> None:
        """One step honestly, with everybody."""
        if step == SEAL:
            self.signatures, self.locks = {}, {}
        steps: list[Callable[[], None]] = [
            self.announce,
            self.share,
            lambda: self.seal_lot(lot),
            lambda: self.signatures.update(self.confirm(lot, self.shared)),
            lambda: self.locks.update(self.lock(lot, self.shared)),
            lambda: self._reveal(lot),
        ]
        steps[step]()

    def _reveal(self, lot: SumName) -> None:
        reveals = self.open(lot, self.shared, self.shared, self.signatures)
        if lot == "statistics":
            self.learn(self.total(lot, self.shared, reveals))

    def request(self, step: int, lot: SumName, name: str) -> Packet:
        """What an honest coordinator asks a member for at a step."""
        if step == SEAL and lot != "statistics":
            return self.packet(*self.question())
        asked: dict[int, Callable[[], Message]] = {
            ANNOUNCE: self.announce_request,
            SHARE: self.share_request,
            SEAL: lambda: self.hold_request(Seal),
            CONFIRM: lambda: self.confirm_request(lot, self.shared),
            LOCK: lambda: self.lock_request(lot, self.shared),
            OPEN: lambda: self.open_request(lot, self.shared, self.signatures),
        }
        blobs = (self.post(name),) if step == SEAL else ()
        return self.packet(asked[step](), blobs)

    def moved(self, parties: Parties) -> Hostile:
        """The same coordinator at the same point, with the same holders in other folders."""
        sealed = {lot: dict(given) for lot, given in self.sealed.items()}
        known = (
            dict(self.adverts),
            dict(self.envelopes),
            sealed,
            self.shared,
            dict(self.signatures),
            dict(self.locks),
        )
        return Hostile(parties, self.names, self.round, *known, self.weights)

    def _keep(
        self, lot: SumName, name: str, request: Message, blobs: Sequence[Blob]
    ) -> None:
        opened = self.ask(name, request, blobs)
        assert isinstance(opened.message, SealedSums), opened.message
        self.sealed.setdefault(lot, {})[name] = opened.blobs[0]

    def _bulk(self, name: str, request: Message) -> bytes:
        opened = self.ask(name, request)
        assert not isinstance(opened.message, Refusal), opened.message
        return bytes(opened.blobs[0])


class Stages:
    """One federation, and sessions in it that were played honestly up to some step; every test gets
    copies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.parties = populate(found(folder / "parties", mode="masked"), MEMBERS)
        self._played: dict[str, Hostile] = {}

    def at(self, step: int, folder: Path, lot: SumName = "statistics") -> Hostile:
        """A session of all members before this step, as in a large cohort where neighbourhoods are
        small.
        """
        return self._moved(steps_before(step, lot), folder)

    def _moved(self, steps: TakenSteps, folder: Path) -> Hostile:
        """A session in which these steps were taken; it goes on from the one that is a step
        behind.
        """
        name = f"{len(steps)} {neighbourhood_for(len(MEMBERS))}"
        if name not in self._played and not steps:
            self._played[name] = Hostile(
                self.parties.copy(self._folder / name), list(MEMBERS)
            )
        elif name not in self._played:
            played = self._moved(steps[:-1], self._folder / name)
            played.take(*steps[-1])
            self._played[name] = played
        played = self._played[name]
        return played.moved(played.parties.copy(folder, *BULKY))


def steps_before(step: int, lot: SumName) -> TakenSteps:
    """The steps before this one: counts are of a total that was opened."""
    steps = [(taken, SUM_NAMES[0]) for taken in (ANNOUNCE, SHARE)]
    steps += [(taken, name) for name in SUM_NAMES for taken in range(SEAL, OVER)]
    before = steps.index((SEAL, lot)) - SEAL if step >= SEAL else 0
    return steps[: before + step]


def nothing_revealed(coordinator: Hostile, lot: SumName | None = None) -> None:
    """Fail if any member has given shares away."""
    assert coordinator.gave(Revealed, lot) == []


def plain_sum(parties: Parties, cohort: Cohort, names: Collection[str]) -> Integers:
    """What the statistics of these members come to, added up by somebody who may see them."""
    parts = []
    for name in names:
        holder = parties.holder(name)
        sums = holder.exact_sums(holder.epoch(cohort.terms), cohort)
        parts.append(
            sums.placed(
                cohort.domains.index(holder.domain), len(cohort.domains)
            ).as_vector()
        )
    total: Integers = np.sum(parts, axis=0)
    return total
