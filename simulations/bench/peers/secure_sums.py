"""Secure sums of the same vectors: ours, Flower's SecAgg+ and NVFLARE's homomorphic encryption.

All members and the coordinator work one after another in one process; sending is left out. Bytes
are what one member sends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ridgeway.common.base.identity import Identity
from ridgeway.common.masking.reference_session import Step, Transcript, masked_sum
from ridgeway.simulations.bench.measuring import Row
from ridgeway.simulations.bench.peers.peer import (
    Contest,
    Peer,
    asked_peer,
    rows_beside,
)
from ridgeway.simulations.bench.peers.peer_process import Answered

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
    members = [Identity(Ed25519PrivateKey.generate()) for _ in vectors]
    in_order = sorted(range(len(members)), key=lambda place: members[place].public)
    dropped: dict[int, Step] = dict.fromkeys(
        range(len(members) - away + 1, len(members) + 1), "send"
    )
    started = time.process_time()
    run = masked_sum(
        members, list(vectors), dropped, lambda purpose, place: secrets.token_bytes
    )
    seconds = time.process_time() - started
    senders = in_order[: len(members) - away]
    error = np.abs(run.total - vectors[senders].sum(axis=0)).max()
    return {"seconds": seconds, "bytes": _sent(run, 1), "error": float(error)}


def _sent(run: Transcript, place: int) -> int:
    """What one member sends, without signatures around messages."""
    dealt = sum(map(len, run.dealt[place].envelopes.values()))
    revealed = sum(map(len, run.reveals[place].values()))
    signed = len(run.confirmations[place]) // 2
    return run.sealed[place].data.nbytes + dealt + revealed + signed
