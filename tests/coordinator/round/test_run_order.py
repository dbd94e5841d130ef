"""Runs that count: each order is for one run, once, and nobody else can read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.records import Mode
from ridgeway.coordinator.round.ask import RunOrder, give_order, take_order


@pytest.mark.parametrize("mode", ["clear", "masked", "private", None])
def test_an_order_is_taken_once(tmp_path: Path, mode: Mode | None) -> None:
    order = RunOrder(work="round", name="today", mode=mode, accept_unevaluated=("law",))
    give_order(tmp_path, 7, order)
    [path] = (tmp_path / "orders").iterdir()
    assert path.stat().st_mode & 0o077 == 0, "nobody else can read it"
    assert take_order(tmp_path, 7, timeout_s=0.0) == order
    with pytest.raises(RoundFailed, match="was not ordered"):
        take_order(tmp_path, 7, timeout_s=0.0)


def test_an_order_is_for_no_other_run(tmp_path: Path) -> None:
    """A stranger's run has a number of its own; the order stays for the run that it was given
    to.
    """
    give_order(tmp_path, 7, RunOrder(work="deliver", name="today"))
    with pytest.raises(RoundFailed):
        take_order(tmp_path, 8, timeout_s=0.0)
    assert take_order(tmp_path, 7, timeout_s=0.0).work == "deliver"
