"""Measuring in a process of its own, so that its memory is its own. Knows nothing of what is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.errors import ProcessError

ROOT = Path(__file__).resolve().parents[3]


def apart(module: str, *words: object) -> dict[str, Any]:
    """What a module of this package prints."""
    command = [sys.executable, "-m", f"{__package__}.{module}", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ProcessError(f"measuring {module} {' '.join(map(str, words))} failed: {last}; run it by hand to see more")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
