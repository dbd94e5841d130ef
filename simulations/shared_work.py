"""What holders of one simulation compute alike, computed once in a process.

A deployed holder computes each of these once an answer. All are pure functions, so a cache around
them changes nothing but the time that many holders in one process take.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from ridgeway.client.round import holder, scoring, session_store
from ridgeway.client.sums import prepare
from ridgeway.common.base import identity, settings_file
from ridgeway.common.protocol import packet
from ridgeway.common.protocol.cohort import MAX_HOLDERS

SHARED = (
    (packet, "_header", 4),
    (packet, "_message", 4),
    (identity, "_verifies", 2 * MAX_HOLDERS),
    (settings_file, "_as_json", 1024),
    (session_store, "_agreed", 2),
    (scoring, "_compiled", 1),
    (holder, "_verified_release", 1),
    (prepare, "_maker", 1),
)
"""Module, function, and how many results are kept. Every holder verifies a signature of every
member: a cache of fewer would have forgotten each before the next holder asks for it.
"""

_MAX_BLOB_BYTES = 1 << 26
"""Of larger blobs the digest is computed each time: a cache would hold them in memory."""


caches: list[Any] = []


def forget_shared_work() -> None:
    """Empty the caches, so that the next holder computes everything itself."""
    for cached in caches:
        cached.cache_clear()


@cache
def share_work() -> None:
    """Put a cache around each function; further calls do nothing."""
    for module, name, size in SHARED:
        cached = lru_cache(maxsize=size)(getattr(module, name))
        setattr(module, name, cached)
        caches.append(cached)
    digest = packet._digest
    kept = lru_cache(maxsize=4)(digest)
    caches.append(kept)

    def digest_once(blob: Any) -> str:
        small = isinstance(blob, bytes) and len(blob) <= _MAX_BLOB_BYTES
        return kept(blob) if small else digest(blob)

    packet._digest = digest_once
