"""Processes that read, tokenise and sample pieces of a corpus: one interpreter does that for a few
cores, not for many.

A piece whose process ends is read on by this process, from where the answers ended. Processes end
when their parent does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from ridgeway.client.sums.corpus import CorpusFile
from ridgeway.client.sums.piece_batches import (
    PieceBatch,
    ReadingRules,
    Samples,
    read_batches,
    samples_of,
)
from ridgeway.common.encoding.fast_bpe import EncoderTables
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Tokenizer

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
    encoder: TableEncoder,
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
                        args=(
                            theirs,
                            encoder.definition,
                            encoder.tokenizer.lower,
                            encoder.tokenizer.tables,
                            rules,
                        ),
                        daemon=True,
                    )
                    process.start()
                processes.append(process)
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
            reached[number] = batch.place
            if batch.ends:
                del busy[ready]
                ask(ready)
    for number in left:
        yield from read_here(number)


# In the process


def _read(
    parent: Connection,
    definition: bytes,
    lower: bool,
    tables: EncoderTables | None,
    rules: ReadingRules,
) -> None:
    tokenizer = Tokenizer(definition, lower=lower, tables=tables)
    # The parent meets the same error when it reads on itself.
    with contextlib.suppress(Exception):
        while True:
            source, first = parent.recv()
            for batch in read_batches(source, first, rules):
                samples = samples_of(batch.texts, tokenizer, rules.sampling)
                parent.send((batch._replace(texts=[]), samples))
