"""One masked session as the coordinator leads it: share, hold, seal, confirm, open.

It passes on what it cannot read and adds up what it cannot see, and learns the sums over those who sent, once enough
members have opened them. Knows messages and the masking protocol. Knows nothing of statistics or of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.cohort import Cohort
from common.errors import Refused, RoundFailed
from common.identity import is_signed_by
from common.masking.agreement import Agreement, Place, survivor_words, threshold_for
from common.masking.keystream import Sealed
from common.masking.opening import Opening
from common.masking.shares import SHARE_BYTES
from common.messages import (
    LOTS,
    Blob,
    Confirmed,
    ConfirmSum,
    Envelopes,
    Held,
    Hold,
    Lot,
    Message,
    Offer,
    OpenSum,
    Revealed,
    Seal,
    SealedSums,
    Share,
)
from coordinator.talk import Take, Talk, Watch

Check = Callable[[Collection[str]], None]
"""Looks at who has sent, before anything is opened; raises RoundFailed if their sum should not be."""


class Session:
    """A session with holders that have advertised their keys.

    shared: the members that have dealt their secrets out, by place. name_of: who stands at each place.
    """

    def __init__(self, talk: Talk, cohort: Cohort, offers: Mapping[str, Offer], watch: Watch) -> None:
        adverts = {offer.advert.key: (name, offer.advert) for name, offer in offers.items() if offer.advert}
        keys = sorted(member.key for member in cohort.members)
        self._talk, self._cohort, self._watch = talk, cohort, watch
        self.agreement = Agreement(
            terms=cohort.terms.id,
            cohort=cohort.id,
            round=talk.nonce,
            lots=LOTS,
            threshold=threshold_for(len(keys)),
            adverts=tuple(adverts[key][1] for key in keys),
        )
        self.id = self.agreement.id.hex()
        self.name_of = {place: adverts[key][0] for place, key in enumerate(keys, start=1)}
        self.place_of = {name: place for place, name in self.name_of.items()}
        self.shared: tuple[Place, ...] = ()
        self._envelopes: dict[Place, dict[Place, bytes]] = {}

    def sources(self, names: Collection[str]) -> dict[str, str]:
        """What stands for the sums of these members, by their keys, as they have signed it."""
        adverts = [self.agreement.advert(self.place_of[name]) for name in names]
        return {advert.key: advert.source for advert in adverts}

    def share(self, pool: bytes) -> None:
        """Let every member deal its secrets out. Raises RoundFailed unless enough do.

        pool: what all members know of sums that were opened before.
        """

        def take(name: str, reply: Envelopes, blobs: Sequence[Blob]) -> None:
            self._must_be(reply.session)
            own = self.place_of[name]
            others = [place for place in self.agreement.places if place != own]
            content = bytes(blobs[0])
            size, rest = divmod(len(content), len(others))
            if rest or not size:
                raise Refused("bad_envelope", "there is not an envelope for every other member")
            self._envelopes[own] = {
                place: content[size * index : size * (index + 1)] for index, place in enumerate(others)
            }
            self._watch("shared", {"name": name})

        request = Share(cohort=self._cohort, agreement=self.agreement)
        heard = self._talk.ask(request, Envelopes, take, names=list(self.place_of), blobs=[pool])
        self.shared = tuple(sorted(self.place_of[name] for name in heard))
        self._must_suffice(len(self.shared), "shared their secrets")

    def hold(self) -> set[str]:
        """Pass every member's envelopes on, and ask for nothing."""

        def take(name: str, reply: Held, blobs: Sequence[Blob]) -> None:
            self._must_be(reply.session)

        return self._talk.ask(Hold(session=self.id, shared=self.shared), Held, take, own_blobs=self._post())

    def sum_statistics(self, size: int, check: Check) -> tuple[NDArray[np.int64], set[str]]:
        """Pass every member's envelopes on; the sum of the statistics that they seal, and who has sent any."""
        opening = Opening(self.agreement, "statistics", self.shared, size)
        request = Seal(session=self.id, shared=self.shared)
        self._talk.ask(request, SealedSums, self._adding("statistics", opening), own_blobs=self._post())
        return self._open("statistics", opening, "", check)

    def sum_counts(
        self, lot: Lot, size: int, question: Message, blobs: Sequence[Blob], names: Collection[str], check: Check
    ) -> tuple[NDArray[np.int64], set[str]]:
        """The sum of the counts that members seal in answer to a question, and who has sent any."""
        opening = Opening(self.agreement, lot, self.shared, size)
        self._talk.ask(question, SealedSums, self._adding(lot, opening), names=names, blobs=blobs)
        return self._open(lot, opening, self._talk.last_request, check)

    def _open(self, lot: Lot, opening: Opening, question: str, check: Check) -> tuple[NDArray[np.int64], set[str]]:
        """The sum of what was sent. Raises RoundFailed, and nothing is revealed, unless enough members agree."""
        sent = tuple(sorted(opening.sent))
        self._must_suffice(len(sent), f"sent their {lot}")
        names = {self.name_of[place] for place in sent}
        check(names)
        confirmations = self._confirmed(lot, sent, question)
        self._must_suffice(len(confirmations), f"confirmed the sum of {lot}")
        reveals = self._revealed(lot, sent, confirmations)
        self._must_suffice(len(reveals), f"opened the sum of {lot}")
        try:
            total = opening.total(reveals)
        except Refused as error:
            raise RoundFailed(
                f"the sum of {lot} could not be opened: {error}. A member gave shares that are not its own, or runs "
                "other code; run the round again, and leave out whoever it is if it happens again"
            ) from None
        self._watch("opened_sum", {"lot": lot, "members": len(sent), "of": len(self.agreement.adverts)})
        return total, names

    def _adding(self, lot: Lot, opening: Opening) -> Take[SealedSums]:
        def take(name: str, reply: SealedSums, blobs: Sequence[Blob]) -> None:
            self._must_be(reply.session)
            if reply.lot != lot:
                raise Refused("malformed", f"{lot} were asked for, not {reply.lot}")
            opening.add(self.place_of[name], Sealed.of_bytes(blobs[0]))
            self._watch("sealed", {"name": name, "lot": lot, "bytes": memoryview(blobs[0]).nbytes})

        return take

    def _post(self) -> dict[str, Sequence[Blob]]:
        """What is passed on to each member that has shared: the others' envelopes, in the order of their places."""
        return {
            self.name_of[own]: [b"".join(self._envelopes[place][own] for place in self.shared if place != own)]
            for own in self.shared
        }

    def _confirmed(self, lot: Lot, sent: tuple[Place, ...], question: str) -> dict[Place, str]:
        words = survivor_words(self.agreement, lot, self.shared, sent, question)
        signatures: dict[Place, str] = {}

        def take(name: str, reply: Confirmed, blobs: Sequence[Blob]) -> None:
            self._must_be(reply.session)
            place = self.place_of[name]
            if not is_signed_by(self.agreement.advert(place).key, reply.signature, words):
                raise Refused("bad_confirmation", "another set of members was signed than the one that was sent")
            signatures[place] = reply.signature

        request = ConfirmSum(session=self.id, lot=lot, sent=sent)
        self._talk.ask(request, Confirmed, take, names=[self.name_of[place] for place in sent])
        return signatures

    def _revealed(
        self, lot: Lot, sent: tuple[Place, ...], confirmations: Mapping[Place, str]
    ) -> dict[Place, dict[Place, bytes]]:
        reveals: dict[Place, dict[Place, bytes]] = {}

        def take(name: str, reply: Revealed, blobs: Sequence[Blob]) -> None:
            self._must_be(reply.session)
            content = bytes(blobs[0])
            if len(content) != SHARE_BYTES * len(self.shared):
                raise Refused("shape_mismatch", "there is not one share for every member")
            reveals[self.place_of[name]] = {
                place: content[SHARE_BYTES * index : SHARE_BYTES * (index + 1)]
                for index, place in enumerate(self.shared)
            }

        pairs = tuple(sorted(confirmations.items()))
        request = OpenSum(session=self.id, lot=lot, sent=sent, confirmations=pairs)
        self._talk.ask(request, Revealed, take, names=[self.name_of[place] for place in confirmations])
        return reveals

    def _must_be(self, session: str) -> None:
        if session != self.id:
            raise Refused("other_session", "an answer for another session")

    def _must_suffice(self, members: int, what: str) -> None:
        needed = self.agreement.threshold
        if members < needed:
            refusal = f" The last refusal was {self._talk.last_refusal}." if self._talk.last_refusal else ""
            raise RoundFailed(
                f"{members} of {len(self.agreement.adverts)} members {what}, and {needed} are needed, so nothing was "
                f"opened.{refusal} Run the round again when more are there"
            )
