"""Documents planted under a round's own noise, and the ε that an attacker who knows all else can
prove at least.

    planted or not, by a coin ──▶ sums + noise ──▶ how much the sums look like the document ──▶ true
    and false alarms

Differential privacy bounds the ratio of true to false alarms by e^ε, so counted alarms give a lower
bound on ε, with a stated confidence. Above what the terms promise, something is broken; far below
is as it should be, for ε also covers chances of one in a hundred million, which no number of runs
can show.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.private_audit import under_noise
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.privacy.discrete_gaussian import Randomness
from ridgeway.common.privacy.document_bound import count_unit, empty_sums, row_unit
from ridgeway.common.privacy.document_vectors import document_vectors
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.common.privacy.public_prior import Integers, PublicPrior
from ridgeway.common.privacy_attacks import auc, membership_scores

Floats = NDArray[np.float64]

CANARY_TOKENS = 32
CONFIDENCE = 0.95
THRESHOLDS = 64


@dataclass(frozen=True, slots=True)
class CanaryFinding:
    """What planted documents showed.

    guesses:  how often it was guessed whether a document was planted.
    at_least: ε is at least this, with a confidence of 95 %; 0 if nothing was shown.
    """

    guesses: int
    auc: float
    at_least: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def canaries(
    encoder: TableEncoder, prior: PublicPrior, count: int, rng: np.random.Generator
) -> Integers:
    """The rows of documents of tokens drawn at random, which lie apart from all text and from each
    other.
    """
    ids = rng.choice(encoder.tokenizer.plain_ids, count * CANARY_TOKENS).astype(
        np.int32
    )
    return document_vectors(prior, ids, np.full(count, CANARY_TOKENS), encoder.table)


def plant(
    privacy: Privacy,
    rows: Integers,
    runs: int,
    rng: np.random.Generator,
    draw: Randomness = secrets.token_bytes,
    tick: Callable[[], None] = lambda: None,
) -> CanaryFinding:
    """Plant each document in each run or not, and guess by the sums which were. All else in them is
    known.
    """
    lengths = np.square(rows.astype(np.float64)).sum(axis=1)
    squares = (
        row_unit(privacy.mode) ** 2 * lengths + float(count_unit(privacy.mode)) ** 2
    )
    squares += lengths**2 if privacy.mode == "full" else 0
    planted = []
    scores = []
    for _ in range(runs):
        noise = under_noise(empty_sums(privacy.mode, rows.shape[1]), privacy, draw)
        coins = rng.random(len(rows)) < 0.5
        planted.append(coins)
        scores.append(
            membership_scores(rows, noise) / np.sqrt(squares) + coins * np.sqrt(squares)
        )
        tick()
    chosen = np.concatenate(planted)
    found = np.concatenate(scores)
    inside = found[chosen]
    outside = found[~chosen]
    return CanaryFinding(
        len(found),
        auc(inside, outside),
        epsilon_at_least(inside, outside, privacy.delta),
    )


def epsilon_at_least(inside: Floats, outside: Floats, delta: float) -> float:
    """The largest lower bound on ε, by a threshold that the first halves choose and the second
    halves judge.
    """
    first = inside[: len(inside) // 2], outside[: len(outside) // 2]
    second = inside[len(inside) // 2 :], outside[len(outside) // 2 :]
    edges = np.quantile(
        np.concatenate(first), np.linspace(0, 1, THRESHOLDS + 2)[1:-1]
    ).tolist()
    bounds = [
        (_bound(*first, edge, sign, delta), edge, sign)
        for edge in edges
        for sign in (1, -1)
    ]
    _, edge, sign = max(bounds)
    return _bound(*second, edge, sign, delta)


def _bound(
    inside: Floats, outside: Floats, edge: float, sign: int, delta: float
) -> float:
    """ln of the least ratio of alarms that the counts leave room for (Clopper and Pearson).

    sign: 1 for alarms above the edge; −1 for those below it, where documents that are not planted
          give them.
    """
    from scipy.stats import beta

    likely, unlikely = (
        (inside > edge, outside > edge)
        if sign > 0
        else (outside <= edge, inside <= edge)
    )
    tail = (1 - CONFIDENCE) / 2
    hits = int(likely.sum())
    alarms = int(unlikely.sum())
    least = float(beta.ppf(tail, hits, len(likely) - hits + 1)) if hits else 0.0
    most = (
        float(beta.ppf(1 - tail, alarms + 1, len(unlikely) - alarms))
        if alarms < len(unlikely)
        else 1.0
    )
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0
