"""A peer: its environment, which `make peers` builds beside the checkout; asking a script in it;
rows that hold figures of ours against its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.simulations.bench.measuring import Row, resident_bytes

# What the scripts of peers share. Knows nothing that their environments lack: no numpy, even.


Answered = dict[str, Any]


def answer_request(work: Callable[[Any], Mapping[str, Any]]) -> None:
    """Run a script's work on the request that the command names, and print the answer."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(work(request)))


def resident_mb() -> float:
    """The resident size of this process."""
    return resident_bytes("VmRSS") / (1 << 20)


def chosen_one_by_one(choose: Callable[[int], int], prompts: Sequence[int]) -> Answered:
    """What is chosen for each prompt, and the CPU milliseconds for one, all threads together."""
    started = time.process_time()
    choices = [choose(prompt) for prompt in prompts]
    spent = time.process_time() - started
    return {"choices": choices, "milliseconds": 1e3 * spent / len(choices)}


ENVIRONMENTS_VARIABLE = "RIDGEWAY_PEERS"
"""Names the folder in which the environments lie, if that is not the checkout."""
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


def asked_peer(peer: Peer, request: Mapping[str, Any], work: Path) -> Answered:
    """What a peer's script answers; raises PeerMissing with its last words if it fails."""
    path = work / f"{peer.script}.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    script = f"{__package__}.{peer.script}"
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(IMPORT_ROOT)}
    try:
        done = subprocess.run(
            [str(peer_python(peer)), "-m", script, str(path)],
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
    answer: Answered = json.loads(done.stdout.splitlines()[-1])
    if "failed" in answer:
        raise PeerMissing(f"{peer.name}: {answer['failed']}")
    return answer


# Rows


class Contest(NamedTuple):
    """One figure of both. better: whether more of it is better, or less."""

    ours: float
    theirs: float
    unit: str
    better: Literal["more", "less"] = "less"

    @property
    def words(self) -> tuple[str, str]:
        """The better figure in bold; none, where both look alike in the digits that are shown."""
        ours, theirs = (f"{figure:,.3g} {self.unit}" for figure in self[:2])
        if ours == theirs:
            return ours, theirs
        sign = 1 if self.better == "more" else -1
        ahead = sign * self.ours > sign * self.theirs
        return (f"**{ours}**", theirs) if ahead else (ours, f"**{theirs}**")


def compared(what: str, peer: str, *contests: Contest) -> Row:
    """The ratio is that of the first figures."""
    pairs = [contest.words for contest in contests]
    ours, theirs = (", ".join(words) for words in zip(*pairs, strict=True))
    first = contests[0]
    ratio = first.ours / first.theirs if first.theirs else None
    return Row(f"{what}, to {peer}", ours, theirs, ratio)


def rows_beside(
    what: str,
    peer: str,
    ask: Callable[[], Answered],
    contests: Callable[[Answered], Mapping[str, Sequence[Contest]]],
) -> Iterator[Row]:
    """The rows that a peer's answer makes, by what they say; one with the reason, where it has
    none.
    """
    try:
        answer = ask()
    except PeerMissing as missing:
        yield Row(f"{what}, to {peer}", "", str(missing), None)
        return
    for name, figures in contests(answer).items():
        yield compared(name, peer, *figures)
