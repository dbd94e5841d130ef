"""Gathering without masks: every holder's own sums, exact in clear rounds and under noise in
private ones.

They are checked, kept in the ledger, and added up from there. What was accepted is not asked for
again, and sums of holders that are away still count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ridgeway.common.base.errors import Refused, RoundFailed
from ridgeway.common.protocol.cohort import Cohort, Terms
from ridgeway.common.protocol.messages import (
    ClearStatistics,
    Collect,
    Counted,
    Evaluate,
    NoisyStatistics,
    Offer,
)
from ridgeway.common.protocol.packet import Blob, vector_of
from ridgeway.common.statistics.sums import Statistics, check_bound
from ridgeway.coordinator.round.ask import Channel
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import (
    Check,
    CountedRow,
    Gathered,
    RoundCounts,
    checked_row,
    cohort_of,
    no_counts,
)
from ridgeway.coordinator.round.ledger import Contribution, Ledger
from ridgeway.coordinator.round.progress import (
    CountsReceived,
    StatisticsReceived,
    Watch,
)
from ridgeway.coordinator.solving.total import add_weighted


class ClearGathering:
    """One round's gathering without masks; its methods are those of `MaskedGathering`."""

    def __init__(
        self,
        federation: Federation,
        channel: Channel,
        terms: Terms,
        watch: Watch,
        lose_nothing: Check,
    ) -> None:
        self._federation = federation
        self._ledger = federation.ledger
        self._channel = channel
        self._terms = terms
        self._watch = watch
        self._lose_nothing = lose_nothing
        self._left_out: set[str] = set()

    def check_offer(self, key: str, offer: Offer) -> None:
        """Any offer will do: sums are checked when they come."""

    def gather(self, offers: dict[str, Offer]) -> Gathered:
        """Collect until every member's sums are there under the share that the cohort gives it, and
        add them up.
        """
        cohort = self._collect(offers)
        names = set(self._shares(cohort))
        self._lose_nothing(names)
        contributions = self._ledger.standing().contributions
        members = tuple(contributions[name] for name in sorted(names))
        parts = (
            (each.domain, self._ledger.sums(each), each.holdout) for each in members
        )
        return Gathered(
            add_weighted(parts, self._terms), members, frozenset(set(offers) & names)
        )

    def _collect(self, offers: dict[str, Offer]) -> Cohort:
        """The cohort whose sums are all in the ledger. Sums that are there already are not asked
        for again.

        A holder that offers and then does not deliver is taken out of the offers.
        """
        while True:
            cohort = cohort_of(
                self._terms,
                self._ledger.standing().active,
                set(offers) | self._stored(),
            )
            shares = self._shares(cohort)
            missing = {
                name
                for name in shares
                if not self._is_settled(name, shares[name], offers.get(name))
            }
            away = missing - set(offers)
            # stored sums of another share than the cohort now gives, of holders that cannot send
            # anew
            if away:
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
        domains = {name: holder.domain for name, holder in standing.active.items()}
        usable = {
            name
            for name, each in standing.contributions.items()
            if (each.terms, each.domain) == (self._terms.id, domains.get(name))
        }
        return usable - self._left_out

    def _shares(self, cohort: Cohort) -> dict[str, int]:
        """Each holder's share of its domain's mass, by name."""
        names = {
            holder.key: name for name, holder in self._ledger.standing().active.items()
        }
        return {names[key]: share for key, share in cohort.shares.items()}

    def _is_settled(self, name: str, share: int, offer: Offer | None) -> bool:
        standing = self._ledger.standing()
        stored = standing.contributions.get(name)
        wanted = self._terms.id, standing.active[name].domain, share
        if stored is None or (stored.terms, stored.domain, stored.share) != wanted:
            return False
        return (
            offer is None or stored.source == offer.epoch.name
        ) and self._ledger.has_sums(stored)

    def _ask_for(
        self,
        cohort: Cohort,
        shares: dict[str, int],
        offers: dict[str, Offer],
        names: Collection[str],
    ) -> set[str]:
        """Ask these holders for their sums and store those that are accepted; returns whose
        were.
        """
        accepted = set()
        active = self._ledger.standing().active
        expected: type[ClearStatistics | NoisyStatistics]
        expected = NoisyStatistics if self._terms.privacy else ClearStatistics
        for answer in self._channel.ask(Collect(cohort=cohort), expected, names=names):
            with answer.accept():
                name = answer.name
                reply = answer.message
                if reply.cohort != cohort.id or reply.source != offers[name].epoch.name:
                    raise Refused(
                        "late",
                        "sums for another cohort, or of another epoch than was offered",
                    )
                own = checked(
                    self._terms, answer.blobs[0], shares[name], len(cohort.members)
                )
                given = Contribution(
                    name,
                    active[name].domain,
                    reply.source,
                    shares[name],
                    self._terms.id,
                    offers[name].holdout,
                )
                self._ledger.contribute(self._channel.nonce, given, own, own.mass)
                size = memoryview(answer.blobs[0]).nbytes
                self._watch(StatisticsReceived(name, active[name].domain, size))
                accepted.add(name)
        return accepted

    def _must_suffice(self, cohort: Cohort, there: set[str]) -> None:
        """Enough holders must be there themselves, for sums of the absent cannot evaluate
        anything.
        """
        least = self._federation.settings.round.min_holders
        present = set(self._shares(cohort)) & there
        if len(present) < least or len(cohort.domains) < 2:
            raise RoundFailed(
                f"{len(present)} holders took part, with sums of {len(cohort.domains)}"
                f" domains; at least {least} holders (`min_holders` in this"
                " coordinator's coordinator.toml) and two domains are needed. What was"
                " accepted is kept: run the round again when more are there"
            )

    def count(
        self,
        question: Evaluate,
        blobs: Sequence[Blob],
        names: Collection[str],
        may_lack: Collection[str] = (),
    ) -> RoundCounts:
        """What these holders count on their held-out documents."""
        return counts_of(
            self._channel, self._ledger, self._watch, question, blobs, names
        )


def counts_of(
    channel: Channel,
    ledger: Ledger,
    watch: Watch,
    question: Evaluate,
    blobs: Sequence[Blob],
    names: Collection[str],
) -> RoundCounts:
    """What these holders count, each in an answer of its own."""
    rows: dict[str, CountedRow] = {
        name: no_counts(question) for name in question.domains
    }
    domain_of = {
        name: holder.domain for name, holder in ledger.standing().active.items()
    }
    heard = set()
    for answer in channel.ask(question, Counted, names=names, blobs=blobs):
        with answer.accept():
            told = answer.message
            given = np.array(
                [*told.counts, *told.quality, *told.reliability], dtype=np.int64
            )
            domain = domain_of[answer.name]
            rows[domain] = rows[domain] + checked_row(question, given)
            watch(CountsReceived(answer.name))
            heard.add(answer.name)
    return RoundCounts(rows, frozenset(heard))


def checked(terms: Terms, blob: Blob, share: int, members: int) -> Statistics:
    """A holder's sums as those of its domain alone; raises unless some text could have made
    them.
    """
    own = terms.statistics_of(vector_of(blob, terms.vector_size(1)), 1)
    if terms.privacy:
        own.check_noisy()
        return own
    own.check(rounded=1 if share else 0)
    if not share:
        check_bound(own.mass * members)  # plain masses must leave room for the others'
    if share and own.mass != share:
        raise Refused(
            "wrong_mass", f"sums of mass {own.mass:_} where the cohort gives {share:_}"
        )
    return own
