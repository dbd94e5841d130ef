"""A request in, a signed answer out: decode, ask the policy, do the work, encode.

Whatever goes wrong becomes a refusal with a code and a reason that hold nothing private; the whole story is written to
the holder's own log. Knows messages; knows nothing of Flower.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import numpy as np

from ridgeway.client.round import masked_answers
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.kept_log import check_log, log_length, take_log
from ridgeway.client.round.known_keys import check_coordinator, check_members
from ridgeway.client.round.masked_answers import Answer
from ridgeway.client.round.policy import check_cohort, check_roster, check_terms
from ridgeway.client.round.questions import Question, asked_weights
from ridgeway.client.round.readiness import obstacles
from ridgeway.client.round.scoring import HeldOut, LastRouter, Scorer, Weights
from ridgeway.common.base import errors
from ridgeway.common.base.errors import Refused, RidgewayError
from ridgeway.common.base.files import canonical_json, sha256
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.protocol import messages
from ridgeway.common.protocol.cohort import MAX_HOLDERS
from ridgeway.common.protocol.messages import Message
from ridgeway.common.protocol.packet import Opened, Packet, open_packet, seal_packet, statistics_blobs
from ridgeway.common.routing.evaluation import paired
from ridgeway.common.statistics.statistics_file import Prepared

NO_ROUND = "0" * 32
NO_COUNTS = np.zeros(0, dtype=np.int64)
UNREADABLE = ("corpus_unreadable", "this holder's corpus cannot be read; its own log says why")
NO_CARD = ("device_missing", "this holder's graphics card cannot be used as it is set up; its own log says why")
REASONS: dict[type[RidgewayError], tuple[str, str]] = {
    errors.CorpusError: UNREADABLE,
    errors.InputError: UNREADABLE,  # its settings name something that is not there
    errors.DeviceError: NO_CARD,
    errors.EncoderError: ("encoder_missing", "the round's encoder cannot be used on this holder's machine"),
    errors.BoundExceeded: ("over_bound", "this holder's sums are larger than the public bound allows"),
    errors.BrokenIdentity: (
        "broken_identity",
        "no text could have given this holder's sums; it must make them anew",
    ),
}


def answer(holder: Holder, packet: Packet) -> Packet:
    """The holder's signed answer, whatever arrives and goes wrong; raises only if it cannot note what it sends."""
    round_, number = NO_ROUND, 0
    try:
        request = open_packet(packet)
        check_coordinator(holder.journal, holder.settings.policy.coordinator, request.sender, request.handovers)
        check_log(holder)
        round_, number = request.round, request.number
        message, blobs = _handler(request)(holder, request)
    except Exception as error:
        message, blobs = _refusal(holder, error), ()
    reply = seal_packet(message, holder.identity, round=round_, reply_to=packet.digest, blobs=blobs)
    _note(holder, {"round": round_, "number": number}, message, reply)
    return reply


def _refusal(holder: Holder, error: Exception) -> messages.Refusal:
    if isinstance(error, Refused):
        holder.log.warning("refused (%s): %s", error.code, error.reason)
        return messages.Refusal(code=error.code, reason=error.reason[:500], keys=error.keys[:MAX_HOLDERS])
    holder.log.error("could not answer: %s", errors.first_line(error), exc_info=error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return messages.Refusal(code="disk_full", reason="this holder's disk is full")
    for kind, (code, reason) in REASONS.items():
        if isinstance(error, kind):
            return messages.Refusal(code=code, reason=reason)
    return messages.Refusal(code="failed", reason="this holder could not answer; its own log says why")


def _note(holder: Holder, round_: dict[str, Any], message: Message, reply: Packet) -> None:
    """Remember what is about to leave: kind, size and hash, and of sums the cohort or session that they are for."""
    facts: dict[str, Any] = {
        **round_,
        "kind": message.kind,
        "sha256": reply.digest,
        "bytes": len(reply.header) + sum(memoryview(blob).nbytes for blob in reply.blobs),
    }
    if isinstance(message, messages.ClearStatistics):
        facts |= {"cohort": message.cohort, "source": message.source}
    if isinstance(message, messages.SealedSums):
        facts |= {"session": message.session, "lot": message.lot}
    if isinstance(message, messages.Refusal):
        facts |= {"code": message.code, "reason": message.reason}
    holder.journal.append(("sent", facts))


def _hello(holder: Holder, request: Opened[messages.Hello]) -> Answer:
    cohort = request.message.cohort
    holder.take_handovers(request.message.handovers)
    found = [_refusal(holder, error) for error in obstacles(holder, cohort)] if cohort else []
    told = {each.code: messages.Obstacle(code=each.code, keys=each.keys) for each in found}
    return messages.Here(release=_held(holder), log=log_length(holder.folder), obstacles=tuple(told.values())), ()


def _held(holder: Holder) -> messages.HeldRelease | None:
    newest = next((each.facts for each in holder.releases() if each.facts["number"] == holder.newest), None)
    return messages.HeldRelease(number=newest["number"], release=newest["release"]) if newest else None


def _announce(holder: Holder, request: Opened[messages.Announce]) -> Answer:
    message = request.message
    check_terms(holder.settings.policy, message.terms)
    holder.take_handovers(message.handovers)
    masked = message.terms.mode == "masked"
    if masked:
        check_roster(holder.settings.policy, holder.pinned_keys)
    _take_privacy(holder, request)
    ready = holder.sums(message.terms)
    source = holder.source(ready)
    advert, history = None, b""
    if masked:
        held_out = holder.held_out_source(holder.held_out(message.terms))
        advert, history = masked_answers.advertised(holder, request, message.terms, source, held_out)
    offer = messages.Offer(
        domain=holder.domain,
        source=source,
        holdout=ready.holdout if isinstance(ready, Prepared) else holder.settings.holdout,
        release=_held(holder),
        log=log_length(holder.folder),
        advert=advert,
    )
    return offer, (history,) if masked else ()


def _take_privacy(holder: Holder, request: Opened[messages.Announce]) -> None:
    """Keep the prior that came with private terms, and see that they can be afforded, before anything is read."""
    terms = request.message.terms
    if bool(request.blobs) != bool(terms.privacy):
        raise Refused("malformed", "a prior comes with private terms, and with no others")
    if terms.privacy:
        holder.noisy.take_prior(request.blobs[0], terms.privacy, terms.encoder)
        holder.check_affordable(terms)


def _collect(holder: Holder, request: Opened[messages.Collect]) -> Answer:
    message = request.message
    cohort = message.cohort
    member = check_cohort(holder.settings.policy, cohort, holder.identity.public, holder.domain)
    if cohort.terms.mode != "clear":
        raise Refused("not_masked", "under masked terms this holder sends no statistics in the clear")
    check_members(holder.handovers, holder.pinned_keys, [each.key for each in cohort.members])
    holder.note_cohort(request.round, cohort)
    ready = holder.offered_sums(cohort.terms)
    sums = holder.weighted(ready, cohort, member)
    return messages.ClearStatistics(cohort=cohort.id, source=holder.source(ready)), statistics_blobs(sums)


def _evaluate(holder: Holder, request: Opened[messages.Evaluate]) -> Answer:
    message = request.message
    weights = _asked_weights(holder, request)
    if message.terms.privacy:
        return _evaluate_under_noise(holder, request, message.terms.privacy, weights)
    own, last = message.domains.index(holder.domain), _last_router(holder, message)
    sample = holder.held_out(message.terms)
    scorer = _scorer(holder, message, sample)
    counts = np.array(scorer.routed(weights, message.candidates, own, last), dtype=np.int64)
    first, reliability = message.candidates[0], NO_COUNTS
    if message.temperatures:
        reliability = scorer.calibration(weights[first.ridge], first, own, message.temperatures)
    quality = holder.expert_scores(message.experts)
    if message.terms.mode == "masked":
        scores = paired(counts.ravel()), quality
        return masked_answers.seal_counts(holder, request, scores, paired(reliability), holder.held_out_source(sample))
    rows = tuple(tuple(row) for row in counts.tolist())
    more = {"quality": tuple(quality.tolist()), "reliability": tuple(reliability.tolist())}
    return messages.Scores(counts=rows, **more), ()


def _evaluate_under_noise(
    holder: Holder, request: Opened[messages.Evaluate], privacy: Privacy, weights: list[Weights]
) -> Answer:
    """To which domain how many documents were routed, under noise; nothing is compared or calibrated."""
    message, own = request.message, request.message.domains.index(holder.domain)
    sample = holder.held_out(message.terms)
    source = holder.held_out_source(sample)
    [[*routed, _, _]] = _scorer(holder, message, sample).routed(weights, message.candidates, own)
    question = f"{source} {sha256(*request.blobs, canonical_json(message.domains))}"
    noisy = holder.noisy.counts(np.array(routed, dtype=np.int64), privacy, holder.settings.holdout, question)
    counts = np.append(noisy, (0, 0))
    if message.terms.mode == "masked":
        return masked_answers.seal_counts(holder, request, [counts], NO_COUNTS, source)
    return messages.Scores(counts=(tuple(counts.tolist()),)), ()


def _calibrate(holder: Holder, request: Opened[messages.Calibrate]) -> Answer:
    message = request.message
    if message.terms.privacy:
        raise Refused("foreign_candidates", "under noise this holder counts once, and calibrates nothing")
    [weights] = _asked_weights(holder, request)
    own, sample = message.domains.index(holder.domain), holder.held_out(message.terms)
    counts = _scorer(holder, message, sample).calibration(weights, message.candidate, own, message.temperatures)
    if message.terms.mode == "masked":
        return masked_answers.seal_counts(holder, request, (), paired(counts), holder.held_out_source(sample))
    return messages.Reliability(counts=tuple(counts.ravel().tolist())), ()


def _asked_weights(holder: Holder, request: Question) -> list[Weights]:
    check_terms(holder.settings.policy, request.message.terms)
    if request.message.terms.mode == "masked":
        masked_answers.check_countable(holder, request)
    return asked_weights(holder, request)


def _last_router(holder: Holder, message: messages.Evaluate) -> LastRouter | None:
    """The router to compare with, from this holder's own copy; none if it has none that knows its domain."""
    release = holder.release(message.last) if message.last else None
    if release is None or holder.domain not in release.domains:
        return None
    if release.manifest["encoder"]["fingerprint"] != message.terms.encoder:
        return None
    return LastRouter(release.weights, release.selector, release.domains.index(holder.domain))


def _scorer(holder: Holder, message: messages.Evaluate | messages.Calibrate, sample: HeldOut) -> Scorer:
    terms = message.terms
    return Scorer(holder.encoder(terms), sample, terms.sampling.sampling, holder.settings.device)


def _deliver(holder: Holder, request: Opened[messages.Deliver]) -> Answer:
    message = request.message
    *files, log = request.blobs
    take_log(holder, log)
    holder.store_release(message.number, message.release, files)
    masked_answers.forget_session(holder, request.round)
    return messages.Receipt(release=message.release, number=message.number), ()


HANDLERS: dict[type[Message], Callable[[Holder, Opened[Any]], Answer]] = {
    messages.Hello: _hello,
    messages.Announce: _announce,
    messages.Collect: _collect,
    messages.Share: masked_answers.answer_share,
    messages.Hold: masked_answers.answer_hold,
    messages.Seal: masked_answers.answer_seal,
    messages.ConfirmSum: masked_answers.answer_confirm,
    messages.LockSum: masked_answers.answer_lock,
    messages.OpenSum: masked_answers.answer_open,
    messages.Evaluate: _evaluate,
    messages.Calibrate: _calibrate,
    messages.Deliver: _deliver,
}


def _handler(request: Opened[Message]) -> Callable[[Holder, Opened[Any]], Answer]:
    if request.reply_to is not None or type(request.message) not in HANDLERS:
        raise Refused("malformed", "a holder answers requests only")
    return HANDLERS[type(request.message)]
