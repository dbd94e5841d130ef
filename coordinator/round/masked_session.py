"""One masked session as the coordinator leads it: share, hold, seal, confirm, open.

It passes on what it cannot read and adds up what it cannot see, and learns the sums over those who
sent, once enough members have opened them; masking/reference_session.py shows the whole protocol in
one function.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import MaskingError, Refused, RoundFailed
from ridgeway.common.base.identity import is_signed_by
from ridgeway.common.masking.agreement import (
    Agreement,
    MemberIndex,
    lock_words,
    survivor_words,
    threshold_for,
)
from ridgeway.common.masking.opening import Opening, by_owner
from ridgeway.common.masking.shares import (
    MAX_GONE,
    SHARE_BYTES,
    Sealed,
    pack_by_member,
    unpack_by_member,
)
from ridgeway.common.protocol import messages
from ridgeway.common.protocol.cohort import Cohort
from ridgeway.common.protocol.messages import (
    ENVELOPE_BYTES,
    SUM_NAMES,
    Message,
    Offer,
    SumName,
)
from ridgeway.common.protocol.packet import Blob
from ridgeway.coordinator.round.ask import Channel, HolderAnswer
from ridgeway.coordinator.round.gathering import Check
from ridgeway.coordinator.round.progress import SealedReceived, SecretsShared, SumOpened

Answer = TypeVar(
    "Answer",
    messages.Envelopes,
    messages.Held,
    messages.SealedSums,
    messages.Confirmed | messages.Locked,
    messages.Revealed,
)

Parts = dict[MemberIndex, bytes]
Signatures = dict[MemberIndex, str]
OpenedSum = tuple[NDArray[np.int64], set[str]]
"""A sum, and the names of those whose numbers are in it."""


class Session:
    """A session with holders that have advertised their keys.

    shared: the members that have dealt their secrets out, by index. name_of: who stands at each
            index.
    """

    def __init__(
        self, channel: Channel, cohort: Cohort, offers: Mapping[str, Offer]
    ) -> None:
        adverts = {
            offer.advert.key: (name, offer.advert)
            for name, offer in offers.items()
            if offer.advert
        }
        keys = sorted(member.key for member in cohort.members)
        self._channel = channel
        self._cohort = cohort
        self._watch = channel.watch
        self.agreement = Agreement(
            terms=cohort.terms.id,
            cohort=cohort.id,
            round=channel.nonce,
            lots=SUM_NAMES,
            threshold=threshold_for(len(keys)),
            adverts=tuple(adverts[key][1] for key in keys),
        )
        self.id = self.agreement.id.hex()
        self.name_of = {
            index: adverts[key][0] for index, key in enumerate(keys, start=1)
        }
        self.index_of = {name: index for index, name in self.name_of.items()}
        self.shared: tuple[MemberIndex, ...] = ()
        self._envelopes: dict[MemberIndex, Parts] = {}
        self._holders: dict[MemberIndex, set[MemberIndex]] = {}

    def share(self) -> None:
        """Let every member deal its secrets out. Raises RoundFailed unless enough do."""
        request = messages.Share(cohort=self._cohort, agreement=self.agreement)
        answers = self._channel.ask(
            request, messages.Envelopes, names=list(self.index_of)
        )
        for index, answer in self._of_this_session(answers):
            with answer.accept():
                envelopes = self._dealt(index, answer.blobs[0])
                self._envelopes[index] = envelopes
                self._holders[index] = set(envelopes)
                # in a small cohort a member keeps a share of its own
                if not self.agreement.neighbourhood:
                    self._holders[index].add(index)
                self._watch(SecretsShared(answer.name))
        self.shared = tuple(sorted(self._envelopes))
        self._must_suffice(len(self.shared), "shared their secrets")

    def _dealt(self, dealer: MemberIndex, content: Blob) -> Parts:
        """The envelopes that a member has made: for every other, or for as many as a large cohort
        needs.
        """
        sizes = self.agreement.neighbourhood
        others = set(self.agreement.indices) - {dealer}
        dealt = _by_member(content, ENVELOPE_BYTES, "bad_envelope")
        needed = sizes.holders if sizes else len(others)
        if not set(dealt) <= others or len(dealt) != needed:
            raise Refused("bad_envelope", "envelopes are missing for some members")
        return dealt

    def hold(self) -> set[str]:
        """Pass every member's envelopes on, and ask for nothing; returns who holds them."""
        holding = set()
        request = messages.Hold(session=self.id, shared=self.shared)
        answers = self._channel.ask(request, messages.Held, blobs_of=self._forwarded())
        for _, answer in self._of_this_session(answers):
            holding.add(answer.name)
        return holding

    def sum_statistics(self, size: int, check: Check) -> OpenedSum:
        """Pass every member's envelopes on; the sum of the statistics that they seal, and who has
        sent any.
        """
        request = messages.Seal(session=self.id, shared=self.shared)
        answers = self._channel.ask(
            request, messages.SealedSums, blobs_of=self._forwarded()
        )
        return self._sum("statistics", size, answers, check)

    def sum_counts(
        self,
        size: int,
        question: Message,
        blob: Blob,
        names: Collection[str],
        check: Check,
    ) -> OpenedSum:
        """The sum of the counts that members seal in answer to a question, and who has sent any."""
        answers = self._channel.ask(
            question, messages.SealedSums, names=names, blobs=[blob]
        )
        return self._sum("counts", size, answers, check)

    def _forwarded(self) -> dict[str, Sequence[Blob]]:
        """What is passed on to each member that has shared: the envelopes that others have made for
        it.
        """
        inbox = by_owner(self._envelopes)
        return {
            self.name_of[index]: [pack_by_member(inbox.get(index, {}))]
            for index in self.shared
        }

    def _sum(
        self,
        sum_name: SumName,
        size: int,
        answers: Iterator[HolderAnswer[messages.SealedSums]],
        check: Check,
    ) -> OpenedSum:
        """The sum over those who send and sign, and their names."""
        opening = Opening(self.agreement, sum_name, self._holders, size)
        with tempfile.TemporaryFile() as file:
            kept = SealedFile(file)
            for index, answer in self._of_this_session(answers):
                with answer.accept():
                    if answer.message.lot != sum_name:
                        raise Refused(
                            "malformed",
                            f"expected {sum_name}, received {answer.message.lot}",
                        )
                    sealed = Sealed.of_bytes(answer.blobs[0])
                    opening.add(index, sealed)
                    kept.keep(index, sealed)
                    received = memoryview(answer.blobs[0]).nbytes
                    self._watch(SealedReceived(answer.name, sum_name, received))
            # each member is asked for statistics with envelopes of its own
            question = self._channel.last_request if sum_name == "counts" else ""
            return self._open(sum_name, opening, question, check, kept)

    def _open(
        self,
        sum_name: SumName,
        opening: Opening,
        question: str,
        check: Check,
        kept: SealedFile,
    ) -> OpenedSum:
        """The sum over those who sent and signed. Raises RoundFailed, and nothing is revealed,
        unless enough did.

        Whoever sent and does not sign is taken out, and the others are asked to sign what is left.
        """
        done = f"sent their {sum_name}"
        while True:
            sent = tuple(sorted(opening.sent))
            self._must_suffice(len(sent), done)
            names = {self.name_of[index] for index in sent}
            check(names)
            # they sign who has shared, who has sent and what was asked
            words = survivor_words(
                self.agreement, sum_name, self.shared, sent, question
            )
            request = messages.ConfirmSum(session=self.id, lot=sum_name, sent=sent)
            confirmations = self._signed(request, messages.Confirmed, words)
            unsigned = opening.sent - set(confirmations)
            if not unsigned:
                break
            for index in unsigned:
                opening.remove(index, kept.of(index))
            done = f"signed the sum of {sum_name}"
        locks = {}
        if self.agreement.neighbourhood:
            locks = self._locked(sum_name, sent, opening, words)
        reveals = self._revealed(sum_name, sent, confirmations, locks)
        self._must_suffice(len(reveals), f"opened the sum of {sum_name}")
        try:
            total = opening.total(reveals)
        except Refused as error:
            cause = (
                "A member sent wrong shares or runs different code; remove it if this"
                " happens again"
            )
            # a threshold opened, but of some member too few hold shares
            if error.code == "too_few_shares":
                cause = "Members dropped out after they had locked it"
            raise RoundFailed(
                f"the sum of {sum_name} could not be opened: {error}. {cause}. Run the"
                " round again"
            ) from None
        self._watch(SumOpened(sum_name, len(sent), len(self.agreement.adverts)))
        return total, names

    def _locked(
        self,
        sum_name: SumName,
        sent: tuple[MemberIndex, ...],
        opening: Opening,
        words: bytes,
    ) -> Signatures:
        """The signatures of members of a large cohort that they will open this set and no other."""
        if lost := opening.out_of_reach():
            raise RoundFailed(
                "too many members dropped out: too few shares are left of"
                f" {self.name_of[lost[0]]} ({len(lost)} in all), so nothing was"
                f" opened. Run the round again: a cohort of {len(self.name_of)}"
                f" tolerates one dropout in {MAX_GONE} members"
            )
        request = messages.LockSum(session=self.id, lot=sum_name, sent=sent)
        locks = self._signed(request, messages.Locked, lock_words(words))
        self._must_suffice(len(locks), f"locked the sum of {sum_name}")
        return locks

    def _signed(
        self,
        request: messages.ConfirmSum | messages.LockSum,
        expected: type[messages.Confirmed | messages.Locked],
        words: bytes,
    ) -> Signatures:
        """The signatures over these words of those who sent; another's, or over other words, are
        refused.
        """
        signatures = {}
        names = [self.name_of[index] for index in request.sent]
        answers = self._channel.ask(request, expected, names=names)
        for index, answer in self._of_this_session(answers):
            with answer.accept():
                key = self.agreement.keys[index - 1]
                if not is_signed_by(key, answer.message.signature, words):
                    raise Refused(
                        "bad_confirmation",
                        "the signature covers another set of members",
                    )
                signatures[index] = answer.message.signature
        return signatures

    def _revealed(
        self,
        sum_name: SumName,
        sent: tuple[MemberIndex, ...],
        confirmations: Signatures,
        locks: Signatures,
    ) -> dict[MemberIndex, Parts]:
        """The shares that those who confirmed give out, by giver and by the member whose secret it
        is.
        """
        reveals = {}
        request = messages.OpenSum(
            session=self.id,
            lot=sum_name,
            sent=sent,
            confirmations=tuple(sorted(confirmations.items())),
            locks=tuple(sorted(locks.items())[: self.agreement.threshold]),
        )
        asked = [self.name_of[index] for index in locks or confirmations]
        held = by_owner(
            {index: dict.fromkeys(holders) for index, holders in self._holders.items()}
        )
        answers = self._channel.ask(request, messages.Revealed, names=asked)
        for giver, answer in self._of_this_session(answers):
            with answer.accept():
                shares = _by_member(answer.blobs[0], SHARE_BYTES, "shape_mismatch")
                if set(shares) != set(held.get(giver, ())):
                    raise Refused(
                        "shape_mismatch",
                        "the shares do not match the members whose shares it holds",
                    )
                reveals[giver] = shares
        return reveals

    def _of_this_session(
        self, answers: Iterator[HolderAnswer[Answer]]
    ) -> Iterator[tuple[MemberIndex, HolderAnswer[Answer]]]:
        """The answers with their senders' indices; those of another session are refused."""
        for answer in answers:
            if answer.message.session == self.id:
                yield self.index_of[answer.name], answer
            else:
                answer.error = Refused("other_session", "an answer of another session")

    def _must_suffice(self, members: int, what: str) -> None:
        needed = self.agreement.threshold
        if members < needed:
            refusal = self._channel.last_refusal
            refusal = f" The last refusal was {refusal}." if refusal else ""
            raise RoundFailed(
                f"{members} of {len(self.agreement.adverts)} members {what}, but"
                f" {needed} are needed, so nothing was opened.{refusal} Run the round"
                " again when more members are online"
            )


class SealedFile:
    """The sealed vectors of one sum, in a file, in case one must be taken out of the sum again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._span: dict[MemberIndex, tuple[int, int]] = {}

    def keep(self, index: MemberIndex, sealed: Sealed) -> None:
        start = self._file.seek(0, os.SEEK_END)
        self._span[index] = start, self._file.write(sealed.data)

    def of(self, index: MemberIndex) -> Sealed:
        start, size = self._span[index]
        self._file.seek(start)
        return Sealed.of_bytes(self._file.read(size))


def _by_member(content: Blob, size: int, code: str) -> Parts:
    """A blob's parts of one size, by the members that stand before them; else refused with this
    code.
    """
    try:
        return unpack_by_member(content, size)
    except MaskingError as error:
        raise Refused(code, str(error)) from None
