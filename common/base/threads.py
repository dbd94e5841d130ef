"""Threads: how many there are to use, and libraries held to one each while we run our own.

Knows the operating system and the tokenizers library's switch. Knows nothing of the work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH = "TOKENIZERS_PARALLELISM"

_lock = threading.Lock()
_users = 0
_before: str | None = None


def cores() -> int:
    """The cores this process may use, where the system tells, else all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def serial_tokenizers() -> Iterator[None]:
    """While any block of this kind runs, the tokenizers library starts no threads; afterwards it may as before."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = os.environ.get(SWITCH)
            os.environ[SWITCH] = "false"
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _before is None:
                os.environ.pop(SWITCH, None)
            elif _users == 0 and _before is not None:
                os.environ[SWITCH] = _before
