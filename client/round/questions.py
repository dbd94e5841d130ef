"""What a holder lets itself be asked about its held-out documents: a small family of questions, once for each total.

Counts under any weights, asked for again and again, would tell what stands in a document. So candidates and λ come
from the terms, the domains are those of a sum that this holder has helped to open, the weights must be such as that sum
could be solved to, and the journal keeps every question that was signed for: of each total one evaluation, in which the
first candidate may be calibrated, and one calibration of another. Knows messages and the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeway.client.round.holder import Holder
from ridgeway.client.round.roster import load_roster
from ridgeway.client.round.scoring import Weights
from ridgeway.client.round.weights_check import check_weights
from ridgeway.common.base.errors import Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.masking.history import PastSum
from ridgeway.common.privacy.document_bound import DocumentSums
from ridgeway.common.protocol.messages import Calibrate, Evaluate, Lot
from ridgeway.common.protocol.packet import Opened, weights_of

Question = Opened[Evaluate] | Opened[Calibrate]


def lot_of(message: Evaluate | Calibrate) -> Lot:
    return "scores" if isinstance(message, Evaluate) else "reliability"


def asked_weights(holder: Holder, request: Question) -> list[Weights]:
    """The weights of a question that may be asked; raises Refused if it may not."""
    message = request.message
    if holder.domain not in message.domains:
        raise Refused("wrong_domain", f"this holder's domain {holder.domain} is not among the router's")
    _check_family(message, len(request.blobs))
    weights = [weights_of(blob, message.terms.features, len(message.domains)) for blob in request.blobs]
    if message.terms.mode == "masked":
        _check_total(holder, request, weights)
    return weights


def _check_family(message: Evaluate | Calibrate, blobs: int) -> None:
    """Candidates are distinct members of λ × normalisation × selectors, and temperatures rise."""
    candidates = message.candidates if isinstance(message, Evaluate) else (message.candidate,)
    ridges = len(message.terms.ridges)
    if isinstance(message, Evaluate) and blobs != ridges:
        raise Refused("foreign_weights", f"{blobs} matrices of weights were sent for the {ridges} λ of the terms")
    more = isinstance(message, Evaluate) and (message.temperatures or message.experts or message.last)
    if message.terms.privacy and (len(candidates) > 1 or more):
        raise Refused("foreign_candidates", "under noise this holder counts for one router, and nothing else")
    if any(candidate.ridge >= ridges for candidate in candidates):
        raise Refused("malformed", "a candidate names weights that were not sent")
    named = all(each.selector == "entropy" or each.k == DEFAULT.selector.k for each in candidates)
    if len(set(candidates)) != len(candidates) or not named:
        raise Refused("foreign_candidates", "candidates are not all different, or no settings could name them")
    if list(message.temperatures) != sorted(set(message.temperatures)):
        raise Refused("foreign_candidates", "temperatures are not all different and in their order")


def _check_total(holder: Holder, request: Question, weights: Sequence[Weights]) -> None:
    """The question is about a sum that this holder has helped to open, and may be asked about it."""
    message, terms, lot = request.message, request.message.terms, lot_of(request.message)
    totals = holder.opened_totals()
    total = next((each for each in totals if each.id == message.total), None)
    if total is None:
        raise Refused("unknown_total", "this holder has not helped to open the total that it is asked about")
    if message.domains != _domains(holder, total):
        raise Refused("wrong_domain", "the question's domains are not those of the total that it is about")
    _check_once(holder, request.digest, lot, total, totals)
    known = holder.handovers
    source, share = known.by_owner(total.by_key())[known.owner(holder.identity.public)]
    own = holder.offered_sums(terms)
    if holder.source(own) != source:
        raise Refused("source_changed", "this holder's sums have changed since the total was opened")
    if isinstance(message, Calibrate):
        _check_evaluated(holder, message, sha256(request.blobs[0]))
        return
    if isinstance(own, DocumentSums):
        return  # what noise has made of a total is nobody's to tell from crafted weights
    weighted = share if terms.mass else 0
    given = weights, terms.ridges, own.statistics, holder.encoder(terms), terms.mass, len(total.parts)
    check_weights(*given, share=weighted)


def _domains(holder: Holder, total: PastSum) -> tuple[str, ...]:
    """The domains whose holders are in a sum, as they were pinned."""
    owner = holder.handovers.owner
    known = {owner(place.key): place.domain for place in load_roster(holder.folder)}
    known |= {owner(holder.identity.public): holder.domain}
    members = {owner(key) for key in total.by_key()}
    if unknown := members - set(known):
        raise Refused(
            "forged_roster", "members of the total are not on the roster that this holder has pinned", unknown
        )
    return tuple(sorted({known[key] for key in members}))


def _check_once(holder: Holder, request: str, lot: Lot, total: PastSum, totals: Sequence[PastSum]) -> None:
    """Another total of the same members' same data, with other shares or keys, is no reason to count again.

    totals: all that this holder has helped to open.
    """
    known, by_id = holder.handovers, {each.id: each for each in totals}

    def data(past: PastSum) -> dict[str, str]:
        return known.by_owner({key: source for key, source, _ in past.parts})

    counted = _noted(holder, "counted", lot)
    signed = [facts["request"] for facts in counted if data(by_id[facts["total"]]) == data(total)]
    if signed and request not in signed:
        raise Refused("already_counted", f"this holder has signed for the {lot} of this total before, and does so once")


def _check_evaluated(holder: Holder, message: Calibrate, weights: str) -> None:
    """A calibration is of a candidate that was evaluated, with the weights that it had then, and not calibrated yet."""
    candidate = message.candidate
    shown = candidate.model_dump(mode="json")
    for facts in _noted(holder, "counted", "scores"):
        known = dict(enumerate(facts["weights"])).get(candidate.ridge)
        if (facts["total"], known) == (message.total, weights) and shown in facts["candidates"]:
            if facts.get("calibrated") == shown:
                raise Refused("already_counted", "this holder has calibrated this candidate as it evaluated it")
            return
    raise Refused("foreign_weights", "this holder has not evaluated these weights and this candidate on this total")


# What was asked and signed for


def note_asked(holder: Holder, request: Question) -> None:
    """Keep what a question was, before its counts are sealed."""
    message, lot = request.message, lot_of(request.message)
    if _asked(holder, lot, request.digest) is None:
        [total] = {each for each in holder.opened_totals() if each.id == message.total}
        candidates = message.candidates if isinstance(message, Evaluate) else (message.candidate,)
        shown = [each.model_dump(mode="json") for each in candidates]
        facts = {
            "round": request.round,
            "session": message.session,
            "lot": lot,
            "request": request.digest,
            "total": total.id,
            "data": total.data,
            "candidates": shown,
            "calibrated": shown[0] if message.temperatures else None,
            "weights": [sha256(blob) for blob in request.blobs],
            "experts": list(message.experts) if isinstance(message, Evaluate) else [],
        }
        holder.journal.append(("asked", facts))


def note_counted(holder: Holder, lot: Lot, request: str) -> None:
    """Keep that a question is signed for, before the signature leaves; raises Refused if another one was."""
    facts = _asked(holder, lot, request)
    if facts is None:
        raise Refused("not_sealed", f"this holder has not sealed any {lot} in this session")
    totals = holder.opened_totals()
    [total] = {each for each in totals if each.id == facts["total"]}
    _check_once(holder, request, lot, total, totals)
    if request not in [each["request"] for each in _noted(holder, "counted", lot)]:
        holder.journal.append(("counted", facts))


def _asked(holder: Holder, lot: Lot, request: str) -> Mapping[str, Any] | None:
    return next((facts for facts in _noted(holder, "asked", lot) if facts["request"] == request), None)


def _noted(holder: Holder, kind: str, lot: Lot) -> list[Mapping[str, Any]]:
    return [entry.facts for entry in holder.journal.entries(kind) if entry.facts["lot"] == lot]
