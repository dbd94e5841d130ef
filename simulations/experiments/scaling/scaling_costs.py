"""What a round, a width and a number of domains cost. Run as a module in a process of its own, it
prints the figures.

python -m ridgeway.simulations.experiments.scaling.scaling_costs round_costs HOLDERS clear|masked
SEED FOLDER python -m ridgeway.simulations.experiments.scaling.scaling_costs
holder_costs|coordinator_costs WIDTH SEED
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ridgeway.client.sums.accumulate import accumulators
from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.identity import Identity
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import (
    DEFAULT,
    FEATURE_LIMIT,
    Confidence,
    Ridge,
    Sampling,
)
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.protocol.messages import ClearStatistics, SealedSums
from ridgeway.common.protocol.packet import Blob, seal_packet, vector_blob
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.common.statistics.sums import Statistics, vector_size
from ridgeway.coordinator.solving.publish import RouterChoices, compose, sign
from ridgeway.coordinator.solving.solve import solve
from ridgeway.coordinator.solving.total import add_up
from ridgeway.simulations.bench.measuring import peak_gb, seconds_in_turns
from ridgeway.simulations.bench.random_corpus import word_encoder
from ridgeway.simulations.bench.round_bench import watched
from ridgeway.simulations.corpora import Corpus
from ridgeway.simulations.experiments.dataset import Dataset, Tokens, in_turn, sums_of
from ridgeway.simulations.experiments.experiment_rounds import (
    packet_bytes,
    watched_round,
)
from ridgeway.simulations.simulated_federation import (
    create_simulated_federation,
    open_epochs,
)

WORDS = 300
ROUND_WIDTH = 64
ROUND_DOMAINS = 3
DOCUMENTS_PER_HOLDER = 20
WORDS_PER_DOCUMENT = 40

ROWS = 2048
WINDOWS = 2048
WINDOW = 16
MEMBERS = 5
DOMAINS = 4
SMALL_WIDTH = 1024
"""Up to this width the median over several runs is taken."""

TEXTS = 600
PROMPTS = 120
DEALT = Sampling(window=64)
CHOICES = RouterChoices(
    DEFAULT.weighting,
    DEFAULT.ridge,
    DEFAULT.normalise_columns,
    DEFAULT.selector,
    Confidence(),
)


# A round over random text


def round_costs(
    holders: int, mode: Mode, seed: int, folder: str | Path
) -> dict[str, Any]:
    """Seconds, bytes and memory of a round. A holder's seconds are those of its answers, scoring
    apart.

    summing: of all holders, before the round.
    """
    home = Path(folder).resolve()
    words = [f"w{number}" for number in range(WORDS)]
    save_encoder(
        word_encoder(words, {"type": "WhitespaceSplit"}, ROUND_WIDTH), home / "encoder"
    )
    corpora = [_random_corpus(place, holders, seed) for place in range(ROUND_DOMAINS)]
    encoder = f"dir:{home}/encoder"
    simulated = create_simulated_federation(
        home / "federation", corpora, holders=holders, encoder=encoder, mode=mode
    )
    began = time.monotonic()
    for _ in open_epochs(simulated):
        pass
    summing = time.monotonic() - began
    with watched() as watch:
        done = watched_round(simulated)
    if done.refused:
        raise RoundFailed(done.refused)
    scoring, solving = watch.seconds.values()
    down = sum(done.down.values())
    up = sum(done.up.values())
    return {
        "holders": holders,
        "seconds": done.seconds,
        "summing": summing,
        "scoring": scoring,
        "solving": solving,
        "holder": (done.holders - scoring) / holders,
        "coordinator": done.seconds - done.holders - solving,
        "up": up / holders,
        "down": down / holders,
        "total": up + down,
        "memory": peak_gb(),
    }


def _random_corpus(place: int, holders: int, seed: int) -> Corpus:
    """A domain of words of its own, with text for every holder."""
    chance = random.Random(f"{seed} {place}")
    words = [f"w{number}" for number in range(place, WORDS, ROUND_DOMAINS)]
    count = -(-holders // ROUND_DOMAINS) * DOCUMENTS_PER_HOLDER + 2
    texts = [
        " ".join(chance.choices(words, k=WORDS_PER_DOCUMENT)) for _ in range(count)
    ]
    return Corpus(f"domain-{place}", tuple(texts[2:]), tuple(texts[:2]))


# A width


def holder_costs(width: int, seed: int) -> dict[str, float]:
    """Sum a fixed number of windows, and seal what came out. Memory is what this took beyond what
    there was before.
    """
    from ridgeway.simulations.bench.masking_bench import bench_session, sealed_vector

    chance = np.random.default_rng(seed)
    table = chance.integers(
        -FEATURE_LIMIT, FEATURE_LIMIT, (ROWS, width), dtype=np.int16, endpoint=True
    )
    ids = chance.integers(0, ROWS, WINDOWS * WINDOW, dtype=np.int32)
    make = accumulators(table, Sampling(window=WINDOW))

    def summed() -> Statistics:
        accumulator = make()
        accumulator.add(ids, np.array([len(ids)]))
        return accumulator.statistics(accumulator.state())

    session = bench_session(MEMBERS)
    before = peak_gb()
    sums = summed()
    sent = _sent_bytes(
        ClearStatistics(cohort="0" * 64, source="0" * 64),
        [vector_blob(sums.as_vector())],
    )
    vector = sums.placed(0, DOMAINS).as_vector()
    summing, sealing = seconds_in_turns(
        summed, lambda: sealed_vector(session, 1, vector), **_repeats(width)
    )
    return {
        "bytes": sent,
        "summing": summing,
        "sealing": sealing,
        "holder_memory": peak_gb() - before,
    }


def coordinator_costs(width: int, seed: int) -> dict[str, float]:
    """Open a sum of sealed vectors, check a total, solve it. The vectors are noise, as vectors
    under masks are.
    """
    from ridgeway.simulations.bench.masking_bench import (
        bench_session,
        opened_sum,
        sealed_vector,
    )
    from ridgeway.simulations.bench.solve_bench import SCALE, random_total

    session = bench_session(MEMBERS)
    before = peak_gb()
    vector = np.random.default_rng(seed).integers(
        0, 1 << 22, vector_size(width + 1, DOMAINS)
    )
    sealed = dict.fromkeys(session.agreement.places, sealed_vector(session, 1, vector))
    (opening,) = seconds_in_turns(
        lambda: opened_sum(session, sealed), **_repeats(width)
    )
    total = random_total(width)
    works: list[Callable[[], object]] = [
        total.check,
        lambda: solve(total, SCALE, Ridge()),
    ]
    checking, solving = seconds_in_turns(*works, **_repeats(width))
    return {
        "opening": opening,
        "checking": checking,
        "solving": solving,
        "coordinator_memory": peak_gb() - before,
    }


def _repeats(width: int) -> dict[str, Any]:
    return (
        {"rounds": 3, "warm": True}
        if width <= SMALL_WIDTH
        else {"rounds": 1, "warm": width <= 2 * SMALL_WIDTH}
    )


def _sent_bytes(message: ClearStatistics | SealedSums, blobs: Sequence[Blob]) -> int:
    identity = Identity(Ed25519PrivateKey.generate())
    return packet_bytes(
        seal_packet(message, identity, round="0" * 32, reply_to="0" * 64, blobs=blobs)
    )


# A number of domains


def domain_costs(
    encoder: TableEncoder, dataset: Dataset, domains: int, folder: Path
) -> dict[str, Any]:
    """A sealed message, solving, a release, and routing a prompt.

    Texts of a dataset are dealt out to made-up domains; how well they are told apart is not asked
    here.
    """
    texts = in_turn(dataset.train, TEXTS)
    prompts = in_turn(dataset.test, PROMPTS)
    dealt = {
        f"domain-{place:03}": Tokens(
            *encoder.tokenizer.encode_many(texts[place::domains])
        )
        for place in range(domains)
    }
    sums = sums_of(encoder, DEALT, dealt)
    parts = [
        Prepared(name, "local", encoder.fingerprint, DEALT, own)
        for name, own in sums.items()
    ]
    total = add_up(parts, CHOICES.weighting)
    (solving,) = seconds_in_turns(
        lambda: solve(total.statistics, encoder.scale, CHOICES.ridge), rounds=3
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = compose(
        total, encoder, CHOICES, solve(total.statistics, encoder.scale, CHOICES.ridge)
    )
    sign(draft, Identity(Ed25519PrivateKey.generate()), folder)
    router = Router.load(folder)
    # what is under masks is noise, and zeros weigh as much
    vector = bytes(8 * vector_size(*total.statistics.shape))
    return {
        "domains": domains,
        "bytes": _sent_bytes(SealedSums(session="0" * 64, lot="statistics"), [vector]),
        "solving": solving,
        "release": sum(path.stat().st_size for path in folder.iterdir()),
        "routing": _warm_seconds(router.route, prompts),
        "tokenising": _warm_seconds(router.tokenizer.encode, prompts),
    }


def _warm_seconds(work: Callable[[str], object], prompts: Sequence[str]) -> float:
    """The median over prompts, each once before it counts."""
    return statistics.median(
        seconds_in_turns(partial(work, prompt), rounds=1)[0] for prompt in prompts
    )


if __name__ == "__main__":
    costs: Any = {
        each.__name__: each for each in (round_costs, holder_costs, coordinator_costs)
    }[sys.argv[1]]
    print(
        json.dumps(
            costs(*(int(word) if word.isdigit() else word for word in sys.argv[2:]))
        )
    )
