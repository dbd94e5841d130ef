"""Tokenisation in processes beside this one: on many cores, one interpreter cannot hand out texts and take in ids fast
enough to keep them all busy.

A process gets the tokenizer's definition and then batches of texts, and answers with ids, over pipes that only it and
its parent hold. It has several threads, because each process needs a tokenizer of its own in the processor's cache.
Until it is ready, and if it dies, this process tokenises itself. It ends when its parent does.
Knows tokenizers and pipes. Knows nothing of files or sums.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from threading import Lock, Thread
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.files import IMPORT_ROOT
from ridgeway.common.encoding.tokenizer import Ids, Tokenizer

Tokens = tuple[Ids, NDArray[np.int64]]
Encode = Callable[[Sequence[str]], Tokens]

MAX_THREADS_ALONE = 4
"""With this many threads or fewer, this process keeps up alone."""
THREADS_PER_PROCESS = 8
MIN_POOL_BYTES = 32 << 20
"""For less text than this, starting processes takes longer than it saves."""
END_TIMEOUT_S = 5.0
HEAD = struct.Struct("<QQQ")
"""Which question, how many texts, and how many bytes or ids they have together."""
READY = b"ready"


@contextlib.contextmanager
def tokenising(tokenizer: Tokenizer, definition: bytes, threads: int, size: int) -> Iterator[tuple[Encode, int]]:
    """Within this block, a function that tokenises on `threads` threads, and how many threads should call it.

    size: the bytes of text to come.
    """
    if threads <= MAX_THREADS_ALONE or size < MIN_POOL_BYTES:
        yield tokenizer.encode_many, threads
        return
    helpers = TokenizerPool(tokenizer, definition, threads)
    try:
        yield helpers.encode_many, threads + threads // 2  # while some bring and fetch, none of the processes waits
    finally:
        helpers.close()


class TokenizerPool:
    """Processes that tokenise.

    Law: encode_many gives what the tokenizer itself gives, whatever becomes of the processes.
    """

    def __init__(self, tokenizer: Tokenizer, definition: bytes, threads: int) -> None:
        self._tokenizer = tokenizer
        self._ready: list[TokenizerProcess] = []
        self._all: list[TokenizerProcess] = []
        self._lock, self._closed = Lock(), False
        processes = -(-threads // THREADS_PER_PROCESS)
        shares = [len(range(place, threads, processes)) for place in range(processes)]
        self._starters = [Thread(target=self._start, args=(definition, share), daemon=True) for share in shares]
        for starter in self._starters:
            starter.start()

    def _start(self, definition: bytes, threads: int) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                helper = TokenizerProcess()
            except OSError:  # a machine that starts no more processes has those it has
                return
            self._all.append(helper)
        with contextlib.suppress(OSError, EOFError, ValueError):  # it died, or was let go, before it was ready
            helper.begin(definition, threads)
            self._ready.append(helper)

    def encode_many(self, texts: Sequence[str]) -> Tokens:
        """The ids of many texts in one row, and the number of ids of each text."""
        helper = min(list(self._ready), key=lambda each: each.busy, default=None)
        if helper is None:
            return self._tokenizer.encode_many(texts)
        try:
            return self._sound(helper.ask(texts).result(), len(texts))
        except (OSError, EOFError, ValueError):
            with contextlib.suppress(ValueError):
                self._ready.remove(helper)
            return self._tokenizer.encode_many(texts)

    def _sound(self, tokens: Tokens, texts: int) -> Tokens:
        """Tokens that can be what was asked for; sums over others would be of no text that ever was."""
        ids, lengths = tokens
        fits = len(lengths) == texts and int(lengths.sum()) == len(ids) and int(lengths.min(initial=0)) >= 0
        if not fits or int(ids.min(initial=0)) < 0 or int(ids.max(initial=-1)) >= self._tokenizer.rows:
            raise EOFError("the process has answered something else")
        return tokens

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._closed = True
        for helper in self._all:
            helper.end()
        for starter in self._starters:
            starter.join()


class TokenizerProcess:
    """One process, as its parent sees it."""

    def __init__(self) -> None:
        paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            # -P: what lies in the current folder is not code
            [sys.executable, "-P", "-m", "ridgeway.client.sums.tokenizer_pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"},
        )
        self._numbers, self._asking = count(), Lock()
        self._asked: dict[int, Future[Tokens]] = {}
        self._listener = Thread(target=self._listen, daemon=True)
        self._begun = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def busy(self) -> int:
        """How many questions have no answer yet."""
        return len(self._asked)

    def begin(self, definition: bytes, threads: int) -> None:
        """Hand over the tokenizer, and wait until it is made."""
        sink, source = self._pipes()
        sink.write(HEAD.pack(threads, 1, len(definition)) + definition)
        sink.flush()
        if _read(source, len(READY)) != READY:
            raise EOFError("the process says something else than that it is ready")
        self._begun = True
        self._listener.start()

    def ask(self, texts: Sequence[str]) -> Future[Tokens]:
        """The ids of texts, when the process has them; EOFError if it ends before."""
        number, (size, content) = next(self._numbers), packed_texts(texts)
        asked: Future[Tokens] = Future()
        sink, _ = self._pipes()
        with self._asking:
            self._asked[number] = asked
            sink.write(HEAD.pack(number, len(texts), size) + content)
            sink.flush()
        if not self._listener.is_alive():
            self._give_up()
        return asked

    def _listen(self) -> None:
        _, source = self._pipes()
        try:
            with contextlib.suppress(Exception):  # an end, or an answer that makes no sense: no more is expected
                while True:
                    number, texts, total = HEAD.unpack(_read(source, HEAD.size))
                    lengths = np.frombuffer(_read(source, 8 * texts), dtype=np.int64)
                    ids = np.frombuffer(_read(source, 4 * total), dtype=np.int32)
                    self._asked.pop(number).set_result((ids, lengths))
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """No answer will come any more."""
        for number in list(self._asked):
            with contextlib.suppress(KeyError):
                self._asked.pop(number).set_exception(EOFError("the process has ended"))

    def end(self) -> None:
        """Let the process go; one that does not, or has not even begun, is killed."""
        sink, source = self._pipes()
        if not self._begun:
            self._process.kill()
        with contextlib.suppress(OSError):
            sink.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._listener.is_alive():
            self._listener.join()
        source.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def packed_texts(texts: Sequence[str]) -> tuple[int, bytes]:
    """Texts as they travel: how many bytes they have together, and the length of each before their bytes."""
    raw = [text.encode("utf-8", "replace") for text in texts]
    lengths = np.fromiter(map(len, raw), dtype=np.int64, count=len(raw))
    return int(lengths.sum()), b"".join((lengths.tobytes(), *raw))


def unpacked_texts(content: bytes, texts: int) -> list[str]:
    """The inverse of `packed_texts`."""
    lengths = np.frombuffer(content[: 8 * texts], dtype=np.int64)
    ends = (8 * texts + np.cumsum(lengths)).tolist()
    return [content[end - length : end].decode() for end, length in zip(ends, lengths.tolist(), strict=True)]


def _read(source: IO[bytes], size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise EOFError("the other side has ended")
    return data


# In the process


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when work ends
    # Buffered whatever the environment says, so that what is written arrives whole.
    with open(0, "rb") as source, open(1, "wb") as sink, contextlib.suppress(EOFError, BrokenPipeError):
        threads, _, size = HEAD.unpack(_read(source, HEAD.size))
        tokenizer = Tokenizer(_read(source, size))
        sink.write(READY)
        sink.flush()
        _answer_all(tokenizer, source, sink, threads)
    os._exit(0)  # there is nothing to tidy up that is worth waiting for


def _answer_all(tokenizer: Tokenizer, source: IO[bytes], sink: IO[bytes], threads: int) -> None:
    writing = Lock()

    def answer(number: int, content: bytes, texts: int) -> None:
        try:
            ids, lengths = tokenizer.encode_many(unpacked_texts(content, texts))
            reply = b"".join((HEAD.pack(number, len(lengths), len(ids)), lengths.tobytes(), ids.tobytes()))
            with writing:
                sink.write(reply)
                sink.flush()
        except BaseException:  # the parent meets the same error when it tokenises this batch itself
            os._exit(1)

    with ThreadPoolExecutor(threads) as pool:
        while True:
            number, texts, total = HEAD.unpack(_read(source, HEAD.size))
            pool.submit(answer, number, _read(source, 8 * texts + total), texts)


if __name__ == "__main__":
    main()
