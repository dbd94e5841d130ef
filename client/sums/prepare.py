"""A private corpus → one domain's statistics: in parallel, resumable, reading nothing twice.

Work is kept in parts: the sums over some stretch of the corpus, with the files and documents they cover. A later run
takes up every part whose files are unchanged and sums only the rest. Parts stay in the holder's own cache folder.
Knows corpus, encoder and accumulators. Knows nothing of the coordinator.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from queue import SimpleQueue

from ridgeway.client.sums.accumulate import Accumulator, accumulators, add_states
from ridgeway.client.sums.corpus import (
    MAX_PLACES,
    SKIP_WORDS,
    CorpusFile,
    Counters,
    Position,
    documents,
    find_sources,
    is_held_out,
)
from ridgeway.client.sums.part_store import PartStore, Stamp, StoredPart, Stretch
from ridgeway.client.sums.tokenizer_pool import Encode, tokenising
from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.settings import Sampling, check_domain_name
from ridgeway.common.base.threads import serial_tokenizers
from ridgeway.common.encoding.transformer_encoder import AnyEncoder, ContextualEncoder, check_sampling
from ridgeway.common.statistics.statistics_file import Prepared

BATCH_CHARACTERS = 1 << 18
MODEL_BATCH_CHARACTERS = 1 << 13
"""A transformer on a CPU takes about a second for a batch of this size, and asks to stop are heard between."""
ACCUMULATOR_BYTES = 512 << 20
BATCH_DOCUMENTS = 1024
SKIMMED_DOCUMENTS = 1024
PART_INTERVAL_S = 20.0

Maker = Callable[[], Accumulator]

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class Interrupted(KeyboardInterrupt):
    """The holder asked to stop; what was summed so far is kept."""


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Everything that decides what a corpus adds up to, how many threads work on it, and on which cards they sum."""

    roots: tuple[Path, ...]
    domain: str
    sampling: Sampling
    holdout: float
    text_fields: tuple[str, ...]
    threads: int
    devices: tuple[str, ...] = ()
    skip_broken: float = 0.0
    """The largest share of records that may be passed over because they cannot be read."""

    def __post_init__(self) -> None:
        check_domain_name(self.domain)
        if not 0 <= self.skip_broken < 1:
            raise InputError(f"the share of broken records to skip lies between 0 and 1, not at {self.skip_broken:g}")
        if not 0 <= self.holdout < 1:
            raise InputError(f"the held-out share must be at least 0 and below 1, not {self.holdout:g}")
        if self.threads < 1:
            raise InputError(f"at least one thread is needed, not {self.threads}")


@dataclass(frozen=True, slots=True)
class PrepareOutcome:
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


def prepare(
    job: PrepareJob,
    encoder: AnyEncoder,
    cache: Path,
    watch: Watch | None = None,
    *,
    fresh: bool = False,
    broken_list: Path | None = None,
) -> PrepareOutcome:
    """Sum a corpus. Interrupted at any moment, the next call goes on from the last part that was kept.

    broken_list: where to write the places of the records that were passed over, if there are any.
    """
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
    for stamp in stamps:  # sums over a file that changed while it was read belong to no corpus that ever was
        if not stamp.holds():
            raise CorpusError(f"{stamp.path} changed while it was read; run the same command again")
    counters = Counters()
    for part in parts:
        counters.add(part.counters)
    broken = [place for part in parts for place in part.broken]
    if broken_list is not None:
        _list_places(broken_list, broken)
    _must_be_readable(job, counters, broken)
    _must_hold_text(job, counters, len(sources), skipped)
    statistics = run.summer().statistics(reduce(add_states, (part.state for part in parts)), job.threads)
    prepared = Prepared(job.domain, encoder.name, encoder.fingerprint, job.sampling, statistics, job.holdout)
    seconds = time.monotonic() - started
    return PrepareOutcome(prepared, counters, len(sources), len(todo), skipped, run.bytes_read, seconds)


def held_out_documents(job: PrepareJob, counters: Counters, watch: Watch | None = None) -> Iterator[str]:
    """The documents that `prepare` leaves out of the sums, for evaluation on the holder's own machine."""
    watch = watch or Watch()
    sources, _ = find_sources(job.roots)
    skipped: list[str] | None = [] if job.skip_broken else None
    total, done = sum(source.path.stat().st_size for source in sources), 0
    for source in sources:
        position = Position()
        for text in documents(source, job.text_fields, counters, position, skipped):
            counters.documents += 1
            if watch.stopped():
                raise Interrupted("interrupted; nothing was written")
            if is_held_out(text, job.holdout):
                counters.held_out += 1
                yield text
            if counters.documents % 256 == 0:
                watch.progress(done + position.bytes, total)
        done += position.bytes
    _must_be_readable(job, counters, skipped or ())


def _terms(job: PrepareJob, encoder: AnyEncoder) -> dict[str, object]:
    """What parts must agree in to be added. Where a model gives the features, the kind of device is of it."""
    by_device = {"device": "card" if job.devices else "cpu"} if isinstance(encoder, ContextualEncoder) else {}
    return by_device | {
        "encoder": encoder.fingerprint,
        "sampling": job.sampling.to_json(),
        "holdout": job.holdout,
        "text_fields": list(job.text_fields),
    }


def _unread(stamps: dict[Stamp, CorpusFile], kept: Sequence[StoredPart]) -> list[tuple[Stamp, CorpusFile, int]]:
    """The files that are not wholly covered, each with the number of documents that are."""
    reached = {stretch.stamp: stretch for part in kept for stretch in part.stretches}  # the last one of each file
    return [
        (stamp, source, reached[stamp].stop if stamp in reached else 0)
        for stamp, source in stamps.items()
        if stamp not in reached or not reached[stamp].ends_file
    ]


def _list_places(path: Path, places: Sequence[str]) -> None:
    if places:
        write_whole(path, "".join(f"{place}\n" for place in places).encode(errors="surrogateescape"), private=True)
    else:
        path.unlink(missing_ok=True)


def _must_be_readable(job: PrepareJob, counters: Counters, places: Sequence[str]) -> None:
    """Raise if more records were passed over than may be. Parts that were kept may come from a more lenient run."""
    records = counters.documents + counters.empty + counters.broken
    if counters.broken > job.skip_broken * records:
        raise CorpusError(
            f"{counters.broken:,} of {records:,} records cannot be read, and a share of {job.skip_broken:g} may be "
            f"passed over ({SKIP_WORDS}); the first is {places[0]}"
        )


def _must_hold_text(job: PrepareJob, counters: Counters, files: int, skipped: int) -> None:
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

    def __init__(self, job: PrepareJob, encoder: AnyEncoder, store: PartStore, watch: Watch, total: int) -> None:
        self._job, self._encoder, self._store, self._watch, self._total = job, encoder, store, watch, total
        self._encode: Encode = encoder.tokenizer.encode_many
        self._workers = job.threads
        slow = isinstance(encoder, ContextualEncoder) and not job.devices
        self._batch = MODEL_BATCH_CHARACTERS if slow else BATCH_CHARACTERS
        self._makers = makers(encoder, job.sampling, job.devices, job.threads)
        self._idle: SimpleQueue[Accumulator] = SimpleQueue()
        self._all: list[Accumulator] = []
        self._pending: deque[Future[int]] = deque()
        self._counters = Counters()
        self._stretches: list[Stretch] = []
        self._broken: list[str] = []
        self._parts: list[StoredPart] = []
        self._started = self._kept_at = time.monotonic()
        self._done = 0
        self.bytes_read = 0

    def sum_all(self, todo: Sequence[tuple[Stamp, CorpusFile, int]], left: int) -> list[StoredPart]:
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
            self._encode, self._workers = chosen
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

    def _sum_file(self, pool: ThreadPoolExecutor, stamp: Stamp, source: CorpusFile, first: int) -> None:
        met, counted, position = Counters(), Counters(), Position()
        batch, size, place, start = list[str](), 0, 0, first
        skipped: list[str] | None = [] if self._job.skip_broken else None
        for text in documents(source, self._job.text_fields, met, position, skipped):
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
                    self._cover(Stretch(stamp, start, place, ends_file=False), met, counted, skipped)
                    self._keep()
                    start, counted = place, copy.copy(met)
        self._submit(pool, batch)
        self._cover(Stretch(stamp, start, place, ends_file=True), met, counted, skipped)
        self._done += stamp.size
        self.bytes_read += stamp.size
        self._watch.progress(self._done, self._total)

    def _cover(self, stretch: Stretch, met: Counters, counted: Counters, skipped: list[str] | None) -> None:
        """Take in what was met since `counted`. skipped: the places of all broken records of the file so far."""
        self._stretches.append(stretch)
        self._broken = [*self._broken, *(skipped or [])[counted.broken :]][:MAX_PLACES]
        self._counters.add(met)
        self._counters.add(counted, -1)

    def _submit(self, pool: ThreadPoolExecutor, batch: list[str]) -> None:
        if batch:
            self._pending.append(pool.submit(self._sum, batch))
        while len(self._pending) > 2 * self._workers:
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
        return self._watch.stopped() or now - self._kept_at > PART_INTERVAL_S + (now - self._started) / 20

    def _keep(self) -> None:
        while self._pending:
            self._counters.tokens += self._pending.popleft().result()
        if self._stretches:
            state = reduce(add_states, (accumulator.state() for accumulator in self._all))
            part = StoredPart(tuple(self._stretches), self._counters, state, tuple(self._broken))
            self._store.save(part)
            self._parts.append(part)
        self._counters, self._stretches, self._broken = Counters(), [], []
        self._refill()
        if self._watch.stopped():
            raise Interrupted

    def _refill(self) -> None:
        self._idle, self._all = SimpleQueue(), []  # what they hold is free before others are made
        self._all = [make() for make in self._makers]
        for accumulator in self._all:
            self._idle.put(accumulator)
        self._kept_at = time.monotonic()


# Accumulators: as many as threads or graphics cards can use at once


def makers(encoder: AnyEncoder, sampling: Sampling, devices: Sequence[str], threads: int) -> list[Maker]:
    """One maker for each accumulator that may work at the same time.

    devices: the cards to sum on, such as `cuda:0`; without any, the CPU sums.
    """
    check_sampling(encoder, sampling)
    if isinstance(encoder, ContextualEncoder):
        from ridgeway.client.sums.transformer_sums import LateSums

        places = devices or ["cpu"] * _at_once(encoder, threads)
        return [partial(LateSums, encoder, sampling, device) for device in places]
    if devices:
        from ridgeway.client.sums.gpu.card_sums import card_accumulators

        return [maker for device in devices for maker in card_accumulators(encoder.table, sampling, device)]
    return [accumulators(encoder.table, sampling)] * _at_once(encoder, threads)


def _at_once(encoder: AnyEncoder, threads: int) -> int:
    """How many accumulators on the CPU: as many as there are threads, if memory allows."""
    return min(threads, max(1, ACCUMULATOR_BYTES // ((encoder.width + 1) ** 2 * 16)))
