"""A private corpus → one domain's statistics: in parallel, resumable, reading nothing twice.

Work is kept in parts: the sums over some stretch of the corpus, with the files and documents they
cover. A later run takes up every part whose files are unchanged and sums only the rest. Parts stay
in the holder's own cache folder. So runs on many machines may each sum some of a corpus, and a last
one takes up what they have kept. An engine may have pieces of the corpus summed elsewhere.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from ridgeway.client.sums.accumulate import (
    Accumulator,
    accumulators,
    add_states,
    only_counts,
)
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
from ridgeway.client.sums.corpus_places import place_name
from ridgeway.client.sums.part_store import (
    PartStore,
    Stamp,
    StoredPart,
    Stretch,
    first_changed,
    pieces_of,
    stamped,
)
from ridgeway.client.sums.piece_readers import (
    PieceBatch,
    Read,
    ReadingRules,
    Samples,
    piece_readers,
    read_batches,
    samples_of,
)
from ridgeway.common.base.errors import CorpusError, InputError
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.machine import one_blas_thread, serial_tokenizers
from ridgeway.common.base.settings import Sampling, check_domain_name
from ridgeway.common.statistics import Prepared
from ridgeway.common.text.table_encoder import TableEncoder

BATCH_CHARACTERS = 1 << 19
SENTENCE_BATCH_CHARACTERS = 1 << 15
"""Where sentences are read on a CPU, which takes long: a small corpus, too, has batches for all
threads.
"""
ACCUMULATOR_BYTES = 2 << 30
PROCESS_BATCH_CHARACTERS = 1 << 21
PART_INTERVAL_S = 20.0
MAX_THREADS_ALONE = 4
"""With this many threads or fewer, this process reads for all of them."""
MIN_READERS_BYTES = 32 << 20
"""For less text than this, starting processes takes longer than it saves."""

Maker = Callable[[], Accumulator]

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class Unread(NamedTuple):
    """A piece of the corpus that no part covers to its end; `first`: how many of its documents are
    covered.
    """

    stamp: Stamp
    source: CorpusFile
    first: int


Engine = Callable[[Sequence[Unread]], Iterator[StoredPart | None]]
"""Has pieces summed somewhere, and hands over parts as they are done; None every now and then while
it waits.
"""


class Interrupted(KeyboardInterrupt):
    """The holder asked to stop; what was summed so far is kept."""


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Everything that decides what a corpus adds up to, how many threads work on it, and on which
    GPUs they sum.
    """

    roots: tuple[Path, ...]
    domain: str
    sampling: Sampling
    holdout: float
    text_fields: tuple[str, ...]
    threads: int
    devices: tuple[str, ...] = ()
    skip_broken: float = 0.0
    """The largest share of records that may be passed over because they cannot be read."""
    whole: bool = False
    """A document is one however long it is, as where documents are bounded one by one."""

    def __post_init__(self) -> None:
        check_domain_name(self.domain)
        if not 0 <= self.skip_broken < 1:
            raise InputError(
                "the share of records to skip must be between 0 and 1, not "
                f"{self.skip_broken:g}"
            )
        if not 0 <= self.holdout < 1:
            raise InputError(
                "the held-out share must be at least 0 and below 1, not"
                f" {self.holdout:g}"
            )
        if self.threads < 1:
            raise InputError(f"at least one thread is needed, not {self.threads}")


class _Met(NamedTuple):
    counters: Counters
    files: int
    files_read: int
    files_skipped: int
    bytes_read: int


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What a run met on the way."""

    counters: Counters
    files: int
    files_read: int
    files_skipped: int
    bytes_read: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PrepareOutcome(PrepareReport):
    """What `prepare` made, too. Only `prepared` may leave the machine."""

    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Watch:
    """How a caller follows and stops a run."""

    progress: Progress = lambda done, total: None
    stopped: Callable[[], bool] = lambda: False


def prepare(
    job: PrepareJob,
    encoder: TableEncoder,
    cache: Path,
    watch: Watch | None = None,
    *,
    fresh: bool = False,
    broken_list: Path | None = None,
    engine: Engine | None = None,
) -> PrepareOutcome:
    """Sum a corpus. Interrupted at any moment, the next call goes on from the last part that was
    kept.

    broken_list: where to write the places of the records that were passed over, if there are any.
    engine:      who sums, if it is not this process.
    """
    started = time.monotonic()
    store = PartStore(cache, _terms(job, encoder))
    if fresh:
        store.clear()
    run, parts, met = _sum_up(job, encoder, store, watch, None, engine)
    broken = [record for part in parts for record in part.broken]
    if broken_list is not None:
        _list_places(broken_list, broken)
    _check_readable(met.counters, job.skip_broken, broken)
    check_text(met.counters, job)
    state = reduce(add_states, (part.state for part in parts))
    prepared = Prepared(
        job.domain,
        encoder.name,
        encoder.fingerprint,
        job.sampling,
        run.summer().statistics(state, job.threads),
        job.holdout,
    )
    return PrepareOutcome(*met, time.monotonic() - started, prepared)


def sum_part(
    job: PrepareJob,
    encoder: TableEncoder,
    cache: Path,
    part: tuple[int, int],
    watch: Watch | None = None,
    engine: Engine | None = None,
) -> PrepareReport:
    """Sum a part of a corpus, such as the third of 64, and keep it for `prepare` to take up."""
    started = time.monotonic()
    store = PartStore(cache, _terms(job, encoder))
    *_, met = _sum_up(job, encoder, store, watch, part, engine)
    return PrepareReport(*met, time.monotonic() - started)


def _sum_up(
    job: PrepareJob,
    encoder: TableEncoder,
    store: PartStore,
    watch: Watch | None,
    part: tuple[int, int] | None,
    engine: Engine | None,
) -> tuple[_Run, list[StoredPart], _Met]:
    """Take up what is kept of a corpus, or of a part of it, and sum the rest."""
    sources, skipped = find_sources(job.roots)
    if not sources:
        raise CorpusError(
            f"{corpus_names(job)} has no readable file; {skipped} were skipped"
        )
    stamps = stamped(sources)
    if part:
        stamps = {stamp: stamps[stamp] for stamp in pieces_of(list(stamps), *part)}
    kept = store.usable(stamps.keys())
    todo = _unread(stamps, kept)
    watch = watch or Watch()
    total = sum(stamp.bytes for stamp in stamps)
    left = sum(piece.stamp.bytes for piece in todo)
    run = _Run(job, encoder, store, watch, total)
    if engine is None:
        parts = kept + run.sum_all(todo)
    else:
        parts = kept + _gathered(engine(todo), store, watch, total - left, total)
    changed = first_changed(stamps)
    if changed:  # sums over a file that changed while it was read belong to no corpus that ever was
        raise CorpusError(
            f"{changed.name} changed while it was read; run the command again"
        )
    counters = Counters()
    for stored in parts:
        counters.add(stored.counters)
    files = len({stamp.path for stamp in stamps})
    files_read = len({piece.stamp.path for piece in todo})
    return run, parts, _Met(counters, files, files_read, skipped, left)


def sum_pieces(
    job: PrepareJob, encoder: TableEncoder, todo: Sequence[Unread]
) -> StoredPart:
    """The sums over some pieces, in one part: what an engine has done elsewhere."""
    size = sum(piece.stamp.bytes for piece in todo)
    [part] = _Run(job, encoder, None, Watch(), size).sum_all(todo)
    return part


def _gathered(
    parts: Iterator[StoredPart | None],
    store: PartStore,
    watch: Watch,
    done: int,
    total: int,
) -> list[StoredPart]:
    """Add up what an engine hands over, and keep it as time goes by; an error loses nothing that
    was handed over.
    """
    kept: list[StoredPart] = []
    waiting: StoredPart | None = None
    started = kept_at = time.monotonic()
    try:
        for part in parts:
            if part:
                waiting = waiting + part if waiting else part
                done += sum(stretch.stamp.bytes for stretch in part.stretches)
            watch.progress(done, total)
            if watch.stopped():
                raise Interrupted
            if waiting and _is_due(started, kept_at):
                store.save(waiting)
                kept.append(waiting)
                waiting = None
                kept_at = time.monotonic()
    finally:
        if waiting:
            store.save(waiting)
            kept.append(waiting)
    return kept


def _is_due(started: float, kept_at: float) -> bool:
    """Whether to keep a part now: every so often, and more rarely the longer a run lasts."""
    now = time.monotonic()
    return now - kept_at > PART_INTERVAL_S + (now - started) / 20


def batch_characters(encoder: TableEncoder) -> int:
    """About how many characters a thread takes at a time."""
    return SENTENCE_BATCH_CHARACTERS if encoder.sentences else BATCH_CHARACTERS


def corpus_documents(
    job: PrepareJob, counters: Counters, watch: Watch | None = None
) -> Iterator[tuple[str, bool]]:
    """Every document of a corpus, and whether it is held out. Raises at the end if too many records
    could not be read.
    """
    watch = watch or Watch()
    sources, _ = find_sources(job.roots)
    skipped: list[str] | None = [] if job.skip_broken else None
    total = sum(source.bytes for source in sources)
    done = 0
    for source in sources:
        position = Position()
        for text in documents(
            source, job.text_fields, counters, position, skipped, whole=job.whole
        ):
            counters.documents += 1
            if watch.stopped():
                raise Interrupted("interrupted; nothing was written")
            held_out = is_held_out(text, job.holdout)
            counters.held_out += held_out
            yield text, held_out
            if counters.documents % 256 == 0:
                watch.progress(min(done + position.bytes, total), total)
        done += position.bytes
    _check_readable(counters, job.skip_broken, skipped or [])


def held_out_documents(job: PrepareJob) -> Iterator[str]:
    """The documents that `prepare` leaves out of the sums, for evaluation on the holder's own
    machine.
    """
    for text, held_out in corpus_documents(job, Counters()):
        if held_out:
            yield text


def _terms(job: PrepareJob, encoder: TableEncoder) -> dict[str, object]:
    """What parts must agree in to be added."""
    return {
        "encoder": encoder.fingerprint,
        "sampling": job.sampling.to_json(),
        "holdout": job.holdout,
        "text_fields": list(job.text_fields),
    }


def _unread(
    stamps: dict[Stamp, CorpusFile], kept: Sequence[StoredPart]
) -> list[Unread]:
    """The pieces that are not wholly covered."""
    # the last one of each piece
    reached = {stretch.stamp: stretch for part in kept for stretch in part.stretches}
    return [
        Unread(stamp, source, reached[stamp].stop if stamp in reached else 0)
        for stamp, source in stamps.items()
        if stamp not in reached or not reached[stamp].ends_file
    ]


def corpus_names(job: PrepareJob) -> str:
    return ", ".join(place_name(root) for root in job.roots)


def _list_places(path: Path, places: Sequence[str]) -> None:
    if places:
        write_whole(
            path,
            "".join(f"{place}\n" for place in places).encode(errors="surrogateescape"),
            private=True,
        )
    else:
        path.unlink(missing_ok=True)


def _check_readable(
    counters: Counters, skip_broken: float, places: Sequence[str]
) -> None:
    """Raise if more records were passed over than may be. Parts that were kept may come from a more
    lenient run. places: of those that were passed over.
    """
    records = counters.documents + counters.empty + counters.broken
    if counters.broken > skip_broken * records:
        which = f"the first is {places[0]}" if places else ""
        raise CorpusError(
            f"{counters.broken:,} of {records:,} records cannot be read, more than "
            f"the allowed share of {skip_broken:g} ({SKIP_WORDS}); {which}"
        )


def check_text(counters: Counters, job: PrepareJob) -> None:
    """Raise if there is nothing to sum."""
    names = corpus_names(job)
    if not counters.documents:
        raise CorpusError(
            f"{names} contains no text; empty documents: {counters.empty}"
        )
    if counters.documents == counters.held_out:
        raise CorpusError(
            f"all documents of {names} ({counters.documents}) are held out; add text, "
            "or use --holdout 0"
        )
    if not counters.tokens:
        raise CorpusError(
            f"{names} contains no tokens: its documents are special tokens only"
        )


class _Run:
    """One pass over the pieces that are left: readers, worker threads, and parts that are kept as
    they fill.
    """

    def __init__(
        self,
        job: PrepareJob,
        encoder: TableEncoder,
        store: PartStore | None,
        watch: Watch,
        total: int,
    ) -> None:
        self._job = job
        self._encoder = encoder
        self._store = store
        self._watch = watch
        self._total = total
        self._makers = makers(encoder, job.sampling, job.devices, job.threads)
        self._all: list[Accumulator] = []
        self._pending: deque[Future[int]] = deque()
        self._positions: dict[Stamp, int] = {}
        """How many bytes of each piece that is being read lie behind."""
        self._parts: list[StoredPart] = []
        self._started = time.monotonic()
        self._done = 0

    def sum_all(self, todo: Sequence[Unread]) -> list[StoredPart]:
        """Sum pieces, keeping parts as time goes by. An error loses only what came after the last
        part.
        """
        left = sum(piece.stamp.bytes for piece in todo)
        self._done = self._total - left
        if not todo:
            return []
        with (
            serial_tokenizers(),
            one_blas_thread(),
            self._reading(todo, left) as batches,
            ThreadPoolExecutor(self._job.threads, thread_name_prefix="sum") as pool,
        ):
            # readers have begun by then: a GPU's library takes seconds to load
            self._begin_part()
            try:
                for number, batch, samples in batches:
                    self._take(pool, todo[number].stamp, batch, samples)
                    if self._due():
                        self._keep()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
            self._keep()
        return self._parts

    @contextmanager
    def _reading(self, todo: Sequence[Unread], left: int) -> Iterator[Iterator[Read]]:
        """Within this block, all batches: read by processes on many cores, else here, one piece
        after another.
        """
        job = self._job
        encoder = self._encoder
        pieces = [(piece.source, piece.first) for piece in todo]
        rules = ReadingRules(
            job.text_fields,
            job.holdout,
            bool(job.skip_broken),
            BATCH_CHARACTERS if job.devices else batch_characters(encoder),
            job.sampling,
        )
        if job.threads > MAX_THREADS_ALONE and left >= MIN_READERS_BYTES:
            rules = replace(rules, characters=PROCESS_BATCH_CHARACTERS)
            summing = not only_counts(job.sampling, encoder.words or encoder.sentences)
            # the other half of the cores sums
            readers = job.threads // 2 if summing else job.threads
            with piece_readers(encoder.reader, pieces, rules, readers) as batches:
                yield batches
            return
        yield (
            (number, batch, None)
            for number, (source, first) in enumerate(pieces)
            for batch in read_batches(source, first, rules)
        )

    def _take(
        self,
        pool: ThreadPoolExecutor,
        stamp: Stamp,
        batch: PieceBatch,
        samples: Samples | None,
    ) -> None:
        if batch.texts or (samples is not None and samples.layers):
            self._pending.append(pool.submit(self._sum, batch.texts, samples))
        while len(self._pending) > 2 * self._job.threads:
            self._counters.tokens += self._pending.popleft().result()
        if batch.ends or batch.stop > batch.first:
            before = self._stretches.get(stamp)
            start = before.start if before else batch.first
            self._stretches[stamp] = Stretch(stamp, start, batch.stop, batch.ends)
        self._counters.add(batch.met)
        self._broken += batch.broken[: MAX_PLACES - len(self._broken)]
        self._positions[stamp] = min(batch.position, stamp.bytes)
        if batch.ends:
            del self._positions[stamp]
            self._done += stamp.bytes
        self._watch.progress(self._done + sum(self._positions.values()), self._total)

    def _sum(self, texts: list[str], samples: Samples | None) -> int:
        """Sum a batch; how many tokens its documents have."""
        if samples is None:
            samples = samples_of(texts, self._encoder.reader, self._job.sampling)
        accumulator = self._idle.get()
        try:
            accumulator.add_layers(samples.tokens, samples.layers)
        finally:
            self._idle.put(accumulator)
        return samples.documents_tokens

    def summer(self) -> Accumulator:
        """Any of the accumulators: what a state means is the same to all."""
        return self._all[0] if self._all else self._makers[0]()

    def _due(self) -> bool:
        kept = self._store is not None
        return self._watch.stopped() or (kept and _is_due(self._started, self._kept_at))

    def _keep(self) -> None:
        while self._pending:
            self._counters.tokens += self._pending.popleft().result()
        if self._stretches:
            with ThreadPoolExecutor(self._job.threads) as pool:
                states = pool.map(lambda each: each.state(), self._all)
                state = reduce(add_states, states)
            part = StoredPart(
                tuple(self._stretches.values()),
                self._counters,
                state,
                tuple(self._broken),
            )
            if self._store:
                self._store.save(part)
            self._parts.append(part)
        self._begin_part()
        if self._watch.stopped():
            raise Interrupted

    def _begin_part(self) -> None:
        self._counters = Counters()
        self._stretches: dict[Stamp, Stretch] = {}
        self._broken: list[str] = []
        # what the old ones hold is free before others are made
        self._idle: SimpleQueue[Accumulator] = SimpleQueue()
        self._all = []
        self._all = [make() for make in self._makers]
        for accumulator in self._all:
            self._idle.put(accumulator)
        self._kept_at = time.monotonic()


# Accumulators: as many as threads or GPUs can use at once


def makers(
    encoder: TableEncoder, sampling: Sampling, devices: Sequence[str], threads: int
) -> list[Maker]:
    """One maker for each accumulator that may work at the same time.

    devices: the GPUs to sum on, such as `cuda:0`; without any, the CPU sums.
    """
    # as many as there are threads, if memory allows
    most = ACCUMULATOR_BYTES // ((encoder.width + 1) ** 2 * 16)
    if devices:  # which do most of the work, and each accumulator is fetched from them
        most = min(most, threads // 2)
    count = max(len(devices), min(threads, max(1, most)))
    made = [_maker(encoder, sampling, device) for device in devices or ("",)]
    return [made[number % len(made)] for number in range(count)]


def _maker(encoder: TableEncoder, sampling: Sampling, device: str) -> Maker:
    """Of accumulators that share a copy of the table. device: "" is the CPU."""
    known = encoder.table, sampling, encoder.words
    sentences = encoder.sentences
    if not device:
        return accumulators(*known, sentences)
    from ridgeway.client.sums.gpu_gram import GpuGram

    read = sentences.on_device(device) if sentences else None
    return accumulators(*known, read, partial(GpuGram, device=device))
