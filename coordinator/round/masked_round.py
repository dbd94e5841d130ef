"""Gathering under masks: the coordinator learns the total and the counts of a cohort, and those of no single member.

Totals that were opened are kept, and one is used again if its members' sums are as they were then: every further total,
beside the earlier ones, could tell the changed ones apart, so there are as few as can be; `outlook` tells the operator
what a round would show. Knows the ledger and messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import InputError, JournalError, Refused, RoundFailed, StatisticsError
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.masking.agreement import SMALLEST_COHORT, check_advert
from ridgeway.common.masking.differencing import Parts, differing, set_apart
from ridgeway.common.masking.history import History, PastSum, history_bytes, pool_bytes, possible_sums, read_history
from ridgeway.common.protocol.cohort import Cohort, DomainShare, Terms, lopsided
from ridgeway.common.protocol.messages import LOTS, MAX_COUNTS, Evaluate, Lot, Offer, lots_beside
from ridgeway.common.protocol.packet import Blob
from ridgeway.common.routing.evaluation import calibrated_together
from ridgeway.common.statistics.sums import Integers, Statistics
from ridgeway.coordinator.round.ask import Channel
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
    sealed_count_of,
    shape_of,
    unsealed_counts,
    why_missing,
)
from ridgeway.coordinator.round.ledger import Contribution, KeptCounts, Standing, Totalled
from ridgeway.coordinator.round.masked_session import Session
from ridgeway.coordinator.round.progress import CountsMissing, TotalReused, Watch
from ridgeway.coordinator.solving.candidates import Counts
from ridgeway.coordinator.solving.total import Total, total_of

MAX_TRIED = 20
"""How many absent holders are looked at, to say whose return would help."""


class MaskedGathering:
    """One round's gathering under masks: one session, in which up to three sums are opened."""

    def __init__(
        self, federation: Federation, channel: Channel, terms: Terms, watch: Watch, lose_nothing: Check
    ) -> None:
        self._federation, self._ledger = federation, federation.ledger
        self._channel, self._terms, self._watch = channel, terms, watch
        self._lose_nothing = lose_nothing
        self._session: Session | None = None
        self._kept: Totalled | None = None
        self._offers: dict[str, Offer] = {}
        self._histories: dict[str, History] = {}
        self.known: dict[Part, Counted] = {}
        self._logged = {each.id: each.past for each in self._ledger.opened_log()}

    def check_offer(self, key: str, offer: Offer, blobs: Sequence[Blob]) -> None:
        """Check a member's keys, and note what it knows of sums that were opened before."""
        advert = offer.advert
        if advert is None or not blobs:
            raise Refused("not_masked", "an offer without keys for masking")
        check_advert(advert, self._terms.id, self._channel.nonce, len(LOTS))
        history = read_history(blobs[0], self._logged)
        if (advert.key, advert.source) != (key, offer.source) or sha256(history_bytes(history)) != advert.history:
            raise Refused("bad_advert", "the keys for masking are of another holder, or do not go with the offer")
        self._histories[key] = history

    def gather(self, offers: dict[str, Offer]) -> Gathered:
        """The total of every holder that can be counted; one that offers and then does not deliver is left out."""
        least = max(SMALLEST_COHORT, self._federation.settings.round.min_holders)
        stored = self._usable_total(offers)
        if stored is None:
            self._lose_nothing(offers)
        self._must_suffice(offers, least)
        self._offers = offers
        if stored is not None:
            return self._from_stored(stored)
        cohort = cohort_of(self._terms, self._ledger.standing().active, set(offers))
        session = self._session = Session(self._channel, cohort, offers, self._watch)

        def check(names: Collection[str]) -> None:
            self._lose_nothing(names)
            self._must_be_worth_it(names, least)
            self._must_hide("statistics", _parts(cohort, session.sources(names, "statistics")), names)

        check(offers)
        session.share(self._pool(cohort))
        vector, sent = session.sum_statistics(self._terms.vector_size(len(cohort.domains)), check)
        self._note_opened("statistics", _parts(cohort, session.sources(sent, "statistics")), vector)
        members = self._members(cohort, {name: offers[name] for name in sent})
        return self._totalled(cohort, members, vector)

    def _must_suffice(self, offers: Collection[str], least: int) -> None:
        if len(offers) >= least:
            return
        needs = f"a masked round needs {least}: with fewer, a sum hides too little"
        if least > SMALLEST_COHORT:
            needs = f"`min_holders` in this coordinator's coordinator.toml asks for {least}"
        missing = set(self._ledger.standing().active) - set(offers)
        each = why_missing(missing, self._channel.refusals) if missing else "all that are on the roster are there"
        raise RoundFailed(
            f"{len(offers)} holders can take part, and {needs} ({each}). Run the round again when more are there; the "
            "newest release stays as it is"
        )

    def _pool(self, cohort: Cohort) -> bytes:
        """What the members know, to be told to all of them."""
        return pool_bytes(self._histories[member.key] for member in cohort.members)

    def _must_be_worth_it(self, names: Collection[str], least: int) -> None:
        """Every total that is opened narrows what later ones may be, so one that makes no router is not."""
        active = self._ledger.standing().active
        domains = {active[name].domain for name in names}
        if len(names) < least or len(domains) < 2:
            raise RoundFailed(
                f"sums of {len(names)} holders and {len(domains)} domains are there; at least {least} holders and two "
                "domains are needed, so nothing was opened. Run the round again when more are there"
            )

    # A total that is there already

    def _usable_total(self, offers: Mapping[str, Offer]) -> Totalled | None:
        """The newest kept total in which every holder that is there is unchanged and by which no domain is lost.

        Raises RoundFailed if all of them would lose one: a new total, of those who are there, would lose it too.
        """
        lost: RoundFailed | None = None
        for stored in reversed(self._ledger.standing().totals):
            if self._fits(stored, offers):
                try:
                    self._lose_nothing([member.name for member in stored.members])
                    return stored
                except RoundFailed as error:
                    lost = lost or error
        if lost is not None:
            raise lost
        return None

    def _fits(self, stored: Totalled, offers: Mapping[str, Offer]) -> bool:
        """Whether a kept total is what these holders would give now, and lies whole in its file."""
        active = self._ledger.standing().active
        sources = {member.name: member.source for member in stored.members}
        if stored.terms != self._terms.sums_id or any(
            sources.get(name) != offer.source for name, offer in offers.items()
        ):
            return False
        shares = {member.key: member.share for member in cohort_of(self._terms, active, set(sources)).members}
        if any(shares[active[each.name].key] != each.share for each in stored.members):
            return False
        try:
            self._ledger.total(stored)
        except JournalError:
            return False
        return True

    def _from_stored(self, stored: Totalled) -> Gathered:
        self._watch(TotalReused(len(stored.members)))
        self._kept = stored
        total = self._total(stored.members, stored.domains, self._ledger.total(stored))
        return Gathered(total, stored.members, frozenset(self._offers), stored.digest)

    def _session_to_count(self) -> tuple[Session, set[str]]:
        """The session, and who can seal counts in it; one without statistics if the total was there already."""
        if self._session is not None:
            return self._session, set(self._offers)
        cohort = cohort_of(self._terms, self._ledger.standing().active, set(self._offers))
        self._session = Session(self._channel, cohort, self._offers, self._watch)
        self._session.share(self._pool(cohort))
        return self._session, self._session.hold()

    # A new total

    def _totalled(self, cohort: Cohort, members: tuple[Contribution, ...], vector: NDArray[np.int64]) -> Gathered:
        """Check what was opened, keep it, and let the ledger speak of it."""
        domains = tuple(sorted({member.domain for member in members}))
        try:
            statistics = _of_those_left(self._terms.statistics_of(vector, len(cohort.domains)), cohort, members)
            total = self._total(members, domains, statistics)
        except StatisticsError as error:
            raise RoundFailed(
                f"what was opened is no sum of statistics ({error}): a member sealed something else than its sums, or "
                "runs other code, and the masks hide who. The ledger is kept; run the round again, and if it fails "
                "again, leave members out two at a time, or agree on a clear round"
            ) from None
        given = Totalled(members, domains, self._terms.sums_id, "")
        kept = self._kept = self._ledger.keep_total(self._channel.nonce, given, statistics)
        return Gathered(total, members, frozenset(member.name for member in members), kept.digest)

    def _members(self, cohort: Cohort, offers: Mapping[str, Offer]) -> tuple[Contribution, ...]:
        shares = {member.key: member.share for member in cohort.members}
        active = self._ledger.standing().active
        return tuple(
            Contribution(name, who.domain, offer.source, shares[who.key], self._terms.sums_id, offer.holdout)
            for name, who, offer in ((name, active[name], offers[name]) for name in sorted(offers))
        )

    def _total(self, members: Sequence[Contribution], domains: tuple[str, ...], statistics: Statistics) -> Total:
        holdout = {name: sorted({each.holdout for each in members if each.domain == name}) for name in domains}
        return total_of(domains, statistics, self._terms, len(members), holdout)

    # Counts

    def count(self, question: Question, blobs: Sequence[Blob], names: Collection[str]) -> Counted:
        """Counts by domain, and who counted; none if they cannot be opened, for a router can be published without."""
        lot: Lot = "scores" if isinstance(question, Evaluate) else "reliability"
        try:
            question = self._as_counted(lot, question)
            kept = self._kept_counts(lot, question)
            if kept is not None:
                self._take_in(question, kept, names)
            elif question in self.known:  # it came with the evaluation
                counts, _ = self.known[question]
                self._keep(lot, question, np.array([counts[name].ravel() for name in question.domains]))
            else:
                self._take_in(question, *self._counted(lot, question, blobs, names))
            return self.known[question]
        except (RoundFailed, Refused, JournalError) as error:
            self._ledger.note("not_counted", round=self._channel.nonce, lot=lot, reason=str(error))
            self._watch(CountsMissing(lot, str(error)))
            return {name: np.zeros(shape_of(question), dtype=np.int64) for name in question.domains}, set()

    def _take_in(self, question: Question, rows: Counts, heard: Collection[str]) -> None:
        self.known |= by_question(question, dict(zip(question.domains, rows, strict=True)), heard)

    def _keep(self, lot: Lot, question: Question, rows: Counts) -> None:
        assert self._kept is not None
        experts = question.experts if isinstance(question, Evaluate) else ()
        given = KeptCounts(self._kept.digest, lot, _question_id(question), "", experts)
        self._ledger.keep_counts(self._channel.nonce, given, rows)

    def _as_counted(self, lot: Lot, question: Question) -> Question:
        """The question about those experts that were asked about when this total was counted, if it was."""
        assert self._kept is not None
        kept = self._ledger.standing().counts.get(self._kept.digest, {}).get(lot)
        if kept is None or not isinstance(question, Evaluate):
            return question
        return question.model_copy(update={"experts": kept.experts})

    def _kept_counts(self, lot: Lot, question: Question) -> Counts | None:
        """What was counted about this total before: holders count once, so it is not asked for again."""
        assert self._kept is not None
        kept = self._ledger.standing().counts.get(self._kept.digest, {}).get(lot)
        if kept is None:
            return None
        if kept.question != _question_id(question):
            raise RoundFailed(
                f"the {lot} of this total were counted before, for other settings, and holders count once; with a new "
                "total they will be counted for these"
            )
        return self._ledger.counts(kept)

    def _counted(
        self, lot: Lot, question: Question, blobs: Sequence[Blob], names: Collection[str]
    ) -> tuple[Counts, set[str]]:
        """What holders count now, a row for each domain; it is kept with the total."""
        session, able = self._session_to_count()
        standing = self._ledger.standing()
        domain_of = {name: holder.domain for name, holder in standing.active.items()}
        able &= set(names) - self._channel.silent
        asked = [name for name in sorted(able) if domain_of[name] in question.domains]
        if isinstance(question, Evaluate) and sealed_count_of(question) > MAX_COUNTS:
            question = question.model_copy(update={"temperatures": ()})
        size = sealed_count_of(question)
        if size > MAX_COUNTS:
            raise RoundFailed(f"{size:,} counts are too many to seal; try fewer candidates")

        def check(names: Collection[str]) -> None:
            self._must_hide(lot, _parts(None, session.sources(names, lot)))

        check(asked)
        assert self._kept is not None
        total = _opened_as(standing, self._kept)
        sealed = question.model_copy(update={"session": session.id, "total": total})
        vector, heard = session.sum_counts(lot, size, sealed, blobs, asked, check)
        self._note_opened(lot, _parts(None, session.sources(heard, lot)), vector)
        rows = unsealed_counts(question, vector)
        holders = np.array([[sum(domain_of[name] == domain for name in heard)] for domain in question.domains])
        for row, own, calibrated in zip(rows, holders.ravel(), calibrated_together(holders).ravel(), strict=True):
            checked_counts(question, row, int(own), int(calibrated))
        self._keep(lot, question, rows)
        return rows, heard

    # Differences

    def _must_hide(self, lot: Lot, parts: Parts, names: Collection[str] = ()) -> None:
        """Foresee what holders would refuse, before any of them is asked for anything secret.

        names: whose sums these are, where the absence of another could be the reason.
        """
        standing, beside = self._ledger.standing(), lots_beside(lot)
        known = standing.handovers
        told = [each.by_key() for each in possible_sums(self._histories, known) if each.lot in beside]
        opened = [*(parts for each in beside for parts in standing.opened.get(each, [])), *told]
        earlier, parts = [known.by_owner(each) for each in opened], known.by_owner(parts)
        found = set_apart(earlier, parts, self._federation.settings.round.min_difference)
        if found:
            others = self._who_would_help(earlier, parts, names) if names else ()
            raise RoundFailed(_words_of_change(standing, earlier, parts, found, others))

    def _who_would_help(self, earlier: Sequence[Parts], parts: Parts, names: Collection[str]) -> list[str]:
        """The holders that are not there, and beside each of whom, as it was last seen, the sum could be opened."""
        active, least = self._ledger.standing().active, self._federation.settings.round.min_difference
        owner = self._ledger.standing().handovers.owner
        sources = {key: source for each in (*earlier, parts) for key, (source, _) in each.items()}

        def helps(name: str) -> bool:
            members = cohort_of(self._terms, active, {*names, name}).members
            shares = {owner(each.key): each.share or 1 for each in members}
            with_it = {key: (sources.get(key, key), share) for key, share in shares.items()}
            return not set_apart(earlier, with_it, least)

        return [name for name in sorted(set(active) - set(names))[:MAX_TRIED] if helps(name)]

    def _note_opened(self, lot: Lot, parts: Parts, vector: Integers) -> None:
        facts = {"parts": {key: list(part) for key, part in parts.items()}, "opened": sha256(vector.data)}
        self._ledger.note("opened_sum", round=self._channel.nonce, lot=lot, terms=self._terms.id, **facts)


def _question_id(question: Question) -> str:
    """Stands for what was asked: of the total and its weights, the same as long as the total is."""
    apart = {"session", "total", "last", "experts"} | ({"temperatures"} if isinstance(question, Evaluate) else set())
    return sha256(canonical_json(question.model_dump(mode="json", exclude=apart)))


def _parts(cohort: Cohort | None, sources: Mapping[str, str]) -> Parts:
    """What these members put into a sum: of statistics by the cohort's shares, of counts without any."""
    shares = {member.key: member.share or 1 for member in cohort.members} if cohort else dict.fromkeys(sources, 1)
    return {key: (source, shares[key]) for key, source in sources.items()}


def _opened_as(standing: Standing, kept: Totalled) -> str:
    """The id of a kept total, by the keys that its members had when it was opened."""
    known = standing.handovers
    parts = {standing.active[each.name].key: (each.source, each.share or 1) for each in kept.members}
    same = [each for each in standing.opened["statistics"] if known.by_owner(each) == known.by_owner(parts)]
    return PastSum.of("statistics", same[-1] if same else parts).id


def _of_those_left(opened: Statistics, cohort: Cohort, members: Sequence[Contribution]) -> Statistics:
    """The total without the columns of domains that nobody sent anything for; raises if masses are not as agreed."""
    masses = dict.fromkeys(cohort.domains, 0)
    for member in members:
        masses[member.domain] += member.share
    there = {member.domain for member in members}
    keep = [place for place, domain in enumerate(cohort.domains) if domain in there]
    gone = [place for place, domain in enumerate(cohort.domains) if domain not in there]
    if opened.cross[:, gone].any():
        raise StatisticsError("there are sums in the column of a domain that nobody sent anything for")
    if cohort.terms.mass and [int(opened.cross[-1, place]) for place in keep] != [
        masses[cohort.domains[place]] for place in keep
    ]:
        raise StatisticsError("a domain's mass is not the sum of its members' shares")
    return Statistics(opened.gram, np.ascontiguousarray(opened.cross[:, keep]))


# What a round would show


def _words_of_change(
    standing: Standing, earlier: Sequence[Parts], new: Parts, found: Collection[str], others: Sequence[str] = ()
) -> str:
    """Why a masked sum is not asked for, and what to do instead. others: who could come too, so that it is."""
    names = standing.names
    who = ", ".join(names.get(key, f"{key[:12]}…") for key in sorted(found))
    likest = min(earlier, key=lambda each: len(differing(each, new)), default={})
    if set(found) == differing(likest, new):
        verbs = " or ".join(sorted({_verb(key, earlier, likest, new) for key in found}))
        why = f"since an earlier masked total only {who} {verbs}: the difference of the two totals would show"
    else:
        why = f"together with all the masked totals so far this one would show of {who}"
    there = f"{' or '.join(others)} is there too, or " if others else ""
    return (
        f"{why} what it has alone, so holders refuse it. Run the round again when {there}another holder has joined, "
        "left or changed too; until then the newest release stands, and `coordinator retire` drops a domain from it at "
        "once"
    )


def _verb(key: str, earlier: Sequence[Parts], before: Parts, new: Parts) -> str:
    if key not in before:
        return "has come back" if any(key in each for each in earlier) else "has joined"
    return "has changed" if key in new else "is missing"


def check_weight(federation: Federation, name: str, domain: str, weight: int) -> None:
    """Raise InputError if holders would refuse a masked sum in which this holder had this weight in its domain."""
    others = [each for each in federation.ledger.standing().active.values() if each.name != name]
    weights = [weight, *(each.weight for each in others if each.domain == domain)]
    words = lopsided([DomainShare(domain, each) for each in weights])
    if federation.settings.mode == "masked" and len(weights) > 1 and words:
        raise InputError(
            f"with a weight of {weight} {words}, so holders would refuse the sum; choose a weight nearer to the "
            "others', or admit those again with another one"
        )


def outlook(federation: Federation) -> str | None:
    """What stands in the way of a masked round of all holders on the roster, as far as can be known without asking.

    Their sums may have changed since they were last seen.
    """
    if federation.settings.mode != "masked":
        return None
    standing = federation.ledger.standing()
    active = standing.active
    if len(active) < SMALLEST_COHORT:
        return f"{len(active)} holders are on the roster, and a masked round needs {SMALLEST_COHORT}"
    known = standing.handovers
    earlier = [known.by_owner(each) for each in standing.opened.get("statistics", [])]
    if not earlier:
        return None
    cohort = cohort_of(federation.terms, active, set(active))
    last = earlier[-1]
    shares = {known.owner(member.key): member.share or 1 for member in cohort.members}
    parts = {key: (last.get(key, ("", 0))[0], share) for key, share in shares.items()}
    found = set_apart(earlier, parts, federation.settings.round.min_difference)
    return _words_of_change(standing, earlier, parts, found) if found else None
