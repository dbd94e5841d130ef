"""Work that is given up when the client that asked for it goes away.

Knows ASGI's `receive`. Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from coordinator.serve.failures import Gone

Result = TypeVar("Result")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns; if the client goes first, the work is cancelled and Gone is raised."""
    doing = asyncio.create_task(work)
    watching = asyncio.create_task(_departure(receive))
    try:
        await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))  # it closes what it has opened
    if doing.cancelled():
        raise Gone
    return doing.result()


async def _departure(receive: Receive) -> None:
    """Returns when the client has gone. The body has been read, so nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass
