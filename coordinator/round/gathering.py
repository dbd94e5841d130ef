"""What a round gathers from holders: a total, and counts of held-out documents for the router it
gives.

The two ways (clear_round.py, masked_round.py) have the same methods, so that all that follows is
the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import FormatError, Refused, RoundFailed
from ridgeway.common.base.settings import MAX_HELD_OUT_DOCUMENTS
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from ridgeway.common.protocol.messages import Evaluate
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
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import Admitted, Contribution
from ridgeway.coordinator.round.remedies import AWAY, why
from ridgeway.coordinator.solving.total import Total

Counts = NDArray[np.int64]
Check = Callable[[Collection[str]], None]
"""Looks at whose sums a total would hold, before it is made; raises RoundFailed if it should not
be.
"""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A total, whose sums are in it, and who can be asked about the router that comes of it.

    present: holders by name; those whose sums were there from an earlier round need not be among
             them.
    kept:    the digest of a total that was opened under masks, by which the ledger keeps it.
    """

    total: Total
    members: tuple[Contribution, ...]
    present: frozenset[str]
    kept: str = ""


def cohort_of(
    terms: Terms, active: Mapping[str, Admitted], names: Collection[str]
) -> Cohort:
    """The cohort of these holders."""
    if len(names) < 2:
        raise RoundFailed(
            f"{len(names)} of {len(active)} holders can take part, and a router needs"
            " two domains; see that their SuperNodes run, then run the round again:"
            " what was accepted is kept"
        )
    return form_cohort(terms, {active[name].key: active[name].domain for name in names})


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

    routed: Counts
    changes: Counts
    quality: Counts
    calibration: Counts

    def __add__(self, other: CountedRow) -> CountedRow:
        return CountedRow(
            self.routed + other.routed,
            self.changes + other.changes,
            self.quality + other.quality,
            self.calibration + other.calibration,
        )

    @property
    def row(self) -> Counts:
        """All of it, one after another."""
        return np.concatenate(
            [self.routed, self.changes, self.quality, self.calibration]
        )


@dataclass(frozen=True, slots=True, eq=False)
class RoundCounts:
    """What holders counted, by domain, and which of them did.

    sealed: who has sealed counts that were not opened, because nobody of some domain had.
    """

    rows: Mapping[str, CountedRow]
    heard: frozenset[str]
    sealed: frozenset[str] = frozenset()

    def calibration(self) -> Counts:
        """All domains are calibrated together."""
        together: Counts = np.sum(
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
    calibrated = (
        calibration_size(len(question.temperatures)) if question.temperatures else 0
    )
    return len(question.domains), changes, 2 * len(question.experts), calibrated


def row_of(question: Evaluate, numbers: Counts) -> CountedRow:
    """A row of counts; raises Refused if there are not as many as were asked for."""
    sizes = sizes_of(question)
    if numbers.size != sum(sizes):
        raise Refused(
            "shape_mismatch", "counts are not of the shape that was asked for"
        )
    return CountedRow(*np.split(numbers, np.cumsum(sizes)[:-1]))


def no_counts(question: Evaluate) -> CountedRow:
    return row_of(question, np.zeros(sum(sizes_of(question)), dtype=np.int64))


def checked_row(
    question: Evaluate, numbers: Counts, holders: int = 1, calibrated: int = 1
) -> CountedRow:
    """The counts of one holder or more; raises Refused unless documents could have given them.

    calibrated: how many holders' calibrations are in it.
    """
    row = row_of(question, numbers)
    # of counts under noise, nothing can be said but that they are numbers
    if question.terms.privacy:
        return row
    _check_routed(row, MAX_HELD_OUT_DOCUMENTS * holders)
    if question.experts:
        try:
            sums, counts = np.split(row.quality, 2)
            check_scores(sums, counts, MAX_HOLDER_SCORES * holders)
        except FormatError as error:
            raise Refused("over_bound", str(error)) from None
    if question.temperatures:
        _check_calibration(question, row.calibration, CALIBRATED_COUNTS * calibrated)
    return row


def _check_routed(row: CountedRow, most: int) -> None:
    if not 0 <= row.routed.min() <= row.routed.sum() <= most:
        raise Refused("over_bound", "more documents than a holder may evaluate on")
    if row.changes.min() < 0 or row.changes.sum() > row.routed.sum():
        raise Refused("broken_identity", "more documents changed than were routed")


def _check_calibration(question: Evaluate, counts: Counts, most: int) -> None:
    if not 0 <= counts.min() <= counts.max() <= most:
        raise Refused("over_bound", "more documents than a holder may calibrate with")
    reliability, scope = split_calibration(counts, len(question.temperatures))
    fallen = reliability[..., 0]
    right = reliability[..., 1]
    if (right > fallen).any() or len(np.unique(fallen.sum(axis=-1))) != 1:
        raise Refused(
            "broken_identity",
            "the temperatures were not all tried on the same documents",
        )
    by_length = scope.sum(axis=1)
    if (by_length[:, 0] != by_length[:, 1]).any() or scope[..., 0].sum() not in (
        0,
        fallen[0, 0].sum(),
    ):
        raise Refused(
            "broken_identity",
            "what belongs to any domain was not counted on the same documents",
        )


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


def unsealed_rows(question: Evaluate, opened: Counts) -> list[Counts]:
    """The counts of each domain of what was opened; the calibration of all stands in the first."""
    domains = len(question.domains)
    routed, quality, _ = _sealed_sizes(question)
    cuts = np.cumsum([routed * domains, quality * domains])
    first, scores, shared = np.split(opened, cuts)
    sizes = sizes_of(question)
    rows = []
    for place in range(domains):
        own = unpaired(first.reshape(domains, routed)[place])[: sizes[0] + sizes[1]]
        scored = scores.reshape(domains, quality)[place]
        fitted = (
            unpaired(shared)[: sizes[3]]
            if place == 0
            else np.zeros(sizes[3], dtype=np.int64)
        )
        rows.append(np.concatenate([own, scored, fitted]))
    return rows


# What a round may not lose: a router without a domain sends that domain's texts to wrong experts,
# with confidence


def check_nothing_lost(
    federation: Federation,
    names: Collection[str],
    reasons: Mapping[str, tuple[str, str]],
    allowed: Collection[str],
) -> None:
    """Raise RoundFailed if the sums of these holders leave out a domain that the newest release
    has.

    reasons: code and words of whoever refused something in this round, by name. allowed: domains
             that may be lost.
    A domain that has no holder on the roster any more was let go before.
    """
    newest = federation.newest
    active = federation.ledger.standing().active
    there = {active[name].domain for name in names}
    held = {holder.domain for holder in active.values()}
    may_go = {*allowed, *federation.settings.round.may_lapse}
    lost = (
        [domain for domain in newest.domains if domain in held - there - may_go]
        if newest
        else []
    )
    if newest is None or not lost:
        return
    missing = sorted(name for name, holder in active.items() if holder.domain in lost)
    each = why_missing(missing, reasons)
    named = ", ".join(lost)
    flags = " ".join(f"--allow-missing {domain}" for domain in lost)
    raise RoundFailed(
        f"the router would lose {named}, which release {newest.number:04} has: {each}."
        f" Nothing was opened and release {newest.number:04} stands; run the round"
        f" again when this is mended, or let the domain go with {flags}"
    )


def why_missing(names: Collection[str], reasons: Mapping[str, tuple[str, str]]) -> str:
    """Why these holders are not in a round, and what each has to do."""
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(why(*reasons.get(name, (AWAY, ""))), []).append(name)
    return "; ".join(f"{', '.join(those)} {words}" for words, those in alike.items())
