"""Means under the same ε and δ: pfl's Gaussian mechanism, and the noise of our private rounds.

pfl adds noise once, on the total, at a server that sees every user's vector. In our `columns` every
holder adds all of the noise before anything leaves it: so the error grows with the root of the
number of holders that share a domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ridgeway.client.round.private_sums import laid_out, with_noise
from ridgeway.common.privacy.document_bound import bounded_sums
from ridgeway.common.privacy.document_vectors import VECTOR_LENGTH
from ridgeway.common.privacy.privacy_settings import Privacy
from ridgeway.simulations.bench.measuring import Row
from ridgeway.simulations.bench.peers.peer import (
    Contest,
    Peer,
    asked_peer,
    rows_beside,
)
from ridgeway.simulations.bench.peers.peer_process import Answered

_PFL = Peer("pfl", ".venv-peers-pfl", "peer_pfl")
_ROWS = 2000
_WIDTH = 512
_REPEATS = 10
_EPSILONS = (0.3, 1.0, 8.0)
_DELTA = 1e-6
_HOLDERS = (1, 10)
"""That share the rows of one domain."""


def private_mean_rows(work: Path) -> Iterator[Row]:
    drawn = np.random.default_rng(1).normal(size=(_ROWS, _WIDTH))
    rows = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    path = work / "rows.npy"
    np.save(path, rows)
    request = {
        "vectors": str(path),
        "epsilons": _EPSILONS,
        "delta": _DELTA,
        "repeats": _REPEATS,
    }

    def contests(answer: Answered) -> dict[str, list[Contest]]:
        found = {}
        for epsilon, theirs in zip(_EPSILONS, answer["errors"], strict=True):
            for holders in _HOLDERS:
                whose = "one holder" if holders == 1 else f"{holders} holders"
                name = f"{what}, ε {epsilon:g}, δ {_DELTA:g}, {whose}"
                ours = our_mean(rows, epsilon, holders)
                found[name] = [Contest(ours, theirs, "off (RMS)")]
        return found

    what = f"private mean of {_ROWS:,} rows"
    ask = partial(asked_peer, _PFL, request, work)
    yield from rows_beside(what, _PFL.name, ask, contests)


def our_mean(rows: Any, epsilon: float, holders: int) -> float:
    """The root mean square error, over repeats, of a mean whose rows several holders have."""
    privacy = Privacy(mode="columns", epsilon=epsilon, delta=_DELTA, prior="0" * 64)
    errors = []
    for _ in range(_REPEATS):
        # towards zero, so that no row is longer than it may be
        whole = np.trunc(rows * VECTOR_LENGTH).astype(np.int64)
        total = np.zeros(rows.shape[1] + 1)
        for own in np.array_split(whole, holders):
            exact, scales = laid_out(bounded_sums("columns", own), privacy)
            total += with_noise(exact, scales)
        mean = total[:-1] / VECTOR_LENGTH / len(rows)
        errors.append(mean - rows.mean(axis=0))
    return float(np.sqrt(np.mean(np.square(errors))))
