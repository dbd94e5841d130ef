"""A request in, a signed answer out: decode, ask the policy, do the work, encode.

Whatever goes wrong becomes a refusal with a code and a reason that hold nothing private; the whole
story is written to the holder's own log. No answer depends on the corpus but by the vectors that a
mode releases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ridgeway.client.round import masked_answers
from ridgeway.client.round.epochs import Epoch, SignedTotal
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.masked_answers import Answer
from ridgeway.client.round.policy import (
    check_cohort,
    check_coordinator,
    check_members,
    check_roster,
    check_terms,
)
from ridgeway.client.round.scoring import Scorer, Weights, router_table
from ridgeway.common.base import errors
from ridgeway.common.base.errors import Refused, RidgewayError
from ridgeway.common.base.files import sha256
from ridgeway.common.base.records import record_json
from ridgeway.common.privacy.noisy_solve import solve_private
from ridgeway.common.protocol import messages
from ridgeway.common.protocol.cohort import MAX_HOLDERS
from ridgeway.common.protocol.messages import Message
from ridgeway.common.protocol.packet import (
    LARGEST_WEIGHT,
    Opened,
    Packet,
    open_packet,
    seal_packet,
    vector_blob,
    vector_of,
    weights_of,
)
from ridgeway.common.routing.evaluation import paired
from ridgeway.common.routing.release import Release
from ridgeway.common.routing.sentence_table import weight_columns

NO_ROUND = "0" * 32
NO_COUNTS = np.zeros(0, dtype=np.int64)
_REASONS: dict[type[RidgewayError], tuple[str, str]] = {
    errors.DeviceError: (
        "device_missing",
        "this holder's GPU cannot be used as configured; its own log says why",
    ),
    errors.EncoderError: (
        "encoder_missing",
        "the round's encoder cannot be used on this holder's machine",
    ),
}


def answer(holder: Holder, packet: Packet) -> Packet:
    """The holder's signed answer, whatever arrives and goes wrong; raises only if it cannot note
    what it sends.
    """
    round_: dict[str, Any] = {"round": NO_ROUND, "number": 0}
    try:
        request = open_packet(packet)
        check_coordinator(
            holder.journal,
            holder.policy.coordinator,
            request.sender,
            request.handovers,
        )
        round_ = {
            "round": request.round,
            "number": request.number,
            **_mode(request.message),
        }
        message, blobs = _handler(request)(holder, request)
    except Exception as error:
        message = _refusal(holder, error)
        blobs = ()
    reply = seal_packet(
        message,
        holder.identity,
        round=round_["round"],
        reply_to=packet.digest,
        blobs=blobs,
    )
    _note(holder, round_, message, reply)
    return reply


def _mode(message: Message) -> dict[str, str]:
    """Under which mode something is asked for, where the request says it: for the owner's own
    record.
    """
    if isinstance(message, messages.Announce | messages.Evaluate):
        return {"mode": message.terms.mode}
    if isinstance(message, messages.Collect | messages.Share):
        return {"mode": message.cohort.terms.mode}
    return {}


def _refusal(holder: Holder, error: Exception) -> messages.Refusal:
    if isinstance(error, Refused):
        holder.log.warning("refused (%s): %s", error.code, error.reason)
        return messages.Refusal(
            code=error.code, reason=error.reason[:500], keys=error.keys[:MAX_HOLDERS]
        )
    holder.log.error("could not answer: %s", errors.first_line(error), exc_info=error)
    if errors.is_disk_full(error):
        return messages.Refusal(code="disk_full", reason="this holder's disk is full")
    for kind, (code, reason) in _REASONS.items():
        if isinstance(error, kind):
            return messages.Refusal(code=code, reason=reason)
    return messages.Refusal(
        code="failed", reason="this holder could not answer; its own log says why"
    )


def _note(
    holder: Holder, round_: dict[str, Any], message: Message, reply: Packet
) -> None:
    """Remember what is about to leave: kind, size and hash, and of sums the cohort or session that
    they are for.
    """
    facts: dict[str, Any] = {
        **round_,
        "kind": message.kind,
        "sha256": reply.digest,
        "bytes": (
            len(reply.header) + sum(memoryview(blob).nbytes for blob in reply.blobs)
        ),
    }
    if isinstance(message, messages.ClearStatistics | messages.NoisyStatistics):
        facts |= {"cohort": message.cohort, "epoch": message.source}
    if isinstance(message, messages.SealedSums):
        facts |= {"session": message.session, "lot": message.lot}
    if isinstance(message, messages.Refusal):
        facts |= {"code": message.code, "reason": message.reason}
    holder.journal.append(("sent", facts))


def _hello(holder: Holder, request: Opened[messages.Hello]) -> Answer:
    return messages.Here(release=_held(holder)), ()


def _held(holder: Holder) -> messages.HeldRelease | None:
    number = holder.newest
    if not number:
        return None
    return messages.HeldRelease(number=number, release=holder.received[number])


def _announce(holder: Holder, request: Opened[messages.Announce]) -> Answer:
    terms = request.message.terms
    check_terms(holder.policy, terms)
    holder.take_handovers(request.message.handovers)
    holder.check_record(request.message.heard)
    if terms.uses_masks:
        check_roster(holder.policy, holder.pinned_keys)
    holder.encoder(terms)
    epoch = holder.epoch(terms)
    holder.check_affordable(terms)
    advert = None
    if terms.uses_masks:
        advert = masked_answers.advertised(holder, request, terms, epoch.name)
    offer = messages.Offer(
        domain=holder.domain,
        epoch=messages.OpenEpoch(
            name=epoch.name, used=holder.totals.has_signed("statistics", epoch.name)
        ),
        holdout=epoch.holdout,
        release=_held(holder),
        advert=advert,
    )
    return offer, ()


def _collect(holder: Holder, request: Opened[messages.Collect]) -> Answer:
    """Send this holder's own sums: exact ones in clear rounds, under all of the noise in private
    ones.
    """
    cohort = request.message.cohort
    terms = cohort.terms
    check_cohort(holder.policy, cohort, holder.key, holder.domain)
    if terms.uses_masks:
        raise Refused(
            "not_masked", "under these terms this holder sends sums only under masks"
        )
    check_members(
        holder.handovers, holder.pinned_keys, [member.key for member in cohort.members]
    )
    epoch = holder.epoch(terms)
    holder.note_cohort(request.round, cohort)
    named = {"cohort": cohort.id, "source": epoch.name}
    if terms.privacy:
        noisy = holder.noisy(epoch, terms.privacy).column_sums()
        return messages.NoisyStatistics(**named), (vector_blob(terms.vector_of(noisy)),)
    sums = holder.exact_sums(epoch, cohort)
    holder.account.pay(holder.expense(terms, epoch, "statistics"))
    return messages.ClearStatistics(**named), (vector_blob(terms.vector_of(sums)),)


# Counts: for one router an epoch, the one that a round publishes


def _evaluate(holder: Holder, request: Opened[messages.Evaluate]) -> Answer:
    message = request.message
    check_terms(holder.policy, message.terms)
    if holder.domain not in message.domains:
        raise Refused(
            "wrong_domain",
            f"the router does not have this holder's domain {holder.domain}",
        )
    if list(message.temperatures) != sorted(set(message.temperatures)):
        raise Refused("malformed", "temperatures are not distinct and sorted")
    if message.terms.privacy:
        return _noisy_counts(holder, request)
    if message.terms.mode == "masked":
        epoch = masked_answers.countable_epoch(holder, request)
    else:
        epoch = holder.epoch(message.terms)
    return _exact_counts(holder, request, epoch)


def _exact_counts(
    holder: Holder, request: Opened[messages.Evaluate], epoch: Epoch
) -> Answer:
    """Where the router routes held-out documents, what it changes, and what calibrates it: exact
    counts.
    """
    message = request.message
    columns = weight_columns(holder.encoder(message.terms), len(message.domains))
    weights = weights_of(request.blobs[0], message.terms.features, columns)
    scorer = _scorer(holder, message, epoch, weights)
    last = _last_release(holder, message)
    changes = (0, 0)
    if last:
        changes = scorer.changes(last, last.domains.index(holder.domain))
    counts = np.append(scorer.routed(), changes)
    quality = holder.expert_scores(epoch, message.experts)
    reliability = NO_COUNTS
    if message.temperatures:
        reliability = scorer.calibration(message.temperatures)
    question = _question(request)
    if message.terms.mode == "masked":
        rows = [paired(counts), quality]
        return masked_answers.seal_counts(
            holder, request, rows, paired(reliability), question
        )
    epochs = {holder.handovers.owner(holder.key): epoch.name}
    total = SignedTotal(
        "counts", message.terms.id, epoch.name, epochs, question=question
    )
    with holder.sessions.exclusive_lock():
        holder.sign(total, question, message.terms, epoch)
    answer = messages.Counted(
        counts=tuple(counts.tolist()),
        quality=tuple(quality.tolist()),
        reliability=tuple(reliability.tolist()),
    )
    return answer, ()


def _noisy_counts(holder: Holder, request: Opened[messages.Evaluate]) -> Answer:
    """To which domain how many documents are routed, under noise, by the router that the noisy
    total gives.

    The total is public, so this holder solves it itself: nobody chooses the weights that it counts
    under.
    """
    message = request.message
    terms = message.terms
    privacy = message.terms.privacy
    assert privacy is not None
    if message.session or message.temperatures or message.experts or message.last:
        raise Refused(
            "malformed",
            "in private rounds this holder counts only for one router",
        )
    if set(message.holders) != set(message.domains):
        raise Refused(
            "malformed",
            "the total's holders and the router's domains do not match",
        )
    epoch = holder.epoch(terms)
    weights = _solved(holder, request)
    holder.note_solved(request.round, weights)
    counts = _scorer(holder, message, epoch, weights).routed()
    noisy = holder.noisy(epoch, privacy).counts(counts, _question(request))
    return messages.Counted(counts=tuple(noisy.tolist())), ()


def _solved(holder: Holder, request: Opened[messages.Evaluate]) -> Weights:
    """The weights of the router that the request's noisy total gives."""
    message = request.message
    terms = message.terms
    domains = len(message.domains)
    encoder = holder.encoder(terms)
    assert terms.privacy is not None
    prior = holder.prior(terms.privacy)
    if prior is None:
        raise Refused(
            "prior_missing",
            f"this holder does not have the prior {terms.privacy.prior[:12]} of these"
            " terms",
        )
    vector = vector_of(request.blobs[0], terms.vector_size(domains))
    total = terms.statistics_of(vector, domains)
    weights = solve_private(total, terms.privacy, message.holders, prior, encoder)
    if not (np.abs(weights) < LARGEST_WEIGHT).all():
        raise Refused("malformed", "the total gives no valid router")
    return weights


def _scorer(
    holder: Holder, message: messages.Evaluate, epoch: Epoch, weights: Weights
) -> Scorer:
    terms = message.terms
    table = router_table(holder.encoder(terms), weights, private=bool(terms.privacy))
    domain = message.domains.index(holder.domain)
    return Scorer(table, message.rule, holder.epochs.held_out(epoch), domain)


def _question(request: Opened[messages.Evaluate]) -> str:
    """Stands for what was asked, in whichever session and with whichever request."""
    asked = request.message.model_dump(mode="json", exclude={"session"})
    return sha256(record_json(asked), *request.blobs)


def _last_release(holder: Holder, message: messages.Evaluate) -> Release | None:
    """The release to compare with, from this holder's own copy; none if it has none that knows its
    domain.
    """
    release = holder.release(message.last) if message.last else None
    if release is None or holder.domain not in release.domains:
        return None
    same = release.manifest["encoder"]["fingerprint"] == message.terms.encoder
    return release if same else None


def _deliver(holder: Holder, request: Opened[messages.Deliver]) -> Answer:
    message = request.message
    holder.store_release(request.round, message.number, message.release, request.blobs)
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
    messages.Deliver: _deliver,
}


def _handler(request: Opened[Message]) -> Callable[[Holder, Opened[Any]], Answer]:
    if request.reply_to is not None or type(request.message) not in HANDLERS:
        raise Refused("malformed", "a holder answers only requests")
    return HANDLERS[type(request.message)]
