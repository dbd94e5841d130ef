"""Time and bytes over the width h and over the number of domains."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ridgeway.common.base.identity import Identity
from ridgeway.common.base.settings import Ridge, Sampling
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.protocol.messages import SealedSums
from ridgeway.common.protocol.packet import seal_packet
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics.sums import vector_size
from ridgeway.coordinator.solving.publish import publish
from ridgeway.coordinator.solving.solve import solve
from ridgeway.simulations.bench.measuring import packet_bytes, seconds_in_turns
from ridgeway.simulations.bench.random_corpus import draw, random_encoder
from ridgeway.simulations.bench.route_bench import DEFAULT_CHOICES
from ridgeway.simulations.experiments.token_routers import summed, summed_texts

_REPEATS = 3

RANDOM_ROWS = 2048
RANDOM_TOKENS = 32_768
RANDOM_DOMAINS = 4
WINDOW = Sampling(window=16)
DEALT = Sampling(window=64)


def width_costs(width: int) -> dict[str, float]:
    """A message, sums and the solve, of a random table."""
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
    return {
        "a sealed message, MB": 1e-6 * sealed_bytes(width + 1, RANDOM_DOMAINS),
        "summing, CPU s": summing,
        "solving, CPU s": solving,
    }


def sealed_bytes(features: int, domains: int) -> int:
    """Of a holder's sums under masks: what is under masks is noise, and zeros weigh as much."""
    message = SealedSums(session="0" * 64, lot="statistics")
    identity = Identity(Ed25519PrivateKey.generate())
    blob = bytes(8 * vector_size(features, domains))
    return packet_bytes(
        seal_packet(message, identity, round="0" * 32, reply_to="0" * 64, blobs=[blob])
    )


def domain_costs(
    encoder: TableEncoder,
    texts: Sequence[str],
    prompts: Sequence[str],
    domains: int,
    folder: Path,
) -> dict[str, float]:
    """A message, the solve and a release, of texts that are dealt out to made-up domains.

    folder: of the release.
    """
    parts = [
        summed_texts(encoder, DEALT, f"domain-{place:03}", texts[place::domains])
        for place in range(domains)
    ]
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
    released = sum(path.stat().st_size for path in folder.iterdir())
    return {
        "a sealed message, MB": 1e-6 * sealed_bytes(*total.shape),
        "solving, CPU s": solving,
        "a release, MB": 1e-6 * released,
        "routing a prompt, CPU ms": 1e3 * statistics.median(routing),
    }
