"""What a round gathers from holders, whether in the clear or under masks: a total, and counts of held-out documents.

The two ways (clear_round.py, masked_round.py) have the same methods, so that all that follows is the same for both.
Knows messages and totals. Knows nothing of how either way works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ridgeway.common.base.errors import FormatError, Refused, RoundFailed
from ridgeway.common.base.schema import DomainName, ExpertNames, Record
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from ridgeway.common.protocol.messages import Calibrate, Evaluate
from ridgeway.common.routing.evaluation import (
    CALIBRATED_COUNTS,
    MAX_HELD_OUT_DOCUMENTS,
    calibrated_together,
    calibration_size,
    split_calibration,
    unpaired,
)
from ridgeway.common.routing.quality import MAX_HOLDER_SCORES, QualityTable, check_scores
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import Admitted, Contribution
from ridgeway.coordinator.round.remedies import AWAY, why
from ridgeway.coordinator.solving.candidates import Counts
from ridgeway.coordinator.solving.total import Total

Question = Evaluate | Calibrate


class ScoresAsked(Record):
    """The part of an evaluation in which scores of experts are added up."""

    domains: tuple[DomainName, ...]
    experts: ExpertNames


Part = Question | ScoresAsked
Counted = tuple[dict[str, Counts], set[str]]
"""What holders counted, by domain, and which of them did."""
Check = Callable[[Collection[str]], None]
"""Looks at whose sums a total would hold, before it is made; raises RoundFailed if it should not be."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A total, whose sums are in it, and who can be asked about the routers that come of it.

    present: holders by name; those whose sums were there from an earlier round need not be among them.
    kept:    the digest of the masked total, by which the ledger keeps it and what was counted about it.
    """

    total: Total
    members: tuple[Contribution, ...]
    present: frozenset[str]
    kept: str = ""


def cohort_of(terms: Terms, active: Mapping[str, Admitted], names: Collection[str]) -> Cohort:
    """The cohort of these holders."""
    if len(names) < 2:
        raise RoundFailed(
            f"{len(names)} of {len(active)} holders can take part, and a router needs two domains; "
            "see that their SuperNodes run, then run the round again: what was accepted is kept"
        )
    by_key = {active[name].key: active[name] for name in names}
    domains = {key: holder.domain for key, holder in by_key.items()}
    return form_cohort(terms, domains, {key: holder.weight for key, holder in by_key.items()})


def shape_of(question: Part) -> tuple[int, ...]:
    """The shape of what one domain's holders count, but for what else an evaluation may ask for."""
    if isinstance(question, ScoresAsked):
        return 2, len(question.experts)
    if isinstance(question, Evaluate):
        return len(question.candidates), len(question.domains) + 2
    return (calibration_size(len(question.temperatures)),)


def parts_of(question: Question) -> tuple[Part, ...]:
    """The questions whose counts stand one after another in an answer."""
    if not isinstance(question, Evaluate):
        return (question,)
    scores = ScoresAsked(domains=question.domains, experts=question.experts) if question.experts else None
    return tuple(part for part in (question, scores, question.calibration) if part is not None)


def count_of(question: Question) -> int:
    """How many numbers one domain's holders answer."""
    return sum(math.prod(shape_of(part)) for part in parts_of(question))


def sealed_count_of(question: Question) -> int:
    """How many numbers all domains' holders together answer under masks."""
    return sum(rows * size for _, rows, size in _sealed_parts(question))


def _sealed_parts(question: Question) -> list[tuple[Part, int, int]]:
    """Each part of an answer under masks, its rows and their length: two counts stand in one number where they can."""
    domains = len(question.domains)
    return [
        (
            part,
            1 if isinstance(part, Calibrate) else domains,
            -(-math.prod(shape_of(part)) // 2) if is_paired(part) else math.prod(shape_of(part)),
        )
        for part in parts_of(question)
    ]


def is_paired(part: Part) -> bool:
    """Scores of experts are too large for that, and counts under noise may be below nought."""
    return not isinstance(part, ScoresAsked) and part.terms.privacy is None


def unsealed_counts(question: Question, opened: Counts) -> Counts:
    """The counts of each domain, a row each, of what was opened."""
    found, start = [], 0
    for part, rows, size in _sealed_parts(question):
        counts = opened[start : start + rows * size].reshape(rows, size)
        whole = np.zeros((len(question.domains), math.prod(shape_of(part))), dtype=np.int64)
        whole[:rows] = np.array([unpaired(row) for row in counts])[:, : whole.shape[1]] if is_paired(part) else counts
        found.append(whole)
        start += rows * size
    return np.concatenate(found, axis=1)


def by_question(question: Question, rows: Mapping[str, Counts], heard: Collection[str]) -> dict[Part, Counted]:
    """What an answer says to each question in it, by domain; `rows` may hold the first ones only.

    All domains are calibrated together, in the clear as under masks.
    """
    found: dict[Part, Counted] = {}
    start = 0
    for part in parts_of(question):
        end = start + math.prod(shape_of(part))
        if all(end <= row.size for row in rows.values()):
            given = np.array([row.ravel()[start:end] for row in rows.values()])
            shaped = (calibrated_together(given) if isinstance(part, Calibrate) else given).reshape(-1, *shape_of(part))
            found[part] = dict(zip(rows, shaped, strict=True)), set(heard)
        start = end
    return found


def checked_counts(question: Question, given: Counts, holders: int = 1, calibrated: int = 1) -> Counts:
    """The counts of one holder or more in one row; raises Refused unless documents could have given them.

    calibrated: how many holders' calibrations are in it.
    """
    if given.size != count_of(question):
        raise Refused("shape_mismatch", "counts are not of the shape that was asked for")
    if question.terms.privacy:  # of counts under noise, nothing can be said but that they are numbers
        return given.ravel()
    for part, (counts, _) in by_question(question, {"": given}, ()).items():
        _check_part(part, counts[""], calibrated if isinstance(part, Calibrate) else holders)
    return given.ravel()


def measured(known: Mapping[Part, Counted]) -> QualityTable | None:
    """How good experts are by what holders have told; None if there are no scores."""
    for part, (rows, _) in known.items():
        if isinstance(part, ScoresAsked) and any(row.any() for row in rows.values()):
            sums, counts = np.stack([rows[name] for name in part.domains], axis=1)
            return QualityTable(part.domains, part.experts, sums, counts)
    return None


def _check_part(question: Part, counts: Counts, holders: int) -> None:
    if isinstance(question, ScoresAsked):
        try:
            check_scores(counts[0], counts[1], MAX_HOLDER_SCORES * holders)
        except FormatError as error:
            raise Refused("over_bound", str(error)) from None
        return
    most = (MAX_HELD_OUT_DOCUMENTS if isinstance(question, Evaluate) else CALIBRATED_COUNTS) * holders
    if not 0 <= counts.min() <= counts.max() <= most:
        raise Refused("over_bound", "more documents than a holder may evaluate on, or calibrate with")
    if isinstance(question, Evaluate):
        met, changed = counts[:, :-2].sum(axis=1), counts[:, -2:].sum(axis=1)
        if met.max() > most or len(np.unique(met)) != 1 or (changed > met).any():
            raise Refused("broken_identity", "the candidates were not all scored on the same documents")
        return
    reliability, scope = split_calibration(counts, len(question.temperatures))
    fallen, right = reliability[..., 0], reliability[..., 1]
    if (right > fallen).any() or len(np.unique(fallen.sum(axis=-1))) != 1:
        raise Refused("broken_identity", "the temperatures were not all tried on the same documents")
    by_length = scope.sum(axis=1)
    if (by_length[:, 0] != by_length[:, 1]).any() or scope[..., 0].sum() not in (0, fallen[0, 0].sum()):
        raise Refused("broken_identity", "what belongs to any domain was not counted on the same documents")


# What a round may not lose: a router without a domain sends that domain's texts to wrong experts, with confidence


def check_nothing_lost(
    federation: Federation, names: Collection[str], reasons: Mapping[str, tuple[str, str]], allowed: Collection[str]
) -> None:
    """Raise RoundFailed if the sums of these holders leave out a domain that the newest release has.

    reasons: code and words of whoever refused something in this round, by name. allowed: domains that may be lost.
    A domain that has no holder on the roster any more was let go before.
    """
    newest, active = federation.newest, federation.ledger.standing().active
    there = {active[name].domain for name in names}
    held = {holder.domain for holder in active.values()}
    may_go = {*allowed, *federation.settings.round.may_lapse}
    lost = [domain for domain in newest.domains if domain in held - there - may_go] if newest else []
    if newest is None or not lost:
        return
    missing = sorted(name for name, holder in active.items() if holder.domain in lost)
    each = why_missing(missing, reasons)
    named, flags = ", ".join(lost), " ".join(f"--allow-missing {domain}" for domain in lost)
    raise RoundFailed(
        f"the router would lose {named}, which release {newest.number:04} has: {each}. Nothing was opened and release "
        f"{newest.number:04} stands; run the round again when this is mended, or let the domain go with {flags}"
    )


def why_missing(names: Collection[str], reasons: Mapping[str, tuple[str, str]]) -> str:
    """Why these holders are not in a round, and what each has to do."""
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(why(*reasons.get(name, (AWAY, ""))), []).append(name)
    return "; ".join(f"{', '.join(those)} {words}" for words, those in alike.items())
