"""Gathering without masks: every holder's own sums, exact in clear rounds and under noise in
private ones.

They are checked, kept in the ledger, and added up from there. What was accepted is not asked for
again, and sums of holders that are away still count.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import Refused, RoundFailed
from ridgeway.common.base.files import sha256
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.records import record_json
from ridgeway.common.base.settings import Ridge
from ridgeway.common.masking.reference_session import masked_sum
from ridgeway.common.protocol.cohort import Cohort, Terms
from ridgeway.common.protocol.messages import (
    ClearStatistics,
    Collect,
    Evaluate,
    NoisyStatistics,
    Offer,
)
from ridgeway.common.protocol.packet import Blob, vector_of
from ridgeway.common.statistics import Statistics, check_bound
from ridgeway.coordinator.round.ask import Channel, RoundWishes
from ridgeway.coordinator.round.gathering import (
    Gathered,
    Gathering,
    Offers,
    RoundCounts,
)
from ridgeway.coordinator.round.ledger import Contribution, Ledger
from ridgeway.coordinator.round.progress import ALREADY_COUNTED, StatisticsReceived
from ridgeway.coordinator.solving.solve import Total, add_weighted, solve


class ClearGathering(Gathering):
    """One round's gathering without masks."""

    def __init__(self, channel: Channel, terms: Terms, wishes: RoundWishes) -> None:
        super().__init__(channel, terms, wishes)
        self._left_out: set[str] = set()
        self._router = ""

    def check_offer(self, key: str, offer: Offer) -> None:
        """Any will do: sums are checked when they come."""

    def agreed(self, offers: Offers) -> None:
        """As Gathering's; who has counted for another router counts with its next epoch."""
        contributions = self.standing.contributions
        sources = {name: contributions[name].source for name in self._stored()}
        sources |= {name: offer.epoch.name for name, offer in offers.items()}
        cohort = self.cohort(sources)
        self.lose_nothing(sources)
        self._must_suffice(cohort, set(offers))
        newest = self.federation.newest
        # the newest release is of these very sums: nobody need count again
        if newest and _sources(newest.members) == sources:
            return
        router = self._router_of(sources)
        counted = self.standing.counted_epochs
        done = {
            name
            for name, offer in offers.items()
            if counted.get(offer.epoch.name, router) != router
        }
        for name in done:
            self.channel.refusals[name] = (ALREADY_COUNTED, "")
        self.must_be_counted(cohort.domains, set(offers) - done, sources)

    def _router_of(self, sources: Mapping[str, str]) -> str:
        """Stands for the router that comes of these epochs, by holder, and what is asked of it."""
        experts = list(self.federation.settings.experts)
        choices = self.federation.choices_id(self.terms)
        return sha256(record_json([choices, experts, sorted(sources.items())]))

    def count(
        self, question: Evaluate, blob: Blob, names: Collection[str]
    ) -> RoundCounts:
        """As Gathering's; the ledger has for which router each has counted in its epoch."""
        counts = super().count(question, blob, names)
        contributions = self.standing.contributions
        epochs = sorted(contributions[name].source for name in counts.holders)
        self.ledger.note("counted_for", router=self._router, epochs=epochs)
        return counts

    def gather(self, offers: Offers) -> Gathered:
        """Collect until every member's sums are there under the share that the cohort gives it, and
        add them up.
        """
        self.agreed(offers)
        cohort = self._collect(offers)
        names = set(self._shares(cohort))
        self.lose_nothing(names)
        contributions = self.standing.contributions
        members = tuple(contributions[name] for name in sorted(names))
        self._router = self._router_of(_sources(members))
        total = add_contributions(self.ledger, members, self.terms)
        return Gathered(total, members, frozenset(names & set(offers)))

    def _collect(self, offers: Offers) -> Cohort:
        """The cohort whose sums are all in the ledger. Sums that are there already are not asked
        for again.

        A holder that offers and then does not deliver is taken out of the offers.
        """
        while True:
            stored = self._stored()
            cohort = self.cohort(stored | set(offers))
            shares = self._shares(cohort)
            missing = {
                name
                for name, share in shares.items()
                if name not in stored
                or not self._is_settled(name, share, offers.get(name))
            }
            away = missing - set(offers)
            # stored sums of another share than the cohort now gives, of holders that cannot send
            # anew
            if away:
                self._left_out |= away
                self.channel.note_absent("collect", away)
                continue
            if not missing:
                self._must_suffice(cohort, set(offers))
                return cohort
            for name in missing - self._ask_for(cohort, shares, offers, missing):
                del offers[name]
                # in the smaller cohort, what they sent before may fit again
                self._left_out.clear()

    def _stored(self) -> set[str]:
        """Holders whose accepted sums can be used, whether they are there or not."""
        domain_of = self.standing.domain_of
        return {
            name
            for name, sums in self.standing.contributions.items()
            if name not in self._left_out
            and sums.terms == self.terms.id
            and sums.domain == domain_of.get(name)
        }

    def _shares(self, cohort: Cohort) -> dict[str, int]:
        """Each holder's share of its domain's mass, by name."""
        return {
            name: cohort.shares[holder.key]
            for name, holder in self.standing.active.items()
            if holder.key in cohort.shares
        }

    def _is_settled(self, name: str, share: int, offer: Offer | None) -> bool:
        """Whether the stored sums are those that the cohort asks for and the holder offers."""
        stored = self.standing.contributions[name]
        if stored.share != share or (offer and stored.source != offer.epoch.name):
            return False
        return self.ledger.has_sums(stored)

    def _ask_for(
        self,
        cohort: Cohort,
        shares: Mapping[str, int],
        offers: Offers,
        names: Collection[str],
    ) -> set[str]:
        """Ask these holders for their sums and store those that are accepted; returns whose
        were.
        """
        accepted = set()
        expected: type[ClearStatistics | NoisyStatistics]
        expected = NoisyStatistics if self.terms.privacy else ClearStatistics
        for answer in self.channel.ask(Collect(cohort=cohort), expected, names=names):
            with answer.accept():
                name = answer.name
                given = self.contribution(name, offers[name], shares[name])
                reply = answer.message
                if reply.cohort != cohort.id or reply.source != given.source:
                    raise Refused(
                        "late",
                        "sums of another cohort, or of another epoch than the offer",
                    )
                blob = answer.blobs[0]
                sums = checked(self.terms, blob, given.share, len(cohort.members))
                self.ledger.contribute(self.channel.nonce, given, sums)
                size = memoryview(blob).nbytes
                self.watch(StatisticsReceived(name, given.domain, size))
                accepted.add(name)
        return accepted

    def _must_suffice(self, cohort: Cohort, there: set[str]) -> None:
        """Enough holders must be there themselves, for sums of the absent cannot evaluate
        anything.
        """
        least = self.federation.settings.round.min_holders
        present = set(self._shares(cohort)) & there
        if len(present) < least or len(cohort.domains) < 2:
            raise RoundFailed(
                f"{len(present)} holders took part, with sums of {len(cohort.domains)}"
                f" domains; a round needs at least {least} holders (`min_holders` in"
                " this coordinator's coordinator.toml) and two domains. Accepted data"
                " is kept: run the round again when more holders are online"
            )


def _sources(members: Sequence[Contribution]) -> dict[str, str]:
    """The epoch of each member's sums, by its name."""
    return {member.name: member.source for member in members}


def add_contributions(
    ledger: Ledger, members: Sequence[Contribution], terms: Terms
) -> Total:
    """The total of stored sums, read one after the other."""
    parts = ((member.domain, ledger.sums(member), member.holdout) for member in members)
    return add_weighted(parts, terms)


def checked(terms: Terms, blob: Blob, share: int, members: int) -> Statistics:
    """A holder's sums as those of its domain alone; raises unless some text could have made
    them.
    """
    sums = terms.statistics_of(vector_of(blob, terms.vector_size(1)), 1)
    if terms.privacy:
        sums.check_noisy()
        return sums
    sums.check(rounded=1 if share else 0)
    # plain masses must leave room for the others'
    if not share:
        check_bound(sums.mass * members)
    elif sums.mass != share:
        raise Refused(
            "wrong_mass",
            f"the sums have mass {sums.mass:_}; the cohort requires {share:_}",
        )
    return sums


# A whole exact round in one function, in the clear and under masks: start reading here.
#
# A real round does the same in messages (common/protocol/messages.py has their table), survives
# absent holders and crashes, and adds counts, calibration and the signed release. The laws of
# rounds compare it with this function.


def reference_round(
    cohort: Cohort,
    sums: Mapping[str, Statistics],
    scale: float,
    ridge: Ridge,
    identities: Mapping[str, Identity] | None = None,
) -> NDArray[np.float64]:
    """The weights of the router that these holders' sums give.

    sums:       each holder's own, of its one domain, by its key.
    scale:      what one unit of the encoder's integers stands for.
    identities: the holders' keys, if sums travel under masks.
    """
    terms = cohort.terms
    vectors = {}
    for member in cohort.members:
        # 1. A holder weights its sums to its share of its domain's mass (0: as they are) ...
        share = cohort.shares[member.key]
        weighted = sums[member.key].weighted(share) if share else sums[member.key]
        # ... and puts them into the column of its domain.
        column = cohort.domains.index(member.domain)
        vectors[member.key] = terms.vector_of(
            weighted.placed(column, len(cohort.domains))
        )

    # 2. The coordinator learns the sum: of plain vectors, or of masked ones, and then nothing else.
    if identities is None:
        total = np.stack(list(vectors.values())).sum(axis=0)
    else:
        members = [identities[key] for key in vectors]
        in_order = list(vectors.values())
        session = masked_sum(members, in_order, {}, lambda *_: secrets.token_bytes)
        total = session.total

    # 3. It solves W = (A + λI)⁻¹B.
    added = terms.statistics_of(total, len(cohort.domains))
    return solve(added, scale, ridge).weights
