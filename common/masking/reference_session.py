"""The whole masked protocol in one function, both sides in it: start reading here.

The function calls what holders and coordinator call in a real round; between two steps of a round,
messages carry what here stands in variables (client/round/masked_answers.py,
coordinator/round/masked_session.py). The laws, the vectors and the benchmarks of masking run it.
Pure: randomness is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.agreement import (
    Agreement,
    MemberIndex,
    Secrets,
    Shares,
    Signatures,
    check_agreement,
    threshold_for,
)
from ridgeway.common.masking.member import (
    Dealt,
    advertise,
    confirm,
    new_secrets,
    open_envelope,
    reveal,
    seal,
    share,
)
from ridgeway.common.masking.opening import Opening
from ridgeway.common.masking.shares import Random, Sealed

_TERMS = "7" * 64
COHORT = "8" * 64
ROUND = "5" * 32
NO_DOCUMENTS = "9" * 64
"""Stand for the terms, the cohort and the name of a round, where a session is run apart from one.
"""

Step = Literal["share", "send", "confirm", "open"]
_STEPS: tuple[Step, ...] = ("share", "send", "confirm", "open")
RandomOf = Callable[[str, MemberIndex], Random]
"""Where a member draws its "secrets", and the polynomials of its "shares"."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Transcript:
    """All that members and coordinator made in a session, by the members' indices, and the total in
    the end.
    """

    agreement: Agreement
    members: Mapping[MemberIndex, Identity]
    secrets: Mapping[MemberIndex, Secrets]
    dealt: Mapping[MemberIndex, Dealt]
    holders: Mapping[MemberIndex, set[MemberIndex]]
    held: Mapping[MemberIndex, Shares]
    sealed: Mapping[MemberIndex, Sealed]
    confirmations: Signatures
    locks: Signatures
    reveals: Mapping[MemberIndex, Shares]
    total: NDArray[np.int64]


def masked_sum(
    members: Sequence[Identity],
    vectors: Sequence[NDArray[np.int64]],
    fallen: Mapping[MemberIndex, Step],
    random: RandomOf,
    *,
    sum_names: tuple[str, ...] = ("statistics",),
    sum_name: str = "statistics",
    round_: str = ROUND,
) -> Transcript:
    """Add up one vector of each member, so that the coordinator learns the sum over those who sign
    it, and no other.

    fallen: the members that fall away, each with the first step that it does not take any more.
    sum_names: of all the vectors that the session can add up. sum_name: the one that it adds up
            here.

    Raises Refused where more fall away than may. Law: the total is the plain sum over those who
    sent and signed.
    """
    in_order = sorted(
        zip(members, vectors, strict=True), key=lambda pair: pair[0].public
    )
    identity = {member: who for member, (who, _) in enumerate(in_order, start=1)}
    vector = {member: numbers for member, (_, numbers) in enumerate(in_order, start=1)}

    def present(step: Step) -> list[MemberIndex]:
        return [
            member
            for member in identity
            if member not in fallen or _STEPS.index(fallen[member]) > _STEPS.index(step)
        ]

    # 0. Every member makes secrets and signs their public halves; the coordinator shows all of them
    #    to all.
    secrets = {
        member: new_secrets(len(sum_names), random("secrets", member))
        for member in identity
    }
    adverts = (
        advertise(secrets[member], who, _TERMS, round_, source_of(who), NO_DOCUMENTS)
        for member, who in identity.items()
    )
    agreement = Agreement(
        terms=_TERMS,
        cohort=COHORT,
        round=round_,
        lots=sum_names,
        threshold=threshold_for(len(identity)),
        adverts=tuple(adverts),
    )

    # 1. Every member checks the agreement against the keys that it has pinned, and deals its
    #    secrets out in shares, encrypted for each other member, in a large cohort for some that it
    #    draws; the coordinator passes the envelopes on.
    pinned = [who.public for who in members]
    dealt = {}
    for member in present("share"):
        check_agreement(agreement, agreement.advert(member), pinned)
        randomness = random("shares", member)
        dealt[member] = share(agreement, secrets[member], member, randomness)
    shared = sorted(dealt)
    holders = {member: dealt[member].holders(member) for member in shared}

    # 2. Every member opens its envelopes, and seals its vector: a mask of its own, and one with
    #    each that it dealt to or that dealt to it, if that one shared.
    held = {
        member: _held(agreement, secrets[member], member, dealt) for member in shared
    }
    sealed = {
        member: seal(
            agreement,
            secrets[member],
            member,
            sum_name,
            shared,
            {*holders[member], *held[member]},
            vector[member],
        )
        for member in shared
    }

    # 3. The coordinator adds up what reaches it: masks in pairs cancel, except with those who fall
    #    away here.
    opening = Opening(agreement, sum_name, holders, len(vector[1]))
    for member in present("send"):
        opening.add(member, sealed[member])

    # 4. Every sender signs who has shared and who has sent.
    signing = {member: identity[member] for member in present("confirm")}
    confirmations = _signed(agreement, signing, sum_name, shared, opening, sealed)
    sent = sorted(opening.sent)

    # 5. In a large cohort, where a member's shares lie with fewer than two thirds, every member
    #    that is left signs that it will open no other sum, and opens this one once more than two
    #    thirds have.
    locks = {
        member: confirm(agreement, identity[member], sum_name, shared, sent, lock=True)
        for member in present("open")
        if agreement.neighbourhood and member in sent
    }

    # 6. Members give out the share of each signer's own mask, and of the pair masks of those who
    #    shared and are not in the sum; the coordinator takes these masks off.
    reveals = {
        member: reveal(
            agreement,
            member,
            sum_name,
            held[member],
            shared,
            sent,
            confirmations,
            locks=locks,
        )
        for member in present("open")
    }
    total = opening.total(reveals)
    return Transcript(
        agreement,
        identity,
        secrets,
        dealt,
        holders,
        held,
        sealed,
        confirmations,
        locks,
        reveals,
        total,
    )


def _held(
    agreement: Agreement,
    secrets: Secrets,
    member: MemberIndex,
    dealt: Mapping[MemberIndex, Dealt],
) -> dict[MemberIndex, bytes]:
    """The shares that a member has: what it kept of its own, and what was in the envelopes that it
    got.
    """
    held = {member: dealt[member].kept} if dealt[member].kept else {}
    for other, theirs in dealt.items():
        if member in theirs.envelopes:
            held[other] = open_envelope(
                agreement, secrets, member, other, theirs.envelopes[member]
            )
    return held


def _signed(
    agreement: Agreement,
    signing: Mapping[MemberIndex, Identity],
    sum_name: str,
    shared: Sequence[MemberIndex],
    opening: Opening,
    sealed: Mapping[MemberIndex, Sealed],
) -> Signatures:
    """The signatures under the sum of those who sent, so that all of them open the same.

    It opens only if everybody in it has signed: whoever does not is taken out, and the others sign
    what is left, and give up the larger sum by that.
    """
    while True:
        sent = sorted(opening.sent)
        signatures = {
            member: confirm(agreement, who, sum_name, shared, sent)
            for member, who in signing.items()
            if member in sent
        }
        if len(signatures) == len(sent):
            return signatures
        for member in set(sent) - set(signatures):
            opening.remove(member, sealed[member])


def source_of(member: Identity) -> str:
    """Stands for the sums of a member; a holder makes it of its statistics."""
    return hashlib.sha256(f"sums of {member.public}".encode()).hexdigest()
