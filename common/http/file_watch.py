"""While a server runs, its files are looked at again and again: keys, certificates, releases.

What is looked at, and what is done about it, is somebody else's job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable

log = logging.getLogger("ridgeway.http")

WATCH_S = 1.0

Look = Callable[[], None]


@contextlib.asynccontextmanager
async def watching(
    looks: Iterable[Look], every_s: float = WATCH_S
) -> AsyncIterator[None]:
    """Look in this way, each on its own: one that takes long does not hold up another. Not at all
    if `every_s` is 0.
    """
    tasks = [asyncio.create_task(_watch(look, every_s)) for look in looks if every_s]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(look: Look, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(look)
        except Exception as error:  # the server goes on with what it has
            log.error("a file could not be looked at: %s", type(error).__name__)
