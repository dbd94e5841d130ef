"""What a width costs on either side. Run as a module in a process of its own, it prints the figures.

python -m simulations.lab.scaling.one_width holder|coordinator WIDTH SEED
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from client.accumulate import accumulators
from common.identity import Identity
from common.messages import ClearStatistics, seal_packet, statistics_blobs
from common.settings import FEATURE_LIMIT, Ridge, Sampling
from common.statistics import Statistics, vector_size
from coordinator.solve import solve
from simulations.bench.federation import peak
from simulations.bench.measuring import seconds_in_turns
from simulations.lab.scaling.wire import packet_bytes

ROWS, WINDOWS, WINDOW = 2048, 2048, 16
MEMBERS, DOMAINS = 5, 4
SMALL = 1024
"""Up to this width, work is so short that its median over several runs is taken."""


def holder(width: int, seed: int) -> dict[str, float]:
    """Sum a fixed number of windows, and seal what came out. Memory is what this took beyond what there was before."""
    from simulations.bench.masking import Session

    chance = np.random.default_rng(seed)
    table = chance.integers(-FEATURE_LIMIT, FEATURE_LIMIT, (ROWS, width), dtype=np.int16, endpoint=True)
    ids = chance.integers(0, ROWS, WINDOWS * WINDOW, dtype=np.int32)
    make = accumulators(table, Sampling(window=WINDOW))

    def summed() -> Statistics:
        accumulator = make()
        accumulator.add(ids, np.array([len(ids)]))
        return accumulator.statistics(accumulator.state())

    session, before = Session(MEMBERS), peak()
    statistics = summed()
    message = packet_bytes(_clear(statistics))
    vector = statistics.placed(0, DOMAINS).as_vector()
    summing, sealing = seconds_in_turns(summed, lambda: session.sealed(1, vector), **_often(width))
    return {"bytes": message, "summing": summing, "sealing": sealing, "holder_memory": peak() - before}


def coordinator(width: int, seed: int) -> dict[str, float]:
    """Open a sum of sealed vectors, check a total, solve it. The vectors are noise, as vectors under masks are."""
    from simulations.bench.masking import Session
    from simulations.bench.solving import SCALE, random_total

    session, sent, before = Session(MEMBERS), range(1, MEMBERS + 1), peak()
    vector = np.random.default_rng(seed).integers(0, 1 << 22, vector_size(width + 1, DOMAINS))
    sealed = dict.fromkeys(sent, session.sealed(1, vector))
    reveals = session.reveals(sent)
    (opening,) = seconds_in_turns(lambda: session.opened(sealed, reveals), **_often(width))
    total = random_total(width)
    works: list[Callable[[], object]] = [total.check, lambda: solve(total, SCALE, Ridge())]
    checking, solving = seconds_in_turns(*works, **_often(width))
    return {"opening": opening, "checking": checking, "solving": solving, "coordinator_memory": peak() - before}


def _clear(statistics: Statistics) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    identity = Identity(Ed25519PrivateKey.generate())
    message = ClearStatistics(cohort="0" * 64, source="0" * 64)
    blobs = statistics_blobs(statistics)
    return seal_packet(message, identity, round="0" * 32, reply_to="0" * 64, blobs=blobs)


def _often(width: int) -> dict[str, Any]:
    return {"rounds": 3, "warm": True} if width <= SMALL else {"rounds": 1, "warm": width <= 2 * SMALL}


if __name__ == "__main__":
    print(json.dumps({"holder": holder, "coordinator": coordinator}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))))
