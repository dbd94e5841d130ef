"""The environments of peers, which `make peers` builds beside the checkout, and asking a script in
one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.files import IMPORT_ROOT

ENVIRONMENTS_VARIABLE = "RIDGEWAY_PEERS"
"""Names the folder in which the environments lie, if that is not the checkout."""
_PACKAGE = "ridgeway.simulations.bench.peers"
_MINUTES = 10
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Threads that wait for each other would count as work."""


@dataclass(frozen=True, slots=True)
class Peer:
    """name: what tables say. environment: its folder; empty for our own. script: a module here."""

    name: str
    environment: str
    script: str = ""


class PeerMissing(ProcessError):
    """A peer that is not installed here, or does not run."""


def peer_python(peer: Peer) -> Path:
    """The interpreter of a peer's environment; raises PeerMissing if there is none."""
    if not peer.environment:
        return Path(sys.executable)
    folder = Path(os.environ.get(ENVIRONMENTS_VARIABLE) or IMPORT_ROOT)
    python = folder / peer.environment / "bin" / "python"
    if not python.exists():
        raise PeerMissing(
            f"{peer.name} is not installed; `make peers` builds its environment"
        )
    return python


def asked_peer(peer: Peer, request: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """What a peer's script answers; raises PeerMissing with its last words if it fails."""
    path = work / f"{peer.script}.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    command = [str(peer_python(peer)), "-m", f"{_PACKAGE}.{peer.script}", str(path)]
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(IMPORT_ROOT)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60 * _MINUTES,
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{peer.name} took more than {_MINUTES} minutes") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PeerMissing(f"{peer.name} does not run here: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "failed" in answer:
        raise PeerMissing(f"{peer.name}: {answer['failed']}")
    return answer
