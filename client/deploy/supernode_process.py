"""The SuperNode as a process: Flower's own, changed by common/deploy/flower_patches.py, and an end
that comes when its main loop ends.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from ridgeway.common.deploy.approved_bundle import wake
from ridgeway.common.deploy.flower_patches import other_flower, run_supernode

WAKEUP_PIPE = "RIDGEWAY_WAKEUP_PIPE"
"""Names the pipe by which the SuperExec is told that a task is there."""
AUTHORITY_FILE = "RIDGEWAY_AUTHORITY"
"""Names the file with the authority's certificate."""
HELD_NODE = "RIDGEWAY_HELD_NODE"
"""The id of the connection of an earlier SuperNode, of which the one that starts this knows that it
is gone.
"""


def main() -> None:
    """Run `flower-supernode` with the words of this command line."""
    code: object = 1
    try:
        held = os.environ.get(HELD_NODE)
        run_supernode(
            partial(wake, os.environ[WAKEUP_PIPE]),
            Path(os.environ[AUTHORITY_FILE]),
            int(held) if held else None,
        )
    except ImportError as error:
        sys.stderr.write(f"Exit Code: 1 {other_flower(error)}\n")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"Exit Code: 1 {code}\n")
    finally:  # a server for nobody would stay
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
