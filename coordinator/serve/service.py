"""What all endpoints share: the release in use, the line of prompts, the experts, and what is counted.

Knows how a decision is made and recorded. Knows nothing of requests and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.conversation import Turn
from common.router import Decision, Explanation
from coordinator.serve.activity import Activity
from coordinator.serve.drift import Drift, DriftSettings
from coordinator.serve.line import Line
from coordinator.serve.live import Current, Live, Source
from coordinator.serve.metrics import Metrics

log = logging.getLogger("ridgeway.serve")


@dataclass(frozen=True, slots=True)
class Choices:
    """What the operator chose for the service.

    watch_s: how often files are looked at for a change; 0: never.
    """

    source: Source
    drift: DriftSettings = field(default_factory=DriftSettings)
    watch_s: float = 1.0


class Service:
    """One router being served. `watchers` are called every `watch_s` seconds, in a thread."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.current = Current(choices.source)
        self.line = Line(lambda: self.current.live)
        self.metrics = Metrics()
        self.activity = Activity()
        self.drift = Drift(choices.drift)
        self.watchers: list[Callable[[], None]] = [self._watch_release]
        self._note_release()

    async def decide(self, turns: Sequence[Turn]) -> tuple[Live, Decision]:
        """Where a prompt or a conversation should go."""
        began = time.perf_counter()
        live, decision = await self.line.route_turns(turns)
        self._record(live, [turns[0].text], [decision], time.perf_counter() - began)
        return live, decision

    async def decide_many(self, prompts: Sequence[str]) -> tuple[Live, list[Decision]]:
        began = time.perf_counter()
        live, decisions = await self.line.route_many(prompts)
        self._record(live, prompts, decisions, time.perf_counter() - began)
        return live, decisions

    async def explain(self, texts: Sequence[Sequence[Turn]]) -> tuple[Live, list[Explanation]]:
        began = time.perf_counter()
        live, explanations = await self.line.explain(texts)
        decisions = [each.decision for each in explanations]
        self._count(decisions, time.perf_counter() - began)  # somebody is looking: that tells nothing of drift
        return live, explanations

    def _record(self, live: Live, texts: Sequence[str], decisions: Sequence[Decision], seconds: float) -> None:
        """Take note of the decisions on one request's texts; the texts themselves are not kept."""
        self._count(decisions, seconds)
        self.drift.observe(live, texts, [decision.confidence for decision in decisions])

    def _count(self, decisions: Sequence[Decision], seconds: float) -> None:
        counts: dict[str, int] = {}
        abstained = 0
        for decision in decisions:
            counts[decision.best] = counts.get(decision.best, 0) + 1
            abstained += decision.abstained
        self.metrics.routing_seconds.observe(seconds)
        for domain, count in counts.items():
            self.metrics.decisions.labels(domain).inc(count)
        if abstained:
            self.metrics.abstentions.inc(abstained)
        self.activity.add(counts, abstained, seconds)

    def exposition(self) -> bytes:
        """The metrics, drift brought up to date."""
        drift = self.drift.to_json(self.current.live)
        nothing = float("nan")
        self.metrics.low_confidence.set(_or(drift["low_confidence_share"], nothing))
        self.metrics.leverage.set(_or(drift["leverage"], nothing))
        self.metrics.alarm.set(drift["alarm"])
        return self.metrics.exposition()

    def card(self) -> dict[str, Any]:
        return {**self.current.live.card(), "refused": self.current.refused}

    def standing(self) -> dict[str, Any]:
        """What the page shows of the running service."""
        return {
            "release": self.current.live.id,
            "since": self.current.live.since,
            "refused": self.current.refused,
            "activity": self.activity.to_json(),
            "drift": self.drift.to_json(self.current.live),
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the service runs, files are watched."""
        looks = self.watchers if self.choices.watch_s else []
        tasks = [asyncio.create_task(self._watch(look)) for look in looks]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.line.close()

    async def _watch(self, look: Callable[[], None]) -> None:
        """Each file on its own: one that takes long to read does not keep another from being looked at."""
        while True:
            await asyncio.sleep(self.choices.watch_s)
            try:
                await asyncio.to_thread(look)
            except Exception as error:  # the service goes on with what it has
                log.error("a file could not be looked at: %s", type(error).__name__)

    def _watch_release(self) -> None:
        before = self.current.live
        if not self.current.refresh():
            return
        if self.current.refused is not None:
            self.metrics.refused_releases.inc()
            log.error("a new release is refused and the old one goes on: %s", self.current.refused)
        elif self.current.live is before:
            log.warning("the release that was refused has gone; release %s goes on", before.id[:12])
        else:
            self._note_release()
            log.warning("release %s is in use now", self.current.live.id[:12])

    def _note_release(self) -> None:
        live = self.current.live
        self.metrics.release.info({"id": live.id, "signer": live.release.signer})
        self.metrics.release_since.set(live.since)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
