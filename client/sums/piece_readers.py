"""Processes that read, tokenise and sample pieces of a corpus: one interpreter does that for a few
cores, not for many.

A process gets the tokenizer's definition and then pieces, and answers with samples, over pipes that
only it and its parent hold. A piece whose process ends or answers nonsense is read on by this
process, from where the answers ended. Processes end when their parent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from threading import Event, Thread
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.corpus import CorpusFile, Counters
from ridgeway.client.sums.piece_batches import (
    PieceBatch,
    ReadingRules,
    Samples,
    read_batches,
    samples_of,
)
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.base.settings import MAX_JOINED_WINDOW_TOKENS, Sampling
from ridgeway.common.encoding.fast_bpe import EncoderTables
from ridgeway.common.encoding.tokenizer import Ids, Tokenizer
from ridgeway.common.encoding.windows import Layer

Read = tuple[int, PieceBatch, Samples | None]
"""Which piece, what was read of it, and its samples if a process has made them."""

PIPE_BYTES = 1 << 20
END_TIMEOUT_S = 5.0
BATCHES_AHEAD = 2


class PackedSamples(NamedTuple):
    """Samples as they travel. shapes: of each layer, how often it counts, and how many windows and
    ids it has.

    sizes: how many ids each window has, layer after layer.
    """

    tokens: int
    shapes: list[tuple[int, int, int]]
    sizes: NDArray[np.int32]
    ids: Ids

    @classmethod
    def of(cls, samples: Samples) -> PackedSamples:
        shapes = [
            (layer.times, len(layer.bounds) - 1, len(layer.ids))
            for layer in samples.layers
        ]
        sizes = [np.diff(layer.bounds).astype(np.int32) for layer in samples.layers]
        ids = [layer.ids for layer in samples.layers]
        none = np.zeros(0, np.int32)
        return cls(
            samples.tokens,
            shapes,
            np.concatenate((none, *sizes)),
            np.concatenate((none, *ids)),
        )

    def unpacked(self, rows: int) -> Samples:
        """The samples. Raises ValueError unless they could be of texts, with ids below `rows`: sums
        over anything else would be of no text that ever was.
        """
        ids = self.ids
        ends = np.append(0, np.cumsum(self.sizes, dtype=np.int64))
        shapes = np.array([(0, 0, 0), *self.shapes], dtype=np.int64)
        _, windows, tokens = np.cumsum(shapes, axis=0).T
        in_range = (
            ids.min(initial=0) >= 0
            and ids.max(initial=-1) < rows
            and shapes[1:].min(initial=1) > 0
        )
        of_size = (
            self.sizes.min(initial=1) > 0
            and self.sizes.max(initial=0) <= MAX_JOINED_WINDOW_TOKENS
        )
        fits = windows[-1] == len(self.sizes) and tokens[-1] == len(ids)
        if not (
            in_range and of_size and fits and np.array_equal(ends[windows], tokens)
        ):
            raise ValueError("the process has answered something else")
        layers = [
            Layer(ids[begin:end], ends[first : last + 1] - begin, times)
            for (times, _, _), (first, last), (begin, end) in zip(
                self.shapes, pairwise(windows), pairwise(tokens), strict=True
            )
        ]
        return Samples(self.tokens, layers)


@contextlib.contextmanager
def piece_readers(
    tokenizer: Tokenizer,
    definition: bytes,
    pieces: Sequence[tuple[CorpusFile, int]],
    rules: ReadingRules,
    count: int,
) -> Iterator[Iterator[Read]]:
    """Within this block, all batches of some pieces, in order within each piece, read by as many
    processes.

    pieces: each with the number of its documents to pass over.
    """
    readers = _Readers(tokenizer, definition, pieces, rules, count)
    try:
        yield readers.batches()
    finally:
        readers.close()


class _Readers:
    def __init__(
        self,
        tokenizer: Tokenizer,
        definition: bytes,
        pieces: Sequence[tuple[CorpusFile, int]],
        rules: ReadingRules,
        count: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._definition = definition
        self._pieces = pieces
        self._rules = rules
        self._left: SimpleQueue[int] = SimpleQueue()
        for number in range(len(pieces)):
            self._left.put(number)
        self._read: Queue[Read | BaseException | None] = Queue(BATCHES_AHEAD * count)
        self._closed = Event()
        self._processes: list[ReaderProcess] = []
        # a machine that starts no more processes has those it has
        with contextlib.suppress(OSError):
            for _ in range(min(count, len(pieces))):
                self._processes.append(ReaderProcess())
        followed: Sequence[ReaderProcess | None] = self._processes or [None]
        self._followers = [
            Thread(target=self._follow, args=(each,), daemon=True) for each in followed
        ]
        for follower in self._followers:
            follower.start()

    def batches(self) -> Iterator[Read]:
        ended = 0
        while ended < len(self._followers):
            item = self._read.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                ended += 1
            else:
                yield item

    def _follow(self, process: ReaderProcess | None) -> None:
        """Bring what one process reads; when it is gone, read here."""
        try:
            if process is not None:
                with contextlib.suppress(OSError):
                    process.begin(self._tokenizer, self._definition, self._rules)
            while not self._closed.is_set():
                self._read_piece(self._left.get_nowait(), process)
            self._read.put(None)
        except Empty:
            self._read.put(None)
        except BaseException as error:
            self._read.put(error)

    def _read_piece(self, number: int, process: ReaderProcess | None) -> None:
        source, first = self._pieces[number]
        if process is not None:
            with contextlib.suppress(
                OSError, EOFError, ValueError, KeyError, TypeError, MemoryError
            ):
                for batch, packed in process.read(source, first):
                    self._read.put(
                        (number, batch, packed.unpacked(self._tokenizer.rows))
                    )
                    first = batch.place
                    if batch.ends or self._closed.is_set():
                        return
        for batch in read_batches(source, first, self._rules):
            self._read.put((number, batch, None))
            if self._closed.is_set():
                return

    def close(self) -> None:
        """End all processes and threads."""
        self._closed.set()
        for process in self._processes:
            process.kill()
        while any(follower.is_alive() for follower in self._followers):
            with contextlib.suppress(Empty):
                self._read.get(timeout=0.05)
        for process in self._processes:
            process.end()


class ReaderProcess:
    """One process, as its parent sees it."""

    def __init__(self) -> None:
        paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        # threads that have nothing to do
        alone = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            # -P: what lies in the current folder is not code
            [sys.executable, "-P", "-m", "ridgeway.client.sums.piece_readers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **alone},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._sink = self._process.stdin
        self._source = self._process.stdout
        # a wider pipe is quicker where there is one
        with contextlib.suppress(ImportError, AttributeError, OSError):
            import fcntl

            fcntl.fcntl(self._source, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(
        self, tokenizer: Tokenizer, definition: bytes, rules: ReadingRules
    ) -> None:
        only_nfc, pattern, parts = tokenizer.tables or (False, 0, ())
        fast = {"only_nfc": only_nfc, "pattern": pattern, "lower": tokenizer.lower}
        sizes = [len(each) for each in (definition, *parts)]
        _write(
            self._sink,
            {"rules": asdict(rules), **fast, "sizes": sizes},
            definition,
            *parts,
        )

    def read(
        self, source: CorpusFile, first: int
    ) -> Iterator[tuple[PieceBatch, PackedSamples]]:
        """The batches of a piece; EOFError if the process ends before they do."""
        _write(
            self._sink,
            {"first": first, **asdict(source), "path": os.fsencode(source.path).hex()},
        )
        while True:
            head = _line(self._source)
            tokens = head.pop("tokens")
            shapes = head.pop("shapes")
            windows = head.pop("windows")
            numbers = np.empty(head.pop("numbers"), np.int32)
            if self._source.readinto(numbers.data.cast("B")) != numbers.nbytes:  # type: ignore[attr-defined]
                raise EOFError("the process has ended")
            packed = PackedSamples(tokens, shapes, numbers[:windows], numbers[windows:])
            yield (
                PieceBatch(**{**head, "texts": [], "met": Counters(**head["met"])}),
                packed,
            )

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Wait for its end, which a kill, or the end of what it was asked, has brought."""
        with contextlib.suppress(OSError):
            self._sink.close()
        self._process.wait(END_TIMEOUT_S)
        self._source.close()


def _write(sink: IO[bytes], head: dict[str, Any], *content: Any) -> None:
    sink.write(json.dumps(head).encode() + b"\n")
    for each in content:
        sink.write(each)
    sink.flush()


def _line(source: IO[bytes]) -> dict[str, Any]:
    line = source.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the other side has ended")
    head: dict[str, Any] = json.loads(line)
    return head


# In the process


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when work ends
    # Buffered whatever the environment says, so that what is written arrives whole.
    with (
        open(0, "rb") as source,
        open(1, "wb") as sink,
        contextlib.suppress(EOFError, BrokenPipeError),
    ):
        head = _line(source)
        rules = _rules(**head["rules"])
        definition, *parts = map(source.read, head["sizes"])
        tables = (
            EncoderTables(head["only_nfc"], head["pattern"], tuple(parts))
            if parts
            else None
        )
        tokenizer = Tokenizer(definition, lower=head["lower"], tables=tables)
        while True:
            asked = _line(source)
            first = asked.pop("first")
            piece = CorpusFile(
                **{**asked, "path": Path(os.fsdecode(bytes.fromhex(asked["path"])))}
            )
            try:
                _answer(piece, first, rules, tokenizer, sink)
            except (
                BaseException
            ):  # the parent meets the same error when it reads on itself
                break
    os._exit(0)  # there is nothing to tidy up that is worth waiting for


def _rules(
    text_fields: list[str], sampling: dict[str, int], **more: Any
) -> ReadingRules:
    return ReadingRules(
        text_fields=tuple(text_fields), sampling=Sampling(**sampling), **more
    )


def _answer(
    piece: CorpusFile,
    first: int,
    rules: ReadingRules,
    tokenizer: Tokenizer,
    sink: IO[bytes],
) -> None:
    for batch in read_batches(piece, first, rules):
        tokens, shapes, sizes, ids = PackedSamples.of(
            samples_of(batch.texts, tokenizer, rules.sampling)
        )
        head = {
            **batch._asdict(),
            "texts": [],
            "met": asdict(batch.met),
            "tokens": tokens,
            "shapes": shapes,
        }
        _write(
            sink,
            {**head, "windows": len(sizes), "numbers": len(sizes) + len(ids)},
            sizes.data,
            ids.data,
        )


if __name__ == "__main__":
    main()
