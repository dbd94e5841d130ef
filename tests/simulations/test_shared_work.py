"""Caches of a simulation: they are there only when asked for, and large blobs are not kept."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from ridgeway.common.protocol import packet
from ridgeway.common.base import identity
from ridgeway.simulations import local_grid
assert not hasattr(identity._verifies, "cache_info"), "a deployed holder has a cache"
local_grid.share_work()
local_grid.share_work()
assert identity._verifies("00", "00", b"") is identity._verifies("00", "00", b"") is False
assert identity._verifies.cache_info().hits == 1
local_grid._MAX_BLOB_BYTES = 2
kept = local_grid.caches[-1]
for blob in (b"ab", b"ab", b"abc", memoryview(b"ab")):
    packet._digest(blob)
assert (kept.cache_info().hits, kept.cache_info().currsize) == (1, 1)
local_grid.forget_shared_work()
assert kept.cache_info().currsize == identity._verifies.cache_info().currsize == 0
"""


def test_caches_are_a_simulations_alone() -> None:
    """In a process of its own, since caches stay for as long as a process does."""
    subprocess.run([sys.executable, "-c", CODE], check=True)
