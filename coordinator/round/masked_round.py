"""Gathering under masks: the coordinator learns the total of a cohort, and the sums of no single
member.

Exact sums, and sums whose noise is drawn in shares. A holder's data of one epoch is in one opened
total, ever. So opened totals are kept, solved again without asking anybody, and a new one needs new
epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import (
    JournalError,
    Refused,
    RoundFailed,
    StatisticsError,
)
from ridgeway.common.base.files import sha256
from ridgeway.common.base.records import record_json
from ridgeway.common.masking.agreement import (
    SMALLEST_COHORT,
    check_advert,
    threshold_for,
)
from ridgeway.common.protocol.cohort import Cohort, Terms
from ridgeway.common.protocol.messages import MAX_COUNTS, SUM_NAMES, Evaluate, Offer
from ridgeway.common.protocol.packet import Blob
from ridgeway.common.statistics import Statistics
from ridgeway.coordinator.round.ask import Channel, RoundWishes
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import (
    Check,
    Gathered,
    Gathering,
    Offers,
    RoundCounts,
    checked_row,
    no_counts,
    row_of,
    sealed_size,
    unsealed_rows,
)
from ridgeway.coordinator.round.ledger import Contribution, KeptCounts, Totalled
from ridgeway.coordinator.round.masked_session import Session
from ridgeway.coordinator.round.progress import (
    EPOCH_USED,
    CountsMissing,
    HoldersWaiting,
    TotalReused,
)
from ridgeway.coordinator.solving.solve import Total, total_of


def too_few_on_roster(federation: Federation) -> str | None:
    """Words of what a round lacks, as far as it is known without asking anybody."""
    active = federation.standing.active
    min_holders = federation.settings.round.min_holders
    least = max(SMALLEST_COHORT, min_holders)
    if len(active) >= least:
        return None
    lacking = f"{len(active)} holders are on the roster; "
    if federation.settings.uses_masks:
        return f"{lacking}a round under masks needs {least}"
    if len(active) < min_holders:
        return f"{lacking}a round needs {min_holders}"
    return (
        f"{lacking}holders refuse rounds of fewer than {SMALLEST_COHORT} unless their"
        " owners lower `min_cohort` in client.toml"
    )


class MaskedGathering(Gathering):
    """One round's gathering under masks: one session, in which up to two sums are opened."""

    def __init__(self, channel: Channel, terms: Terms, wishes: RoundWishes) -> None:
        super().__init__(channel, terms, wishes)
        self._session: Session | None = None
        self._kept: Totalled | None = None
        self._offers: Offers = {}

    def check_offer(self, key: str, offer: Offer) -> None:
        """Check a member's keys."""
        advert = offer.advert
        if advert is None:
            raise Refused("not_masked", "the offer has no keys for masking")
        check_advert(advert, self.terms.id, self.channel.nonce, len(SUM_NAMES))
        if (advert.key, advert.source) != (key, offer.epoch.name):
            raise Refused(
                "bad_advert",
                "the keys for masking are another holder's, or do not match the offer",
            )

    def agreed(self, offers: Offers) -> Totalled | None:
        """As Gathering's; a holder whose epoch is in an opened total waits for its next one."""
        standing = self.standing
        epochs = {name: offer.epoch.name for name, offer in offers.items()}
        fitting = [
            total for total in reversed(standing.totals) if self._fits(total, epochs)
        ]
        # the very total that they were asked to sign: they may again
        if not fitting and standing.signing != (self.terms.id, epochs):
            self._let_wait(offers)
        stored = self._usable(fitting)
        if stored is None:
            self.lose_nothing(offers)
        self._must_suffice(offers)
        return stored

    def _fits(self, stored: Totalled, epochs: Mapping[str, str]) -> bool:
        """Whether a kept total is what these holders would give now, and lies whole in its file."""
        sources = {member.name: member.source for member in stored.members}
        if stored.terms != self.terms.id or not epochs.items() <= sources.items():
            return False
        try:
            self.ledger.total(stored)
        except JournalError:
            return False
        return True

    def _let_wait(self, offers: Offers) -> None:
        """Take those out of the offers whose epoch is in an opened total."""
        all_used = all(offer.epoch.used for offer in offers.values())
        waiting = [
            name
            for name, offer in sorted(offers.items())
            if offer.epoch.name in self.standing.totalled_epochs
            or (offer.epoch.used and not all_used)
        ]
        for name in waiting:
            self.channel.refusals[name] = (EPOCH_USED, "")
            del offers[name]
        if waiting:
            self.watch(HoldersWaiting(waiting))

    def gather(self, offers: Offers) -> Gathered:
        """The total of every holder that can be counted; one that offers and then does not deliver
        is left out.
        """
        self._offers = offers
        stored = self.agreed(offers)
        if stored is not None:
            self.watch(TotalReused(len(stored.members)))
            self._kept = stored
            sums = self.ledger.total(stored)
            total = self._total(stored.members, stored.domains, sums)
            return Gathered(total, stored.members, frozenset(offers))
        cohort = self.cohort(offers)
        session = self._session = Session(self.channel, cohort, offers)
        self._check_members(offers)
        session.share()
        size = self.terms.vector_size(len(cohort.domains))
        vector, sent = session.sum_statistics(size, self._let_sign)
        return self._totalled(cohort, sent, vector)

    def _usable(self, totals: Sequence[Totalled]) -> Totalled | None:
        """The first of these kept totals by which no domain is lost.

        Raises RoundFailed if all of them would lose one: a new total, of those who are there, would
        lose it too.
        """
        lost: RoundFailed | None = None
        for stored in totals:
            try:
                self.lose_nothing([member.name for member in stored.members])
                return stored
            except RoundFailed as error:
                lost = lost or error
        if lost is not None:
            raise lost
        return None

    def _must_suffice(self, offers: Collection[str]) -> None:
        least = max(SMALLEST_COHORT, self.federation.settings.round.min_holders)
        if len(offers) >= least:
            return
        needs = f"a round under masks needs {least}"
        if least > SMALLEST_COHORT:
            needs = (
                f"`min_holders` in this coordinator's coordinator.toml requires {least}"
            )
        missing = set(self.standing.active) - set(offers)
        reasons = (
            self.channel.why_missing(missing) or "all holders on the roster are online"
        )
        raise RoundFailed(
            f"{len(offers)} holders can take part, but {needs} ({reasons}). Run the"
            " round again when more can; the newest release stays"
        )

    def _check_members(self, names: Collection[str]) -> None:
        """Raise RoundFailed, before anything is opened, unless a total of these holders makes a
        router.
        """
        self.lose_nothing(names)
        domain_of = self.standing.domain_of
        domains = {domain_of[name] for name in names}
        min_holders = self.federation.settings.round.min_holders
        least = max(min_holders, threshold_for(len(domain_of)))
        if len(names) < least or len(domains) < 2:
            reasons = self.channel.why_missing(set(domain_of) - set(names))
            reasons = f" ({reasons})" if reasons else ""
            raise RoundFailed(
                f"{len(names)} holders of {len(domains)} domains are present; at least"
                f" {least} holders (more than two thirds of the roster) and two"
                f" domains are needed, so nothing was opened{reasons}. Run the round"
                " again when more can take part"
            )

    def _let_sign(self, names: Collection[str]) -> None:
        """Note who is about to be asked to sign a total: if nothing is opened, these may sign the
        very same again.
        """
        self._check_members(names)
        members = {name: self._offers[name].epoch.name for name in sorted(names)}
        self.ledger.note(
            "signing", round=self.channel.nonce, terms=self.terms.id, members=members
        )

    def _totalled(
        self, cohort: Cohort, names: Collection[str], vector: NDArray[np.int64]
    ) -> Gathered:
        """Check what was opened, keep it, and let the ledger speak of it."""
        active = self.standing.active
        members = tuple(
            self.contribution(name, self._offers[name], cohort.shares[active[name].key])
            for name in sorted(names)
        )
        domains = tuple(sorted({member.domain for member in members}))
        try:
            opened = self.terms.statistics_of(vector, len(cohort.domains))
            statistics = _of_those_left(opened, cohort, members)
            total = self._total(members, domains, statistics)
        except StatisticsError as error:
            raise RoundFailed(
                f"the opened total is not a valid sum of statistics ({error}): a"
                " member sealed wrong sums or runs different code, and the masks hide"
                " which. The ledger is kept; a clear round would show which member"
            ) from None
        given = Totalled(members, domains, self.terms.id, "")
        self._kept = self.ledger.keep_total(self.channel.nonce, given, statistics)
        return Gathered(total, members, frozenset(names))

    def _total(
        self,
        members: Sequence[Contribution],
        domains: tuple[str, ...],
        statistics: Statistics,
    ) -> Total:
        holdout = {
            domain: sorted({part.holdout for part in members if part.domain == domain})
            for domain in domains
        }
        return total_of(domains, statistics, self.terms, len(members), holdout)

    # Counts

    def count(
        self, question: Evaluate, blob: Blob, names: Collection[str]
    ) -> RoundCounts:
        """What these holders count on their held-out documents; nothing if it cannot be opened. If
        nobody of a domain counts, and that was not accepted, nothing is opened, so that all can
        count in the next round.
        """
        # each holder's own noise hides its counts
        if self.terms.privacy:
            return super().count(question, blob, names)
        sealed: set[str] = set()
        needed = set(question.domains) - set(self._wishes.accept_unevaluated)
        domain_of = self.standing.domain_of

        def all_are_there(names: Collection[str]) -> None:
            if missing := needed - {domain_of[name] for name in names}:
                sealed.update(names)
                raise RoundFailed(
                    f"no holder of {', '.join(sorted(missing))} has counted, so no"
                    " counts were opened"
                )

        try:
            return self._kept_counts(question) or self._opened_counts(
                question, blob, names, all_are_there
            )
        except (RoundFailed, Refused, JournalError) as error:
            reason = str(error)
            self.ledger.note("not_counted", round=self.channel.nonce, reason=reason)
            self.watch(CountsMissing(reason))
            return RoundCounts(no_counts(question), frozenset(), frozenset(sealed))

    def _kept_counts(self, question: Evaluate) -> RoundCounts | None:
        """What was counted about this total before: holders count once, so it is not asked for
        again.
        """
        assert self._kept is not None
        kept = self.standing.counts.get(self._kept.digest)
        if kept is None:
            return None
        if kept.question != _question_id(question):
            raise RoundFailed(
                "holders have counted for another router of this total, and count"
                " once per epoch; new epochs are needed to evaluate this router"
            )
        counts = self.ledger.counts(kept)
        rows = {
            domain: row_of(question, numbers)
            for domain, numbers in zip(question.domains, counts, strict=True)
        }
        return RoundCounts(rows, frozenset(kept.holders))

    def _opened_counts(
        self, question: Evaluate, blob: Blob, names: Collection[str], check: Check
    ) -> RoundCounts:
        """What holders count now; it is kept with the total."""
        assert self._kept is not None
        session, able = self._session_to_count()
        domain_of = self.standing.domain_of
        able &= set(names) - self.channel.silent
        asked = [name for name in sorted(able) if domain_of[name] in question.domains]
        size = sealed_size(question)
        if size > MAX_COUNTS:
            raise RoundFailed(
                f"{size:,} counts are too many to seal; reduce `experts` in"
                " coordinator.toml"
            )
        sealed = question.model_copy(update={"session": session.id})
        vector, counting = session.sum_counts(size, sealed, blob, asked, check)
        counts = unsealed_rows(question, vector)
        rows = {}
        # the calibrations of all holders stand in the first row
        calibrated = len(counting)
        for domain, numbers in zip(question.domains, counts, strict=True):
            holders = sum(domain_of[name] == domain for name in counting)
            rows[domain] = checked_row(question, numbers, holders, calibrated)
            calibrated = 0
        question_id = _question_id(question)
        holders_counted = tuple(sorted(counting))
        given = KeptCounts(self._kept.digest, question_id, "", holders_counted)
        self.ledger.keep_counts(self.channel.nonce, given, np.stack(counts))
        return RoundCounts(rows, frozenset(counting))

    def _session_to_count(self) -> tuple[Session, set[str]]:
        """The session, and who can seal counts in it; one without statistics if the total was there
        already.
        """
        if self._session is not None:
            return self._session, set(self._offers)
        cohort = self.cohort(self._offers)
        self._session = Session(self.channel, cohort, self._offers)
        self._session.share()
        return self._session, self._session.hold()


def _question_id(question: Evaluate) -> str:
    """Stands for what was asked of the holders of a total."""
    return sha256(
        record_json(question.model_dump(mode="json", exclude={"session", "last"}))
    )


def _of_those_left(
    opened: Statistics, cohort: Cohort, members: Sequence[Contribution]
) -> Statistics:
    """The total without the columns of domains that nobody sent anything for; raises if masses are
    not as agreed.
    """
    masses: dict[str, int] = {}
    for member in members:
        masses[member.domain] = masses.get(member.domain, 0) + member.share
    is_left = np.array([domain in masses for domain in cohort.domains])
    if opened.cross[:, ~is_left].any():
        raise StatisticsError("a domain without members has sums in its column")
    left = np.ascontiguousarray(opened.cross[:, is_left])
    # the last row holds the mass of each domain
    agreed = [masses[domain] for domain in cohort.domains if domain in masses]
    if cohort.terms.mass and left[-1].tolist() != agreed:
        raise StatisticsError("a domain's mass is not the sum of its members' shares")
    return Statistics(opened.gram, left)
