"""Gathering in the clear: every holder's sums are checked, kept in the ledger, and added up from there.

What was accepted is not asked for again, and sums of holders that are away still count. Knows the ledger and messages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from common.cohort import Cohort, Member, Terms
from common.errors import Refused, RoundFailed
from common.messages import (
    Blob,
    ClearStatistics,
    Collect,
    Evaluate,
    Message,
    Offer,
    Reliability,
    Scores,
    statistics_of,
)
from common.statistics import Statistics, check_bound
from coordinator.candidates import Counts
from coordinator.federation import Federation
from coordinator.gathering import Gathered, Question, checked_counts, cohort_of, shape_of
from coordinator.ledger import Contribution
from coordinator.talk import Talk, Watch
from coordinator.total import Total, add_weighted


class ClearGathering:
    """One round's gathering in the clear."""

    def __init__(self, federation: Federation, talk: Talk, terms: Terms, watch: Watch) -> None:
        self._federation, self._ledger = federation, federation.ledger
        self._talk, self._terms, self._watch = talk, terms, watch
        self._left_out: set[str] = set()

    def hear(self, key: str, offer: Offer, blobs: Sequence[Blob]) -> None:
        """Any offer will do: what comes is checked when it comes."""

    def gather(self, offers: dict[str, Offer]) -> Gathered:
        """Collect until every member's sums are there under the share that the cohort gives it, and add them up."""
        cohort = self._collect(offers)
        names = set(self._shares(cohort))
        contributions = self._ledger.standing().contributions
        members = tuple(contributions[name] for name in sorted(names))
        return Gathered(self._add_up(members), members, frozenset(set(offers) & names))

    def _collect(self, offers: dict[str, Offer]) -> Cohort:
        """The cohort whose sums are all in the ledger. Sums that are there already are not asked for again.

        Whoever offers and then does not deliver is taken out of the offers.
        """
        while True:
            cohort = cohort_of(self._terms, self._ledger.standing().active, set(offers) | self._stored())
            shares = self._shares(cohort)
            missing = {name for name in shares if not self._is_settled(name, shares[name], offers.get(name))}
            away = missing - set(offers)
            if away:
                self._leave_out(away)
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
        usable = {name for name, each in standing.contributions.items() if each.terms == self._terms.id}
        return usable & set(standing.active) - self._left_out

    def _leave_out(self, names: set[str]) -> None:
        """Their stored sums have another share than the cohort now gives them, and they are not there to send anew."""
        self._left_out |= names
        facts = {"step": "collect", "names": sorted(names)}
        self._ledger.note("absent", round=self._talk.nonce, **facts)
        self._watch("absent", facts)

    def _shares(self, cohort: Cohort) -> dict[str, Member]:
        names = {holder.key: name for name, holder in self._ledger.standing().active.items()}
        return {names[member.key]: member for member in cohort.members}

    def _is_settled(self, name: str, member: Member, offer: Offer | None) -> bool:
        stored = self._ledger.standing().contributions.get(name)
        wanted = (self._terms.id, member.domain, member.share)
        if stored is None or (stored.terms, stored.domain, stored.share) != wanted:
            return False
        return (offer is None or stored.source == offer.source) and self._ledger.has_sums(stored)

    def _ask_for(
        self, cohort: Cohort, shares: dict[str, Member], offers: dict[str, Offer], names: Collection[str]
    ) -> set[str]:
        def take(name: str, reply: ClearStatistics, blobs: Sequence[Blob]) -> None:
            if reply.cohort != cohort.id:
                raise Refused("late", "statistics for another cohort")
            member = shares[name]
            own = checked(statistics_of(blobs, self._terms.features, len(cohort.domains)), member, cohort)
            given = Contribution(
                name=name,
                domain=member.domain,
                source=reply.source,
                share=member.share,
                terms=self._terms.id,
                holdout=offers[name].holdout,
                digest="",
            )
            offers[name] = offers[name].model_copy(update={"source": reply.source})
            self._ledger.contribute(self._talk.nonce, given, own, own.mass)
            size = sum(memoryview(blob).nbytes for blob in blobs)
            self._watch("received", {"name": name, "domain": member.domain, "bytes": size})

        return self._talk.ask(Collect(cohort=cohort), ClearStatistics, take, names=names)

    def _must_suffice(self, cohort: Cohort, there: set[str]) -> None:
        """Enough holders must be there themselves, for sums of the absent cannot evaluate anything."""
        least = self._federation.settings.round.min_holders
        present = set(self._shares(cohort)) & there
        if len(present) < least or len(cohort.domains) < 2:
            raise RoundFailed(
                f"{len(present)} holders took part, with sums of {len(cohort.domains)} domains; at least {least} "
                "holders and two domains are needed. What was accepted is kept: run the round again when more are there"
            )

    def _add_up(self, members: Sequence[Contribution]) -> Total:
        parts = ((each.domain, self._ledger.sums(each), each.holdout) for each in members)
        return add_weighted(parts, self._terms)

    def count(
        self, question: Question, blobs: Sequence[Blob], names: Collection[str]
    ) -> tuple[dict[str, Counts], set[str]]:
        shape = shape_of(question)
        counts = {name: np.zeros(shape, dtype=np.int64) for name in question.domains}
        domain_of = {name: holder.domain for name, holder in self._ledger.standing().active.items()}

        def take(name: str, reply: Message, blobs: Sequence[Blob]) -> None:
            assert isinstance(reply, Scores | Reliability)
            try:
                given = np.array(reply.counts, dtype=np.int64)
            except ValueError:
                raise Refused("shape_mismatch", "counts are not of the shape that was asked for") from None
            counts[domain_of[name]] += checked_counts(question, given)
            self._watch("scored", {"name": name})

        expected: type[Message] = Scores if isinstance(question, Evaluate) else Reliability
        return counts, self._talk.ask(question, expected, take, names=names, blobs=blobs)


def checked(placed: Statistics, member: Member, cohort: Cohort) -> Statistics:
    """A holder's sums as those of its domain alone; raises unless some text of that domain could have made them."""
    place = cohort.domains.index(member.domain)
    if np.delete(placed.cross, place, axis=1).any():
        raise Refused("wrong_domain", f"sums for domains other than {member.domain}")
    own = Statistics(placed.gram, np.ascontiguousarray(placed.cross[:, [place]]))
    own.check(rounded=1 if member.share else 0)
    if not member.share:
        check_bound(own.mass * len(cohort.members))  # plain masses must leave room for the others'
    if member.share and own.mass != member.share:
        raise Refused("wrong_mass", f"sums of mass {own.mass:_} where the cohort gives {member.share:_}")
    return own
