"""Rounds at fixed times: a cron line says when, and whatever stands in the way of one is told and
skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from cronsim import CronSim, CronSimError

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.journal import Clock, system_clock
from ridgeway.common.deploy.processes import Log

_POLL_S = 0.5


def next_time(line: str, now: datetime) -> datetime:
    """The first minute after now that a cron line names: minute, hour, day of the month, month, day
    of the week.
    """
    try:
        found = next(CronSim(line, now), None)
    except CronSimError as error:
        raise InputError(
            f"{line!r} is not a cron expression ({error}); use five fields, such as '0"
            " 3 * * 0' for Sundays at 3:00 UTC"
        ) from None
    if found is None:
        raise InputError(f"{line!r} never occurs; check its day and month")
    return found


def keep_schedule(
    line: str,
    work: Callable[[], None],
    stopped: Callable[[], bool],
    log: Log,
    clock: Clock = system_clock,
) -> None:
    """Do the work at every time that the line names, until `stopped()`; times that pass meanwhile
    are left out.
    """
    while not stopped():
        due = next_time(line, clock())
        log(f"the next round starts at {due:%Y-%m-%d %H:%M} UTC")
        while clock() < due:
            if stopped():
                return
            time.sleep(_POLL_S)
        try:
            work()
        except RidgewayError as error:
            log(f"skipped: {error}")
