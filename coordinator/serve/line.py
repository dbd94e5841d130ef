"""Where prompts wait to be routed: those that come while others are being routed go together next.

Tokenising is most of the work and lets other threads run meanwhile, so it is done beside the event loop; many short
prompts in one go cost little more than one. Long texts and batches go their own way and hold nobody up.

Knows asyncio and the release in use. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from common.conversation import Turn
from common.router import Decision, Explanation
from common.threads import cores
from coordinator.serve.live import Live

LONG = 16_384
"""A text of more characters is routed on its own."""
MOST_TOGETHER = 8

Waiting = tuple[str, "asyncio.Future[tuple[Live, Decision]]"]
Result = TypeVar("Result")


class Line:
    """Routes with whichever release is in use when a batch begins; what it returns says which that was."""

    def __init__(self, live: Callable[[], Live]) -> None:
        self._live = live
        self._waiting: list[Waiting] = []
        self._busy = False
        self._first = ThreadPoolExecutor(1, "route")
        self._others = ThreadPoolExecutor(2 * cores(), "route-long")  # while some tokenise, others put answers together

    async def route(self, text: str) -> tuple[Live, Decision]:
        """Where one prompt should go."""
        if len(text) > LONG:
            return await self._beside(lambda live: live.router.route(text))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Live, Decision]] = loop.create_future()
        self._waiting.append((text, future))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._begin)  # whoever comes in the same moment goes along
        return await future

    async def route_turns(self, turns: Sequence[Turn]) -> tuple[Live, Decision]:
        """Where a conversation should go."""
        if len(turns) == 1:
            return await self.route(turns[0].text)
        return await self._beside(lambda live: live.router.route_turns(turns))

    async def route_many(self, prompts: Sequence[str]) -> tuple[Live, list[Decision]]:
        return await self._beside(lambda live: live.router.route_many(prompts))

    async def explain(self, texts: Sequence[Sequence[Turn]]) -> tuple[Live, list[Explanation]]:
        return await self._beside(lambda live: [live.router.explain_turns(turns) for turns in texts])

    async def _beside(self, work: Callable[[Live], Result]) -> tuple[Live, Result]:
        live = self._live()
        pool = self._first if live.runs_a_model else self._others  # a model keeps all cores busy by itself
        return live, await asyncio.get_running_loop().run_in_executor(pool, work, live)

    def _begin(self) -> None:
        batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        loop = asyncio.get_running_loop()
        self._first.submit(self._work, batch, self._live(), loop)

    def _work(self, batch: list[Waiting], live: Live, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own; the results go back to the loop in one call."""
        results: list[Decision] | Exception
        try:
            results = live.router.route_many([text for text, _ in batch])
        except BaseException as error:  # also what a library in another language raises when it gives up
            results = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, batch, live, results)

    def _finish(self, batch: list[Waiting], live: Live, results: list[Decision] | Exception) -> None:
        if self._waiting:
            self._begin()
        else:
            self._busy = False
        for place, (_, future) in enumerate(batch):
            if future.done():  # whoever asked has gone
                continue
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result((live, results[place]))

    def close(self) -> None:
        self._first.shutdown(wait=False, cancel_futures=True)
        self._others.shutdown(wait=False, cancel_futures=True)
