"""Everything that changes, calls or imports Flower's internals, for flwr 1.41 and 1.42; it imports
nothing of Ridgeway. All other files use flwr.app, flwr.clientapp and flwr.serverapp alone.

    what                why                                                   test
    guard               no code of a bundle runs before it is approved        test_approved_bundle
    replace_executor    each task runs in a fork; no other kind of task runs  test_approved_bundle
    quicken             fixed waits of seconds; a late reply delays others    test_supernode_process
    stay_connected      renewed certificates, lost connections, redirects     test_supernode_process
    shorten_part_pause  a wait of a second for each late part of a message    test_supernode_process
    control_messages    a SuperLink is asked without starting a process       test_superlink_client
    taken_apart         a simulation's messages are those of a deployment     test_local_grid

What replaces a name looks for it first, and raises OtherFlower where it is missing. What Flower
could offer instead is in docs/contributing/flower.md.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from flwr.app import Message

Parts = Mapping[str, bytes]
"""A message as Flower takes it apart: bytes by their ids, the message's own last."""

TRIED = "1.41 and 1.42"
CLIENT_APP = "flwr-clientapp"
SERVER_APP = "flwr-serverapp"
RUNTIMES = {
    CLIENT_APP: "flwr.supernode.runtime.run_clientapp",
    SERVER_APP: "flwr.superlink.runtime.run_serverapp",
}
HOOKS = {
    CLIENT_APP: {
        "pull_task_input": "pulling",
        "install_from_fab": "installing",
        "get_load_client_app_fn": "loading",
    },
    SERVER_APP: {
        "run_from_proto": "noting_run",
        "fab_from_proto": "noting_bundle",
        "install_from_fab": "installing",
        "run_": "running",
    },
}
"""The names by which Flower's `run_clientapp` and `run_serverapp` get the bundle, unpack it and
import from it, in this order, and what of the guard stands before each.
"""

LOOP_HOOKS = ("get_executor", "time")
"""The names by which Flower's `run_superexec` starts tasks, and sleeps between its looks for one.
"""

HEARTBEAT_S = 15
"""What the SuperLink is told of heartbeats: whoever was not heard for two of these is gone.
Flower's own are 30 s.
"""
ALREADY_THERE = 412
"""What the SuperLink answers to a SuperNode that it takes for connected."""
IDLE_S = 3
"""How long Flower's loop sleeps when no message has come, with no setting for it."""
REPLY_S = 0.5
"""How long it sleeps between two looks for the reply to a message."""
REPLY_PAUSE_S = 0.05
_LEAST_PAUSE_S = 0.2
PART_PAUSE_S = 0.1
"""How long to wait for a part of a message that the other side is still sending. Flower waits a
second.
"""


class OtherFlower(ImportError):
    """The installed Flower is not one that these changes were made for."""

    def __init__(self, missing: str = "what Ridgeway replaces") -> None:
        super().__init__(
            f"flwr {version('flwr')} lacks {missing}; Ridgeway was tried with flwr"
            f" {TRIED}, so install one of these",
            name="flwr",
        )


def other_flower(error: ImportError) -> OtherFlower:
    """The same for what Python says of a module that is not there."""
    return error if isinstance(error, OtherFlower) else OtherFlower(f"a part ({error})")


# A SuperExec


def superexec() -> ModuleType:
    """The module of Flower's loop that looks for tasks."""
    return importlib.import_module("flwr.supercore.superexec.run_superexec")


def runtime_of(task: str) -> ModuleType:
    """The module that runs tasks of this kind."""
    return importlib.import_module(RUNTIMES[task])


def metadata_reader() -> Callable[[bytes], tuple[str, str]]:
    """Reads the version and the id of a bundle."""
    from flwr.cli.config_utils import get_fab_metadata

    return get_fab_metadata


def launched(problem: str = "") -> Any:
    """What an executor answers to a task: it runs, or it does not."""
    from flwr.supercore.superexec.executor import LaunchResult

    return LaunchResult.failed(problem) if problem else LaunchResult.accepted()


def forget_exit_handlers() -> None:
    """In a fork: those of the process that was forked."""
    from flwr.supercore.exit import exit_handler

    exit_handler.registered_exit_handlers.clear()


def forbid_dumps() -> None:
    """Nobody reads this process's memory, where the system can see to that."""
    from flwr.supercore.utils import disable_process_dumping

    disable_process_dumping(strict=False)


def guard(runtime: ModuleType, keeper: Any, task: str = CLIENT_APP) -> None:
    """Put a guard's methods, named in HOOKS, before what Flower calls to get and run a bundle."""
    called = getattr(runtime, RUNTIMES[task].rpartition(".")[2]).__code__.co_names
    missing = [
        name
        for name in HOOKS[task]
        if name not in called or not callable(getattr(runtime, name, None))
    ]
    if missing:
        raise OtherFlower(", ".join(missing))
    for name, wrapper in HOOKS[task].items():
        setattr(
            runtime, name, partial(getattr(keeper, wrapper), getattr(runtime, name))
        )


def replace_executor(loop: ModuleType, executor: Any, clock: Any = None) -> None:
    """Let Flower's SuperExec start tasks by this executor, and sleep by this clock if any."""
    called = loop.run_superexec.__code__.co_names
    missing = [name for name in LOOP_HOOKS if name not in called]
    if missing:
        raise OtherFlower(", ".join(missing))
    loop.get_executor = lambda *words, **named: executor  # type: ignore[attr-defined]
    if clock is not None:
        loop.time = clock  # type: ignore[attr-defined]


# A SuperNode


def run_supernode(wake: Callable[[], None], authority: Path, held: int | None) -> None:
    """Run `flower-supernode` with the words of this command line, changed as below."""
    import flwr.supercore.heartbeat as heartbeat
    import flwr.supernode.fleet_http_connection as connection
    import flwr.supernode.start_client_internal as loop
    from flwr.supernode.cli import flower_supernode

    quicken(loop, wake)
    stay_connected(connection, heartbeat, authority, held)
    flower_supernode()


class Pace:
    """Stands in for the module `time` in Flower's loop: between looks for a message it pauses a
    tenth of the time since the last one, so that it looks often in a round, and at rest as seldom
    as Flower does.
    """

    def __init__(self) -> None:
        self._worked = -math.inf

    def sleep(self, seconds: float) -> None:
        now = time.monotonic()
        if seconds < IDLE_S:
            self._worked = now
            time.sleep(REPLY_PAUSE_S)
        else:
            time.sleep(min(max((now - self._worked) / 10, _LEAST_PAUSE_S), IDLE_S))


def quicken(loop: ModuleType, wake: Callable[[], None]) -> None:
    """Replace the fixed waits of the SuperNode's loop, and call `wake` when a task is there.

    Flower takes the first reply that it finds for the one to the message at hand. That may be a
    late one of a run that was cut off, and each reply would from then on wait for the next message.
    So replies are pushed until that of the message's own run is among them.
    """
    wait = loop.start_client_internal.__code__
    pull = loop._pull_and_store_message
    push = loop._push_messages
    known = IDLE_S in wait.co_consts and REPLY_S in push.__code__.co_consts
    if not known or not {"_pull_and_store_message", "_push_messages"} <= set(
        wait.co_names
    ):
        raise OtherFlower
    asked: int | None = None

    def pulling(**named: Any) -> int | None:
        nonlocal asked
        asked = pull(**named)
        return asked

    def pushing(*, send: Any, **named: Any) -> None:
        wake()
        sent: set[int | None] = set()

        def sending(message: Any, *words: Any) -> Any:
            sent.add(message.metadata.run_id)
            return send(message, *words)

        while asked not in sent:
            push(send=sending, **named)

    loop.time = Pace()  # type: ignore[attr-defined]
    loop._pull_and_store_message = pulling  # type: ignore[attr-defined]
    loop._push_messages = pushing  # type: ignore[attr-defined]
    shorten_part_pause(loop.pull_objects)


def stay_connected(
    connection: ModuleType, heartbeat: ModuleType, authority: Path, held: int | None
) -> None:
    """Let Flower's connection follow a renewed authority, take a held one back, and be missed
    sooner.
    """
    made = connection.FleetHttpClient
    modules = (connection, heartbeat)
    if (
        not all(hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL") for module in modules)
        or not hasattr(made, "_send")
        or "_client" not in made.close.__code__.co_names
    ):
        raise OtherFlower
    for module in modules:
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_S  # type: ignore[attr-defined]
    connection.FleetHttpClient = lasting(made, authority, held)  # type: ignore[attr-defined]


def lasting(made: Any, authority: Path, held: int | None) -> Any:
    """Flower's client of the SuperLink, made so that no restart is needed."""
    import httpx
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest

    def stamp() -> tuple[int, int]:
        about = authority.stat()
        return about.st_mtime_ns, about.st_ino

    class LastingClient(made):  # type: ignore[misc]
        _client: httpx.Client

        def __init__(self, *words: Any, **named: Any) -> None:
            self._trusted = stamp()
            self._earlier: list[httpx.Client] = []
            super().__init__(*words, **named)
            self._client.follow_redirects = False

        def _send(self, *words: Any, **named: Any) -> Any:
            # its owner may be writing it just now; an SSLError is one
            with contextlib.suppress(OSError):
                if (now := stamp()) != self._trusted:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    context.load_verify_locations(cafile=authority)
                    # the other thread may be within a request
                    self._earlier.append(self._client)
                    timeout = self._client.timeout
                    self._client = httpx.Client(
                        verify=context, timeout=timeout, follow_redirects=False
                    )
                    self._trusted = now
            return super()._send(*words, **named)

        def close(self) -> None:
            for client in self._earlier:
                client.close()
            super().close()

        def ActivateNode(self, request: Any) -> Any:  # noqa: N802
            try:
                return super().ActivateNode(request)
            except httpx.HTTPStatusError as error:
                if held is None or error.response.status_code != ALREADY_THERE:
                    raise
            # it may have faded just now
            with contextlib.suppress(httpx.HTTPStatusError):
                self.DeactivateNode(DeactivateNodeRequest(node_id=held))
            return super().ActivateNode(request)

    return LastingClient


# A SuperLink


def control_messages(method: str) -> tuple[Any, Any]:
    """The request and the response of a method of the control API."""
    from flwr.proto import control_pb2

    request = getattr(control_pb2, f"{method}Request")
    return request, getattr(control_pb2, f"{method}Response")


# Messages


def part_puller() -> Any:
    """What fetches the parts of a message."""
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    return pull_objects


def shorten_part_pause(pull_objects: Any) -> None:
    """Wait PART_PAUSE_S and not a second for a part of a message."""
    defaults = pull_objects.__kwdefaults__ or {}
    if "initial_backoff" not in defaults:
        raise OtherFlower("initial_backoff")
    defaults["initial_backoff"] = PART_PAUSE_S


def identify_task(run: int, node: int) -> None:
    """Say whose messages this process makes."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = run
    TaskIdentity.node_id = node


def taken_apart(messages: Sequence[Message]) -> list[Parts]:
    """Each message as bytes, by Flower's own code; a record that several of them hold is taken
    apart once for all.
    """
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        no_object_id_recompute,
    )

    records = {
        id(message.content): message.content
        for message in messages
        if message.has_content()
    }
    with no_object_id_recompute():
        held = {
            key: {
                number: part.deflate()
                for number, part in get_all_nested_objects(record).items()
            }
            for key, record in records.items()
        }
        return [
            {
                **(held[id(message.content)] if message.has_content() else {}),
                message.object_id: message.deflate(),
            }
            for message in messages
        ]


def put_together(parts: Parts, known: dict[str, Any] | None = None) -> Message:
    """The message as it arrives, by Flower's own code, with the id that it was sent under. known:
    what was put together before; what is new is added.
    """
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    number = list(parts)[-1]
    arrived = inflate_object_from_contents(number, dict(parts), objects=known)
    arrived.metadata.__dict__["_message_id"] = number  # type: ignore[attr-defined]
    return cast("Message", arrived)
