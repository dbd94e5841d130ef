"""The SuperNode as a process: Flower's own, with shorter waits, and an end that comes when its main loop ends.

Knows the inside of Flower 1.41's `start_client_internal`, and refuses to start where it has changed. Knows nothing of
bundles.
"""

from __future__ import annotations

import math
import os
import sys
import time
from types import ModuleType
from typing import Any

from ridgeway.common.deploy.approved_bundle import ring

BELL = "RIDGEWAY_BELL"
"""Names the pipe by which the SuperExec is told that a task is there."""
IDLE_S = 3
"""How long Flower's loop sleeps when no message has come, with no setting for it."""
REPLY_S = 0.5
"""How long it sleeps between two looks for the reply to a message."""
REPLY_PAUSE_S = 0.05
LEAST_PAUSE_S = 0.2
PART_PAUSE_S = 0.1
"""How long to wait for a part of a message that the other side is still sending. Flower waits a second."""


class Pace:
    """Stands in for the module `time` in Flower's loop: between looks for a message it pauses a tenth of the time since
    the last one, so that it looks often in a round, and at rest as seldom as Flower does."""

    def __init__(self) -> None:
        self._worked = -math.inf

    def sleep(self, seconds: float) -> None:
        now = time.monotonic()
        if seconds < IDLE_S:
            self._worked = now
            time.sleep(REPLY_PAUSE_S)
        else:
            time.sleep(min(max((now - self._worked) / 10, LEAST_PAUSE_S), IDLE_S))


def quicken(loop: ModuleType, bell: str) -> None:
    """Replace the fixed waits of Flower's loop, and ring when a task is there; raises where they are not as known."""
    wait, push = loop.start_client_internal.__code__, loop._push_messages
    known = IDLE_S in wait.co_consts and REPLY_S in push.__code__.co_consts and "_push_messages" in wait.co_names
    if not known or "initial_backoff" not in (loop.pull_objects.__kwdefaults__ or {}):
        raise SystemExit("this version of Flower waits otherwise than 1.41 does; install the pinned one")

    def pushing(*words: Any, **named: Any) -> None:
        ring(bell)
        push(*words, **named)

    loop.time, loop._push_messages = Pace(), pushing  # type: ignore[attr-defined]
    loop.pull_objects.__kwdefaults__["initial_backoff"] = PART_PAUSE_S


def main() -> None:
    """Run `flower-supernode` with the words of this command line."""
    code: object = 1
    try:
        import flwr.supernode.start_client_internal as loop
        from flwr.supernode.cli import flower_supernode

        quicken(loop, os.environ[BELL])
        flower_supernode()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"Exit Code: 1 {code}\n")
    finally:  # a server for nobody would stay
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
