"""Active health checks: every address whose expert names a path for it is asked at its interval,
request or no request.

Checks also keep a connection to a spare open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ridgeway.common.serve.gateway.expert_client import ExpertClient
from ridgeway.common.serve.gateway.expert_link import AddressLink, ExpertLink

TICK_S = 0.1


async def check_health(
    links: Callable[[], Iterable[ExpertLink]], client: ExpertClient
) -> None:
    """Until it is cancelled."""
    now = asyncio.get_running_loop().time
    last: dict[AddressLink, float] = {}
    under_way: dict[AddressLink, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            known = {
                address: link
                for link in links()
                if link.expert.health is not None
                for address in link.addresses
            }
            last = {
                address: began for address, began in last.items() if address in known
            }
            under_way = {
                address: task for address, task in under_way.items() if not task.done()
            }
            for address, link in known.items():
                is_due = (
                    address not in last
                    or now() - last[address] >= link.expert.health_interval
                )
                if is_due and address not in under_way:
                    last[address] = now()
                    under_way[address] = group.create_task(
                        _check(address, link, client)
                    )
            await asyncio.sleep(TICK_S)


async def _check(address: AddressLink, link: ExpertLink, client: ExpertClient) -> None:
    address.note_check(await client.is_well(address, link))
