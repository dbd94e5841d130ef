"""Federations for experiments: settled with their text summed ahead, copied, and run through rounds
that are watched.

Runs production's rounds in this process.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeway.client.round.holder import SETTINGS, Holder
from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.protocol.packet import Packet
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.progress import no_watch
from ridgeway.simulations.dropouts import dropout_app
from ridgeway.simulations.engines import NO_DROPOUTS, memory_transport
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.simulated_federation import (
    SimulatedFederation,
    create_simulated_federation,
    open_epochs,
)

if TYPE_CHECKING:
    from ridgeway.coordinator.round.ask import PeerAnswer, Transport


def decided(plan: ExperimentPlan, dataset: Dataset) -> dict[str, Any]:
    """What decides rounds over one dataset, for keys in the cache: a federation's default settings
    among it.
    """
    return {
        "setting": dataset.digest,
        "encoder": plan.encoder,
        "seed": plan.seed,
        "usual": asdict(DEFAULT),
    }


def sampled(plan: ExperimentPlan, train: int, test: int) -> list[Dataset]:
    """The datasets of a plan; in a short run at most this many texts of each domain."""
    return [
        each if plan.full else each.sampled(plan.seed, train=train, test=test)
        for each in plan.datasets
    ]


def text_counts(datasets: Sequence[Dataset]) -> dict[str, dict[str, int]]:
    """Training texts of each domain of each dataset, for the facts of a part."""
    return {
        each.name: {name: len(own) for name, own in each.train.items()}
        for each in datasets
    }


# Federations


def settled(
    plan: ExperimentPlan,
    dataset: Dataset,
    folder: Path,
    mode: Mode,
    holders: int | None = None,
) -> SimulatedFederation:
    """A federation over a dataset, every holder's text summed: what a round takes after that is the
    round's own.
    """
    simulated = create_simulated_federation(
        folder, dataset.corpora, holders=holders, encoder=plan.encoder, mode=mode
    )
    for _ in open_epochs(simulated):
        pass
    return simulated


def copied(simulated: SimulatedFederation, folder: Path) -> SimulatedFederation:
    """The same holders with the same keys, sums and corpora in other folders; what they spend there
    is spent there.
    """
    for part in ("coordinator", "holders"):
        shutil.copytree(simulated.folder / part, folder / part, symlinks=True)
    nodes = {
        name: folder / "holders" / home.name for name, home in simulated.nodes.items()
    }
    for home in nodes.values():
        settings = (home / SETTINGS).read_text(encoding="utf-8")
        before, after = (
            str((each / "spending").resolve()) for each in (simulated.folder, folder)
        )
        (home / SETTINGS).write_text(settings.replace(before, after), encoding="utf-8")
    federation = Federation(
        folder / "coordinator", encoder=simulated.federation.encoder
    )
    return replace(simulated, folder=folder, federation=federation, nodes=nodes)


def own_sums(simulated: SimulatedFederation, name: str) -> Prepared:
    """A holder's raw sums: those of its epoch."""
    holder = Holder(simulated.nodes[name])
    return holder.epochs.statistics(holder.epoch(simulated.federation.terms))


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
