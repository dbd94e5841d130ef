"""Flower's Grid on this machine: no Ray, no network, but every message goes through Flower's
serialisation.

Holders answer in this very process, or in processes that it starts.
"""

from __future__ import annotations

import gc
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import cache, lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from flwr.app import Array, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from ridgeway.client.round import holder, scoring, session_store
from ridgeway.client.sums import prepare
from ridgeway.common.base import identity, records
from ridgeway.common.base.files import without_syncing
from ridgeway.common.base.machine import one_blas_thread
from ridgeway.common.base.operating_system import process_context
from ridgeway.common.deploy.flower_patches import (
    Parts,
    identify_task,
    put_together,
    taken_apart,
)
from ridgeway.common.protocol import packet
from ridgeway.common.protocol.cohort import MAX_HOLDERS

# What holders of one simulation compute alike, computed once in a process.
#
# A deployed holder computes each of these once an answer. All are pure functions, so a cache around
# them changes nothing but the time that many holders in one process take.


SHARED = (
    (packet, "_header", 4),
    (packet, "_message", 4),
    (identity, "_verifies", 2 * MAX_HOLDERS),
    (records, "_as_json", 1024),
    (session_store, "_agreed", 2),
    (scoring, "_compiled", 1),
    (holder, "_verified_release", 1),
    (prepare, "_maker", 1),
)
"""Module, function, and how many results are kept. Every holder verifies a signature of every
member: a cache of fewer would have forgotten each before the next holder asks for it.
"""

_MAX_BLOB_BYTES = 1 << 26
"""Of larger blobs the digest is computed each time: a cache would hold them in memory."""


caches: list[Any] = []


def forget_shared_work() -> None:
    """Empty the caches, so that the next holder computes everything itself."""
    for cached in caches:
        cached.cache_clear()


@cache
def share_work() -> None:
    """Put a cache around each function; further calls do nothing."""
    for module, name, size in SHARED:
        cached = lru_cache(maxsize=size)(getattr(module, name))
        setattr(module, name, cached)
        caches.append(cached)
    digest = packet._digest
    kept = lru_cache(maxsize=4)(digest)
    caches.append(kept)

    def digest_once(blob: Any) -> str:
        small = isinstance(blob, bytes) and len(blob) <= _MAX_BLOB_BYTES
        return kept(blob) if small else digest(blob)

    packet._digest = digest_once


RUN = 1
_SERVER = 1
ANSWERS_AHEAD = 3
"""How many requests a process has been sent, at most, before an answer is read."""


class LocalGrid(Grid):
    """Nodes are ClientApps over holders' folders; a node does its work when its reply is
    fetched.
    """

    def __init__(self, app: ClientApp, holders: Mapping[int, Path]) -> None:
        identify_task(RUN, _SERVER)
        self._app = app
        self._contexts = {
            node: Context(
                run_id=RUN,
                node_id=node,
                node_config={"holder": str(folder)},
                state=RecordDict(),
                run_config={},
            )
            for node, folder in holders.items()
        }
        self._waiting: dict[str, tuple[int, Parts]] = {}
        self._arrays: dict[str, Array] = {}

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        numbers = []
        for message, parts in zip(sent, taken_apart(sent), strict=True):
            number = list(parts)[-1]
            self._waiting[number] = message.metadata.dst_node_id, parts
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for number in message_ids:
            if number in self._waiting:
                yield put_together(self._answer(number))

    def _answer(self, number: str) -> Parts:
        return self.answered(*self._waiting.pop(number))

    def answered(self, node: int, parts: Parts) -> Parts:
        """What a node's app replies, in this process. Bulk that the node before was sent, too, is
        put together once.
        """
        objects: dict[str, Any] = dict(self._arrays)
        arrived = put_together(parts, objects)
        self._arrays = {
            number: part for number, part in objects.items() if isinstance(part, Array)
        }
        [reply] = taken_apart([self._app(arrived, self._contexts[node])])
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


class ProcessGrid(LocalGrid):
    """The same, where processes that this one starts answer, each for its own holders.

    Requests are sent ahead of what was read: so all processes work on, and answers do not pile up.
    """

    def __init__(
        self,
        make_app: Callable[[], ClientApp],
        holders: Mapping[int, Path],
        processes: int,
    ) -> None:
        super().__init__(make_app(), holders)
        self._processes: list[BaseProcess] = []
        self._connections = [self._start(make_app, holders) for _ in range(processes)]
        self._threads = [ThreadPoolExecutor(1) for _ in self._connections]
        self._queue: deque[str] = deque()
        self._answers: dict[str, Future[Parts]] = {}

    def _start(
        self, make_app: Callable[[], ClientApp], holders: Mapping[int, Path]
    ) -> Connection:
        here, there = Pipe()
        process = process_context().Process(
            target=_serve, args=(make_app, holders, here, there), daemon=True
        )
        with warnings.catch_warnings():
            # of threads, which only BLAS has here, and idle
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        self._processes.append(process)
        there.close()
        return here

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = list(super().push_messages(messages))
        self._queue.extend(numbers)
        self._ask_ahead()
        return numbers

    def _ask_ahead(self) -> None:
        while self._queue and len(self._answers) < ANSWERS_AHEAD * len(self._threads):
            self._ask_next()

    def _ask_next(self) -> None:
        number = self._queue.popleft()
        node, parts = self._waiting[number]
        worker = node % len(self._threads)
        connection = self._connections[worker]
        self._answers[number] = self._threads[worker].submit(
            _asked, connection, node, parts
        )

    def _answer(self, number: str) -> Parts:
        while number not in self._answers:
            self._ask_next()
        answer = self._answers.pop(number)
        self._ask_ahead()
        del self._waiting[number]
        return answer.result()

    def close(self) -> None:
        """Let the processes answer what they were sent, and end."""
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join()


def _asked(connection: Connection, node: int, parts: Parts) -> Parts:
    connection.send((node, parts))
    answer: Parts = connection.recv()
    return answer


def process_grid(
    make_app: Callable[[], ClientApp], holders: Mapping[int, Path], processes: int
) -> AbstractContextManager[LocalGrid]:
    """A grid whose holders are shared out over this many processes; over none but this one, if one
    would be all.
    """
    if processes < 2:
        return nullcontext(LocalGrid(make_app(), holders))
    return closing(ProcessGrid(make_app, holders, processes))


def _serve(
    make_app: Callable[[], ClientApp],
    holders: Mapping[int, Path],
    far: Connection,
    connection: Connection,
) -> None:
    """Answer requests until the process at the other end closes the connection, or ends."""
    far.close()
    grid = LocalGrid(make_app(), holders)
    share_work()
    gc.freeze()  # what is there stays, so it need not be looked through again and again
    # the process that started this one is told, and ends it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with one_blas_thread(), without_syncing(), suppress(EOFError, OSError):
        while True:
            connection.send(grid.answered(*connection.recv()))
