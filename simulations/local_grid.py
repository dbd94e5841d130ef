"""Flower's Grid on this machine: no Ray, no network, but every message goes through Flower's
serialisation.

Holders answer in this very process, or shared out over processes that are forked from it: between
these, messages pass as the bytes that Flower makes of them.
"""

from __future__ import annotations

import ctypes
import gc
import signal
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import cast

from flwr.app import Array, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.deploy.flower_patches import set_message_id

RUN = 1
SERVER = 1
ANSWERS_AHEAD = 3
"""How many requests a process is asked before an answer of it is read."""
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Of malloc.h."""
LARGEST_KEPT_BYTES = 1 << 26

Parts = Mapping[str, bytes]
"""A message as Flower takes it apart: bytes by their ids, the message's own last."""
NO_PARTS: Parts = MappingProxyType({})


class LocalGrid(Grid):
    """Nodes are ClientApps over holders' folders; a node does its work when its reply is
    fetched.
    """

    def __init__(self, app: ClientApp, holders: Mapping[int, Path]) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = RUN
        TaskIdentity.node_id = SERVER
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
        self._arrays: dict[str, InflatableObject] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
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
        objects = dict(self._arrays)
        arrived = put_together(parts, objects)
        self._arrays = {
            number: each for number, each in objects.items() if isinstance(each, Array)
        }
        [reply] = taken_apart([self._app(arrived, self._contexts[node])])
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


class AnsweringProcess:
    """A process that answers for holders, seen from the one that asks: what it is asked, and
    answers not yet read.

    One thread sends and another receives, so the next request lies ready when the process has
    answered the one before.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sender = ThreadPoolExecutor(1)
        self._receiver = ThreadPoolExecutor(1)
        self._queue: deque[tuple[str, int, Parts]] = deque()
        self._asked: deque[tuple[str, Future[Parts]]] = deque()
        self._sent: Parts = {}

    def ask(self, number: str, node: int, parts: Parts) -> None:
        self._queue.append((number, node, parts))
        self._ask_ahead()

    def next_answer(self) -> tuple[str, Future[Parts]]:
        """The number of the request that was asked first of those that are left, and its answer as
        soon as it comes.
        """
        first = self._asked.popleft()
        self._ask_ahead()
        return first

    def _ask_ahead(self) -> None:
        while self._queue and len(self._asked) < ANSWERS_AHEAD:
            number, node, parts = self._queue.popleft()
            self._sender.submit(_send, self._connection, node, parts, self._sent)
            self._sent = parts
            self._asked.append(
                (number, self._receiver.submit(lambda: _receive(self._connection)[1]))
            )

    def close(self) -> None:
        """Let the process answer what it was sent, and end."""
        for thread in (self._sender, self._receiver):
            thread.shutdown(cancel_futures=True)
        self._connection.close()


class ForkedGrid(LocalGrid):
    """The same, where processes answer for holders, each for its own; make it with `forked_grid`.

    A process is asked ahead of what was read: so all of them work on, and answers do not pile up.
    """

    def __init__(self, app: ClientApp, holders: Mapping[int, Path]) -> None:
        super().__init__(app, holders)
        self._processes: list[AnsweringProcess] = []
        self._answers: dict[str, Future[Parts]] = {}

    def add(self, process: AnsweringProcess) -> None:
        self._processes.append(process)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = list(super().push_messages(messages))
        for number in numbers:
            self._process_of(number).ask(number, *self._waiting[number])
        return numbers

    def _process_of(self, number: str) -> AnsweringProcess:
        return self._processes[self._waiting[number][0] % len(self._processes)]

    def _answer(self, number: str) -> Parts:
        process = self._process_of(number)
        while number not in self._answers:
            asked, answer = process.next_answer()
            wait([answer])
            self._answers[asked] = answer
        del self._waiting[number]
        return self._answers.pop(number).result()


@contextmanager
def forked_grid(
    app: ClientApp, holders: Mapping[int, Path], processes: int
) -> Iterator[LocalGrid]:
    """A grid whose holders are shared out over this many processes; over none but this one, if one
    would be all.
    """
    if processes < 2:
        yield LocalGrid(app, holders)
        return
    forking = get_context("fork")
    grid = ForkedGrid(app, holders)
    with ExitStack() as ending:
        for _ in range(processes):
            here, there = forking.Pipe()
            process = forking.Process(
                target=_serve, args=(grid, here, there), daemon=True
            )
            with warnings.catch_warnings():
                # of threads, which only BLAS has here, and idle
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            there.close()
            ending.callback(process.join)
            answering = AnsweringProcess(here)
            ending.callback(answering.close)
            grid.add(answering)
        yield grid


def _serve(grid: LocalGrid, far: Connection, connection: Connection) -> None:
    """Answer requests until the process at the other end closes the connection, or ends."""
    far.close()
    gc.freeze()  # what was forked stays, so it need not be looked through again and again
    _keep_freed_memory()
    # the process that was forked from is told, and ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parts: Parts = {}
    with one_blas_thread(), suppress(EOFError, OSError):
        while True:
            node, parts = _receive(connection, parts)
            _send(connection, node, grid.answered(node, parts))


def _keep_freed_memory() -> None:
    """Let arrays take memory that was freed before, instead of new memory from the system, page by
    page.

    Holders are alike, so what one has freed suits the next one.
    """
    with suppress(OSError, AttributeError):  # other C libraries than glibc do without
        settings = ctypes.CDLL(None).mallopt
        settings(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        settings(M_TRIM_THRESHOLD, 2 * LARGEST_KEPT_BYTES)


def _send(
    connection: Connection, node: int, parts: Parts, before: Parts = NO_PARTS
) -> None:
    """Send a message's parts, but for those that were in the one before: a request to all is mostly
    the same.
    """
    connection.send_bytes(" ".join((str(node), *parts)).encode())
    for number, part in parts.items():
        if number not in before:
            connection.send_bytes(part)


def _receive(connection: Connection, before: Parts = NO_PARTS) -> tuple[int, Parts]:
    node, *numbers = connection.recv_bytes().decode().split(" ")
    return int(node), {
        number: before[number] if number in before else connection.recv_bytes()
        for number in numbers
    }


def taken_apart(messages: Sequence[Message]) -> list[Parts]:
    """Each message as bytes, by Flower's own code; a record that several of them hold is taken
    apart once for all.
    """
    records = {
        id(message.content): message.content
        for message in messages
        if message.has_content()
    }
    with no_object_id_recompute():
        held = {
            place: {
                number: part.deflate()
                for number, part in get_all_nested_objects(record).items()
            }
            for place, record in records.items()
        }
        return [
            {
                **(held[id(each.content)] if each.has_content() else {}),
                each.object_id: each.deflate(),
            }
            for each in messages
        ]


def put_together(
    parts: Parts, known: dict[str, InflatableObject] | None = None
) -> Message:
    """The message as it arrives, by Flower's own code. known: what was put together before; what is
    new is added.
    """
    number = list(parts)[-1]
    arrived = cast(
        Message, inflate_object_from_contents(number, dict(parts), objects=known)
    )
    set_message_id(arrived, number)
    return arrived
