"""A holder's side of a session under masks: advertise, share, seal, confirm, open, each once.

Every step is checked here, on the holder's own machine, against what the holder has pinned and what
it has signed before; nothing that a coordinator says can change that.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.round.epochs import Epoch, SignedTotal
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.policy import (
    check_cohort,
    check_members,
    check_members_of_sum,
)
from ridgeway.client.round.session_store import ERASED, Agreed, Answered, SessionState
from ridgeway.common.base.errors import MaskingError, Refused
from ridgeway.common.base.files import sha256
from ridgeway.common.masking.agreement import (
    Advert,
    MemberIndex,
    check_agreement,
    check_survivors,
    member_index,
)
from ridgeway.common.masking.member import (
    advertise,
    confirm,
    new_secrets,
    open_envelope,
    reveal,
    seal,
    share,
)
from ridgeway.common.masking.shares import pack_by_member, unpack_by_member
from ridgeway.common.protocol import messages
from ridgeway.common.protocol.cohort import Cohort, Terms
from ridgeway.common.protocol.messages import (
    ENVELOPE_BYTES,
    MAX_COUNTS,
    SUM_NAMES,
    Message,
    SumName,
)
from ridgeway.common.protocol.packet import Blob, Opened
from ridgeway.common.statistics import Integers, check_bound

Answer = tuple[Message, Sequence[Blob]]


def advertised(
    holder: Holder, request: Opened[messages.Announce], terms: Terms, epoch: str
) -> Advert:
    """Keys for a session that may come of this round.

    A round's name serves once; the same request again gets the same answer.
    """
    with holder.sessions.exclusive_lock():
        state = holder.sessions.load()
        if state is not None and state.round == request.round:
            if state.announced != request.digest or state.advert.source != epoch:
                raise Refused(
                    "session_reused",
                    "this round was already announced differently",
                )
            return state.advert
        sessions = holder.journal.entries("session")
        if any(session.facts["round"] == request.round for session in sessions):
            raise Refused(
                "session_reused",
                "this holder was already in a session of this name",
            )
        drawn = new_secrets(len(SUM_NAMES), secrets.token_bytes)
        shown = advertise(drawn, holder.identity, terms.id, request.round, epoch, epoch)
        holder.journal.append(("session", {"round": request.round}))
        holder.sessions.save(
            SessionState(
                round=request.round,
                announced=request.digest,
                advert=shown,
                nonce=drawn.nonce.hex(),
                cipher=drawn.cipher.hex(),
                masks=tuple(key.hex() for key in drawn.masks),
                seeds=tuple(key.hex() for key in drawn.seeds),
            )
        )
        return shown


def answer_share(holder: Holder, request: Opened[messages.Share]) -> Answer:
    message = request.message
    cohort = message.cohort
    agreement = message.agreement
    check_cohort(holder.policy, cohort, holder.key, holder.domain)
    with holder.sessions.exclusive_lock():
        state = holder.sessions.of_round(request.round)
        if state.taken("share", request.digest) is None:
            _check_session(holder, state, message)
            index = member_index(agreement, holder.key)
            dealt = share(agreement, state.secrets, index, secrets.token_bytes)
            holder.note_cohort(request.round, cohort, agreement.id.hex())
            state = state.with_answer(
                "share",
                request.digest,
                pack_by_member(dealt.envelopes).hex(),
                agreed=Agreed.of(cohort, agreement),
                kept=dealt.kept.hex(),
                dealt=tuple(sorted(dealt.envelopes)),
            )
            holder.sessions.save(state)
        sent = bytes.fromhex(state.answered["share"].reply)
        return messages.Envelopes(session=agreement.id.hex()), (sent,)


def _check_session(
    holder: Holder, state: SessionState, message: messages.Share
) -> None:
    """Everything that must hold before a secret is dealt out."""
    cohort = message.cohort
    agreement = message.agreement
    if not cohort.terms.uses_masks:
        raise Refused("not_masked", "secrets are shared only for sums under masks")
    if agreement.round != state.round or agreement.lots != SUM_NAMES:
        raise Refused(
            "other_session",
            "the agreement is for another round, or for other sums",
        )
    if agreement.cohort != cohort.id or agreement.terms != cohort.terms.id:
        raise Refused(
            "other_session", "the agreement is for another cohort, or for other terms"
        )
    if list(agreement.keys) != sorted(member.key for member in cohort.members):
        raise Refused(
            "other_session", "the agreement and the cohort name different members"
        )
    pinned = holder.pinned_keys
    check_members(holder.handovers, pinned, agreement.keys)
    check_agreement(agreement, state.advert, pinned, holder.policy.min_cohort)


def answer_hold(holder: Holder, request: Opened[messages.Hold]) -> Answer:
    with holder.sessions.exclusive_lock():
        state = _hold(holder, request)
        return messages.Held(session=state.session.digest), ()


def answer_seal(holder: Holder, request: Opened[messages.Seal]) -> Answer:
    """Hold what the others have dealt out, then send the sums of the epoch that was advertised,
    under masks.
    """
    with holder.sessions.exclusive_lock():
        state = _hold(holder, request)
        sums = _sums(holder, state, state.session.cohort)
        return _sealed(holder, state, request, "statistics", sums)


def _hold(holder: Holder, request: Opened[messages.Hold]) -> SessionState:
    """Open what the other members have dealt out to this one, and keep it."""
    message = request.message
    state = _state(holder, request, message.session)
    if state.taken("hold", request.digest) is None:
        session = state.session
        shared = tuple(sorted(set(message.shared)))
        own_index = state.index
        check_survivors(session, shared, shared)
        if own_index not in shared:
            raise Refused(
                "not_in_cohort",
                "this holder has shared its secrets, but the request omits it",
            )
        envelopes = _envelopes(request.blobs[0])
        dealers = set(envelopes)
        others = set(shared) - {own_index}
        # in a large cohort some deal to this member, in a small one all do
        if not dealers <= others or (not session.neighbourhood and dealers != others):
            raise Refused(
                "bad_envelope",
                "the shares do not match the other members that have shared",
            )
        held = {own_index: bytes.fromhex(state.kept)} if state.kept else {}
        secrets_ = state.secrets
        for index, envelope in envelopes.items():
            held[index] = open_envelope(session, secrets_, own_index, index, envelope)
        holding = tuple(sorted(held))
        state = state.with_answer(
            "hold",
            request.digest,
            shared=shared,
            holding=holding,
            held=tuple(held[index].hex() for index in holding),
            kept=ERASED,
            cipher=ERASED,
        )
        holder.sessions.save(state)
    return state


def _envelopes(content: Blob) -> dict[MemberIndex, bytes]:
    try:
        return unpack_by_member(content, ENVELOPE_BYTES)
    except MaskingError:
        raise Refused(
            "bad_envelope", "the shares of the other members have the wrong size"
        ) from None


def _sums(holder: Holder, state: SessionState, cohort: Cohort) -> NDArray[np.int64]:
    """The sums of the epoch that was advertised, weighted and placed as the cohort says, or under
    noise.
    """
    check_cohort(holder.policy, cohort, holder.key, holder.domain)
    terms = cohort.terms
    epoch = _advertised_epoch(holder, state)
    domains = cohort.domains
    members = len(cohort.members)
    if terms.privacy:
        sums = holder.noisy(epoch, terms.privacy).shared_sums(members, cohort.id)
    else:
        sums = holder.exact_sums(epoch, cohort)
        check_bound(terms.mass * len(domains) or sums.mass * members)
    # all members' vectors are alike: this one's sums stand in the column of its domain
    placed = sums.placed(domains.index(holder.domain), len(domains))
    return terms.vector_of(placed)


def _advertised_epoch(holder: Holder, state: SessionState) -> Epoch:
    current = holder.epoch(state.session.terms)
    if current.name != state.advert.source:
        raise Refused(
            "source_changed",
            "this holder has opened a new epoch since the round was announced; run"
            " the round again",
        )
    return current


def countable_epoch(holder: Holder, request: Opened[messages.Evaluate]) -> Epoch:
    """The epoch whose held-out documents may be counted in this session; raises Refused if none
    may.
    """
    message = request.message
    if message.session is None:
        raise Refused(
            "not_masked", "under masked terms this holder sends counts only under masks"
        )
    with holder.sessions.exclusive_lock():
        return _advertised_epoch(holder, _countable(holder, request, message.session))


def _countable(
    holder: Holder, request: Opened[messages.Evaluate], session: str
) -> SessionState:
    state = _state(holder, request, session)
    if request.message.terms.id != state.session.terms.id:
        raise Refused(
            "other_session",
            "the terms of the counts differ from the session's",
        )
    if not set(request.message.domains) <= set(state.session.domains):
        raise Refused(
            "wrong_domain",
            "the router has domains that the session's members do not have",
        )
    _sealable(state, request, "counts")
    return state


def seal_counts(
    holder: Holder,
    request: Opened[messages.Evaluate],
    rows: Sequence[Integers],
    calibration: Integers,
    question: str,
) -> Answer:
    """The counts of this holder's domain among zeros for all the others, under masks.

    rows:        each stands in a row of the domain's own. calibration: in one that all domains
                 share.
    question:    stands for what was asked.
    """
    message = request.message
    assert message.session is not None
    domains = len(message.domains)
    own_index = message.domains.index(holder.domain)
    if sum(row.size for row in rows) * domains + calibration.size > MAX_COUNTS:
        raise Refused(
            "too_large", f"the request asks for more than {MAX_COUNTS:,} counts"
        )
    placed = np.concatenate(
        [*(_among_zeros(row, own_index, domains) for row in rows), calibration]
    )
    with holder.sessions.exclusive_lock():
        state = _countable(holder, request, message.session)
        return _sealed(holder, state, request, "counts", placed, question=question)


def _among_zeros(row: Integers, index: int, rows: int) -> Integers:
    placed = np.zeros((rows, row.size), dtype=np.int64)
    placed[index] = row
    return placed.ravel()


def _sealed(
    holder: Holder,
    state: SessionState,
    request: Opened[Message],
    sum_name: SumName,
    vector: NDArray[np.int64],
    **changes: str,
) -> Answer:
    """A vector under the masks of its sum. One vector only: under the same masks two would show
    their difference.
    """
    session = state.session
    before = _sealable(state, request, sum_name)
    neighbours = {*state.dealt, *state.holding}
    made = seal(
        session, state.secrets, state.index, sum_name, state.shared, neighbours, vector
    )
    digest = sha256(made.data)
    if before is None:
        holder.sessions.save(
            state.with_answer(f"seal {sum_name}", request.digest, digest, **changes)
        )
    elif before.reply != digest:
        raise Refused(
            "already_answered",
            f"this holder has already sealed other {sum_name} in this session",
        )
    return messages.SealedSums(session=session.digest, lot=sum_name), (made.data,)


def _sealable(
    state: SessionState, request: Opened[Message], sum_name: SumName
) -> Answered | None:
    """How a vector was sealed before by this very request, if it was; raises Refused if it cannot
    be any more, or yet.
    """
    if not state.shared:
        raise Refused(
            "no_session",
            "this holder does not have the other members' shares in this session",
        )
    if state.masks[SUM_NAMES.index(sum_name)] == ERASED:
        raise Refused(
            "already_answered",
            f"the sum of {sum_name} was already opened, and its masks are erased",
        )
    return state.taken(f"seal {sum_name}", request.digest)


def answer_confirm(holder: Holder, request: Opened[messages.ConfirmSum]) -> Answer:
    """Write down of whom a sum is to be, then sign it.

    A member that falls away before it signs is left out, and the others are asked again: so a
    further sum may be signed, but only one of fewer of the same members, and only as long as no
    shares were revealed. To sign it is to give up the larger one.
    """
    message = request.message
    sum_name = message.lot
    step = f"confirm {sum_name}"
    with holder.sessions.exclusive_lock():
        state = _state(holder, request, message.session)
        sent = tuple(sorted(set(message.sent)))
        question = _question(state, sum_name)
        signature = confirm(
            state.session, holder.identity, sum_name, state.shared, sent, question
        )
        before = state.answered.get(step)
        if before is None or before.reply != _indices(sent):
            if {f"lock {sum_name}", f"open {sum_name}"} & set(state.answered):
                raise Refused(
                    "already_answered",
                    f"this holder has already locked or opened a sum of {sum_name} in"
                    " this session",
                )
            if before is not None and not set(sent) < set(_read_indices(before.reply)):
                raise Refused(
                    "two_survivor_sets",
                    "this holder has confirmed another set of senders, which does not"
                    " contain this one",
                )
            _agree_to_sum(holder, state, sum_name, sent)
            holder.sessions.save(
                state.with_answer(step, request.digest, _indices(sent))
            )
        reply = messages.Confirmed(
            session=message.session, lot=sum_name, signature=signature
        )
        return reply, ()


def answer_lock(holder: Holder, request: Opened[messages.LockSum]) -> Answer:
    """Write down that this holder opens the sum that it signed last, and no other, then sign
    that.
    """
    message = request.message
    sum_name = message.lot
    step = f"lock {sum_name}"
    with holder.sessions.exclusive_lock():
        state = _state(holder, request, message.session)
        sent = _signed_last(state, sum_name, message.sent)
        question = _question(state, sum_name)
        signature = confirm(
            state.session,
            holder.identity,
            sum_name,
            state.shared,
            sent,
            question,
            lock=True,
        )
        if state.taken(step, request.digest) is None:
            holder.sessions.save(state.with_answer(step, request.digest))
        reply = messages.Locked(
            session=message.session, lot=sum_name, signature=signature
        )
        return reply, ()


def _signed_last(
    state: SessionState, sum_name: SumName, shown: Sequence[MemberIndex]
) -> tuple[MemberIndex, ...]:
    """The members of a sum; raises Refused unless it is the one of this name that this holder
    signed last.
    """
    sent = tuple(sorted(set(shown)))
    confirmed = state.answered.get(f"confirm {sum_name}")
    if confirmed is None or confirmed.reply != _indices(sent):
        raise Refused(
            "two_survivor_sets",
            "this holder did not confirm this set of senders last",
        )
    return sent


def answer_open(holder: Holder, request: Opened[messages.OpenSum]) -> Answer:
    """Reveal the shares that take the masks off a sum: the last step, after which this sum's
    secrets are gone.
    """
    message = request.message
    sum_name = message.lot
    step = f"open {sum_name}"
    with holder.sessions.exclusive_lock():
        state = _state(holder, request, message.session)
        if state.taken(step, request.digest) is None:
            session = state.session
            question = _question(state, sum_name)
            sent = _signed_last(state, sum_name, message.sent)
            if session.neighbourhood and f"lock {sum_name}" not in state.answered:
                raise Refused(
                    "not_locked",
                    "this holder must lock a sum of a large cohort before it opens it",
                )
            shares = reveal(
                session,
                state.index,
                sum_name,
                state.shares(),
                state.shared,
                sent,
                dict(message.confirmations),
                question,
                dict(message.locks),
            )
            total = _total(holder, state, sum_name, sent)
            holder.totals.open(total, message.session, state.round)
            # the secrets of this sum go with the state that remembers the answer
            state = state.without_sum(SUM_NAMES.index(sum_name))
            revealed = pack_by_member(shares).hex()
            state = state.with_answer(step, request.digest, revealed)
            holder.sessions.save(state)
        sent_before = bytes.fromhex(state.answered[step].reply)
        return messages.Revealed(session=message.session, lot=sum_name), (sent_before,)


def forget_session(holder: Holder, round_: str) -> None:
    """The round is over: nothing of its session is needed any more. That of another round is left
    alone.
    """
    with holder.sessions.exclusive_lock():
        state = holder.sessions.load()
        if state is None or state.round == round_:
            holder.sessions.erase()


def _state(holder: Holder, request: Opened[Message], session: str) -> SessionState:
    state = holder.sessions.of_round(request.round)
    if state.session.digest != session:
        raise Refused(
            "other_session", "this holder is in another session of this round"
        )
    return state


def _question(state: SessionState, sum_name: SumName) -> str:
    """What stands for what was asked: all members must have been asked the same."""
    sealed = state.answered.get(f"seal {sum_name}")
    if sealed is None:
        raise Refused(
            "not_sealed", f"this holder has not sealed {sum_name} in this session"
        )
    # each member is asked for statistics with shares of its own
    return "" if sum_name == "statistics" else sealed.request


def _total(
    holder: Holder, state: SessionState, sum_name: SumName, sent: Sequence[MemberIndex]
) -> SignedTotal:
    """The total over these members."""
    session = state.session
    owner = holder.handovers.owner
    keys = {index: session.keys[index - 1] for index in sent}
    epochs = {owner(key): session.sources[index - 1] for index, key in keys.items()}
    shares: dict[str, int] = {}
    question = state.question
    if sum_name == "statistics":
        shares = {owner(key): session.cohort.shares[key] for key in keys.values()}
        question = ""
    return SignedTotal(
        sum_name, session.terms.id, state.advert.source, epochs, shares, question
    )


def _agree_to_sum(
    holder: Holder, state: SessionState, sum_name: SumName, sent: Sequence[MemberIndex]
) -> None:
    """Write down that this holder signs a sum, and what that costs; raises Refused if it does
    not.
    """
    session = state.session
    check_members_of_sum(holder.policy, len(sent), len(holder.pinned_keys))
    epoch = _advertised_epoch(holder, state)
    total = _total(holder, state, sum_name, sent)
    with holder.account.exclusive():
        holder.sign(total, session.digest, session.terms, epoch)


def _indices(sent: Sequence[MemberIndex]) -> str:
    return " ".join(map(str, sent))


def _read_indices(written: str) -> tuple[MemberIndex, ...]:
    return tuple(map(int, written.split()))
