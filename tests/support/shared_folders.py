"""Folders that are made once for all workers of a test run, under its base folder.

Knows pytest's folders and locks of files. Knows nothing of what the folders hold.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name, filled by whichever worker comes first; the others wait for it."""
    base = factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, ready = run / f"once-{name}", run / f"once-{name}.ready"
    with (run / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            ready.touch()
    return folder
