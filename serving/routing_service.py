"""What all endpoints share: the release in use, the threads that route, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import SentenceUse
from ridgeway.common.routing.conversation import Turn
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.release import CurrentRelease, Release, load_release
from ridgeway.common.routing.router import Explanation, Router, router_of
from ridgeway.common.web.http_errors import Problem
from ridgeway.common.web.request_context import current_request
from ridgeway.common.web.server import WATCH_S, Look, watching
from ridgeway.common.web.workers import PeerMetrics
from ridgeway.serving.rules import RoutingRules
from ridgeway.serving.telemetry import Activity, Metrics, tracer

# Releases as they are served: verified, with the experts checked, and ready to route.


@dataclass(frozen=True, slots=True, eq=False)
class ServedRelease:
    """A release that was verified and is ready to route.

    since:        when it was taken, in seconds since 1970.
    is_quick:     whether a short prompt is decided in less time than it takes to hand it to another
                  thread, unless its sentences have to be read.
    """

    release: Release
    router: Router
    folder: Path
    since: float
    id: str = field(init=False)
    is_quick: bool = field(init=False)

    def __post_init__(self) -> None:
        # what every request reads is worked out once
        object.__setattr__(self, "id", str(self.router.release))
        object.__setattr__(self, "is_quick", self.router.make_fast())

    @property
    def number(self) -> int:
        """Its number in its federation; 0 without one."""
        return self.release.number

    def card(self) -> dict[str, Any]:
        manifest = self.release.manifest
        return {
            "release": self.id,
            "signer": self.release.signer,
            "since": self.since,
            "domains": manifest["domains"],
            "masses": manifest["masses"],
            "manifest": {
                name: value for name, value in manifest.items() if name != "signature"
            },
        }


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """Where releases come from, and what is asked of them.

    key:          the public key that must have signed the first one; without one, whoever signed it
                  is trusted.
    check:        raises if a release cannot be used here, for a reason of its own.
    changes:      of the confidence that releases come with: threshold, fallback, scope.
    sentences:    which prompts a release's sentence encoder reads.
    """

    folder: Path
    key: str | None = None
    check: Callable[[Router], None] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    sentences: SentenceUse = "auto"

    def open(self, signer: str | None = None) -> ServedRelease:
        """Read and verify the release that is there now, and route a first prompt with it.

        signer: the newest key that is known of those who sign; an earlier one, also `key`, counts
                no more.
        """
        folder = self.folder.resolve()
        release = load_release(folder, key=signer or self.key, sentences=self.sentences)
        if self.changes:
            release = replace(
                release, confidence=release.confidence.abstaining(**self.changes)
            )
        router = router_of(release)
        if self.check is not None:
            self.check(router)
        router.route("Is it ready?")
        return ServedRelease(release, router, folder, time.time())


# How far today's prompts are from the text that the router was built on, and when that is too far.
#
# The signs are the shares of recent prompts of low confidence, and of those that belong to no
# domain. Holds no prompt.


MAX_RECENT_PROMPTS = 1000
LOW_BELOW = 0.5
MIN_PROMPTS_FOR_ALARM = 50

MIN_SHARE_ALARM = 0.25
SHARE_ALARM_MARGIN = 0.15
"""The usual alarms; docs/application/confidence.md says why."""


def share_alarm(served: ServedRelease, wanted: float | None) -> float:
    """What was asked for, else a quarter, or more where the release itself is less certain than
    that.
    """
    if wanted is not None:
        return wanted
    expected = expected_share(served.release.manifest)
    return min(max(MIN_SHARE_ALARM, expected + SHARE_ALARM_MARGIN), 0.95)


def expected_share(manifest: Mapping[str, Any]) -> float:
    """The most prompts of low confidence that held-out accuracy explains, if confidence means what
    it says.

    A decision of confidence c is wrong in 1 − c of cases, so those below LOW_BELOW are at
    most errors / (1 − LOW_BELOW).
    """
    figures = manifest.get("evaluation")
    if not figures or not manifest["confidence"].get("calibrated"):
        return 0.0
    return float((1 - figures["accuracy"] / 100) / (1 - LOW_BELOW))


class _Signs(NamedTuple):
    """What is kept of one prompt."""

    low_confidence: bool
    out_of_scope: bool


class DriftMonitor:
    """The last prompts under the release in use; begun anew with each release.

    share: the alarm is raised above this share of prompts of low confidence, or that belong to no
           domain; None: as fits the release.
    """

    def __init__(self, share: float | None = None) -> None:
        self._share_alarm = share
        self._served: ServedRelease | None = None
        self._recent: deque[_Signs] = deque(maxlen=MAX_RECENT_PROMPTS)

    def observe(self, served: ServedRelease, decisions: Sequence[Decision]) -> None:
        """Take note of the decisions of one request."""
        if served is not self._served:
            if self._served is not None and served.since < self._served.since:
                return  # a late answer of the release before
            self._served = served
            self._recent.clear()
        for decision in decisions:
            signs = _Signs(decision.confidence < LOW_BELOW, not decision.belongs)
            self._recent.append(signs)

    def to_json(self, served: ServedRelease) -> dict[str, Any]:
        """What is known of the release in use, which may be newer than the last prompt."""
        recent = list(self._recent) if served is self._served else []
        uncertain = _share([signs.low_confidence for signs in recent])
        outside = _share([signs.out_of_scope for signs in recent])
        limit = share_alarm(served, self._share_alarm)
        return {
            "prompts": len(recent),
            "low_confidence_share": uncertain,
            "out_of_scope_share": outside,
            "low_below": LOW_BELOW,
            "share_alarm": limit,
            "alarm": (
                len(recent) >= MIN_PROMPTS_FOR_ALARM
                and max(uncertain or 0, outside or 0) > limit
            ),
        }


def _share(signs: Sequence[bool]) -> float | None:
    return sum(signs) / len(signs) if signs else None


# What all endpoints share: the release in use, the threads that route, and what is counted.
#
# With a compiled tokenizer, a short prompt or chat is decided at once: handing it to another thread
# would take longer. Everything else is routed in threads: short texts, long texts, batches,
# explanations and texts whose sentences have to be read have threads of their own each, and none
# waits behind another. A batch is routed in pieces, and waits its turn for each beside other
# batches.


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
            tokens = len(router.reader.read(plain).ids)
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
