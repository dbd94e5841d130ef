"""What the members of a masked session agree on, what it is checked for, and the keys that are
derived from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.base.identity import is_signed_by
from ridgeway.common.base.records import Digest, PublicKey, Record, record_json
from ridgeway.common.masking.shares import KEY_BYTES, Neighbourhood, neighbourhood_for

AGREEMENT_VERSION = 2
"""Of how masks are made: members of one session make them alike. Version 1 had other ciphers."""
NO_HISTORY = "c8f9df78eda20a975d9a509d07178f4c025acb8e998b340f753b8e8af02ee366"
"""What adverts of this version have in a field that stood for histories of sums."""
SMALLEST_COHORT = 3
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
MemberIndex = int
"""A member's position in the agreement, from 1 on: where its share of a secret lies."""
Members = Collection[MemberIndex]
Signatures = Mapping[MemberIndex, str]
Shares = Mapping[MemberIndex, bytes]
"""By the member that gave a share, or whose secret it is of."""


def threshold_for(members: int) -> int:
    """The number of members that must work together to open a sum: more than two thirds."""
    return 2 * members // 3 + 1


@dataclass(frozen=True, repr=False)
class Secrets:
    """What one member keeps to itself during a session, for every vector that is to be
    summed.

    cipher: the key that shares to this member are encrypted for. masks: the keys that masks in
            pairs are made of.
    seeds:  the masks of its own.
    """

    nonce: bytes
    cipher: bytes
    masks: tuple[bytes, ...]
    seeds: tuple[bytes, ...]

    @cached_property
    def cipher_key(self) -> X25519PrivateKey:
        return private_key(self.cipher)

    def __repr__(self) -> str:
        return f"<Secrets of {len(self.seeds)} sums>"


class Advert(Record):
    """What a member shows of its secrets: public keys, and digests of its seeds, so that wrong
    shares are noticed.

    source:  the random name of the epoch whose sums it will seal.
    held_out: the random name of the epoch whose held-out documents it will count.
    history: always NO_HISTORY.
    version: of how it makes masks; adverts of the first did not say.
    """

    version: int = 1
    key: PublicKey
    source: Digest
    held_out: Digest
    history: Digest
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    cipher: PublicKey
    masks: tuple[PublicKey, ...]
    seeds: tuple[Digest, ...]
    signature: Signature


class SessionKeys(Protocol):
    """What the steps of a session need of its agreement, once that was checked. Keys stand in the
    order of the members.

    keys: the members' identities. ciphers: what envelopes to them are encrypted for. masks: for
          each sum.
    """

    @property
    def id(self) -> bytes: ...
    @property
    def lots(self) -> tuple[str, ...]: ...
    @property
    def threshold(self) -> int: ...
    @property
    def neighbourhood(self) -> Neighbourhood | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def ciphers(self) -> tuple[str, ...]: ...
    @property
    def masks(self) -> tuple[tuple[str, ...], ...]: ...


class Agreement(Record):
    """What every member of a session must see alike: its digest stands in every key and every
    signature.

    terms:  of the statistics, as they were announced. cohort: who takes part, in which domain, with
            which share.
    """

    terms: Digest
    cohort: Digest
    round: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    lots: tuple[str, ...] = Field(min_length=1, max_length=8)
    threshold: int = Field(ge=1)
    adverts: tuple[Advert, ...] = Field(min_length=1)

    @cached_property
    def id(self) -> bytes:
        return bytes.fromhex(sha256(self.model_dump_json().encode()))

    @cached_property
    def is_signed(self) -> Literal[True]:
        """Raises Refused unless every member has signed its advert; once for all who are shown this
        very object.
        """
        for advert in self.adverts:
            check_advert(advert, self.terms, self.round, len(self.lots))
        return True

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(advert.key for advert in self.adverts)

    @cached_property
    def ciphers(self) -> tuple[str, ...]:
        return tuple(advert.cipher for advert in self.adverts)

    @cached_property
    def masks(self) -> tuple[tuple[str, ...], ...]:
        return tuple(zip(*(advert.masks for advert in self.adverts), strict=True))

    @property
    def indices(self) -> range:
        return range(1, len(self.adverts) + 1)

    @property
    def neighbourhood(self) -> Neighbourhood | None:
        """How many hold a member's shares, by the size of the cohort alone; none if everybody
        does.
        """
        return neighbourhood_for(len(self.adverts))

    @property
    def share_threshold(self) -> int:
        """How many shares give a secret back."""
        return self.neighbourhood.threshold if self.neighbourhood else self.threshold

    def advert(self, member: MemberIndex) -> Advert:
        return self.adverts[member - 1]


def advert_words(facts: Mapping[str, object], terms: str, round_: str) -> bytes:
    return record_json(
        {"ridgeway": "masking advert 2", "terms": terms, "round": round_, **facts}
    )


def check_agreement(
    agreement: Agreement,
    advertised: Advert,
    roster: Collection[str],
    smallest: int = SMALLEST_COHORT,
) -> None:
    """Raise Refused unless everything about a session is as it must be; called before anything
    secret is sent.

    roster: the keys that this member has pinned. advertised: what it advertised for this very
            session.
    """
    adverts = agreement.adverts
    if len(adverts) < max(smallest, SMALLEST_COHORT):
        raise Refused(
            "cohort_too_small",
            f"a masked cohort of {len(adverts)} members is too small to hide one",
        )
    if agreement.threshold != threshold_for(len(adverts)):
        raise Refused(
            "wrong_threshold",
            f"{len(adverts)} members need a threshold of {threshold_for(len(adverts))}",
        )
    if unknown := set(agreement.keys) - set(roster):
        raise Refused(
            "not_pinned",
            "the cohort has members that this holder has not pinned",
            unknown,
        )
    if advertised not in adverts:
        raise Refused(
            "swapped_key",
            "the cohort lists keys for this holder that it did not advertise",
        )
    keys = agreement.keys
    seen = [
        value
        for advert in adverts
        for value in (advert.key, advert.cipher, *advert.masks, *advert.seeds)
    ]
    if len(set(seen)) != len(seen) or list(keys) != sorted(keys):
        raise Refused("repeated_key", "duplicate or unsorted keys in the cohort")
    _ = agreement.is_signed


def check_advert(advert: Advert, terms: str, round_: str, sums: int) -> None:
    """Raise Refused unless a member has signed one set of keys a sum, for this round under these
    terms.
    """
    if advert.version != AGREEMENT_VERSION:
        raise Refused(
            "version",
            f"version mismatch: a member masks with version {advert.version}, this "
            f"Ridgeway with version {AGREEMENT_VERSION}",
            [advert.key],
        )
    if len(advert.masks) != sums or len(advert.seeds) != sums:
        raise Refused("malformed", "a member's keys do not match the sums, one per sum")
    facts = dict(vars(advert))
    signature = facts.pop("signature")
    if not is_signed_by(advert.key, signature, advert_words(facts, terms, round_)):
        raise Refused("bad_advert", "a member's keys are not signed for this round")


def member_index(session: SessionKeys, key: str) -> MemberIndex:
    """Where a member stands; 0 if it does not."""
    return session.keys.index(key) + 1 if key in session.keys else 0


def check_survivors(session: SessionKeys, shared: Members, sent: Members) -> None:
    """Raise Refused unless these sets are possible: enough have sent, and all of them have
    shared.
    """
    if not set(sent) <= set(shared) <= set(range(1, len(session.keys) + 1)):
        raise Refused(
            "impossible_survivors",
            "a member sent a sum without having shared its secrets",
        )
    if len(set(sent)) < session.threshold:
        raise Refused(
            "too_few_survivors",
            f"{len(set(sent))} members are left, and {session.threshold} are needed",
        )


def survivor_words(
    session: SessionKeys,
    sum_name: str,
    shared: Members,
    sent: Members,
    question: str,
) -> bytes:
    """What a member signs before a sum is opened: of whom it is, and what all members were asked
    for.

    question: stands for the request that was answered, where members could have been asked
              different ones.
    """
    return record_json(
        {
            "ridgeway": "masking survivors 1",
            "session": session.id.hex(),
            "lot": sum_name,
            "question": question,
            "shared": sorted(set(shared)),
            "sent": sorted(set(sent)),
        }
    )


def lock_words(survivors: bytes) -> bytes:
    """What a member of a large cohort signs before it reveals anything: that it will for this set,
    and for no other.

    survivors: what it signed of the set before.
    """
    return record_json({"ridgeway": "masking lock 1", "survivors": sha256(survivors)})


def self_key(
    session: SessionKeys, sum_name: str, member: MemberIndex, seed: bytes
) -> bytes:
    return _derived(session, seed, f"own mask {sum_name} {member}", KEY_BYTES)


def pair_key(
    session: SessionKeys,
    sum_name: str,
    member: MemberIndex,
    other: MemberIndex,
    private: X25519PrivateKey,
) -> bytes:
    """The key of the mask that two members share. private: what one of them has advertised the
    other half of.
    """
    low, high = sorted((member, other))
    public = session.masks[session.lots.index(sum_name)][other - 1]
    return _derived(
        session,
        _exchanged(private, public),
        f"mask in pairs {sum_name} {low} {high}",
        KEY_BYTES,
    )


def envelope_key(
    session: SessionKeys,
    secrets: Secrets,
    member: MemberIndex,
    other: MemberIndex,
    *,
    sender: MemberIndex,
) -> bytes:
    receiver = other if sender == member else member
    shared = _exchanged(secrets.cipher_key, session.ciphers[other - 1])
    return _derived(session, shared, f"envelope {sender} {receiver}", 32)


def _derived(session: SessionKeys, secret: bytes, purpose: str, size: int) -> bytes:
    return HKDF(
        SHA256(),
        size,
        salt=session.id,
        info=f"ridgeway masking {AGREEMENT_VERSION} {purpose}".encode(),
    ).derive(secret)


def _exchanged(private: X25519PrivateKey, public: str) -> bytes:
    try:
        return private.exchange(
            X25519PublicKey.from_public_bytes(bytes.fromhex(public))
        )
    except ValueError:
        raise Refused("bad_key", "a member uses a low-order X25519 key") from None


def private_key(secret: bytes) -> X25519PrivateKey:
    """The key of 32 secret bytes; to make it costs a third of an exchange, so it is made once for
    many.
    """
    return X25519PrivateKey.from_private_bytes(secret)


def public_half(secret: bytes) -> bytes:
    return private_key(secret).public_key().public_bytes_raw()


def seed_digest(seed: bytes) -> str:
    return hashlib.sha256(b"ridgeway masking seed" + seed).hexdigest()
