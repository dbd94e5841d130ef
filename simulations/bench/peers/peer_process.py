"""What the scripts of peers share. Knows nothing that their environments lack: no numpy, even."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeway.common.base.operating_system import proc

Answered = dict[str, Any]


def answer_request(work: Callable[[Any], Mapping[str, Any]]) -> None:
    """Run a script's work on the request that the command names, and print the answer."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(work(request)))


def resident_mb() -> float:
    """The resident size of this process."""
    status = proc("self", "status").read_text(encoding="utf-8").splitlines()
    return sum(
        int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS")
    )


def chosen_one_by_one(
    choose: Callable[[int], int], places: Sequence[int]
) -> tuple[list[int], float]:
    """What is chosen for each place, and the CPU milliseconds for one, all threads together."""
    started = time.process_time()
    chosen = [choose(index) for index in places]
    spent = time.process_time() - started
    return chosen, 1e3 * spent / len(chosen)
