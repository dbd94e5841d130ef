"""What all endpoints share: the release in use, the threads that route, and what is counted.

With a compiled tokenizer, a short prompt or chat is decided at once: handing it to another thread
would take longer. Everything else is routed in threads: short texts, long texts, batches,
explanations and texts whose sentences have to be read have threads of their own each, and none
waits behind another. A batch is routed in pieces, and waits its turn for each beside other batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import compress
from typing import TypeVar

from ridgeway.common.base.operating_system import cores
from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.explanation import Explanation
from ridgeway.common.routing.release_watch import CurrentRelease
from ridgeway.common.routing.router import Router
from ridgeway.common.web.http_errors import Problem
from ridgeway.common.web.request_context import current_request
from ridgeway.common.web.server import WATCH_S, Look, watching
from ridgeway.common.web.workers import PeerMetrics
from ridgeway.serving.current_release import (
    DriftMonitor,
    ReleaseSource,
    ServedRelease,
)
from ridgeway.serving.rules import RoutingRules
from ridgeway.serving.telemetry import Activity, Metrics, tracer

log = logging.getLogger("ridgeway.serve")

MAX_QUICK_CHARACTERS = 4096
"""A text of this length takes about a tenth of a millisecond."""
MAX_SHORT_CHARACTERS = 16_384
_MAX_PIECE_CHARACTERS = 65_536
"""Of a batch, so much is routed in one turn; a longer text has one of its own."""
MAX_PIECE_PROMPTS = 128
_MAX_SENTENCE_PROMPTS = 8
"""The same of prompts whose sentences have to be read, which takes longer."""
MAX_EXPLAINED_PARTS = 400_000
"""Tokens times domains of one explanation."""

NO_DOMAIN = "none"
"""How an abstention without a fallback is counted."""

_Result = TypeVar("_Result")


def decision_headers(served: ServedRelease, decision: Decision) -> dict[str, str]:
    """What headers tell of a decision; a domain's name may have any letters."""
    return {
        "x-ridgeway-domain": decision.domain or NO_DOMAIN,
        "x-ridgeway-confidence": f"{decision.confidence:.4f}",
        "x-ridgeway-router": decision.router,
        "x-ridgeway-release": served.id,
    }


class RoutingThreads:
    """Routes with the release that is in use when a request begins, and returns it with the
    decisions.
    """

    def __init__(self, current: Callable[[], ServedRelease]) -> None:
        self._current = current
        self._short = ThreadPoolExecutor(cores(), "route")
        self._long = ThreadPoolExecutor(cores(), "route-long")
        self._batches = ThreadPoolExecutor(cores(), "route-batch")
        # For explanations, which take much memory, and for models, which use all cores.
        self._single = ThreadPoolExecutor(1, "route-single")
        self._sentences = ThreadPoolExecutor(cores(), "route-sentences")
        self._single_sentences = ThreadPoolExecutor(1, "route-single-sentences")

    async def route_turns(
        self, turns: Sequence[Turn]
    ) -> tuple[ServedRelease, Decision]:
        """Where a prompt or a conversation should go."""
        served = self._current()
        router = served.router
        size = sum(len(turn.text) for turn in turns)
        if size <= MAX_QUICK_CHARACTERS and served.is_quick:
            decision = router.route_by_table(turns)
        else:
            pool = self._short if size <= MAX_SHORT_CHARACTERS else self._long
            work = partial(router.route_by_table, turns)
            decision = await self._run(pool, served, work)
        if decision is None:
            read = partial(router.route_turns, turns)
            decision = await self._run(self._sentences, served, read)
        return served, decision

    async def route_many(
        self, prompts: Sequence[str]
    ) -> tuple[ServedRelease, list[Decision]]:
        """Where each of many prompts should go: as many pieces at a time as there are cores."""
        served = self._current()
        pieces = _pieces(prompts, MAX_PIECE_PROMPTS)
        decided: list[list[Decision]] = [[] for _ in pieces]
        left = iter(enumerate(pieces))

        async def take_turns() -> None:
            for number, piece in left:
                decided[number] = await self._route_piece(served, piece)

        await asyncio.gather(*(take_turns() for _ in range(min(cores(), len(pieces)))))
        return served, [decision for piece in decided for decision in piece]

    async def _route_piece(
        self, served: ServedRelease, piece: list[str]
    ) -> list[Decision]:
        """First what the table decides, then the prompts whose sentences have to be read."""
        router = served.router

        def by_table() -> tuple[list[Decision], list[bool]]:
            reads = router.reads_sentences(piece)
            sure = [
                prompt for prompt, read in zip(piece, reads, strict=True) if not read
            ]
            return router.route_many(sure), reads

        by_the_table, reads = await self._run(self._batches, served, by_table)
        unsure = list(compress(piece, reads))
        by_sentences: list[Decision] = []
        for few in _pieces(unsure, _MAX_SENTENCE_PROMPTS) if unsure else ():
            work = partial(router.route_many, few)
            by_sentences += await self._run(self._sentences, served, work)
        of_table = iter(by_the_table)
        of_sentences = iter(by_sentences)
        return [next(of_sentences if read else of_table) for read in reads]

    async def explain(
        self,
        texts: Sequence[str],
        work: Callable[[ServedRelease], _Result],
        served: ServedRelease | None = None,
    ) -> _Result:
        """What is made of explanations of texts, one request at a time; by a release other than
        that in use, if one is given.
        """
        chosen = served or self._current()
        look = partial(chosen.router.reads_sentences, texts)
        reads = await self._run(self._single, chosen, look)
        pool = self._single_sentences if any(reads) else self._single
        return await self._run(pool, chosen, partial(work, chosen))

    async def _run(
        self,
        pool: ThreadPoolExecutor,
        served: ServedRelease,
        work: Callable[[], _Result],
    ) -> _Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # a library in another language has given up
            raise RuntimeError(type(error).__name__) from None

    def close(self) -> None:
        for pool in (
            self._short,
            self._long,
            self._batches,
            self._single,
            self._sentences,
            self._single_sentences,
        ):
            pool.shutdown(wait=False, cancel_futures=True)


def _pieces(prompts: Sequence[str], most: int) -> list[list[str]]:
    """Prompts in their order, in parts of a bounded size."""
    pieces: list[list[str]] = [[]]
    size = 0
    for prompt in prompts:
        size += len(prompt)
        is_full = size > _MAX_PIECE_CHARACTERS or len(pieces[-1]) == most
        if pieces[-1] and is_full:
            pieces.append([])
            size = len(prompt)
        pieces[-1].append(prompt)
    return pieces


class RoutingService:
    """One router being served. `watchers` are called every `watch_s` seconds, in a thread; never if
    that is 0.
    """

    def __init__(
        self,
        source: ReleaseSource,
        drift_share: float | None = None,
        watch_s: float = WATCH_S,
        compared: ServedRelease | None = None,
        rules: RoutingRules | None = None,
    ) -> None:
        self.rules = rules or RoutingRules()
        self.current = CurrentRelease(source)
        self.compared = compared
        self.threads = RoutingThreads(lambda: self.current.served)
        self.metrics = Metrics()
        # finding a metric by its labels takes as long as counting
        self._decided = lru_cache(self.metrics.decisions.labels)
        self._decided_by = lru_cache(self.metrics.decisions_by_router.labels)
        self.activity = Activity()
        self.drift = DriftMonitor(drift_share)
        self._watch_s = watch_s
        self.peers: PeerMetrics | None = None
        self.watchers: list[Look] = [self._watch_release]
        self._note_release()

    @property
    def router(self) -> Router:
        """That of the release in use."""
        return self.current.served.router

    async def decide(self, turns: Sequence[Turn]) -> tuple[ServedRelease, Decision]:
        """Where a prompt or a conversation should go."""
        began = time.perf_counter()
        span = tracer.start_span("route")
        try:
            served, decision = await self.threads.route_turns(turns)
            span.set_attributes(
                {
                    "ridgeway.domain": decision.domain or NO_DOMAIN,
                    "ridgeway.confidence": decision.confidence,
                    "ridgeway.router": decision.router,
                    "ridgeway.release": served.id,
                }
            )
        finally:
            span.end()
        self.note(served, decision, time.perf_counter() - began)
        return served, decision

    def note(self, served: ServedRelease, decision: Decision, seconds: float) -> None:
        """Count a decision."""
        current_request().log_fields["router"] = decision.router
        self._count([decision], seconds)
        self.drift.observe(served, [decision])

    async def decide_many(
        self, prompts: Sequence[str]
    ) -> tuple[ServedRelease, list[Decision]]:
        began = time.perf_counter()
        served, decisions = await self.threads.route_many(prompts)
        self._count(decisions, time.perf_counter() - began)
        self.drift.observe(served, decisions)
        return served, decisions

    async def explain(
        self,
        texts: Sequence[Sequence[Turn]],
        write: Callable[[Router, list[Explanation]], _Result],
        compared: ServedRelease | None = None,
    ) -> _Result:
        """What `write` makes of the explanations, which are not held any longer. Raises
        Problem if there are too many tokens.

        compared: the release that explains in place of the one in use; what it decides is not
                  counted.
        """
        began = time.perf_counter()
        plain = [turn.text for turns in texts for turn in turns]

        def explained(served: ServedRelease) -> tuple[list[Decision], _Result]:
            router = served.router
            tokens = sum(len(router.tokenizer.encode(text)) for text in plain)
            if tokens * len(router.domains) > MAX_EXPLAINED_PARTS:
                most = MAX_EXPLAINED_PARTS // len(router.domains)
                words = f"only texts of up to {most:,} tokens are explained"
                raise Problem(400, words, code="too_long_to_explain")
            explanations = [router.explain_turns(turns) for turns in texts]
            decisions = [explanation.decision for explanation in explanations]
            return decisions, write(router, explanations)

        decisions, written = await self.threads.explain(plain, explained, compared)
        if compared is None:
            # a person is looking: that tells nothing of drift
            self._count(decisions, time.perf_counter() - began)
        return written

    def _count(self, decisions: Sequence[Decision], seconds: float) -> None:
        ahead: dict[str, int] = {}
        kinds: dict[tuple[str, str], int] = {}
        abstained = 0
        for decision in decisions:
            ahead[decision.best] = ahead.get(decision.best, 0) + 1
            kind = (decision.domain or NO_DOMAIN, decision.router)
            kinds[kind] = kinds.get(kind, 0) + 1
            abstained += decision.abstained
        self.metrics.routing_seconds.observe(seconds)
        for (domain, router), count in kinds.items():
            self._decided(domain).inc(count)
            self._decided_by(router).inc(count)
        if abstained:
            self.metrics.abstentions.inc(abstained)
        self.activity.add(ahead, abstained, seconds)

    def exposition(self) -> bytes:
        """The metrics, drift brought up to date."""
        drift = self.drift.to_json(self.current.served)
        for share, metric in (
            (drift["low_confidence_share"], self.metrics.low_confidence),
            (drift["out_of_scope_share"], self.metrics.out_of_scope),
        ):
            metric.set(math.nan if share is None else share)
        self.metrics.alarm.set(drift["alarm"])
        content = self.metrics.exposition()
        return content if self.peers is None else self.peers.merged(content)

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
            self.threads.close()
            self.rules.close()

    def _watch_release(self) -> None:
        before = self.current.served
        if not self.current.refresh():
            return
        if self.current.refused is not None:
            self.metrics.refused_releases.inc()
            log.error(
                "new release refused, keeping the previous one: %s",
                self.current.refused,
            )
        elif self.current.served is before:
            log.warning(
                "the refused release is gone; release %s stays in use",
                before.id[:12],
            )
        else:
            self._note_release()
            log.warning("release %s is in use now", self.current.served.id[:12])

    def _note_release(self) -> None:
        served = self.current.served
        self.metrics.release.info({"id": served.id, "signer": served.release.signer})
        self.metrics.release_since.set(served.since)
