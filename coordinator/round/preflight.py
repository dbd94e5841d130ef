"""Asking every holder, before a round, what would stand in its way: who is there, and what each has
to do.

The question is `hello` with the cohort that a round of all holders would have; holders answer in
codes, and nothing is opened or kept of it. Whether a round would make a release of their epochs is
judged by the code that judges it in the round.
"""

from __future__ import annotations

import secrets

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.messages import Hello, Here
from ridgeway.coordinator.round.ask import Channel, Transport
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import cohort_of
from ridgeway.coordinator.round.progress import (
    HolderChecked,
    HolderPresent,
    RoundForeseen,
    Watch,
)
from ridgeway.coordinator.round.remedies import (
    ALREADY_COUNTED,
    EPOCH_USED,
    OTHER_RELEASE,
)
from ridgeway.coordinator.round.round import NO_WISHES, check_rollback, gathering_of


def check_holders(
    federation: Federation, transport: Transport, watch: Watch
) -> list[HolderChecked]:
    """Ask every holder on the roster, and tell the watch of each what stands in its way, and what
    would keep a round from a release.
    """
    with federation.exclusive_lock():
        active = federation.standing.active
        terms = federation.terms
        channel = Channel(federation, transport, secrets.token_hex(16), watch)
        cohort = cohort_of(terms, active, set(active), "no other is admitted")
        handovers = federation.standing.holder_handovers
        heard = federation.standing.heard
        question = Hello(cohort=cohort, handovers=handovers, heard=heard)
        here: dict[str, Here] = {}
        for answer in channel.ask(question, Here):
            told = answer.message
            here[answer.name] = told
            watch(HolderPresent(answer.name))
            federation.ledger.note_held(answer.name, told.release)
            if told.obstacles:
                channel.refusals[answer.name] = (told.obstacles[0].code, "")
        epochs = {
            name: told.epoch
            for name, told in here.items()
            if told.epoch and not told.obstacles
        }
        gathering = gathering_of(channel, terms, NO_WISHES)
        plan = gathering.plan(epochs)
        ahead = federation.standing.ahead
        totalled = federation.standing.totalled_epochs
        checked = []
        for name, holder in sorted(active.items()):
            if name in here:
                found = [
                    (each.code, channel.named(each.keys))
                    for each in here[name].obstacles
                ]
            else:
                found = [(channel.refusals[name][0], [])]
            found += [(EPOCH_USED, [])] if name in plan.waiting else []
            found += [(ALREADY_COUNTED, [])] if name in plan.counted else []
            found += [(OTHER_RELEASE, [])] if name in ahead else []
            total_of = None
            if name in plan.waiting:
                total_of = totalled.get(epochs[name].name)
            checked.append(HolderChecked(name, holder.domain, found, total_of))
            watch(checked[-1])
        try:
            check_rollback(federation)
            gathering.agreed(plan, epochs)
        except RoundFailed as error:
            watch(RoundForeseen(str(error)))
        return checked
