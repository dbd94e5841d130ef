"""The SuperNode as a process: Flower's own, with shorter waits, and an end that comes when its main loop ends.

Knows the inside of Flower 1.41's `start_client_internal`, and refuses to start where it has changed. Knows nothing of
bundles.
"""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType

from ridgeway.client.deploy.approved_bundle import Pace

IDLE_S = 3
"""How long Flower's loop sleeps when no message has come, with no setting for it."""
REPLY_S = 0.5
"""How long it sleeps between two looks for the reply to a message."""
REPLY_PAUSE_S = 0.05
OBJECT_PAUSE_S = 0.1
"""How long to wait for a part of a message that the other side is still sending. Flower waits a second."""


class NodePace(Pace):
    """While a reply is awaited, look for it often; else look for messages as `Pace` says."""

    def sleep(self, seconds: float) -> None:
        if seconds < IDLE_S:
            self.worked()
            time.sleep(REPLY_PAUSE_S)
        else:
            super().sleep(seconds)


def quicken(loop: ModuleType) -> None:
    """Replace the fixed waits of Flower's loop; raises where they are not the known ones."""
    waits = {IDLE_S: loop.start_client_internal, REPLY_S: loop._push_messages}
    known = all(
        "time" in each.__code__.co_names and seconds in each.__code__.co_consts for seconds, each in waits.items()
    )
    if not known or "initial_backoff" not in (loop.pull_objects.__kwdefaults__ or {}):
        raise SystemExit("this version of Flower waits otherwise than 1.41 does; install the pinned one")
    loop.time = NodePace(0.2, IDLE_S)  # type: ignore[attr-defined]
    loop.pull_objects.__kwdefaults__["initial_backoff"] = OBJECT_PAUSE_S


def main() -> None:
    """Run `flower-supernode` with the words of this command line."""
    code: object = 1
    try:
        import flwr.supernode.start_client_internal as loop
        from flwr.supernode.cli import flower_supernode

        quicken(loop)
        flower_supernode()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"Exit Code: 1 {code}\n")
    finally:  # a server for nobody would stay
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
