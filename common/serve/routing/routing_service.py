"""What all endpoints share: the release in use, the batches of prompts, and what is counted.

With a compiled tokenizer, a short prompt or chat is decided at once: handing it to another thread
would take longer. Without, there are micro-batches: prompts that come while others are being routed
wait, and are routed together next. Tokenising is then most of the work and lets other threads run
meanwhile, so it is done beside the event loop; many short prompts in one go cost little more than
one. Chats, long texts, batches and explanations have threads of their own each, and none waits
behind another. A batch is routed in pieces, and waits its turn for each beside other batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from ridgeway.common.base.threads import cores
from ridgeway.common.http.file_watch import WATCH_S, Look, watching
from ridgeway.common.http.workers import PeerMetrics
from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.explanation import Explanation
from ridgeway.common.routing.router import Router
from ridgeway.common.serve.routing.current_release import (
    CurrentRelease,
    ReleaseSource,
    ServedRelease,
)
from ridgeway.common.serve.routing.drift import DriftMonitor, DriftSettings
from ridgeway.common.serve.telemetry import Activity, Metrics
from ridgeway.common.serve.tracing import NO_TRACING, Tracing

log = logging.getLogger("ridgeway.serve")

MAX_BATCHED_CHARACTERS = 16_384
"""A longer text is routed on its own."""
MAX_QUICK_CHARACTERS = 4096
"""A text of this length takes about a tenth of a millisecond."""
MAX_BATCH = 8
MAX_PIECE_CHARACTERS = 65_536
"""Of a batch, so much is routed in one turn; a longer text has one of its own."""
MAX_PIECE_PROMPTS = 128

MAX_EXPLAINED_PARTS = 400_000
"""Tokens times domains of one explanation."""

Waiting = tuple[str, "asyncio.Future[tuple[ServedRelease, Decision]]"]
Result = TypeVar("Result")


class MicroBatcher:
    """Routes with the release that is in use when a batch begins, and returns it with the
    decisions.
    """

    def __init__(self, current: Callable[[], ServedRelease]) -> None:
        self._current = current
        self._waiting: list[Waiting] = []
        self._busy = False
        self._short = ThreadPoolExecutor(1, "route")
        self._chats = ThreadPoolExecutor(cores(), "route-chat")
        self._long = ThreadPoolExecutor(cores(), "route-long")
        self._batches = ThreadPoolExecutor(cores(), "route-batch")
        # what each token adds takes much memory
        self._explaining = ThreadPoolExecutor(1, "explain")

    async def route(self, text: str) -> tuple[ServedRelease, Decision]:
        """Where one prompt should go."""
        if len(text) <= MAX_QUICK_CHARACTERS and (served := self._current()).is_quick:
            return served, served.router.route(text)
        if len(text) > MAX_BATCHED_CHARACTERS:
            return await self._beside(
                self._long, lambda served: served.router.route(text)
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[ServedRelease, Decision]] = loop.create_future()
        self._waiting.append((text, future))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._begin)  # those that come in the same moment go along
        return await future

    async def route_turns(
        self, turns: Sequence[Turn]
    ) -> tuple[ServedRelease, Decision]:
        """Where a conversation should go."""
        if len(turns) == 1:
            return await self.route(turns[0].text)
        size = sum(len(turn.text) for turn in turns)
        if size <= MAX_QUICK_CHARACTERS and (served := self._current()).is_quick:
            return served, served.router.route_turns(turns)
        pool = self._chats if size <= MAX_BATCHED_CHARACTERS else self._long
        return await self._beside(pool, lambda served: served.router.route_turns(turns))

    async def route_many(
        self, prompts: Sequence[str]
    ) -> tuple[ServedRelease, list[Decision]]:
        """Where each of many prompts should go: as many pieces at a time as there are cores."""
        served = self._current()
        pieces = _pieces(prompts)
        decided: list[list[Decision]] = [[] for _ in pieces]
        left = iter(range(len(pieces)))

        async def take_turns() -> None:
            for place in left:
                work = partial(served.router.route_many, pieces[place])
                decided[place] = await self._run(self._batches, work, served)

        await asyncio.gather(*(take_turns() for _ in range(min(cores(), len(pieces)))))
        return served, [decision for part in decided for decision in part]

    async def explain(
        self,
        work: Callable[[ServedRelease], Result],
        served: ServedRelease | None = None,
    ) -> tuple[ServedRelease, Result]:
        """What is made of explanations, one request at a time; by a release other than that in use,
        if one is given.
        """
        return await self._beside(self._explaining, work, served)

    async def _beside(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[ServedRelease], Result],
        served: ServedRelease | None = None,
    ) -> tuple[ServedRelease, Result]:
        served = served or self._current()
        return served, await self._run(pool, partial(work, served), served)

    async def _run(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[], Result],
        served: ServedRelease,
    ) -> Result:
        """A model keeps all cores busy by itself, so with one everything is done in one thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._short if served.runs_a_model else pool, work
        )

    def _begin(self) -> None:
        batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        self._short.submit(
            self._work, batch, self._current(), asyncio.get_running_loop()
        )

    def _work(
        self,
        batch: list[Waiting],
        served: ServedRelease,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """In a thread of its own; the results go back to the loop in one call."""
        results: list[Decision] | Exception
        try:
            results = served.router.route_many([text for text, _ in batch])
        except (
            BaseException
        ) as error:  # also what a library in another language raises when it gives up
            results = (
                error
                if isinstance(error, Exception)
                else RuntimeError(type(error).__name__)
            )
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, batch, served, results)

    def _finish(
        self,
        batch: list[Waiting],
        served: ServedRelease,
        results: list[Decision] | Exception,
    ) -> None:
        if self._waiting:
            self._begin()
        else:
            self._busy = False
        for place, (_, future) in enumerate(batch):
            if future.done():  # the client has gone
                continue
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result((served, results[place]))

    def close(self) -> None:
        for pool in (
            self._short,
            self._chats,
            self._long,
            self._batches,
            self._explaining,
        ):
            pool.shutdown(wait=False, cancel_futures=True)


def _pieces(prompts: Sequence[str]) -> list[list[str]]:
    """Prompts in their order, in parts of a bounded size."""
    pieces: list[list[str]] = [[]]
    size = 0
    for prompt in prompts:
        if pieces[-1] and (
            size + len(prompt) > MAX_PIECE_CHARACTERS
            or len(pieces[-1]) == MAX_PIECE_PROMPTS
        ):
            pieces.append([])
            size = 0
        pieces[-1].append(prompt)
        size += len(prompt)
    return pieces


class TooManyTokens(Exception):
    """An explanation would be too large: there are `tokens`, and `most` are explained."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"{tokens} tokens, at most {most}")
        self.most = most


class RoutingService:
    """One router being served. `watchers` are called every `watch_s` seconds, in a thread; never if
    that is 0.
    """

    def __init__(
        self,
        source: ReleaseSource,
        drift: DriftSettings | None = None,
        watch_s: float = WATCH_S,
        tracing: Tracing = NO_TRACING,
        compared: ServedRelease | None = None,
    ) -> None:
        self.current = CurrentRelease(source)
        self.compared = compared
        self.tracing = tracing
        self.batcher = MicroBatcher(lambda: self.current.served)
        self.metrics = Metrics()
        self.activity = Activity()
        self.drift = DriftMonitor(drift or DriftSettings())
        self._watch_s = watch_s
        self.peers: PeerMetrics | None = None
        self.watchers: list[Look] = [self._watch_release]
        self._note_release()

    async def decide(self, turns: Sequence[Turn]) -> tuple[ServedRelease, Decision]:
        """Where a prompt or a conversation should go."""
        began = time.perf_counter()
        with self.tracing.span("route") as span:
            served, decision = await self.batcher.route_turns(turns)
            span.set_attribute("ridgeway.domain", decision.best)
            span.set_attribute("ridgeway.confidence", decision.confidence)
            span.set_attribute("ridgeway.release", served.id)
        self._count([decision], time.perf_counter() - began)
        self.drift.observe(served, [decision])
        return served, decision

    async def decide_many(
        self, prompts: Sequence[str]
    ) -> tuple[ServedRelease, list[Decision]]:
        began = time.perf_counter()
        served, decisions = await self.batcher.route_many(prompts)
        self._count(decisions, time.perf_counter() - began)
        self.drift.observe(served, decisions)
        return served, decisions

    async def explain(
        self,
        texts: Sequence[Sequence[Turn]],
        write: Callable[[Router, list[Explanation]], Result],
        compared: ServedRelease | None = None,
    ) -> Result:
        """What `write` makes of the explanations, which are not held any longer. Raises
        TooManyTokens.

        compared: the release that explains in place of the one in use; what it decides is not
                  counted.
        """
        began = time.perf_counter()

        def explained(served: ServedRelease) -> tuple[list[Decision], Result]:
            router = served.router
            tokens = sum(
                len(router.tokenizer.encode(turn.text))
                for turns in texts
                for turn in turns
            )
            if tokens * len(router.domains) > MAX_EXPLAINED_PARTS:
                raise TooManyTokens(tokens, MAX_EXPLAINED_PARTS // len(router.domains))
            found = [router.explain_turns(turns) for turns in texts]
            return [each.decision for each in found], write(router, found)

        _, (decisions, written) = await self.batcher.explain(explained, compared)
        if compared is None:
            # a person is looking: that tells nothing of drift
            self._count(decisions, time.perf_counter() - began)
        return written

    def _count(self, decisions: Sequence[Decision], seconds: float) -> None:
        counts: dict[str, int] = {}
        for decision in decisions:
            counts[decision.best] = counts.get(decision.best, 0) + 1
        abstained = sum(decision.abstained for decision in decisions)
        self.metrics.routing_seconds.observe(seconds)
        for domain, count in counts.items():
            self.metrics.decisions.labels(domain).inc(count)
        if abstained:
            self.metrics.abstentions.inc(abstained)
        self.activity.add(counts, abstained, seconds)

    def exposition(self) -> bytes:
        """The metrics, drift brought up to date."""
        drift = self.drift.to_json(self.current.served)
        for share, metric in (
            (drift["low_confidence_share"], self.metrics.low_confidence),
            (drift["out_of_scope_share"], self.metrics.out_of_scope),
        ):
            metric.set(math.nan if share is None else share)
        self.metrics.alarm.set(drift["alarm"])
        own = self.metrics.exposition()
        return own if self.peers is None else self.peers.merged(own)

    def share_metrics(self, peers: PeerMetrics) -> None:
        """From now on, what this and the other workers count is told together."""
        self.peers = peers
        self.watchers.append(lambda: peers.publish(self.metrics.exposition()))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the service runs, files are watched."""
        try:
            async with watching(self.watchers, self._watch_s):
                yield
        finally:
            if self.peers is not None:
                self.peers.publish(self.metrics.exposition())
            self.batcher.close()
            await asyncio.to_thread(self.tracing.close)

    def _watch_release(self) -> None:
        before = self.current.served
        if not self.current.refresh():
            return
        if self.current.refused is not None:
            self.metrics.refused_releases.inc()
            log.error(
                "a new release is refused and the old one goes on: %s",
                self.current.refused,
            )
        elif self.current.served is before:
            log.warning(
                "the release that was refused has gone; release %s goes on",
                before.id[:12],
            )
        else:
            self._note_release()
            log.warning("release %s is in use now", self.current.served.id[:12])

    def _note_release(self) -> None:
        served = self.current.served
        self.metrics.release.info({"id": served.id, "signer": served.release.signer})
        self.metrics.release_since.set(served.since)
