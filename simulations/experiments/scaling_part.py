"""The part `scaling`: time and bytes over holders, over the width h and over domains."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import without_syncing
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import FEATURE_LIMIT, Ridge, Sampling
from ridgeway.common.protocol.messages import SealedSums
from ridgeway.common.protocol.packet import Packet, seal_packet
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics.sums import vector_size
from ridgeway.coordinator.solving.publish import publish
from ridgeway.coordinator.solving.solve import solve
from ridgeway.simulations.bench.measuring import packet_bytes, seconds_in_turns
from ridgeway.simulations.bench.route_bench import DEFAULT_CHOICES
from ridgeway.simulations.experiments.dataset import Dataset, in_turn
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.token_routers import summed, summed_texts
from ridgeway.simulations.simulated_federation import (
    create_simulated_federation,
    open_epochs,
)

if TYPE_CHECKING:
    from ridgeway.coordinator.round.ask import PeerAnswer, Transport

SHORT_HOLDERS = (6, 12, 25, 50)
FULL_HOLDERS = (*SHORT_HOLDERS, 100, 200)
WIDTHS = (256, 512, 1024, 2048, 4096)
_DOMAINS = (2, 5, 10, 20, 50, 100)
_MODES: tuple[Mode, ...] = ("masked", "clear")
_REPEATS = 3

RANDOM_ROWS = 2048
RANDOM_TOKENS = 32_768
RANDOM_DOMAINS = 4
WINDOW = Sampling(window=16)
SCALE = 2.0**-12

TEXTS = 600
_PROMPTS = 120
DEALT = Sampling(window=64)

Cells = tuple[Cell, ...]


def run(plan: ExperimentPlan) -> ReportPart:
    dataset = plan.datasets[0]
    tables = [
        _rounds(plan, dataset),
        _widths(plan),
        _domains(plan, dataset),
    ]
    words = (
        "Whole rounds in this process; then a message and the solve over widths; then"
        " releases over domains. Seconds are of this machine, bytes hardly depend on"
        " it.",
    )
    return ReportPart("What grows, and how fast", words, tuple(tables))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x between the last two points: b for y = a·xᵇ."""
    return float(np.diff(np.log(y[-2:]))[0] / np.diff(np.log(x[-2:]))[0])


# Rounds


class CountingTransport:
    """A transport that counts what passes through another, and changes nothing.

    seconds: until requests were answered, of all holders together.
    """

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


def _rounds(plan: ExperimentPlan, dataset: Dataset) -> ReportTable:
    counts = FULL_HOLDERS if plan.full else SHORT_HOLDERS
    rows = []
    for mode in _MODES:
        for count in counts:
            folder = plan.work / f"scaling-{mode}-{count}"
            try:
                rows.append(round_costs(plan.encoder, dataset, mode, count, folder))
            except InputError:  # fewer holders than domains, or than there is text for
                continue
    columns = (
        "round",
        "holders",
        "in all, s",
        "a holder, ms",
        "the coordinator, s",
        "up from a holder, kB",
        "down to a holder, kB",
        "through the coordinator, MB",
    )
    note = (
        "All holders answer one after the other in one process, their text summed"
        " before. Bytes are those of packets: headers, signatures and numbers."
    )
    title = f"A round over holders, {dataset.name}, {plan.encoder}"
    return ReportTable(title, columns, tuple(rows), note, digits=2)


def round_costs(
    encoder: str, dataset: Dataset, mode: Mode, holders: int, folder: Path
) -> Cells:
    from ridgeway.coordinator.round.progress import no_watch
    from ridgeway.coordinator.round.round import run_round
    from ridgeway.simulations.dropouts import dropout_app
    from ridgeway.simulations.engines import memory_transport

    with without_syncing():
        simulated = create_simulated_federation(
            folder, dataset.corpora, holders=holders, encoder=encoder, mode=mode
        )
        for _ in open_epochs(simulated):
            pass
        counting = CountingTransport(memory_transport(simulated, dropout_app({})))
        begin = time.perf_counter()
        run_round(simulated.federation, counting, no_watch)
        seconds = time.perf_counter() - begin
    up = counting.up.total()
    down = counting.down.total()
    return (
        mode,
        holders,
        seconds,
        1e3 * counting.seconds / holders,
        seconds - counting.seconds,
        1e-3 * up / holders,
        1e-3 * down / holders,
        1e-6 * (up + down),
    )


# Widths


def _widths(plan: ExperimentPlan) -> ReportTable:
    rows = [width_costs(width, plan.seed) for width in WIDTHS]
    ends = [
        f"{what} with h^{slope(WIDTHS, [row[place] for row in rows]):.2f}"
        for place, what in ((1, "a message grows"), (3, "solving"))
    ]
    note = (
        f"A random table of {RANDOM_ROWS:,} tokens, {RANDOM_TOKENS:,} tokens in windows"
        f" of {WINDOW.window}, {RANDOM_DOMAINS} domains. At the end {', '.join(ends)}."
    )
    columns = ("h", "a sealed message, MB", "summing, s", "solving, s")
    return ReportTable("Costs over the width h", columns, tuple(rows), note, digits=3)


def width_costs(width: int, seed: int) -> tuple[int, float, float, float]:
    chance = np.random.default_rng(seed)
    table = chance.integers(
        -FEATURE_LIMIT, FEATURE_LIMIT, (RANDOM_ROWS, width), np.int16, endpoint=True
    )
    ids = chance.integers(0, RANDOM_ROWS, RANDOM_TOKENS, np.int32)
    batches = [(ids, np.array([len(ids)]))]
    (summing,) = seconds_in_turns(lambda: summed(table, WINDOW, batches), rounds=1)
    sums = summed(table, WINDOW, batches)
    placed = [sums.placed(place, RANDOM_DOMAINS) for place in range(RANDOM_DOMAINS)]
    total = reduce(add, placed)
    (solving,) = seconds_in_turns(lambda: solve(total, SCALE, Ridge()), rounds=_REPEATS)
    return width, 1e-6 * sealed_bytes(width + 1, RANDOM_DOMAINS), summing, solving


def sealed_bytes(features: int, domains: int) -> int:
    """Of a holder's sums under masks: what is under masks is noise, and zeros weigh as much."""
    message = SealedSums(session="0" * 64, lot="statistics")
    identity = Identity(Ed25519PrivateKey.generate())
    blob = bytes(8 * vector_size(features, domains))
    return packet_bytes(
        seal_packet(message, identity, round="0" * 32, reply_to="0" * 64, blobs=[blob])
    )


# Domains


def _domains(plan: ExperimentPlan, dataset: Dataset) -> ReportTable:
    texts = in_turn(dataset.train, TEXTS)
    prompts = in_turn(dataset.test, _PROMPTS)
    rows = [
        domain_costs(plan, texts, prompts, count)
        for count in _DOMAINS
        if count <= len(texts)
    ]
    columns = (
        "domains",
        "a sealed message, MB",
        "solving, s",
        "a release, MB",
        "routing a prompt, ms",
    )
    note = (
        f"{len(texts)} texts of {dataset.name} dealt out to made-up domains; test texts"
        " as prompts, warm, median."
    )
    return ReportTable("Costs over domains", columns, tuple(rows), note, digits=3)


def domain_costs(
    plan: ExperimentPlan, texts: Sequence[str], prompts: Sequence[str], domains: int
) -> Cells:
    """How well the domains are told apart is not asked here."""
    encoder = plan.table_encoder()
    parts = [
        summed_texts(encoder, DEALT, f"domain-{place:03}", texts[place::domains])
        for place in range(domains)
    ]
    folder = plan.work / f"scaling-release-{domains}"
    identity = Identity(Ed25519PrivateKey.generate())
    release = publish(parts, encoder, DEFAULT_CHOICES, identity, folder)
    total = release.total.statistics
    router = Router.load(folder)
    solving, *routing = seconds_in_turns(
        lambda: solve(total, encoder.scale, DEFAULT_CHOICES.ridge),
        *(partial(router.route, prompt) for prompt in prompts),
        rounds=_REPEATS,
    )
    return (
        domains,
        1e-6 * sealed_bytes(*total.shape),
        solving,
        1e-6 * sum(path.stat().st_size for path in folder.iterdir()),
        1e3 * statistics.median(routing),
    )
