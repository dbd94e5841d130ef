"""Gathering in the clear: every holder's sums are checked, kept in the ledger, and added up from there.

What was accepted is not asked for again, and sums of holders that are away still count. Knows the ledger and messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ridgeway.common.base.errors import Refused, RoundFailed
from ridgeway.common.protocol.cohort import Cohort, Member, Terms
from ridgeway.common.protocol.messages import ClearStatistics, Collect, Evaluate, Offer, Reliability, Scores
from ridgeway.common.protocol.packet import Blob, statistics_of
from ridgeway.common.statistics.sums import Statistics, check_bound
from ridgeway.coordinator.round.ask import Channel, HolderAnswer
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import (
    Check,
    Counted,
    Gathered,
    Part,
    Question,
    by_question,
    checked_counts,
    cohort_of,
    count_of,
)
from ridgeway.coordinator.round.ledger import Contribution
from ridgeway.coordinator.round.progress import ScoresReceived, StatisticsReceived, Watch
from ridgeway.coordinator.solving.total import add_weighted


class ClearGathering:
    """One round's gathering in the clear; its methods are those of `MaskedGathering`."""

    def __init__(
        self, federation: Federation, channel: Channel, terms: Terms, watch: Watch, lose_nothing: Check
    ) -> None:
        self._federation, self._ledger = federation, federation.ledger
        self._channel, self._terms, self._watch = channel, terms, watch
        self._lose_nothing = lose_nothing
        self._left_out: set[str] = set()
        self.known: dict[Part, Counted] = {}

    def check_offer(self, key: str, offer: Offer, blobs: Sequence[Blob]) -> None:
        """Any offer will do: sums are checked when they come."""

    def gather(self, offers: dict[str, Offer]) -> Gathered:
        """Collect until every member's sums are there under the share that the cohort gives it, and add them up."""
        cohort = self._collect(offers)
        names = set(self._shares(cohort))
        self._lose_nothing(names)
        contributions = self._ledger.standing().contributions
        members = tuple(contributions[name] for name in sorted(names))
        parts = ((each.domain, self._ledger.sums(each), each.holdout) for each in members)
        return Gathered(add_weighted(parts, self._terms), members, frozenset(set(offers) & names))

    def _collect(self, offers: dict[str, Offer]) -> Cohort:
        """The cohort whose sums are all in the ledger. Sums that are there already are not asked for again.

        A holder that offers and then does not deliver is taken out of the offers.
        """
        while True:
            cohort = cohort_of(self._terms, self._ledger.standing().active, set(offers) | self._stored())
            shares = self._shares(cohort)
            missing = {name for name in shares if not self._is_settled(name, shares[name], offers.get(name))}
            away = missing - set(offers)
            if away:  # stored sums of another share than the cohort now gives, of holders that cannot send anew
                self._left_out |= away
                self._channel.note_absent("collect", away)
                continue
            if not missing:
                self._must_suffice(cohort, set(offers))
                return cohort
            for name in missing - self._ask_for(cohort, shares, offers, missing):
                del offers[name]
                self._left_out.clear()  # in the smaller cohort, what they sent before may fit again

    def _stored(self) -> set[str]:
        """Holders whose accepted sums can be used, whether they are there or not."""
        standing = self._ledger.standing()
        usable = {name for name, each in standing.contributions.items() if each.terms == self._terms.sums_id}
        return usable & set(standing.active) - self._left_out

    def _shares(self, cohort: Cohort) -> dict[str, Member]:
        names = {holder.key: name for name, holder in self._ledger.standing().active.items()}
        return {names[member.key]: member for member in cohort.members}

    def _is_settled(self, name: str, member: Member, offer: Offer | None) -> bool:
        stored = self._ledger.standing().contributions.get(name)
        wanted = (self._terms.sums_id, member.domain, member.share)
        if stored is None or (stored.terms, stored.domain, stored.share) != wanted:
            return False
        return (offer is None or stored.source == offer.source) and self._ledger.has_sums(stored)

    def _ask_for(
        self, cohort: Cohort, shares: dict[str, Member], offers: dict[str, Offer], names: Collection[str]
    ) -> set[str]:
        """Ask these holders for their sums and store those that are accepted; returns whose were."""
        accepted = set()
        for answer in self._channel.ask(Collect(cohort=cohort), ClearStatistics, names=names):
            with answer.accept():
                name, reply, member = answer.name, answer.message, shares[answer.name]
                if reply.cohort != cohort.id:
                    raise Refused("late", "statistics for another cohort")
                own = checked(statistics_of(answer.blobs, self._terms.features, len(cohort.domains)), member, cohort)
                holdout = offers[name].holdout
                given = Contribution(name, member.domain, reply.source, member.share, self._terms.sums_id, holdout)
                offers[name] = offers[name].model_copy(update={"source": reply.source})
                self._ledger.contribute(self._channel.nonce, given, own, own.mass)
                size = sum(memoryview(blob).nbytes for blob in answer.blobs)
                self._watch(StatisticsReceived(name, member.domain, size))
                accepted.add(name)
        return accepted

    def _must_suffice(self, cohort: Cohort, there: set[str]) -> None:
        """Enough holders must be there themselves, for sums of the absent cannot evaluate anything."""
        least = self._federation.settings.round.min_holders
        present = set(self._shares(cohort)) & there
        if len(present) < least or len(cohort.domains) < 2:
            raise RoundFailed(
                f"{len(present)} holders took part, with sums of {len(cohort.domains)} domains; at least {least} "
                "holders (`min_holders` in this coordinator's coordinator.toml) and two domains are needed. What was "
                "accepted is kept: run the round again when more are there"
            )

    def count(self, question: Question, blobs: Sequence[Blob], names: Collection[str]) -> Counted:
        """What these holders count on their held-out documents; not asked for if it came with an earlier answer."""
        if question not in self.known:
            self.known |= by_question(question, *self._counted(question, blobs, names))
        return self.known[question]

    def _counted(self, question: Question, blobs: Sequence[Blob], names: Collection[str]) -> Counted:
        counts = {name: np.zeros(count_of(question), dtype=np.int64) for name in question.domains}
        domain_of = {name: holder.domain for name, holder in self._ledger.standing().active.items()}
        heard = set()
        for answer in self._ask_to_count(question, blobs, names):
            with answer.accept():
                try:
                    given = np.array(answer.message.counts, dtype=np.int64).ravel()
                except ValueError:
                    raise Refused("shape_mismatch", "counts are not of the shape that was asked for") from None
                if isinstance(answer.message, Scores):
                    more = (answer.message.quality, answer.message.reliability)
                    given = np.concatenate([given, *(np.array(each, dtype=np.int64) for each in more)])
                counts[domain_of[answer.name]] += checked_counts(question, given)
                self._watch(ScoresReceived(answer.name))
                heard.add(answer.name)
        return counts, heard

    def _ask_to_count(
        self, question: Question, blobs: Sequence[Blob], names: Collection[str]
    ) -> Iterator[HolderAnswer[Scores]] | Iterator[HolderAnswer[Reliability]]:
        if isinstance(question, Evaluate):
            return self._channel.ask(question, Scores, names=names, blobs=blobs)
        return self._channel.ask(question, Reliability, names=names, blobs=blobs)


def checked(placed: Statistics, member: Member, cohort: Cohort) -> Statistics:
    """A holder's sums as those of its domain alone; raises unless some text of that domain could have made them."""
    place = cohort.domains.index(member.domain)
    if np.delete(placed.cross, place, axis=1).any():
        raise Refused("wrong_domain", f"sums for domains other than {member.domain}")
    own = Statistics(placed.gram, np.ascontiguousarray(placed.cross[:, [place]]))
    if cohort.terms.privacy:
        own.check_noisy()
        return own
    own.check(rounded=1 if member.share else 0)
    if not member.share:
        check_bound(own.mass * len(cohort.members))  # plain masses must leave room for the others'
    if member.share and own.mass != member.share:
        raise Refused("wrong_mass", f"sums of mass {own.mass:_} where the cohort gives {member.share:_}")
    return own
