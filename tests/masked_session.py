"""A masked session played through in one process, with members that fall away where a test says so."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from common.identity import Identity
from common.masking.agreement import Agreement, Secrets, check_agreement, threshold_for
from common.masking.keystream import Sealed
from common.masking.member import Dealt, advertise, confirm, new_secrets, open_envelope, reveal, seal, share
from common.masking.opening import Opening
from common.masking.shares import Random

TERMS, COHORT, ROUND, LOTS = "7" * 64, "8" * 64, "5" * 32, ("sums", "counts")


def fixed_random(seed: str) -> Random:
    """Bytes that depend on the seed and on how many were drawn before."""
    drawn = 0

    def draw(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"{seed} {drawn}".encode()).digest(size)

    return draw


@dataclass(frozen=True)
class Player:
    """One member: its identity, its secrets, and what it has dealt out."""

    place: int
    identity: Identity
    secrets: Secrets
    dealt: Dealt


@dataclass(frozen=True)
class Session:
    """Members that have all agreed and shared."""

    agreement: Agreement
    players: tuple[Player, ...]

    def held(self, own: Player, shared: Collection[int]) -> dict[int, bytes]:
        """The shares that a member has once the coordinator has passed the envelopes on."""
        others = [player for player in self.players if player.place in shared and player.place != own.place]
        opened = {
            other.place: open_envelope(
                self.agreement, own.secrets, own.place, other.place, other.dealt.envelopes[own.place]
            )
            for other in others
        }
        return {**opened, own.place: own.dealt.kept}

    def sealed(self, lot: str, shared: Collection[int], vectors: Sequence[NDArray[np.int64]]) -> dict[int, Sealed]:
        return {
            player.place: seal(self.agreement, player.secrets, player.place, lot, shared, vectors[player.place - 1])
            for player in self.players
            if player.place in shared
        }

    def confirmations(self, lot: str, shared: Collection[int], sent: Collection[int]) -> dict[int, str]:
        return {
            player.place: confirm(self.agreement, player.identity, lot, shared, sent)
            for player in self.players
            if player.place in sent
        }


def source_of(who: Identity) -> str:
    """Stands for the member's sums."""
    return hashlib.sha256(f"sums of {who.public}".encode()).hexdigest()


def make_session(members: int, seed: str = "session", lots: tuple[str, ...] = LOTS) -> Session:
    """Members advertise, check the agreement and deal out their shares."""
    identities = sorted((_identity(f"{seed} {place}") for place in range(members)), key=lambda each: each.public)
    secrets = [new_secrets(len(lots), fixed_random(f"{seed} secrets {place}")) for place in range(members)]
    pairs = zip(secrets, identities, strict=True)
    adverts = tuple(advertise(own, who, TERMS, ROUND, source_of(who)) for own, who in pairs)
    agreement = Agreement(
        terms=TERMS, cohort=COHORT, round=ROUND, lots=lots, threshold=threshold_for(members), adverts=adverts
    )
    players = []
    for place, (who, own) in enumerate(zip(identities, secrets, strict=True), start=1):
        check_agreement(agreement, adverts[place - 1], [advert.key for advert in adverts])
        dealt = share(agreement, own, place, fixed_random(f"{seed} shares {place}"))
        players.append(Player(place, who, own, dealt))
    return Session(agreement, tuple(players))


def play(
    session: Session,
    lot: str,
    vectors: Sequence[NDArray[np.int64]],
    *,
    not_shared: Collection[int] = (),
    not_sent: Collection[int] = (),
    not_opened: Collection[int] = (),
) -> NDArray[np.int64]:
    """The sum that the coordinator opens when some members fall away at each stage."""
    shared = [place for place in session.agreement.places if place not in not_shared]
    sealed = session.sealed(lot, shared, vectors)
    opening = Opening(session.agreement, lot, shared, len(vectors[0]))
    for place, vector in sealed.items():
        if place not in not_sent:
            opening.add(place, vector)
    confirmed = session.confirmations(lot, shared, opening.sent)
    reveals = {
        player.place: reveal(
            session.agreement, player.place, lot, session.held(player, shared), shared, opening.sent, confirmed
        )
        for player in session.players
        if player.place in shared and player.place not in (*not_sent, *not_opened)
    }
    return opening.total(reveals)


def _identity(seed: str) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest()))
