"""Waiting that a busy machine does not break: patience ends when nothing moves any more, not when a
clock says so.

Knows time and the machine's load. Knows nothing of what is waited for.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

PATIENCE_S = 180.0
"""The time without any progress after which a wait fails, on a machine that is not overloaded."""
MAX_WAIT_S = 300.0
"""The time after which a wait fails even though something still moves, on a machine that is not
overloaded.
"""
POLL_S = 0.05
LOOK_S = 1.0
"""The time between two looks at what moves: to add up the sizes of many files takes a while."""


def wait_for(
    what: str,
    reached: Callable[[], bool],
    *,
    progress: Callable[[], object] = lambda: None,
    patience_s: float = PATIENCE_S,
    poll_s: float = POLL_S,
    details: Callable[[], str] = str,
) -> None:
    """Wait until something has happened; fail with its description once nothing has moved for
    long, or at the latest after MAX_WAIT_S.

    progress: a value that changes while things move, such as the size of logs; each change renews
              the patience.
    patience_s: seconds on a machine with free cores; where several processes want each core, so
                much longer.
    details:  what to say beside the description when the wait fails.
    """
    began = last = looked = time.monotonic()
    waited, in_all, seen = 0.0, 0.0, progress()
    while not reached():
        time.sleep(poll_s)
        now = time.monotonic()
        passed, last = (now - last) / processes_per_core(), now
        waited, in_all = waited + passed, in_all + passed
        if now - looked > LOOK_S:
            moved, looked = progress(), now
            waited, seen = waited if moved == seen else 0.0, moved
        failed = waited > patience_s or in_all > MAX_WAIT_S
        assert not failed or reached(), (
            f"not within {now - began:.0f} s: {what}\n{details()}"
        )


def wait_for_end(
    process: subprocess.Popen[bytes],
    *,
    progress: Callable[[], object] = lambda: None,
    patience_s: float = PATIENCE_S,
    details: Callable[[], str] = str,
) -> int:
    """Wait until a process has ended by itself; its exit code."""
    wait_for(
        f"process {process.pid} has ended",
        lambda: process.poll() is not None,
        progress=progress,
        patience_s=patience_s,
        details=details,
    )
    assert process.returncode is not None
    return process.returncode


def processes_per_core() -> float:
    """How many processes want each core, on the average of the last minute; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
