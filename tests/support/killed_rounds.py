"""Rounds whose coordinator is killed at a step: a process that ends at once, without clean-up.

Knows rounds and their steps. Knows nothing of what must hold afterwards.
"""

from __future__ import annotations

import os
import random
import shutil
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from ridgeway.coordinator.round.round import run_round
from tests.support.faults import Looking, Network, Steps, let_steps_be_seen, raise_crash
from tests.support.simulated_federation import Parties

DIED = 77
BULKY = ("cache", "held-out", "logs")
"""What a copy of parties does without."""


def kill_at_every_step(
    parties: Parties,
    names: Sequence[str],
    folder: Path,
    goes_on: Callable[[Parties, Network], None],
    stride: int,
) -> int:
    """Kill a round of these holders, on a copy each time, at every step that leaves something new
    behind.

    goes_on: is given what is left each time, and a network without faults.
    stride:  2 for every other step.
    Returns the number of steps.
    """
    steps = _steps_of_a_round(parties.copy(folder / "whole", *BULKY), names)
    for step in steps[::stride]:
        left = parties.copy(folder / str(step), *BULKY)
        try:
            _kill_at(left, names, step)
            goes_on(left, _calm(left, names, Steps(raise_crash)))
        except BaseException as error:
            raise AssertionError(f"killed at step {step}: {error!r}") from error
        shutil.rmtree(left.folder)
    return len(steps)


def _steps_of_a_round(parties: Parties, names: Sequence[str]) -> list[int]:
    """All that leave something else behind than the one before."""
    steps = Looking(parties)
    with pytest.MonkeyPatch.context() as patch:
        let_steps_be_seen(patch, steps)
        _play(parties, names, steps)
    return steps.new


def _kill_at(parties: Parties, names: Sequence[str], last: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # later Pythons warn of threads in a process that forks
        child = os.fork()
    if child == 0:
        _live_until(parties, names, last)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == DIED


def _calm(parties: Parties, names: Sequence[str], steps: Steps) -> Network:
    """A network without faults, in which nothing is asked for that the ledger has."""
    holders = [parties.holder(name) for name in names]
    return Network(holders, lambda: parties.standing, random.Random(0), steps, 0.0)


def _play(parties: Parties, names: Sequence[str], steps: Steps) -> None:
    federation = parties.federation_at(steps.clock)
    run_round(federation, _calm(parties, names, steps), steps)


def _live_until(parties: Parties, names: Sequence[str], last: int) -> NoReturn:
    """The coordinator's process, and its end."""
    try:
        steps = Steps(lambda: os._exit(DIED))
        steps.allow(last)
        let_steps_be_seen(pytest.MonkeyPatch(), steps)
        _play(parties, names, steps)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
