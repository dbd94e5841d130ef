"""A holder's side of a masked session: advertise, share, seal, confirm, open, each once and only as its policy allows.

Every step is checked here, on the holder's own machine, against what the holder has pinned and what it knows to
have been opened before; nothing that a coordinator says can change that. Knows messages; knows nothing of Flower.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.round.holder import Holder
from ridgeway.client.round.kept_log import logged_sums
from ridgeway.client.round.known_keys import check_members
from ridgeway.client.round.policy import check_cohort, check_shares
from ridgeway.client.round.questions import Question, lot_of, note_asked, note_counted
from ridgeway.client.round.session_store import GONE, Agreed, Answered, SessionState
from ridgeway.common.base.errors import MaskingError, Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.masking.agreement import Advert, Place, check_agreement, check_survivors, place_of
from ridgeway.common.masking.differencing import Parts, set_apart
from ridgeway.common.masking.history import PastSum, history_bytes, pool_bytes, read_pool
from ridgeway.common.masking.member import advertise, confirm, new_secrets, open_envelope, reveal, seal, share
from ridgeway.common.masking.shares import pack_by_place, unpack_by_place
from ridgeway.common.protocol import messages
from ridgeway.common.protocol.cohort import Cohort, DomainShare, Terms
from ridgeway.common.protocol.messages import ENVELOPE_BYTES, LOTS, MAX_COUNTS, Lot, Message, lots_beside
from ridgeway.common.protocol.packet import Blob, Opened
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.common.statistics.sums import Integers, check_bound

Answer = tuple[Message, Sequence[Blob]]


def advertised(
    holder: Holder, request: Opened[messages.Announce], terms: Terms, source: str, held_out: str
) -> tuple[Advert, bytes]:
    """Keys for a session that may come of this round, and what this holder knows of sums that were opened before.

    A round's name serves once; the same request again gets the same answer.
    """
    with holder.sessions.alone():
        state = holder.sessions.load()
        if state is not None and state.round == request.round:
            shown = state.advert
            if state.announced != request.digest or (shown.source, shown.held_out) != (source, held_out):
                raise Refused("session_reused", "this round was announced before, and differently")
            return shown, state.history.encode()
        if holder.has_been_in(request.round):
            raise Refused("session_reused", "this holder has been in a session of this name before")
        own = new_secrets(len(LOTS), secrets.token_bytes)
        told = holder.memory.history().told()
        history = pool_bytes([told], logged_sums(holder.folder))
        shown = advertise(own, holder.identity, terms.id, request.round, source, held_out, sha256(history_bytes(told)))
        holder.journal.append(("session", {"round": request.round}))
        holder.sessions.save(
            SessionState(
                round=request.round,
                announced=request.digest,
                advert=shown,
                history=history.decode(),
                nonce=own.nonce.hex(),
                cipher=own.cipher.hex(),
                masks=tuple(each.hex() for each in own.masks),
                seeds=tuple(each.hex() for each in own.seeds),
            )
        )
        return shown, history


def answer_share(holder: Holder, request: Opened[messages.Share]) -> Answer:
    message = request.message
    cohort, agreement = message.cohort, message.agreement
    check_cohort(holder.settings.policy, cohort, holder.identity.public, holder.domain)
    with holder.sessions.alone():
        state = holder.sessions.of_round(request.round)
        if state.taken("share", request.digest) is None:
            told = read_pool(request.blobs[0], {advert.key: advert.history for advert in agreement.adverts})
            holder.take_handovers(link for history in told.values() for link in history.handovers)
            _check_session(holder, state, message)
            holder.memory.take_in(told)
            dealt = share(agreement, state.secrets, place_of(agreement, holder.identity.public), secrets.token_bytes)
            holder.note_cohort(request.round, cohort, agreement.id.hex())
            envelopes = pack_by_place(dealt.envelopes)
            agreed, dealt_to = Agreed.of(cohort, agreement), tuple(sorted(dealt.envelopes))
            changes = {"agreed": agreed, "kept": dealt.kept.hex(), "dealt": dealt_to}
            state = state.with_answer("share", request.digest, envelopes.hex(), **changes)
            holder.sessions.save(state)
        sent = bytes.fromhex(state.answered["share"].reply)
        return messages.Envelopes(session=agreement.id.hex()), (sent,)


def _check_session(holder: Holder, state: SessionState, message: messages.Share) -> None:
    """Everything that must hold before a secret is dealt out."""
    cohort, agreement = message.cohort, message.agreement
    if cohort.terms.mode != "masked":
        raise Refused("not_masked", "secrets are shared for masked statistics only")
    if agreement.round != state.round or agreement.lots != LOTS:
        raise Refused("other_session", "the agreement is of another round, or adds up other things")
    if agreement.cohort != cohort.id or agreement.terms != cohort.terms.id:
        raise Refused("other_session", "the agreement is of another cohort, or of other terms")
    if list(agreement.keys) != sorted(member.key for member in cohort.members):
        raise Refused("other_session", "the agreement and the cohort name different members")
    pinned = holder.pinned_keys
    check_members(holder.handovers, pinned, agreement.keys)
    check_agreement(agreement, state.advert, pinned, holder.settings.policy.min_cohort)


def answer_hold(holder: Holder, request: Opened[messages.Hold]) -> Answer:
    with holder.sessions.alone():
        state = _hold(holder, request)
        return messages.Held(session=state.session.digest), ()


def answer_seal(holder: Holder, request: Opened[messages.Seal]) -> Answer:
    """Hold what the others have dealt out, then send the statistics that were advertised, under masks."""
    with holder.sessions.alone():
        state = _hold(holder, request)
        return _sealed(holder, state, request, "statistics", _weighted(holder, state, state.session.cohort))


def _hold(holder: Holder, request: Opened[messages.Hold]) -> SessionState:
    """Open what the other members have dealt out to this one, and keep it."""
    message = request.message
    state = _state(holder, request, message.session)
    if state.taken("hold", request.digest) is None:
        session = state.session
        shared, own = tuple(sorted(set(message.shared))), state.place
        check_survivors(session, shared, shared)
        if own not in shared:
            raise Refused("not_in_cohort", "this holder has shared its secrets and is said not to have")
        envelopes = _envelopes(request.blobs[0])
        others = set(shared) - {own}
        if not set(envelopes) <= others or (not session.neighbourhood and set(envelopes) != others):
            raise Refused("bad_envelope", "the shares are not those of the other members that have shared")
        held, secrets_ = {own: bytes.fromhex(state.kept)} if state.kept else {}, state.secrets
        for place, envelope in envelopes.items():
            held[place] = open_envelope(session, secrets_, own, place, envelope)
        holding = tuple(sorted(held))
        kept = tuple(held[place].hex() for place in holding)
        state = state.with_answer(
            "hold", request.digest, shared=shared, holding=holding, held=kept, kept=GONE, cipher=GONE
        )
        holder.sessions.save(state)
    return state


def _envelopes(content: Blob) -> dict[Place, bytes]:
    try:
        return unpack_by_place(content, ENVELOPE_BYTES)
    except MaskingError:
        raise Refused("bad_envelope", "the shares of the other members are not of the right size") from None


def _weighted(holder: Holder, state: SessionState, cohort: Cohort) -> NDArray[np.int64]:
    """The statistics that were advertised, weighted and placed as the cohort says."""
    member = check_cohort(holder.settings.policy, cohort, holder.identity.public, holder.domain)
    ready = holder.offered_sums(cohort.terms)
    if holder.source(ready) != state.advert.source:
        raise Refused("source_changed", "this holder's sums have changed since the round was announced; run it again")
    if isinstance(ready, Prepared):
        check_bound(cohort.terms.mass * len(cohort.domains) or ready.statistics.mass * len(cohort.members))
    return cohort.terms.vector_of(holder.weighted(ready, cohort, member, state.session.digest))


def check_countable(holder: Holder, request: Question) -> None:
    """Raise Refused unless the session is one in which this question can be answered; before anything is counted."""
    if request.message.session is None:
        raise Refused("not_masked", "under masked terms this holder sends no counts in the clear")
    with holder.sessions.alone():
        _countable(holder, request, request.message.session)


def _countable(holder: Holder, request: Question, session: str) -> SessionState:
    state = _state(holder, request, session)
    if request.message.terms.id != state.session.terms.id:
        raise Refused("other_session", "the counts are asked for under other terms than the session's")
    _sealable(state, request, lot_of(request.message))
    return state


def seal_counts(
    holder: Holder, request: Question, scores: Sequence[Integers], calibration: Integers, held_out: str
) -> Answer:
    """The counts of this holder's domain among zeros for all the others, under masks.

    scores:      each stands in a row of the domain's own. calibration: in one that all domains share.
    held_out:    stands for the documents that were counted, which must be those that were advertised.
    """
    message = request.message
    assert message.session is not None
    domains, own = len(message.domains), message.domains.index(holder.domain)
    if sum(each.size for each in scores) * domains + calibration.size > MAX_COUNTS:
        raise Refused("too_large", f"more than {MAX_COUNTS:,} counts were asked for")
    rows = [_among_zeros(each, own, domains) for each in scores]
    placed = np.concatenate([*rows, calibration])
    with holder.sessions.alone():
        state = _countable(holder, request, message.session)
        if held_out != state.advert.held_out:
            raise Refused("source_changed", "this holder's held-out documents have changed; run the round again")
        note_asked(holder, request)
        return _sealed(holder, state, request, lot_of(message), placed)


def _among_zeros(row: Integers, place: int, rows: int) -> Integers:
    placed = np.zeros((rows, row.size), dtype=np.int64)
    placed[place] = row
    return placed.ravel()


def _sealed(
    holder: Holder, state: SessionState, request: Opened[Message], lot: Lot, vector: NDArray[np.int64]
) -> Answer:
    """A vector under the masks of its lot. One vector only: under the same masks two would show their difference."""
    session = state.session
    before = _sealable(state, request, lot)
    neighbours = {*state.dealt, *state.holding}
    made = seal(session, state.secrets, state.place, lot, state.shared, neighbours, vector)
    digest = sha256(made.data)
    if before is None:
        holder.sessions.save(state.with_answer(f"seal {lot}", request.digest, digest))
    elif before.reply != digest:
        raise Refused("already_answered", f"this holder has sealed other {lot} in this session")
    return messages.SealedSums(session=session.digest, lot=lot), (made.data,)


def _sealable(state: SessionState, request: Opened[Message], lot: Lot) -> Answered | None:
    """How a lot was sealed before by this very request, if it was; raises Refused if it cannot be any more, or yet."""
    if not state.shared:
        raise Refused("no_session", "this holder has not got the others' shares in this session")
    if state.masks[LOTS.index(lot)] == GONE:
        raise Refused("already_answered", f"the sum of {lot} was opened, and its masks are gone")
    return state.taken(f"seal {lot}", request.digest)


def answer_confirm(holder: Holder, request: Opened[messages.ConfirmSum]) -> Answer:
    """Write down of whom a sum is to be, then sign it.

    A member that falls away before it signs is left out, and the others are asked again: so a further sum may be
    signed, but only one of fewer of the same members, and only as long as no shares were revealed. To sign it is to
    give up the larger one.
    """
    message = request.message
    lot, step = message.lot, f"confirm {message.lot}"
    with holder.sessions.alone():
        state = _state(holder, request, message.session)
        session, question = state.session, _question(state, lot)
        sent = tuple(sorted(set(message.sent)))
        signature = confirm(session, holder.identity, lot, state.shared, sent, question)
        before = state.answered.get(step)
        if before is None or before.reply != _places(sent):
            if {f"lock {lot}", f"open {lot}"} & set(state.answered):
                raise Refused("already_answered", f"this holder has helped to open a sum of {lot} in this session")
            if before is not None and not set(sent) < set(_read_places(before.reply)):
                raise Refused("two_survivor_sets", "another set of senders was confirmed before, and not a larger one")
            parts = _check_sum(holder, state, lot, sent)
            if lot != "statistics":
                note_counted(holder, lot, question)
            away = [key for key in session.keys if key not in parts]
            holder.memory.sign(message.session, PastSum.of(lot, parts), away)
            holder.sessions.save(state.with_answer(step, request.digest, _places(sent)))
        return messages.Confirmed(session=message.session, lot=lot, signature=signature), ()


def answer_lock(holder: Holder, request: Opened[messages.LockSum]) -> Answer:
    """Write down that this holder opens the sum that it signed last, and no other, then sign that."""
    message = request.message
    lot, step = message.lot, f"lock {message.lot}"
    with holder.sessions.alone():
        state = _state(holder, request, message.session)
        sent = _signed_last(state, lot, message.sent)
        asked = lot, state.shared, sent, _question(state, lot)
        signature = confirm(state.session, holder.identity, *asked, lock=True)
        if state.taken(step, request.digest) is None:
            holder.memory.lock(message.session, PastSum.of(lot, _parts(state, lot, sent)))
            holder.sessions.save(state.with_answer(step, request.digest))
        return messages.Locked(session=message.session, lot=lot, signature=signature), ()


def _signed_last(state: SessionState, lot: Lot, shown: Sequence[Place]) -> tuple[Place, ...]:
    """The members of a sum; raises Refused unless it is the one of this lot that this holder signed last."""
    sent = tuple(sorted(set(shown)))
    confirmed = state.answered.get(f"confirm {lot}")
    if confirmed is None or confirmed.reply != _places(sent):
        raise Refused("two_survivor_sets", "another set of senders is to be opened than this holder confirmed")
    return sent


def answer_open(holder: Holder, request: Opened[messages.OpenSum]) -> Answer:
    """Reveal the shares that take the masks off a sum: the last step, after which this lot's secrets are gone."""
    message = request.message
    lot, step = message.lot, f"open {message.lot}"
    with holder.sessions.alone():
        state = _state(holder, request, message.session)
        if state.taken(step, request.digest) is None:
            session, question = state.session, _question(state, lot)
            sent = _signed_last(state, lot, message.sent)
            if session.neighbourhood and f"lock {lot}" not in state.answered:
                raise Refused("not_locked", "this holder opens a sum of so many members only after it has locked it")
            given = reveal(
                *(session, state.place, lot, state.shares(), state.shared, sent),
                dict(message.confirmations),
                question,
                dict(message.locks),
            )
            holder.memory.open(message.session, state.round, PastSum.of(lot, _parts(state, lot, sent)))
            revealed = pack_by_place(given).hex()
            state = state.without_lot(LOTS.index(lot)).with_answer(step, request.digest, revealed)
            holder.sessions.save(state)
        return messages.Revealed(session=message.session, lot=lot), (bytes.fromhex(state.answered[step].reply),)


def forget_session(holder: Holder, round_: str) -> None:
    """The round is over: nothing of its session is needed any more. That of another round is left alone."""
    with holder.sessions.alone():
        state = holder.sessions.load()
        if state is None or state.round == round_:
            holder.sessions.erase()


def _state(holder: Holder, request: Opened[Message], session: str) -> SessionState:
    state = holder.sessions.of_round(request.round)
    if state.session.digest != session:
        raise Refused("other_session", "this holder is in another session of this round")
    return state


def _question(state: SessionState, lot: Lot) -> str:
    """What stands for what was asked: all members must have been asked the same."""
    sealed = state.answered.get(f"seal {lot}")
    if sealed is None:
        raise Refused("not_sealed", f"this holder has not sealed any {lot} in this session")
    return "" if lot == "statistics" else sealed.request  # each member is asked for statistics with shares of its own


def _parts(state: SessionState, lot: Lot, sent: Sequence[Place]) -> Parts:
    """What these members put into a sum."""
    session = state.session
    weighted = lot == "statistics"
    data = session.sources if weighted else session.held_out
    shares = session.shares if weighted and session.terms.mass else (1,) * len(session.keys)
    return {session.keys[place - 1]: (data[place - 1], shares[place - 1]) for place in sent}


def _check_sum(holder: Holder, state: SessionState, lot: Lot, sent: Sequence[Place]) -> Parts:
    """What is put into a sum that may be opened, beside all those that this holder knows of; else raises Refused."""
    policy = holder.settings.policy
    if len(sent) < policy.min_cohort:
        raise Refused(
            "cohort_too_small", f"this holder opens sums of {policy.min_cohort} members or more, not of {len(sent)}"
        )
    parts = _parts(state, lot, sent)
    if lot == "statistics":
        session = state.session
        check_shares(policy, [DomainShare(session.domains[place - 1], session.shares[place - 1]) for place in sent])
    own_session = state.session.digest  # in it, a larger sum may be given up for this one
    earlier = holder.memory.sums(lots_beside(lot), but_for=own_session)
    known = holder.handovers
    found = set_apart([known.by_owner(each.by_key()) for each in earlier], known.by_owner(parts), policy.min_difference)
    if found:
        raise Refused(
            "sets_apart",
            f"beside sums of {lot} that were opened before, this one would show what only {len(found)} of the members "
            f"gave; at least {policy.min_difference} must join, leave or change at once, and none outweigh the rest",
        )
    return parts


def _places(sent: Sequence[Place]) -> str:
    return " ".join(map(str, sent))


def _read_places(written: str) -> tuple[Place, ...]:
    return tuple(map(int, written.split()))
