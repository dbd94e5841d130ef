"""Secure aggregation, the member's side: advertise, share, seal, confirm, lock, reveal.

Bonawitz et al. 2017 in the variant against a hostile server: every pair of members shares a mask
that cancels in the sum, every member has a mask of its own, and both can be taken off only with
shares that the others hold. A member gives out shares of one kind or the other for anybody, never
both, and only for a sum that every member in it has signed.

Pure: randomness, keys and what arrived are passed in, and nothing is remembered here; that a
session is answered once is for the caller to see to.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.identity import Identity, is_signed_by
from ridgeway.common.masking.agreement import (
    AGREEMENT_VERSION,
    NO_HISTORY,
    Advert,
    Agreement,
    MemberIndex,
    Members,
    Secrets,
    SessionKeys,
    Shares,
    Signatures,
    advert_words,
    check_survivors,
    envelope_key,
    lock_words,
    member_index,
    pair_key,
    private_key,
    public_half,
    seed_digest,
    self_key,
    survivor_words,
)
from ridgeway.common.masking.shares import (
    SHARE_BYTES,
    Random,
    Sealed,
    apply_masks,
    draw,
    split,
)

NO_LOCKS: Signatures = MappingProxyType({})
NONCE = bytes(12)
"""Every envelope has a key of its own, so the nonce need not change."""


def new_secrets(sums: int, random: Random) -> Secrets:
    keys = tuple(random(32) for _ in range(sums))
    return Secrets(random(16), random(32), keys, tuple(random(32) for _ in range(sums)))


def advertise(
    secrets: Secrets,
    identity: Identity,
    terms: str,
    round_: str,
    source: str,
    held_out: str,
) -> Advert:
    """Round 0: sign the public halves."""
    facts = {
        "version": AGREEMENT_VERSION,
        "key": identity.public,
        "source": source,
        "held_out": held_out,
        "history": NO_HISTORY,
        "nonce": secrets.nonce.hex(),
        "cipher": public_half(secrets.cipher).hex(),
        "masks": [public_half(key).hex() for key in secrets.masks],
        "seeds": [seed_digest(seed) for seed in secrets.seeds],
    }
    signature = identity.sign(advert_words(facts, terms, round_))
    return Advert.model_validate_json(canonical_json({**facts, "signature": signature}))


@dataclass(frozen=True, slots=True, repr=False)
class Dealt:
    """A member's secrets, dealt out: an envelope for each other holder, and the part that it keeps
    itself, if any.
    """

    envelopes: dict[MemberIndex, bytes]
    kept: bytes

    def holders(self, member: MemberIndex) -> set[MemberIndex]:
        """Those that hold the shares, the member itself among them if it kept some."""
        return {*self.envelopes, member} if self.kept else set(self.envelopes)

    def __repr__(self) -> str:
        return f"<Dealt to {len(self.envelopes)}>"


def share(
    agreement: Agreement, secrets: Secrets, member: MemberIndex, random: Random
) -> Dealt:
    """Round 1: shares of every seed and every mask key, encrypted for each other member, or in a
    large cohort for some.

    Which ones is drawn here, and nobody else has a say in it.
    """
    sizes = agreement.neighbourhood
    others = [other for other in agreement.indices if other != member]
    holders = draw(others, sizes.holders, random) if sizes else agreement.indices
    shared = [
        secret
        for pair in zip(secrets.seeds, secrets.masks, strict=True)
        for secret in pair
    ]
    parts = [
        split(secret, agreement.share_threshold, holders, random) for secret in shared
    ]
    dealt = {holder: b"".join(part[holder] for part in parts) for holder in holders}
    kept = dealt.pop(member, b"")
    envelopes = {}
    for other, content in dealt.items():
        key = envelope_key(agreement, secrets, member, other, sender=member)
        envelopes[other] = ChaCha20Poly1305(key).encrypt(NONCE, content, agreement.id)
    return Dealt(envelopes, kept)


def open_envelope(
    session: SessionKeys,
    secrets: Secrets,
    member: MemberIndex,
    sender: MemberIndex,
    envelope: bytes,
) -> bytes:
    """The shares that another member has sent; raises Refused if anybody has touched them."""
    key = envelope_key(session, secrets, member, sender, sender=sender)
    try:
        content = ChaCha20Poly1305(key).decrypt(NONCE, envelope, session.id)
    except InvalidTag:
        raise Refused(
            "bad_envelope", f"the shares of member {sender} were changed in transit"
        ) from None
    if len(content) != 2 * SHARE_BYTES * len(session.lots):
        raise Refused(
            "bad_envelope", f"the shares of member {sender} have the wrong size"
        )
    return content


def seal(
    session: SessionKeys,
    secrets: Secrets,
    member: MemberIndex,
    sum_name: str,
    shared: Members,
    neighbours: Members,
    vector: NDArray[np.int64],
) -> Sealed:
    """Round 2: the vector under this member's own mask and one for every neighbour that has shared
    its secrets.

    neighbours: those that this member has dealt to, and those that have dealt to it.
    """
    check_survivors(session, shared, shared)
    if member not in shared:
        raise Refused(
            "not_in_cohort",
            "this holder is not among the members that shared, so it may not be summed",
        )
    sealed = vector.astype("<i8", copy=True).view("<u8")
    index = session.lots.index(sum_name)
    added = [self_key(session, sum_name, member, secrets.seeds[index])]
    subtracted: list[bytes] = []
    private = private_key(secrets.masks[index])
    for other in sorted(set(shared) & set(neighbours) - {member}):
        key = pair_key(session, sum_name, member, other, private)
        (added if member < other else subtracted).append(key)
    apply_masks(sealed, added, subtracted)
    return Sealed(sealed)


def confirm(
    session: SessionKeys,
    identity: Identity,
    sum_name: str,
    shared: Members,
    sent: Members,
    question: str = "",
    *,
    lock: bool = False,
) -> str:
    """Round 3: sign who has shared and who has sent, so that no two members can be shown different
    sets.

    lock: sign, in a large cohort and before round 4, that shares will be revealed for this set and
          for no other.
    """
    check_survivors(session, shared, sent)
    if member_index(session, identity.public) not in sent:
        raise Refused(
            "declared_dead",
            "this holder is asked to sign a sum that it is not part of",
        )
    words = survivor_words(session, sum_name, shared, sent, question)
    return identity.sign(lock_words(words) if lock else words)


def reveal(
    session: SessionKeys,
    member: MemberIndex,
    sum_name: str,
    held: Shares,
    shared: Members,
    sent: Members,
    confirmations: Signatures,
    question: str = "",
    locks: Signatures = NO_LOCKS,
) -> dict[MemberIndex, bytes]:
    """Round 4: of every member that has sent, the share of its seed; of every other, the share of
    its mask key.

    held:  the shares that this member has, its own among them if it kept one. Never both kinds for
           one member.
    locks: in a large cohort, the signatures of those that will reveal for no other set. A member's
           own mask comes off only with shares of holders that have seen its confirmation; so each
           looks at those of whom it holds shares, or at their locks: who has locked a set has
           signed it.
    """
    check_survivors(session, shared, sent)
    if member not in sent:
        raise Refused(
            "declared_dead",
            "this holder is asked to open a sum that it is not part of",
        )
    words = survivor_words(session, sum_name, shared, sent, question)
    locked = (
        _locked(session, lock_words(words), sent, locks)
        if session.neighbourhood
        else set()
    )
    for other in set(sent) & set(held) - {member} - locked:
        if not _signs(session, other, confirmations.get(other, ""), words):
            raise Refused(
                "not_confirmed",
                "a member of this sum has not signed for its opening",
            )
    if session.neighbourhood and (few := session.threshold - len(locked)):
        raise Refused(
            "not_locked",
            f"signatures of {few} members are missing for this sum",
        )
    if not session.neighbourhood and not set(shared) <= set(held):
        raise Refused(
            "missing_shares",
            "asked for shares that this holder never received",
        )
    start = 2 * SHARE_BYTES * session.lots.index(sum_name)
    revealed = {}
    for other in sorted(set(shared) & set(held)):
        first = start if other in sent else start + SHARE_BYTES
        revealed[other] = held[other][first : first + SHARE_BYTES]
    return revealed


def _locked(
    session: SessionKeys,
    words: bytes,
    sent: Members,
    locks: Signatures,
) -> set[MemberIndex]:
    """Those who have locked a set, up to as many as are needed.

    Two sets cannot both be locked by more than two thirds: an honest member would have locked both.
    """
    signed = (
        member
        for member in sorted(set(locks) & set(sent))
        if _signs(session, member, locks[member], words)
    )
    return set(islice(signed, session.threshold))


def _signs(
    session: SessionKeys, member: MemberIndex, signature: str, words: bytes
) -> bool:
    return is_signed_by(session.keys[member - 1], signature, words)
