"""Which runs count: those that a command of this coordinator asked for, each of them once.

Flower's control API has no password: whoever is on the coordinator's machine can submit a run, also
of the approved bundle. So a run carries no instructions. Its order is a private file in the
coordinator's own folder, named by the number that the SuperLink gave the run, and the run takes it
away as it begins.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.schema import Mode, Record

_Work = Literal["round", "dry_run", "deliver"]
ORDER_TIMEOUT_S = 10.0
"""A run may begin before the command that submitted it has learnt its number."""

_POLL_S = 0.1


class RoundWishes(Record):
    """What the operator says to a round beside its settings.

    mode:               as the settings say if left out.
    accept_worse:       domains that may be routed worse than before.
    accept_unevaluated: domains whose holders need not have counted for the router.
    allow_missing:      domains that may be lost because their holders are not there.
    even_unchanged:     publish though nothing has changed.
    end_rollback:       publish though the operator has rolled back to an earlier release.
    """

    mode: Mode | None = None
    accept_worse: tuple[str, ...] = ()
    accept_unevaluated: tuple[str, ...] = ()
    allow_missing: tuple[str, ...] = ()
    even_unchanged: bool = False
    end_rollback: bool = False


class RunOrder(RoundWishes):
    """What a run is to do; under its name it writes what happens."""

    work: _Work
    name: str = ""


def give_order(link: Path, run: int, order: RunOrder) -> None:
    # a bundle of an earlier version may know less
    content = order.model_dump_json(exclude_defaults=True)
    write_whole(_path(link, run), content.encode(), private=True)


def take_order(link: Path, run: int, timeout_s: float = ORDER_TIMEOUT_S) -> RunOrder:
    """The order of a run, which is then gone. Raises where no command has given one."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            content = _path(link, run).read_bytes()
            _path(link, run).unlink()
            return RunOrder.model_validate_json(content)
        except FileNotFoundError:
            if time.monotonic() >= until:
                raise RoundFailed(
                    f"run {run} was not ordered by this coordinator, so it does"
                    " nothing; another user of this machine may have submitted it"
                ) from None
        time.sleep(_POLL_S)


def _path(link: Path, run: int) -> Path:
    return link / "orders" / f"{run}.json"
