"""The part `scaling`: time and bytes over the width h and over domains; `bench cohorts` measures
rounds over holders.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial, reduce
from operator import add

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import Ridge, Sampling
from ridgeway.common.protocol.messages import SealedSums
from ridgeway.common.protocol.packet import seal_packet
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics.sums import vector_size
from ridgeway.coordinator.solving.publish import publish
from ridgeway.coordinator.solving.solve import solve
from ridgeway.simulations.bench.measuring import packet_bytes, seconds_in_turns
from ridgeway.simulations.bench.random_corpus import draw, random_encoder
from ridgeway.simulations.bench.route_bench import DEFAULT_CHOICES
from ridgeway.simulations.experiments.dataset import Dataset, in_turn
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.report import Cell, ReportPart, ReportTable
from ridgeway.simulations.experiments.token_routers import summed, summed_texts

WIDTHS = (256, 512, 1024, 2048, 4096)
_DOMAINS = (2, 5, 10, 20, 50, 100)
_REPEATS = 3

RANDOM_ROWS = 2048
RANDOM_TOKENS = 32_768
RANDOM_DOMAINS = 4
WINDOW = Sampling(window=16)

TEXTS = 600
_PROMPTS = 120
DEALT = Sampling(window=64)

Cells = tuple[Cell, ...]


def run(plan: ExperimentPlan) -> ReportPart:
    dataset = plan.datasets[0]
    tables = (_widths(), _domains(plan, dataset))
    words = (
        "A message and the solve over widths; then releases over domains. CPU seconds are"
        " of this machine, bytes hardly depend on it.",
    )
    return ReportPart("What grows, and how fast", words, tables)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x between the last two points: b for y = a·xᵇ."""
    return float(np.diff(np.log(y[-2:]))[0] / np.diff(np.log(x[-2:]))[0])


# Widths


def _widths() -> ReportTable:
    rows = [width_costs(width) for width in WIDTHS]
    ends = [
        f"{what} with h^{slope(WIDTHS, [row[place] for row in rows]):.2f}"
        for place, what in ((1, "a message grows"), (3, "solving"))
    ]
    note = (
        f"A random table of {RANDOM_ROWS:,} tokens, {RANDOM_TOKENS:,} tokens in windows"
        f" of {WINDOW.window}, {RANDOM_DOMAINS} domains. At the end {', '.join(ends)}."
    )
    columns = ("h", "a sealed message, MB", "summing, CPU s", "solving, CPU s")
    return ReportTable("Costs over the width h", columns, tuple(rows), note, digits=3)


def width_costs(width: int) -> tuple[int, float, float, float]:
    encoder = random_encoder(RANDOM_ROWS, width)
    _, batches = draw(RANDOM_TOKENS, RANDOM_ROWS)
    work = partial(summed, encoder.table, WINDOW, batches)
    (summing,) = seconds_in_turns(work, rounds=1, clock=time.process_time)
    sums = work()
    placed = [sums.placed(place, RANDOM_DOMAINS) for place in range(RANDOM_DOMAINS)]
    total = reduce(add, placed)
    (solving,) = seconds_in_turns(
        lambda: solve(total, encoder.scale, Ridge()),
        rounds=_REPEATS,
        clock=time.process_time,
    )
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
        "solving, CPU s",
        "a release, MB",
        "routing a prompt, CPU ms",
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
        clock=time.process_time,
    )
    return (
        domains,
        1e-6 * sealed_bytes(*total.shape),
        solving,
        1e-6 * sum(path.stat().st_size for path in folder.iterdir()),
        1e3 * statistics.median(routing),
    )
