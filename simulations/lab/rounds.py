"""Federations for experiments: settled with their text summed ahead, copied, and run through rounds that are watched.

Runs production's rounds in this process. Knows nothing of what an experiment asks, nor of how findings are shown.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from client.holder import Holder
from common.cohort import Mode
from common.errors import RoundFailed
from common.files import sha256
from common.messages import Packet
from common.settings import DEFAULT
from common.statistics import Statistics
from common.statistics_file import Prepared
from coordinator.federation import Federation
from coordinator.ledger import Published
from simulations.engines import NOBODY
from simulations.falling import falling_app
from simulations.lab.plan import Plan
from simulations.lab.setting import Setting
from simulations.layout import Village, settle

if TYPE_CHECKING:
    from coordinator.talk import Transport

DIGITS = 12
"""So many hexadecimal digits of a SHA-256 are shown; compared are always the bytes themselves."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices of a round are small: one thread does them as fast, and times are steadier beside other work."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


def mixed(names: Sequence[str], seed: int, what: str) -> tuple[str, ...]:
    """The names in an order that the seed and the purpose decide."""
    order = sorted(names)
    random.Random(f"{seed} {what}").shuffle(order)
    return tuple(order)


def short(digest: str) -> str:
    return digest[:DIGITS]


def sums_digest(statistics: Statistics) -> str:
    """SHA-256 of the very numbers that would travel."""
    return sha256(*(np.ascontiguousarray(part, dtype="<i8").data for part in statistics.packed()))


def decided(plan: Plan, setting: Setting) -> dict[str, Any]:
    """What decides rounds over one setting, for keys on the shelf: the usual settings of a federation among it."""
    return {"setting": setting.digest, "encoder": plan.encoder, "seed": plan.seed, "usual": asdict(DEFAULT)}


# Villages


def settled(plan: Plan, setting: Setting, folder: Path, mode: Mode, holders: int | None = None) -> Village:
    """A federation over a setting, every holder's text summed: what a round takes after that is the round's own."""
    village = settle(folder, setting.corpora, holders=holders, encoder=plan.encoder, mode=mode)
    village = replace(village, federation=Federation(village.federation.folder, encoder=village.federation.encoder))
    for home in village.nodes.values():
        Holder(home).ready(village.federation.terms)
    return village


def copied(village: Village, folder: Path) -> Village:
    """The same people with the same keys, sums and corpora in other folders, so that what happens here is apart."""
    for part in ("coordinator", "holders"):
        shutil.copytree(village.folder / part, folder / part, symlinks=True)
    nodes = {name: folder / "holders" / home.name for name, home in village.nodes.items()}
    federation = Federation(folder / "coordinator", encoder=village.federation.encoder)
    return replace(village, folder=folder, federation=federation, nodes=nodes)


def own_sums(village: Village, name: str) -> Prepared:
    """A holder's raw sums, as it would offer them."""
    return Holder(village.nodes[name]).current(village.federation.terms)


# Rounds


@dataclass(frozen=True, slots=True)
class Watched:
    """A round that ended. Bytes are those of packets, headers and signatures with them, by holder.

    work:     seconds of computing, of the coordinator and all holders together.
    gathered: seconds until the total was there, if it came to that.
    refused:  why there is no release; empty where there is one.
    """

    seconds: float
    work: float
    gathered: float | None
    up: Mapping[str, int]
    down: Mapping[str, int]
    published: Published | None
    refused: str


def watched_round(village: Village, falls: Mapping[str, int] = NOBODY) -> Watched:
    """Run a round in this process as the engine of simulations does, and watch what it takes."""
    from coordinator.app import GridTransport
    from coordinator.rounds import run_round
    from simulations.local_grid import LocalGrid

    nodes = dict(enumerate(village.nodes.values(), start=1))
    watch = _Watch()
    counting = Counting(GridTransport(LocalGrid(falling_app(falls), nodes), watch, poll_s=0.0))
    started, worked = time.monotonic(), time.process_time()
    published, refused = None, ""
    try:
        published = run_round(village.federation, counting, watch)
    except RoundFailed as error:
        refused = str(error)
    seconds, work = time.monotonic() - started, time.process_time() - worked
    gathered = watch.first["added"] - started if "added" in watch.first else None
    names = dict(enumerate(village.nodes, start=1))
    up, down = ({names[peer]: size for peer, size in each.items()} for each in (counting.up, counting.down))
    return Watched(seconds, work, gathered, up, down, published, refused)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Notes when each kind of event was first seen."""

    first: dict[str, float] = field(default_factory=dict)

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        self.first.setdefault(event, time.monotonic())


class Counting:
    """A transport that counts what passes through another, and changes nothing."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.up: Counter[int] = Counter()
        self.down: Counter[int] = Counter()

    def peers(self) -> Sequence[int]:
        return self._inner.peers()

    def exchange(self, packets: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, Packet | None]]:
        for peer, packet in packets.items():
            self.down[peer] += packet_bytes(packet)
        for peer, reply in self._inner.exchange(packets, seconds):
            if reply is not None:
                self.up[peer] += packet_bytes(reply)
            yield peer, reply


def packet_bytes(packet: Packet) -> int:
    return len(packet.header) + len(packet.signature) + sum(memoryview(blob).nbytes for blob in packet.blobs)
