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
    check_agreement,
    threshold_for,
)
from ridgeway.common.masking.keystream import Sealed
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
from ridgeway.common.masking.shares import Random

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
    """All that members and coordinator made in a session, by the members' places, and the total in
    the end.
    """

    agreement: Agreement
    members: Mapping[MemberIndex, Identity]
    secrets: Mapping[MemberIndex, Secrets]
    dealt: Mapping[MemberIndex, Dealt]
    holders: Mapping[MemberIndex, set[MemberIndex]]
    held: Mapping[MemberIndex, Mapping[MemberIndex, bytes]]
    sealed: Mapping[MemberIndex, Sealed]
    confirmations: Mapping[MemberIndex, str]
    locks: Mapping[MemberIndex, str]
    reveals: Mapping[MemberIndex, Mapping[MemberIndex, bytes]]
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
    identity = {place: who for place, (who, _) in enumerate(in_order, start=1)}
    vector = {place: numbers for place, (_, numbers) in enumerate(in_order, start=1)}

    def present(step: Step) -> list[MemberIndex]:
        return [
            place
            for place in identity
            if place not in fallen or _STEPS.index(fallen[place]) > _STEPS.index(step)
        ]

    # 0. Every member makes secrets and signs their public halves; the coordinator shows all of them
    #    to all.
    secrets = {
        place: new_secrets(len(sum_names), random("secrets", place))
        for place in identity
    }
    agreement = _agreement(identity, secrets, sum_names, round_)

    # 1. Every member deals its secrets out in shares; the coordinator passes the envelopes on.
    pinned = [who.public for who in members]
    dealt = {
        own: _dealt(agreement, secrets[own], own, pinned, random("shares", own))
        for own in present("share")
    }
    shared = sorted(dealt)
    holders = {place: dealt[place].holders(place) for place in shared}

    # 2. Every member opens its envelopes, and seals its vector: a mask of its own, and one with
    #    each that it dealt to or that dealt to it, if that one shared.
    held = {own: _held(agreement, secrets[own], own, dealt) for own in shared}
    sealed = {
        own: seal(
            agreement,
            secrets[own],
            own,
            sum_name,
            shared,
            {*holders[own], *held[own]},
            vector[own],
        )
        for own in shared
    }

    # 3. The coordinator adds up what reaches it: masks in pairs cancel, except with those who fall
    #    away here.
    opening = Opening(agreement, sum_name, holders, len(vector[1]))
    for place in present("send"):
        opening.add(place, sealed[place])

    # 4. Every sender signs who has shared and who has sent; 5. in a large cohort, those who are
    #    left lock that sum.
    signing = {place: identity[place] for place in present("confirm")}
    confirmations = _signed(agreement, signing, sum_name, shared, opening, sealed)
    sent = sorted(opening.sent)
    locks = _locked(
        agreement,
        {place: identity[place] for place in present("open")},
        sum_name,
        shared,
        sent,
    )

    # 6. Members give out the share of each signer's own mask, and of the pair masks of those who
    #    shared and are not in the sum; the coordinator takes these masks off.
    reveals = {
        place: reveal(
            agreement,
            place,
            sum_name,
            held[place],
            shared,
            sent,
            confirmations,
            locks=locks,
        )
        for place in present("open")
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


def _agreement(
    identity: Mapping[MemberIndex, Identity],
    secrets: Mapping[MemberIndex, Secrets],
    sum_names: tuple[str, ...],
    round_: str,
) -> Agreement:
    """What all members advertise, as the coordinator shows it to each of them."""
    adverts = (
        advertise(secrets[place], who, _TERMS, round_, source_of(who), NO_DOCUMENTS)
        for place, who in identity.items()
    )
    threshold = threshold_for(len(identity))
    return Agreement(
        terms=_TERMS,
        cohort=COHORT,
        round=round_,
        lots=sum_names,
        threshold=threshold,
        adverts=tuple(adverts),
    )


def _dealt(
    agreement: Agreement,
    secrets: Secrets,
    own: MemberIndex,
    pinned: Sequence[str],
    random: Random,
) -> Dealt:
    """A member's shares, after it has checked the agreement against the keys that it has pinned.
    They are encrypted for each other member; in a large cohort, for some that it draws.
    """
    check_agreement(agreement, agreement.advert(own), pinned)
    return share(agreement, secrets, own, random)


def _held(
    agreement: Agreement,
    secrets: Secrets,
    own: MemberIndex,
    dealt: Mapping[MemberIndex, Dealt],
) -> dict[MemberIndex, bytes]:
    """The shares that a member has: what it kept of its own, and what was in the envelopes that it
    got.
    """
    held = {own: dealt[own].kept} if dealt[own].kept else {}
    for other, theirs in dealt.items():
        if own in theirs.envelopes:
            held[other] = open_envelope(
                agreement, secrets, own, other, theirs.envelopes[own]
            )
    return held


def _signed(
    agreement: Agreement,
    signing: Mapping[MemberIndex, Identity],
    sum_name: str,
    shared: Sequence[MemberIndex],
    opening: Opening,
    sealed: Mapping[MemberIndex, Sealed],
) -> dict[MemberIndex, str]:
    """The signatures under the sum of those who sent, so that all of them open the same.

    It opens only if everybody in it has signed: whoever does not is taken out, and the others sign
    what is left, and give up the larger sum by that.
    """
    while True:
        sent = sorted(opening.sent)
        signatures = {
            place: confirm(agreement, who, sum_name, shared, sent)
            for place, who in signing.items()
            if place in sent
        }
        if len(signatures) == len(sent):
            return signatures
        for place in set(sent) - set(signatures):
            opening.remove(place, sealed[place])


def _locked(
    agreement: Agreement,
    opening: Mapping[MemberIndex, Identity],
    sum_name: str,
    shared: Sequence[MemberIndex],
    sent: Sequence[MemberIndex],
) -> dict[MemberIndex, str]:
    """The locks of a large cohort, where a member's shares lie with fewer than two thirds: each
    member signs that it will open no other sum, and opens this one once more than two thirds have.
    """
    signing = (
        [place for place in opening if place in sent] if agreement.neighbourhood else []
    )
    return {
        place: confirm(agreement, opening[place], sum_name, shared, sent, lock=True)
        for place in signing
    }


def source_of(member: Identity) -> str:
    """Stands for the sums of a member; a holder makes it of its statistics."""
    return hashlib.sha256(f"sums of {member.public}".encode()).hexdigest()
