"""What a round gathers from holders: a total, and counts of held-out documents for the router it
gives.

With masks (masked_round.py) and without (clear_round.py) it has the same methods, so that all that
follows is the same for both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import FormatError, Refused, RoundFailed
from ridgeway.common.base.settings import MAX_HELD_OUT_DOCUMENTS
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from ridgeway.common.protocol.messages import Counted, Evaluate, Offer
from ridgeway.common.protocol.packet import Blob
from ridgeway.common.routing.evaluation import (
    CALIBRATED_COUNTS,
    calibration_size,
    split_calibration,
    unpaired,
)
from ridgeway.common.routing.quality import (
    MAX_HOLDER_SCORES,
    QualityTable,
    check_scores,
)
from ridgeway.coordinator.round.ask import Channel, RoundWishes
from ridgeway.coordinator.round.ledger import Contribution, Standing, Totalled
from ridgeway.coordinator.round.progress import CountsReceived
from ridgeway.coordinator.solving.solve import Total

_Counts = NDArray[np.int64]
Offers = dict[str, Offer]
"""What holders offer, by name."""
Check = Callable[[Collection[str]], None]
"""Looks at whose sums a total would hold, before it is made; raises RoundFailed if it should not
be.
"""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A total, whose sums are in it, and who can be asked about the router that comes of it.

    present: holders by name; those whose sums were there from an earlier round need not be among
             them.
    """

    total: Total
    members: tuple[Contribution, ...]
    present: frozenset[str]


# Counts


@dataclass(frozen=True, slots=True, eq=False)
class CountedRow:
    """What the holders of one domain counted, or one holder.

    routed:      to which domain how many documents were routed; under noise in private rounds.
    changes:     how many the last release had right and the router has not, and the other way
                 round.
    quality:     sums of scores of experts, then their numbers.
    calibration: what confidence is fitted by.
    """

    routed: _Counts
    changes: _Counts
    quality: _Counts
    calibration: _Counts

    def __add__(self, other: CountedRow) -> CountedRow:
        return CountedRow(
            self.routed + other.routed,
            self.changes + other.changes,
            self.quality + other.quality,
            self.calibration + other.calibration,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RoundCounts:
    """What holders counted, by domain, and which of them did.

    sealed: who has sealed counts that were not opened, because nobody of some domain had.
    """

    rows: Mapping[str, CountedRow]
    holders: frozenset[str]
    sealed: frozenset[str] = frozenset()

    def calibration(self) -> _Counts:
        """All domains are calibrated together."""
        together: _Counts = np.sum(
            [row.calibration for row in self.rows.values()], axis=0
        )
        return together

    def quality(self, question: Evaluate) -> QualityTable | None:
        """How good experts are by what holders have told; None if there are no scores."""
        rows = np.stack([self.rows[name].quality for name in question.domains])
        if not rows.any():
            return None
        sums, counts = np.split(rows, 2, axis=1)
        return QualityTable(question.domains, question.experts, sums, counts)


def sizes_of(question: Evaluate) -> tuple[int, int, int, int]:
    """How many numbers each part of a row has."""
    changes = 0 if question.terms.privacy else 2
    tried = len(question.temperatures)
    calibrated = calibration_size(tried) if tried else 0
    return len(question.domains), changes, 2 * len(question.experts), calibrated


def row_of(question: Evaluate, numbers: _Counts) -> CountedRow:
    """A row of counts; raises Refused if there are not as many as were asked for."""
    sizes = sizes_of(question)
    if numbers.size != sum(sizes):
        raise Refused("shape_mismatch", "the counts have the wrong shape")
    return CountedRow(*np.split(numbers, np.cumsum(sizes)[:-1]))


def no_counts(question: Evaluate) -> dict[str, CountedRow]:
    """Zeros for each domain."""
    nothing = row_of(question, np.zeros(sum(sizes_of(question)), dtype=np.int64))
    return dict.fromkeys(question.domains, nothing)


def checked_row(
    question: Evaluate, numbers: _Counts, holders: int = 1, calibrated: int = 1
) -> CountedRow:
    """The counts of one holder or more; raises Refused unless documents could have given them.

    calibrated: how many holders' calibrations are in it.
    """
    row = row_of(question, numbers)
    # of counts under noise, nothing can be said but that they are numbers
    if question.terms.privacy:
        return row
    most = MAX_HELD_OUT_DOCUMENTS * holders
    if not 0 <= row.routed.min() <= row.routed.sum() <= most:
        raise Refused("over_bound", "too many documents for an evaluation")
    if row.changes.min() < 0 or row.changes.sum() > row.routed.sum():
        raise Refused("broken_identity", "more documents changed than were routed")
    if question.experts:
        try:
            sums, counts = np.split(row.quality, 2)
            check_scores(sums, counts, MAX_HOLDER_SCORES * holders)
        except FormatError as error:
            raise Refused("over_bound", str(error)) from None
    if question.temperatures:
        _check_calibration(question, row.calibration, CALIBRATED_COUNTS * calibrated)
    return row


def _check_calibration(question: Evaluate, counts: _Counts, most: int) -> None:
    if not 0 <= counts.min() <= counts.max() <= most:
        raise Refused("over_bound", "too many documents for a calibration")
    reliability, scope = split_calibration(counts, len(question.temperatures))
    fallen = reliability[..., 0]
    right = reliability[..., 1]
    # every curve and temperature was tried on the same documents
    if (right > fallen).any() or len(np.unique(fallen.sum(axis=-1))) != 1:
        raise Refused(
            "broken_identity", "the temperatures were tried on different documents"
        )
    by_length = scope.sum(axis=1)
    documents = fallen[0, 0].sum()
    same = (by_length[:, 0] == by_length[:, 1]).all()
    if not same or scope[..., 0].sum() not in (0, documents):
        raise Refused("broken_identity", "the scope was counted on different documents")


# Counts under masks: each domain has a row of its own for what is paired and for scores, all share
# one to calibrate


def _sealed_sizes(question: Evaluate) -> tuple[int, int, int]:
    """How many numbers the rows of routed documents, of scores, and the one of calibration have
    under masks.
    """
    routed, changes, quality, calibrated = sizes_of(question)
    return math.ceil((routed + changes) / 2), quality, math.ceil(calibrated / 2)


def sealed_size(question: Evaluate) -> int:
    """How many numbers all domains' holders together answer under masks."""
    routed, quality, calibrated = _sealed_sizes(question)
    return (routed + quality) * len(question.domains) + calibrated


def unsealed_rows(question: Evaluate, opened: _Counts) -> list[_Counts]:
    """The counts of each domain of what was opened; the calibration of all stands in the first."""
    domains = len(question.domains)
    paired, quality, _ = _sealed_sizes(question)
    cuts = np.cumsum([paired * domains, quality * domains])
    pairs, scores, shared = np.split(opened, cuts)
    routed, changes, _, calibrated = sizes_of(question)
    calibration = np.zeros((domains, calibrated), dtype=np.int64)
    calibration[0] = unpaired(shared)[:calibrated]
    return [
        np.concatenate([unpaired(pair)[: routed + changes], scored, fitted])
        for pair, scored, fitted in zip(
            pairs.reshape(domains, paired),
            scores.reshape(domains, quality),
            calibration,
            strict=True,
        )
    ]


class Gathering(ABC):
    """One round's gathering over its conversation with the holders."""

    def __init__(self, channel: Channel, terms: Terms, wishes: RoundWishes) -> None:
        self.channel = channel
        self.terms = terms
        self.federation = channel.federation
        self.ledger = channel.federation.ledger
        self.watch = channel.watch
        self._wishes = wishes

    @property
    def standing(self) -> Standing:
        return self.ledger.standing()

    def cohort(self, names: Collection[str]) -> Cohort:
        """The cohort of these holders."""
        active = self.standing.active
        if len(names) < 2:
            why = self.channel.why_missing(set(active) - set(names))
            raise RoundFailed(
                f"{len(names)} of {len(active)} holders can take part, but a router"
                f" needs two domains ({why}). Run the round again when more can;"
                " accepted data is kept"
            )
        domains = {active[name].key: active[name].domain for name in names}
        return form_cohort(self.terms, domains)

    def contribution(self, name: str, offer: Offer, share: int) -> Contribution:
        """What the ledger says of a holder's sums, as it has offered them."""
        domain = self.standing.domain_of[name]
        epoch = offer.epoch.name
        return Contribution(name, domain, epoch, share, self.terms.id, offer.holdout)

    @abstractmethod
    def check_offer(self, key: str, offer: Offer) -> None:
        """Raise Refused if an offer cannot be used."""

    @abstractmethod
    def agreed(self, offers: Offers) -> Totalled | None:
        """The kept total that is used again, if any. Raises RoundFailed if there can be no release.

        Holders that cannot take part with what they offer are taken out of the offers.
        """

    @abstractmethod
    def gather(self, offers: Offers) -> Gathered:
        """The total of every holder that can be counted; one that offers and then does not deliver
        is left out.
        """

    def count(
        self, question: Evaluate, blob: Blob, names: Collection[str]
    ) -> RoundCounts:
        """What these holders count on their held-out documents, each in an answer of its own."""
        rows = no_counts(question)
        domain_of = self.standing.domain_of
        holders = set()
        for answer in self.channel.ask(question, Counted, names=names, blobs=[blob]):
            with answer.accept():
                message = answer.message
                numbers = [*message.counts, *message.quality, *message.reliability]
                row = checked_row(question, np.array(numbers, dtype=np.int64))
                rows[domain_of[answer.name]] += row
                self.watch(CountsReceived(answer.name))
                holders.add(answer.name)
        return RoundCounts(rows, frozenset(holders))

    def lose_nothing(self, names: Collection[str]) -> None:
        """Raise RoundFailed if the sums of these holders leave out a domain that the newest release
        has.

        A router without a domain sends that domain's texts to wrong experts, with confidence. A
        domain that has no holder on the roster any more was let go before.
        """
        newest = self.federation.newest
        if newest is None:
            return
        domain_of = self.standing.kept_domains
        may_lapse = self.federation.settings.round.may_lapse
        may_go = {*self._wishes.allow_missing, *may_lapse}
        covered = {domain_of[name] for name in names}
        expected = set(domain_of.values()) - covered - may_go
        lost = [domain for domain in newest.domains if domain in expected]
        if not lost:
            return
        missing = [name for name, domain in domain_of.items() if domain in lost]
        flags = " ".join(f"--allow-missing {domain}" for domain in lost)
        raise RoundFailed(
            f"the router would lose {', '.join(lost)}, which release"
            f" {newest.number:04} has: {self.channel.why_missing(missing)}. Nothing"
            f" was opened, and release {newest.number:04} stays. Fix this and run the"
            f" round again, or drop the domain with {flags}"
        )

    def must_be_counted(
        self,
        domains: Collection[str],
        counting: Collection[str],
        members: Collection[str],
    ) -> None:
        """Raise RoundFailed if of these domains some has no holder among those who count, and that
        was not accepted.
        """
        domain_of = self.standing.domain_of
        missing = sorted(set(domains) - {domain_of.get(name) for name in counting})
        if set(missing) <= set(self._wishes.accept_unevaluated):
            return
        names = [name for name in members if domain_of.get(name) in missing]
        flags = " ".join(f"--accept-unevaluated {domain}" for domain in missing)
        raise RoundFailed(
            f"no holder of {', '.join(missing)} evaluated the router, so it is not"
            f" published: {self.channel.why_missing(names)}. Accepted data is kept."
            f" Fix this and run the round again, or publish it with {flags}"
        )
