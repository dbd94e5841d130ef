"""A private corpus → one domain's statistics: in parallel, resumable, reading nothing twice.

Work is kept in parts: the sums over some stretch of the corpus, with the files and documents they cover. A later run
takes up every part whose files are unchanged and sums only the rest. Parts stay in the holder's own cache folder.
Knows corpus, encoder and accumulators. Knows nothing of the coordinator.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from queue import SimpleQueue

from client.accumulate import Accumulator, add_states
from client.corpus import Counters, Position, Source, documents, find_sources, is_held_out
from client.crew import makers
from client.parts import Part, PartStore, Stamp, Stretch
from client.tokenising import Encode, tokenising
from common.contextual import AnyEncoder, ContextualEncoder
from common.errors import CorpusError, InputError
from common.settings import Sampling
from common.statistics_file import Prepared, check_domain_name
from common.threads import serial_tokenizers

BATCH_CHARACTERS = 1 << 18
MODEL_CHARACTERS = 1 << 13
"""A transformer on a CPU takes about a second for a batch of so many characters, and asks to stop are heard between."""
BATCH_DOCUMENTS = 1024
SKIMMED_DOCUMENTS = 1024
PART_SECONDS = 20.0

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class Interrupted(KeyboardInterrupt):
    """The holder asked to stop; what was summed so far is kept."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides what a corpus adds up to, how many threads work on it, and on which cards they sum."""

    roots: tuple[Path, ...]
    domain: str
    sampling: Sampling
    holdout: float
    text_fields: tuple[str, ...]
    threads: int
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_domain_name(self.domain)
        if not 0 <= self.holdout < 1:
            raise InputError(f"the held-out share must be at least 0 and below 1, not {self.holdout:g}")
        if self.threads < 1:
            raise InputError(f"at least one thread is needed, not {self.threads}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `prepare` made, and what it met on the way. Only `prepared` may leave the machine."""

    prepared: Prepared
    counters: Counters
    files: int
    files_read: int
    files_skipped: int
    bytes_read: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Watch:
    """How a caller follows and stops a run."""

    progress: Progress = lambda done, total: None
    stopped: Callable[[], bool] = lambda: False


def prepare(job: Job, encoder: AnyEncoder, cache: Path, watch: Watch | None = None, *, fresh: bool = False) -> Outcome:
    """Sum a corpus. Interrupted at any moment, the next call goes on from the last part that was kept."""
    started = time.monotonic()
    store = PartStore(cache, _terms(job, encoder))
    if fresh:
        store.clear()
    sources, skipped = find_sources(job.roots)
    stamps = {Stamp.of(source.path): source for source in sources}
    kept = store.usable(stamps.keys())
    todo = _unread(stamps, kept)
    run = _Run(job, encoder, store, watch or Watch(), sum(stamp.size for stamp in stamps))
    parts = [*kept, *run.sum_all(todo, sum(stamp.size for stamp, _, _ in todo))]
    _must_be_unchanged(stamps)
    counters = Counters()
    for part in parts:
        counters.add(part.counters)
    _must_hold_text(job, counters, len(sources), skipped)
    statistics = run.summer().statistics(reduce(add_states, (part.state for part in parts)), job.threads)
    prepared = Prepared(job.domain, encoder.name, encoder.fingerprint, job.sampling, statistics, job.holdout)
    seconds = time.monotonic() - started
    return Outcome(prepared, counters, len(sources), len(todo), skipped, run.bytes_read, seconds)


def held_out_documents(job: Job, counters: Counters, watch: Watch | None = None) -> Iterator[str]:
    """The documents that `prepare` leaves out of the sums, for evaluation on the holder's own machine."""
    watch = watch or Watch()
    sources, _ = find_sources(job.roots)
    total, done = sum(source.path.stat().st_size for source in sources), 0
    for source in sources:
        position = Position()
        for text in documents(source, job.text_fields, counters, position):
            counters.documents += 1
            if watch.stopped():
                raise Interrupted("interrupted; nothing was written")
            if is_held_out(text, job.holdout):
                counters.held_out += 1
                yield text
            if counters.documents % 256 == 0:
                watch.progress(done + position.bytes, total)
        done += position.bytes


def _terms(job: Job, encoder: AnyEncoder) -> dict[str, object]:
    """What parts must agree in to be added. Where a model gives the features, the kind of device is of it."""
    by_device = {"device": "card" if job.devices else "cpu"} if isinstance(encoder, ContextualEncoder) else {}
    return by_device | {
        "encoder": encoder.fingerprint,
        "sampling": job.sampling.to_json(),
        "holdout": job.holdout,
        "text_fields": list(job.text_fields),
    }


def _unread(stamps: dict[Stamp, Source], kept: Sequence[Part]) -> list[tuple[Stamp, Source, int]]:
    """The files that are not wholly covered, each with the number of documents that are."""
    reached = {stretch.stamp: stretch for part in kept for stretch in part.stretches}  # the last one of each file
    return [
        (stamp, source, reached[stamp].stop if stamp in reached else 0)
        for stamp, source in stamps.items()
        if stamp not in reached or not reached[stamp].ends_file
    ]


def _must_be_unchanged(stamps: Iterable[Stamp]) -> None:
    """Sums over a file that changed while it was read belong to no corpus that ever was."""
    for stamp in stamps:
        if not stamp.holds():
            raise CorpusError(f"{stamp.path} changed while it was read; run the same command again")


def _must_hold_text(job: Job, counters: Counters, files: int, skipped: int) -> None:
    names = ", ".join(str(root) for root in job.roots)
    if not files:
        raise CorpusError(f"{names} has no file that can be read; {skipped} were passed over")
    if not counters.documents:
        raise CorpusError(f"{names} holds no text; files: {files}, empty documents: {counters.empty}")
    if counters.documents == counters.held_out:
        raise CorpusError(
            f"all documents of {names} ({counters.documents}) fall into the held-out share; add text, or --holdout 0"
        )
    if not counters.tokens:
        raise CorpusError(f"{names} holds no tokens: its documents are made of special tokens alone")


class _Run:
    """One pass over the files that are left: a reader, worker threads, and parts that are kept as they fill."""

    def __init__(self, job: Job, encoder: AnyEncoder, store: PartStore, watch: Watch, total: int) -> None:
        self._job, self._encoder, self._store, self._watch, self._total = job, encoder, store, watch, total
        self._encode: Encode = encoder.tokenizer.encode_many
        self._hands = job.threads
        slow = isinstance(encoder, ContextualEncoder) and not job.devices
        self._batch = MODEL_CHARACTERS if slow else BATCH_CHARACTERS
        self._makers = makers(encoder, job.sampling, job.devices, job.threads)
        self._idle: SimpleQueue[Accumulator] = SimpleQueue()
        self._all: list[Accumulator] = []
        self._pending: deque[Future[int]] = deque()
        self._counters = Counters()
        self._stretches: list[Stretch] = []
        self._parts: list[Part] = []
        self._started = self._kept_at = time.monotonic()
        self._done = 0
        self.bytes_read = 0

    def sum_all(self, todo: Sequence[tuple[Stamp, Source, int]], left: int) -> list[Part]:
        """Sum files, keeping parts as time goes by. An error loses only what came after the last part."""
        self._done = self._total - left
        if not todo:
            return []
        from threadpoolctl import threadpool_limits

        self._refill()
        with (
            serial_tokenizers(),
            threadpool_limits(1),
            tokenising(self._encoder.tokenizer, self._encoder.definition, self._job.threads, left) as chosen,
            ThreadPoolExecutor(chosen[1], thread_name_prefix="sum") as pool,
        ):
            self._encode, self._hands = chosen
            try:
                for stamp, source, first in todo:
                    self._sum_file(pool, stamp, source, first)
                    if self._due():
                        self._keep()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
            self._keep()
        return self._parts

    def _sum_file(self, pool: ThreadPoolExecutor, stamp: Stamp, source: Source, first: int) -> None:
        met, counted, position = Counters(), Counters(), Position()
        batch, size, place, start = list[str](), 0, 0, first
        for text in documents(source, self._job.text_fields, met, position):
            place += 1
            if place <= first:  # an earlier part covers it
                counted = copy.copy(met)
                if place % SKIMMED_DOCUMENTS == 0 and self._watch.stopped():
                    self._keep()
                continue
            met.documents += 1
            if is_held_out(text, self._job.holdout):
                met.held_out += 1
                continue
            batch.append(text)
            size += len(text)
            if size >= self._batch or len(batch) >= BATCH_DOCUMENTS:
                self._submit(pool, batch)
                self._watch.progress(self._done + position.bytes, self._total)
                batch, size = [], 0
                if self._due():
                    self._cover(Stretch(stamp, start, place, ends_file=False), met, counted)
                    self._keep()
                    start, counted = place, copy.copy(met)
        self._submit(pool, batch)
        self._cover(Stretch(stamp, start, place, ends_file=True), met, counted)
        self._done += stamp.size
        self.bytes_read += stamp.size
        self._watch.progress(self._done, self._total)

    def _cover(self, stretch: Stretch, met: Counters, counted: Counters) -> None:
        self._stretches.append(stretch)
        self._counters.add(met)
        self._counters.subtract(counted)

    def _submit(self, pool: ThreadPoolExecutor, batch: list[str]) -> None:
        if batch:
            self._pending.append(pool.submit(self._sum, batch))
        while len(self._pending) > 2 * self._hands:
            self._counters.tokens += self._pending.popleft().result()

    def _sum(self, texts: list[str]) -> int:
        ids, lengths = self._encode(texts)
        accumulator = self._idle.get()
        try:
            accumulator.add(ids, lengths)
        finally:
            self._idle.put(accumulator)
        return len(ids)

    def summer(self) -> Accumulator:
        """Any of the accumulators: what a state means is the same to all."""
        return self._all[0] if self._all else self._makers[0]()

    def _due(self) -> bool:
        """Whether to keep a part now: every so often, and more rarely the longer a run lasts."""
        now = time.monotonic()
        return self._watch.stopped() or now - self._kept_at > PART_SECONDS + (now - self._started) / 20

    def _keep(self) -> None:
        while self._pending:
            self._counters.tokens += self._pending.popleft().result()
        if self._stretches:
            state = reduce(add_states, (accumulator.state() for accumulator in self._all))
            part = Part(tuple(self._stretches), self._counters, state)
            self._store.save(part)
            self._parts.append(part)
        self._counters, self._stretches = Counters(), []
        self._refill()
        if self._watch.stopped():
            raise Interrupted

    def _refill(self) -> None:
        self._idle, self._all = SimpleQueue(), []  # what they hold is free before others are made
        self._all = [make() for make in self._makers]
        for accumulator in self._all:
            self._idle.put(accumulator)
        self._kept_at = time.monotonic()
