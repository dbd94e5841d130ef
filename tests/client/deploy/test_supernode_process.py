"""The SuperNode's waits: short in a round, Flower's own at rest, and known before they are replaced."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ridgeway.client.deploy import supernode_process
from ridgeway.client.deploy.supernode_process import IDLE_S, LEAST_PAUSE_S, REPLY_PAUSE_S, REPLY_S, Pace, quicken

LOOP = """
def start_client_internal():
    while True:
        if pull() is None:
            time.sleep(3)
            continue
        _push_messages("state")

def _push_messages(state):
    time.sleep(0.5)
    pushed.append(state)

def pull_objects(ids, *, initial_backoff=1):
    pass
"""


def loop(source: str = LOOP, **names: object) -> ModuleType:
    made = ModuleType("start_client_internal")
    made.__dict__.update(names)
    exec(source, made.__dict__)
    return made


class Clock:
    """A clock that stands still but for those who sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(supernode_process, "time", made)
    return made


def test_at_rest_it_waits_as_long_as_flower_does(clock: Clock) -> None:
    Pace().sleep(IDLE_S)
    assert clock.slept == [IDLE_S]


def test_after_a_message_pauses_grow_from_short_ones_to_flowers(clock: Clock) -> None:
    """No wait is longer than a tenth of the time since the last message, or than the least pause."""
    pace = Pace()
    pace.sleep(REPLY_S)
    replied = clock.now - REPLY_PAUSE_S
    while clock.slept[-1] < IDLE_S:
        since = clock.now - replied
        pace.sleep(IDLE_S)
        assert clock.slept[-1] <= max(since / 10, LEAST_PAUSE_S) + 1e-9
    assert clock.slept[0] == REPLY_PAUSE_S and clock.slept[1] == LEAST_PAUSE_S
    assert len(clock.slept) < 100


def test_the_bell_rings_before_a_reply_is_awaited(tmp_path: Path, clock: Clock) -> None:
    """Whoever waits at the bell learns of the task at once; a bell that nobody has made is no obstacle."""
    messages = iter(["one", "two"])
    pushed: list[str] = []

    def pull() -> str:
        return next(messages)

    made = loop(pull=pull, pushed=pushed)
    quicken(made, str(tmp_path / "bell"))
    with pytest.raises(StopIteration):
        made.start_client_internal()
    assert pushed == ["state", "state"] and clock.slept == [REPLY_PAUSE_S] * 2
    os.mkfifo(tmp_path / "bell")
    pipe = os.open(tmp_path / "bell", os.O_RDONLY | os.O_NONBLOCK)
    try:
        made._push_messages("state")
        assert select.select([pipe], [], [], 0)[0] == [pipe]
    finally:
        os.close(pipe)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("sleep(3)", "sleep(5)"),
        lambda text: text.replace("sleep(0.5)", "sleep(0.6)"),
        lambda text: text.replace('_push_messages("state")', 'send("state")'),
        lambda text: text.replace("initial_backoff", "backoff"),
    ],
    ids=["idle", "reply", "push", "parts"],
)
def test_another_flower_is_refused(change: Callable[[str], str]) -> None:
    with pytest.raises(SystemExit, match="install the pinned one"):
        quicken(loop(change(LOOP)), "bell")


def test_the_installed_flower_is_the_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = pytest.importorskip("flwr.supernode.start_client_internal")
    for name in ("time", "_push_messages"):
        monkeypatch.setattr(real, name, getattr(real, name))
    monkeypatch.setitem(real.pull_objects.__kwdefaults__, "initial_backoff", 1)
    quicken(real, "bell")
    assert isinstance(real.time, Pace)
