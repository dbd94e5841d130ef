"""Processes that read and tokenise pieces of a corpus: one interpreter parses records for a few cores, not for many.

A process gets the tokenizer's definition and then pieces, and answers with ids, over pipes that only it and its parent
hold. A piece whose process ends or answers nonsense is read on by this process, from where the answers ended. Processes
end when their parent does. Knows pieces, the tokenizer and pipes. Knows nothing of sums.
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
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from threading import Event, Thread
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ridgeway.client.sums.corpus import CorpusFile, Counters
from ridgeway.client.sums.piece_batches import PieceBatch, ReadingRules, read_batches
from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.encoding.tokenizer import Ids, Tokenizer

Tokens = tuple[Ids, NDArray[np.int64]]
Read = tuple[int, PieceBatch, Tokens | None]
"""Which piece, what was read of it, and its ids if a process has made them."""

PIPE_BYTES = 1 << 20
END_TIMEOUT_S = 5.0
BATCHES_AHEAD = 2


@contextlib.contextmanager
def piece_readers(
    tokenizer: Tokenizer, definition: bytes, pieces: Sequence[tuple[CorpusFile, int]], rules: ReadingRules, count: int
) -> Iterator[Iterator[Read]]:
    """Within this block, all batches of some pieces, in order within each piece, read by as many processes.

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
        self._tokenizer, self._definition, self._pieces, self._rules = tokenizer, definition, pieces, rules
        self._left: SimpleQueue[int] = SimpleQueue()
        for number in range(len(pieces)):
            self._left.put(number)
        self._read: Queue[Read | BaseException | None] = Queue(BATCHES_AHEAD * count)
        self._closed = Event()
        self._processes: list[ReaderProcess] = []
        with contextlib.suppress(OSError):  # a machine that starts no more processes has those it has
            for _ in range(min(count, len(pieces))):
                self._processes.append(ReaderProcess())
        followed: Sequence[ReaderProcess | None] = self._processes or [None]
        self._followers = [Thread(target=self._follow, args=(each,), daemon=True) for each in followed]
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
                    process.begin(self._definition, self._rules, lower=self._tokenizer.lower)
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
            with contextlib.suppress(OSError, EOFError, ValueError, KeyError, TypeError):
                for batch, tokens in process.read(source, first):
                    self._must_be_sound(tokens)
                    self._read.put((number, batch, tokens))
                    first = batch.place
                    if batch.ends or self._closed.is_set():
                        return
        for batch in read_batches(source, first, self._rules):
            self._read.put((number, batch, None))
            if self._closed.is_set():
                return

    def _must_be_sound(self, tokens: Tokens) -> None:
        """Sums over what cannot be ids of texts would be of no text that ever was."""
        ids, lengths = tokens
        fits = int(lengths.sum()) == len(ids) and int(lengths.min(initial=0)) >= 0
        if not fits or int(ids.min(initial=0)) < 0 or int(ids.max(initial=-1)) >= self._tokenizer.rows:
            raise EOFError("the process has answered something else")

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
        self._process = subprocess.Popen(
            # -P: what lies in the current folder is not code
            [sys.executable, "-P", "-m", "ridgeway.client.sums.piece_readers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._sink, self._source = self._process.stdin, self._process.stdout
        with contextlib.suppress(ImportError, AttributeError, OSError):  # a wider pipe is quicker where there is one
            import fcntl

            fcntl.fcntl(self._source, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, definition: bytes, rules: ReadingRules, *, lower: bool) -> None:
        _write(self._sink, {"rules": asdict(rules), "bytes": len(definition), "lower": lower}, definition)

    def read(self, source: CorpusFile, first: int) -> Iterator[tuple[PieceBatch, Tokens]]:
        """The batches of a piece; EOFError if the process ends before they do."""
        _write(self._sink, {"first": first, **asdict(source), "path": os.fsencode(source.path).hex()})
        while True:
            head = _line(self._source)
            lengths, ids = np.empty(head.pop("texts"), np.int64), np.empty(head.pop("ids"), np.int32)
            for array in (lengths, ids):
                if self._source.readinto(array.data.cast("B")) != array.nbytes:  # type: ignore[attr-defined]
                    raise EOFError("the process has ended")
            yield PieceBatch(texts=[], met=Counters(**head.pop("met")), **head), (ids, lengths)

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
    with open(0, "rb") as source, open(1, "wb") as sink, contextlib.suppress(EOFError, BrokenPipeError):
        head = _line(source)
        rules = ReadingRules(**{**head["rules"], "text_fields": tuple(head["rules"]["text_fields"])})
        tokenizer = Tokenizer(source.read(head["bytes"]), lower=head["lower"])
        tokenizer.make_fast()
        while True:
            asked = _line(source)
            first = asked.pop("first")
            piece = CorpusFile(**{**asked, "path": Path(os.fsdecode(bytes.fromhex(asked["path"])))})
            try:
                _answer(piece, first, rules, tokenizer, sink)
            except BaseException:  # the parent meets the same error when it reads on itself
                break
    os._exit(0)  # there is nothing to tidy up that is worth waiting for


def _answer(piece: CorpusFile, first: int, rules: ReadingRules, tokenizer: Tokenizer, sink: IO[bytes]) -> None:
    for batch in read_batches(piece, first, rules):
        ids, lengths = tokenizer.encode_many(batch.texts)
        head = {**batch._asdict(), "met": asdict(batch.met), "texts": len(lengths), "ids": len(ids)}
        _write(sink, head, lengths.data, ids.data)


if __name__ == "__main__":
    main()
