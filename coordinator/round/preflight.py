"""Asking every holder, before a round, what would stand in its way: who is there, and what each has
to do.

The question is `hello` with the cohort that a round of all holders would have; holders answer in
codes, and nothing is opened or kept of it. Who waits for its next epoch is judged by what the round
judges it by.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from ridgeway.common.protocol.messages import Hello, Here
from ridgeway.coordinator.round.ask import Channel, Transport
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import cohort_of
from ridgeway.coordinator.round.masked_round import plan_total
from ridgeway.coordinator.round.progress import HolderChecked, HolderPresent, Watch
from ridgeway.coordinator.round.remedies import EPOCH_USED, OTHER_RELEASE


def check_holders(
    federation: Federation, transport: Transport, watch: Watch
) -> list[HolderChecked]:
    """Ask every holder on the roster, and tell the watch of each what stands in its way."""
    with federation.exclusive_lock():
        ledger = federation.ledger
        active = federation.standing.active
        channel = Channel(federation, transport, secrets.token_hex(16), watch)
        cohort = cohort_of(federation.terms, active, set(active))
        handovers = federation.standing.holder_handovers
        heard = federation.standing.heard
        question = Hello(cohort=cohort, handovers=handovers, heard=heard)
        here: dict[str, Here] = {}
        for answer in channel.ask(question, Here):
            here[answer.name] = answer.message
            watch(HolderPresent(answer.name))
            ledger.note_held(answer.name, answer.message.release)
        waiting = _waiting(federation, here)
        ahead = federation.standing.ahead

        def problems(name: str) -> Iterator[tuple[str, list[str]]]:
            if name not in here:
                yield channel.refusals[name][0], []
                return
            for obstacle in here[name].obstacles:
                yield obstacle.code, channel.named(obstacle.keys)
            if name in waiting:
                yield EPOCH_USED, []
            if name in ahead:
                yield OTHER_RELEASE, []

        checked = []
        for name, holder in sorted(active.items()):
            in_the_way = list(problems(name))
            result = HolderChecked(name, holder.domain, in_the_way, waiting.get(name))
            checked.append(result)
            watch(result)
        return checked


def _waiting(federation: Federation, here: dict[str, Here]) -> dict[str, int | None]:
    """Whose epoch is in an opened total already, unless that total is the one that a round would
    use again.

    Each with the number of the round that opened it, where the ledger has it.
    """
    terms = federation.terms
    epochs = {name: told.epoch for name, told in here.items() if told.epoch}
    if not terms.uses_masks or not epochs:
        return {}
    plan = plan_total(federation.ledger, terms, epochs)
    if plan.stored:
        return {}
    totalled = federation.standing.totalled_epochs
    return {name: totalled.get(epochs[name].name) for name in plan.waiting}
