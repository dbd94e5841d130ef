"""Sums under masks and under noise, beside other projects."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ridgeway.client.round.epochs import laid_out, with_noise
from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.reference_session import Step, Transcript, masked_sum
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import VECTOR_LENGTH, bounded_sums
from ridgeway.simulations.bench.measuring import Row
from ridgeway.simulations.bench.peers.peer import (
    Answered,
    Contest,
    Peer,
    asked_peer,
    rows_beside,
)

# Secure sums of the same vectors: ours, Flower's SecAgg+ and NVFLARE's homomorphic encryption.
#
# All members and the coordinator work one after another in one process; sending is left out. Bytes
# are what one member sends.


_LARGEST = 1 << 22
_CASES = ((10, 1), (30, 3))
"""Members, and how many of them drop out before they send."""
_NUMBERS = 170_000
"""About as many as the sums of 576 features have."""
_PEERS = (
    Peer("Flower SecAgg+", "", "peer_flower"),
    Peer("NVFLARE, CKKS", ".venv-peers-nvflare", "peer_nvflare"),
)


def secure_sum_rows(work: Path) -> Iterator[Row]:
    for members, away in _CASES:
        vectors = np.random.default_rng(members).integers(
            0, _LARGEST, (members, _NUMBERS)
        )
        path = work / "vectors.npy"
        np.save(path, vectors)
        what = (
            f"secure sum, {members - away} of {members} members, {_NUMBERS:,} numbers"
        )
        request = {"vectors": str(path), "largest": _LARGEST, "away": away}
        contests = partial(_contests, what, our_sum(vectors, away))
        for peer in _PEERS:
            ask = partial(asked_peer, peer, request, work)
            yield from rows_beside(what, peer.name, ask, contests)


def _contests(what: str, ours: Answered, theirs: Answered) -> dict[str, list[Contest]]:
    return {
        what: [
            Contest(ours["seconds"], theirs["seconds"], "CPU s"),
            Contest(ours["bytes"] / 1e6, theirs["bytes"] / 1e6, "MB a member"),
            Contest(ours["error"], theirs["error"], "off at most"),
        ]
    }


def our_sum(vectors: Any, away: int) -> Answered:
    members = [Identity.generate() for _ in vectors]
    in_order = sorted(range(len(members)), key=lambda member: members[member].public)
    dropped: dict[int, Step] = dict.fromkeys(
        range(len(members) - away + 1, len(members) + 1), "send"
    )
    started = time.process_time()
    run = masked_sum(
        members, list(vectors), dropped, lambda purpose, member: secrets.token_bytes
    )
    seconds = time.process_time() - started
    senders = in_order[: len(members) - away]
    error = np.abs(run.total - vectors[senders].sum(axis=0)).max()
    return {"seconds": seconds, "bytes": _sent(run, 1), "error": float(error)}


def _sent(run: Transcript, member: int) -> int:
    """What one member sends, without signatures around messages."""
    dealt = sum(map(len, run.dealt[member].envelopes.values()))
    revealed = sum(map(len, run.reveals[member].values()))
    signed = len(run.confirmations[member]) // 2
    return run.sealed[member].data.nbytes + dealt + revealed + signed


# Means under the same ε and δ: pfl's Gaussian mechanism, and the noise of our private rounds.
#
# pfl adds noise once, on the total, at a server that sees every user's vector. In our `columns`
# every holder adds all of the noise before anything leaves it: so the error grows with the root of
# the number of holders that share a domain.


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
        named = {}
        for epsilon, theirs in zip(_EPSILONS, answer["errors"], strict=True):
            for holders in _HOLDERS:
                whose = "one holder" if holders == 1 else f"{holders} holders"
                name = f"{what}, ε {epsilon:g}, δ {_DELTA:g}, {whose}"
                ours = our_mean(rows, epsilon, holders)
                named[name] = [Contest(ours, theirs, "off (RMS)")]
        return named

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
        for part in np.array_split(whole, holders):
            exact, scales = laid_out(bounded_sums("columns", part), privacy)
            total += with_noise(exact, scales)
        mean = total[:-1] / VECTOR_LENGTH / len(rows)
        errors.append(mean - rows.mean(axis=0))
    return float(np.sqrt(np.mean(np.square(errors))))
