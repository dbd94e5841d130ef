"""Rounds for experiments, watched.

Runs production's rounds in this process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.protocol.packet import Packet
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.progress import no_watch
from ridgeway.simulations.dropouts import dropout_app
from ridgeway.simulations.engines import NO_DROPOUTS, memory_transport
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.simulated_federation import (
    SimulatedFederation,
)

if TYPE_CHECKING:
    from ridgeway.coordinator.round.ask import PeerAnswer, Transport


def sampled(plan: ExperimentPlan, train: int, test: int) -> list[Dataset]:
    """The datasets of a plan; in a short run at most this many texts of each domain."""
    return [
        each if plan.full else each.sampled(plan.seed, train=train, test=test)
        for each in plan.datasets
    ]


# Rounds


@dataclass(frozen=True, slots=True)
class WatchedRound:
    """A round that ended. Bytes are those of packets: headers, signatures and blobs.

    work:     seconds of computing, of the coordinator and all holders together.
    holders:  seconds that requests took until they were answered: the holders' own, and the way
              there and back.
    up, down: bytes by holder.
    refused:  why there is no release; empty where there is one.
    """

    seconds: float
    work: float
    holders: float
    up: Mapping[str, int]
    down: Mapping[str, int]
    published: LedgerRelease | None
    refused: str


def watched_round(
    simulated: SimulatedFederation, falls: Mapping[str, int] = NO_DROPOUTS
) -> WatchedRound:
    """Run a round in this process as the engine of simulations does, and watch what it takes."""
    from ridgeway.coordinator.round.round import run_round

    counting = CountingTransport(memory_transport(simulated, dropout_app(falls)))
    started = time.monotonic()
    worked = time.process_time()
    published = None
    refused = ""
    try:
        published = run_round(simulated.federation, counting, no_watch)
    except RoundFailed as error:
        refused = str(error)
    seconds = time.monotonic() - started
    work = time.process_time() - worked
    names = dict(enumerate(simulated.nodes, start=1))
    up, down = (
        {names[peer]: size for peer, size in each.items()}
        for each in (counting.up, counting.down)
    )
    return WatchedRound(seconds, work, counting.seconds, up, down, published, refused)


class CountingTransport:
    """A transport that counts what passes through another, and changes nothing."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.up: Counter[int] = Counter()
        self.down: Counter[int] = Counter()
        self.seconds = 0.0

    def peers(self) -> Sequence[int]:
        return self._inner.peers()

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, PeerAnswer]]:
        for peer, packet in packets.items():
            self.down[peer] += packet_bytes(packet)
        answers = iter(self._inner.exchange(packets, seconds))
        while True:
            started = time.perf_counter()
            answer = next(answers, None)
            self.seconds += time.perf_counter() - started
            if answer is None:
                return
            peer, reply = answer
            if isinstance(reply, Packet):
                self.up[peer] += packet_bytes(reply)
            yield peer, reply


def packet_bytes(packet: Packet) -> int:
    return (
        len(packet.header)
        + len(packet.signature)
        + sum(memoryview(blob).nbytes for blob in packet.blobs)
    )
