"""Masked rounds under faults: holders that fall silent or are cut off within a step, replays, and a
witness to it all.

The witness stands before every holder's door: it sees each request that comes in and each answer
that goes out, before the network can spoil either. It knows what was dealt out as shares, and
nothing of how a holder remembers anything.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from ridgeway.client.round.answers import answer
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.session_store import SessionFile
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.base.identity import Identity, is_signed_by
from ridgeway.common.masking.agreement import Agreement, Secrets, threshold_for
from ridgeway.common.masking.member import Dealt, share
from ridgeway.common.masking.shares import (
    SHARE_BYTES,
    Random,
    pack_by_member,
    split,
    unpack_by_member,
)
from ridgeway.common.protocol.cohort import form_cohort
from ridgeway.common.protocol.messages import (
    ENVELOPE_BYTES,
    Confirmed,
    ConfirmSum,
    Envelopes,
    Evaluate,
    Held,
    Hold,
    Locked,
    LockSum,
    Message,
    Offer,
    OpenSum,
    Revealed,
    Seal,
    SealedSums,
    Share,
)
from ridgeway.common.protocol.packet import Opened, Packet, open_packet, seal_packet
from tests.support.faults import Network, Steps, count_appends

Parts = dict[str, str]
"""What went into a sum: by a member's key, the name of its epoch."""
MOST_WRITES = 4
RECENT = 8


class Fall(BaseException):
    """A holder's process ends here."""


def raise_fall() -> None:
    raise Fall


def let_holders_fall(patch: pytest.MonkeyPatch, writes: Steps) -> None:
    """Count every write of a holder's session or journal as two steps: before and after."""
    count_appends(patch, writes, "journal.db")
    patch.setattr(SessionFile, "save", writes.around(SessionFile.save))


def make_more_haste(patch: pytest.MonkeyPatch) -> None:
    """Holders' logs go nowhere, and the same bytes are not verified twice."""
    nowhere = logging.getLogger("ridgeway.nowhere")
    nowhere.disabled = True
    patch.setattr(Holder, "log", nowhere)
    verify = cache(is_signed_by)
    for module in (
        "common.protocol.packet",
        "common.masking.agreement",
        "common.masking.member",
        "coordinator.round.masked_session",
    ):
        patch.setattr(f"ridgeway.{module}.is_signed_by", verify)


# The witness


@dataclass(frozen=True, slots=True)
class Secret:
    """What a share is of: a member's seed, or its mask key, for one lot of a session."""

    session: str
    place: int
    lot: str
    kind: str


@dataclass
class Witness:
    """Remembers what left every holder; raises as soon as something leaves that must not.

    shares:   who was asked to deal secrets out, in which cohort, by session.
    sealed:   the keys of those who sent something, by session and lot.
    revealed: the keys of those who gave shares for the sum over a set of places, by session, lot
              and set.
    """

    shares: dict[str, Share] = field(default_factory=dict)
    sealed: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    revealed: dict[tuple[str, str, tuple[int, ...]], set[str]] = field(
        default_factory=dict
    )
    _left: dict[tuple[str, str, str], str] = field(default_factory=dict)
    _signed: dict[tuple[str, str, str], set[int]] = field(default_factory=dict)
    _locked: dict[tuple[str, str, str], tuple[int, ...]] = field(default_factory=dict)
    _dealt: dict[bytes, bytes] = field(default_factory=dict)
    _secrets: dict[bytes, Secret] = field(default_factory=dict)
    _kinds: dict[tuple[str, int, str], str] = field(default_factory=dict)

    def look_on(self, patch: pytest.MonkeyPatch) -> None:
        """See what secrets are dealt out, and in which shares."""

        def split_seen(
            secret: bytes, threshold: int, places: Sequence[int], random: Random
        ) -> dict[int, bytes]:
            parts = split(secret, threshold, places, random)
            self._dealt |= dict.fromkeys(parts.values(), secret)
            return parts

        def share_seen(
            agreement: Agreement, own: Secrets, place: int, random: Random
        ) -> Dealt:
            session = agreement.id.hex()
            for lot, seed, mask in zip(
                agreement.lots, own.seeds, own.masks, strict=True
            ):
                self._secrets[seed] = Secret(session, place, lot, "seed")
                self._secrets[mask] = Secret(session, place, lot, "mask key")
            return share(agreement, own, place, random)

        patch.setattr("ridgeway.common.masking.member.split", split_seen)
        patch.setattr("ridgeway.client.round.masked_answers.share", share_seen)

    def saw(self, request: Packet, reply: Packet) -> None:
        """Take in one answer at the moment it leaves a holder."""
        given = open_packet(reply)
        step = _step(given.message)
        if step is None:
            return
        content, asked = _content(given), open_packet(request).message
        if (
            type(asked) is ConfirmSum
        ):  # of fewer of the same members, another may be signed
            step = f"{step} {sorted(asked.sent)}"
            signed = self._signed.setdefault(
                (given.sender, asked.session, asked.lot), set(asked.sent)
            )
            assert signed >= set(asked.sent), (
                "a holder has signed a sum that is not a smaller one"
            )
            signed &= set(asked.sent)
            locked = self._locked.get(
                (given.sender, asked.session, asked.lot), asked.sent
            )
            assert locked == asked.sent, (
                "a holder has signed a sum after it had locked another"
            )
        if type(asked) is LockSum:
            self._locked[given.sender, asked.session, asked.lot] = asked.sent
        before = self._left.setdefault((given.sender, given.round, step), content)
        assert before == content, (
            f"two different answers to the step {step!r} of a session left a holder"
        )
        match given.message:
            case Envelopes():
                assert isinstance(asked, Share)
                self.shares[given.message.session] = asked
            case SealedSums():
                self.sealed.setdefault(
                    (given.message.session, given.message.lot), set()
                ).add(given.sender)
            case Revealed():
                assert isinstance(asked, OpenSum)
                self._check_shares(given.message, bytes(given.blobs[0]))
                places = tuple(sorted(asked.sent))
                self.revealed.setdefault((asked.session, asked.lot, places), set()).add(
                    given.sender
                )

    def _check_shares(self, message: Revealed, content: bytes) -> None:
        """Every share is of this session and lot, and of no member are both kinds ever shown,
        whoever shows them.
        """
        for place, part in unpack_by_member(content, SHARE_BYTES).items():
            secret = self._secrets[self._dealt[part]]
            assert secret.place == place, "a share of another member was revealed"
            assert (secret.session, secret.lot) == (message.session, message.lot), (
                "shares of another sum were revealed"
            )
            kind = self._kinds.setdefault(
                (secret.session, secret.place, secret.lot), secret.kind
            )
            assert kind == secret.kind, (
                f"shares of both secrets of member {secret.place} were revealed"
            )

    def cohort(self, session: str) -> set[str]:
        """The keys of a session's members, whether they have fallen away or not; none if nobody
        joined it here.
        """
        return (
            {member.key for member in self.shares[session].cohort.members}
            if session in self.shares
            else set()
        )

    def parts(self, session: str, places: tuple[int, ...]) -> Parts:
        """What the members at these places put into a sum, as they advertised it."""
        agreement = self.shares[session].agreement
        return {advert.key: advert.source for advert in map(agreement.advert, places)}

    def opened(self, lot: str) -> list[Parts]:
        """The sums of a lot for which enough members have given their shares: they lie open, come
        what may.
        """
        return [
            self.parts(session, places)
            for (session, of, places), givers in self.revealed.items()
            if of == lot
            and len(givers) >= needed(len(self.shares[session].agreement.adverts))
        ]


def needed(members: int) -> int:
    """More than two thirds."""
    return next(count for count in range(members + 1) if 3 * count > 2 * members)


def _step(message: Message) -> str | None:
    """The step of a session that an answer takes; None if it takes none."""
    match message:
        case Offer():
            return "advertise"
        case Envelopes() | Held():
            return message.kind
        case SealedSums() | Confirmed() | Locked() | Revealed():
            return f"{message.kind} {message.lot}"
    return None


def _content(given: Opened[Any]) -> str:
    """All that an answer says about a session."""
    message = (
        given.message.advert if isinstance(given.message, Offer) else given.message
    )
    return sha256(
        message.model_dump_json().encode() if message else b"",
        *(bytes(blob) for blob in given.blobs),
    )


# The network


@dataclass
class Storm(Network):
    """A network in which holders fall silent too, are cut off within a step, and hear old requests
    again.

    writes: every holder's writes, so that it can be cut off at one of them.
    silent: holders that are not heard any more.
    rogue:  the coordinator's own key, in the hands of somebody who asks holders for more than was
            asked.
    malice: how often, for every request that reaches a holder, somebody sends an old or an altered
            one after it.
    """

    witness: Witness = field(default_factory=Witness)
    writes: Steps = field(default_factory=lambda: Steps(raise_fall))
    silent: set[int] = field(default_factory=set)
    rogue: Identity | None = None
    malice: float = 0.0
    _heard: list[Packet] = field(default_factory=list)

    def peers(self) -> list[int]:
        return [peer for peer in super().peers() if peer not in self.silent]

    def answered(self, peer: int, request: Packet) -> Packet | None:
        if self._happens(0.2):
            self.silent.add(peer)
        if peer in self.silent:
            return None
        reply = self._attempt(peer, request)
        if self._heard and self.dice.random() < self.malice:
            self._molest(
                self.dice.choice((peer, self.dice.randrange(len(self.holders))))
            )
        self._heard.append(request)
        return reply

    def _molest(self, peer: int) -> None:
        """Send a holder what was once asked, of it or of another, as it was or altered by one who
        can sign it.
        """
        request = self.dice.choice(
            self.dice.choice((self._heard, self._heard[-RECENT:]))
        )
        if self.rogue is not None and self.dice.random() < 0.5:
            request = altered(request, self.rogue, self.dice) or request
        self._attempt(peer, request)

    def _attempt(self, peer: int, request: Packet) -> Packet | None:
        """The answer of a holder that may be cut off at any of its writes, and runs again the next
        time.
        """
        self.writes.allow(
            self.dice.randint(1, MOST_WRITES) if self._happens(0.2) else 0
        )
        try:
            reply = answer(self.holders[peer], request)
        except Fall:
            return None
        finally:
            self.writes.allow(0)
        self.witness.saw(request, reply)
        return reply

    def calm_down(self) -> None:
        """No more faults, and everybody is there again."""
        self.chance = self.malice = 0.0
        self.silent.clear()


def altered(request: Packet, rogue: Identity, dice: random.Random) -> Packet | None:
    """A request for the same step that asks for something else: other members, another set, another
    question.
    """
    try:
        opened = open_packet(request)
    except Refused:
        return None
    message, blobs = opened.message, list(opened.blobs)
    match message:
        case ConfirmSum() | LockSum() | OpenSum():
            missing = dice.choice(message.sent)
            kept = tuple(place for place in message.sent if place != missing)
            message = message.model_copy(update={"sent": kept})
        case Evaluate():
            blobs = [bytes(len(bytes(blob))) for blob in blobs]
        case Share(cohort=cohort, agreement=agreement):
            gone = dice.choice(cohort.members)
            fewer = form_cohort(
                cohort.terms,
                {
                    member.key: member.domain
                    for member in cohort.members
                    if member != gone
                },
            )
            adverts = tuple(
                advert for advert in agreement.adverts if advert.key != gone.key
            )
            changes = {
                "cohort": fewer.id,
                "threshold": threshold_for(len(adverts)),
                "adverts": adverts,
            }
            message = Share(
                cohort=fewer, agreement=agreement.model_copy(update=changes)
            )
        case Hold():
            absent = dice.choice(message.shared)
            envelopes = unpack_by_member(blobs[0], ENVELOPE_BYTES)
            left = {
                member: envelope
                for member, envelope in envelopes.items()
                if member != absent
            }
            shared = tuple(member for member in message.shared if member != absent)
            message = dice.choice((Hold, Seal))(session=message.session, shared=shared)
            blobs = [pack_by_member(left)]
        case _:
            return None
    return seal_packet(message, rogue, round=opened.round, blobs=blobs)
