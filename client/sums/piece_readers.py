"""Processes that read, tokenise and sample pieces of a corpus: one interpreter does that for a few
cores, not for many.

A piece whose process ends is read on by this process, from where the answers ended. Processes end
when their parent does.
"""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

from ridgeway.client.sums.corpus import (
    CorpusFile,
    Counters,
    Position,
    documents,
    is_held_out,
)
from ridgeway.common.base.settings import Sampling
from ridgeway.common.text.characters import with_mistyped_copies
from ridgeway.common.text.tokens import TextReader, Tokens
from ridgeway.common.text.windows import Layer, layers

# A piece of a corpus → batches of its documents, less those that are held out, and the samples of a
# batch: all that is done before sums are taken, in whatever process.


BATCH_DOCUMENTS = 1024
SKIMMED_DOCUMENTS = 1024
"""So many documents that an earlier part covers are passed over between two batches without any."""


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How documents are read and sampled. characters: about how many a batch has."""

    text_fields: tuple[str, ...]
    holdout: float
    skip_broken: bool
    characters: int
    sampling: Sampling


class Samples(NamedTuple):
    """What the documents of a batch add to the sums.

    documents_tokens: how many tokens they have, mistyped copies apart.
    """

    documents_tokens: int
    tokens: Tokens
    layers: list[Layer]


def samples_of(texts: list[str], reader: TextReader, sampling: Sampling) -> Samples:
    """The samples of documents, and of their mistyped copies where those count."""
    read = with_mistyped_copies(texts) if sampling.mistyped else texts
    tokens = reader.read(read)
    samples = layers(tokens.lengths, sampling)
    return Samples(int(tokens.lengths[: len(texts)].sum()), tokens, samples)


class PieceBatch(NamedTuple):
    """Documents to sum.

    met, broken: what was met since the batch before, and the places of broken records among it.
    first:       how many documents of the piece lie before it, those included that are held out.
    stop:        how many lie behind it.
    position:    how many of its bytes do, about.
    ends:        whether it is the piece's last batch.
    """

    texts: list[str]
    met: Counters
    broken: list[str]
    first: int
    stop: int
    position: int
    ends: bool


def read_batches(
    source: CorpusFile, first: int, rules: ReadingRules
) -> Iterator[PieceBatch]:
    """The documents of a piece from number `first` on; there is always a last batch, if only an
    empty one.
    """
    met = Counters()
    counted = Counters()
    position = Position()
    skipped: list[str] | None = [] if rules.skip_broken else None
    texts = list[str]()
    size = 0
    stop = 0
    behind = first

    def batch(ends: bool) -> PieceBatch:
        nonlocal texts, size, counted, behind
        since = copy.copy(met)
        broken = (skipped or [])[counted.broken :]
        since.add(counted, -1)
        counted = copy.copy(met)
        taken = texts
        begun = behind
        texts = []
        size = 0
        behind = stop
        return PieceBatch(taken, since, broken, begun, stop, position.bytes, ends)

    for text in documents(source, rules.text_fields, met, position, skipped):
        stop += 1
        if stop <= first:  # an earlier part covers it
            counted = copy.copy(met)
            if stop % SKIMMED_DOCUMENTS == 0:
                yield PieceBatch(
                    [], Counters(), [], first, first, position.bytes, False
                )
            continue
        met.documents += 1
        if is_held_out(text, rules.holdout):
            met.held_out += 1
            continue
        texts.append(text)
        size += len(text)
        if size >= rules.characters or len(texts) >= BATCH_DOCUMENTS:
            yield batch(False)
    yield batch(True)


Read = tuple[int, PieceBatch, Samples | None]
"""Which piece, what was read of it, and its samples if a process has made them."""

Piece = tuple[CorpusFile, int]
"""A piece, and the number of its documents to pass over."""

ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",  # what lies in the current folder is not code
    "TOKENIZERS_PARALLELISM": "false",
    "OPENBLAS_NUM_THREADS": "1",
}


@contextlib.contextmanager
def piece_readers(
    reader: TextReader,
    pieces: Sequence[Piece],
    rules: ReadingRules,
    count: int,
) -> Iterator[Iterator[Read]]:
    """Within this block, all batches of some pieces, in order within each piece, read by as many
    processes.
    """
    processes: list[SpawnProcess] = []
    connections: list[Connection] = []
    try:
        # a machine that starts no more processes has those it has
        with contextlib.suppress(OSError), _quiet_start():
            for _ in range(min(count, len(pieces))):
                ours, theirs = multiprocessing.Pipe()
                connections.append(ours)
                with theirs:
                    process = multiprocessing.get_context("spawn").Process(
                        target=_read,
                        args=(theirs, rules),
                        daemon=True,
                    )
                    process.start()
                processes.append(process)
        # all begin before any is waited for: what is large goes to those that listen
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(reader)
        yield _batches(connections, pieces, rules)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for connection in connections:
            connection.close()


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Processes that start within this block do not hear Ctrl-C: the parent decides when work
    ends.
    """
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    resource_tracker.ensure_running()  # which would let Ctrl-C through again
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for name in ENVIRONMENT:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _batches(
    connections: Sequence[Connection], pieces: Sequence[Piece], rules: ReadingRules
) -> Iterator[Read]:
    left = deque(range(len(pieces)))
    reached = [first for _, first in pieces]
    busy: dict[Connection, int] = {}

    def ask(connection: Connection) -> None:
        """Have the next piece read; of a process that is gone, the answer is an end."""
        if left:
            busy[connection] = left.popleft()
            with contextlib.suppress(OSError):
                connection.send(pieces[busy[connection]])

    def read_here(number: int) -> Iterator[Read]:
        for batch in read_batches(pieces[number][0], reached[number], rules):
            yield number, batch, None

    for connection in connections:
        ask(connection)
    while busy:
        for ready in wait(list(busy)):
            assert isinstance(ready, Connection)
            number = busy[ready]
            try:
                batch, samples = ready.recv()
            except (EOFError, OSError):
                del busy[ready]
                yield from read_here(number)
                continue
            yield number, batch, samples
            reached[number] = batch.stop
            if batch.ends:
                del busy[ready]
                ask(ready)
    for number in left:
        yield from read_here(number)


# In the process


def _read(parent: Connection, rules: ReadingRules) -> None:
    # The parent meets the same error when it reads on itself.
    with contextlib.suppress(Exception):
        reader: TextReader = parent.recv()
        while True:
            source, first = parent.recv()
            for batch in read_batches(source, first, rules):
                samples = samples_of(batch.texts, reader, rules.sampling)
                parent.send((batch._replace(texts=[]), samples))
