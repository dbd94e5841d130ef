"""The SuperNode as a process: Flower's own, with shorter waits, and an end that comes when its main
loop ends.

It stays connected where Flower's would not: a renewed authority holds from the next request on, and
a connection that
an earlier SuperNode of this holder left without goodbye is taken back at once. And it follows no
redirect, as Flower's
would: a coordinator cannot make a holder's SuperNode ask another address.
"""

from __future__ import annotations

import contextlib
import math
import os
import ssl
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ridgeway.common.deploy.approved_bundle import ring

BELL = "RIDGEWAY_BELL"
"""Names the pipe by which the SuperExec is told that a task is there."""
AUTHORITY = "RIDGEWAY_AUTHORITY"
"""Names the file with the authority's certificate."""
HELD_NODE = "RIDGEWAY_HELD_NODE"
"""The id of the connection of an earlier SuperNode, of which the one that starts this knows that it
is gone.
"""
HEARTBEAT_S = 15
"""What the SuperLink is told of heartbeats: whoever was not heard for two of these is gone.
Flower's own are 30 s.
"""
ALREADY_THERE = 412
"""What the SuperLink answers to a SuperNode that it takes for connected."""
OTHER_FLOWER = (
    "this version of Flower is otherwise than 1.41 inside; install the pinned one"
)
IDLE_S = 3
"""How long Flower's loop sleeps when no message has come, with no setting for it."""
REPLY_S = 0.5
"""How long it sleeps between two looks for the reply to a message."""
REPLY_PAUSE_S = 0.05
LEAST_PAUSE_S = 0.2
PART_PAUSE_S = 0.1
"""How long to wait for a part of a message that the other side is still sending. Flower waits a
second.
"""


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
            time.sleep(min(max((now - self._worked) / 10, LEAST_PAUSE_S), IDLE_S))


def quicken(loop: ModuleType, bell: str) -> None:
    """Replace the fixed waits of Flower's loop, and ring when a task is there; raises where they
    are not as known.

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
        raise SystemExit(OTHER_FLOWER)
    if "initial_backoff" not in (loop.pull_objects.__kwdefaults__ or {}):
        raise SystemExit(OTHER_FLOWER)
    asked: int | None = None

    def pulling(**named: Any) -> int | None:
        nonlocal asked
        asked = pull(**named)
        return asked

    def pushing(*, send: Any, **named: Any) -> None:
        ring(bell)
        sent: set[int | None] = set()

        def sending(message: Any, *words: Any) -> Any:
            sent.add(message.metadata.run_id)
            return send(message, *words)

        while asked not in sent:
            push(send=sending, **named)

    loop.time = Pace()  # type: ignore[attr-defined]
    loop._pull_and_store_message = pulling  # type: ignore[attr-defined]
    loop._push_messages = pushing  # type: ignore[attr-defined]
    loop.pull_objects.__kwdefaults__["initial_backoff"] = PART_PAUSE_S


def stay_connected(
    connection: ModuleType, heartbeat: ModuleType, authority: Path, held: int | None
) -> None:
    """Let Flower's connection follow a renewed authority, take a held one back, and be missed
    sooner.
    """
    made = connection.FleetHttpClient
    known = all(
        hasattr(each, "HEARTBEAT_DEFAULT_INTERVAL") for each in (connection, heartbeat)
    )
    if (
        not known
        or not hasattr(made, "_send")
        or "_client" not in made.close.__code__.co_names
    ):
        raise SystemExit(OTHER_FLOWER)
    for module in (connection, heartbeat):
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
                    self._earlier.append(
                        self._client
                    )  # the other thread may be within a request
                    timeout = self._client.timeout
                    self._client = httpx.Client(
                        verify=context, timeout=timeout, follow_redirects=False
                    )
                    self._trusted = now
            return super()._send(*words, **named)

        def close(self) -> None:
            for each in self._earlier:
                each.close()
            super().close()

        def ActivateNode(self, request: Any) -> Any:  # noqa: N802
            try:
                return super().ActivateNode(request)
            except httpx.HTTPStatusError as error:
                if held is None or error.response.status_code != ALREADY_THERE:
                    raise
            with contextlib.suppress(
                httpx.HTTPStatusError
            ):  # it may have faded just now
                self.DeactivateNode(DeactivateNodeRequest(node_id=held))
            return super().ActivateNode(request)

    return LastingClient


def main() -> None:
    """Run `flower-supernode` with the words of this command line."""
    code: object = 1
    try:
        import flwr.supercore.heartbeat as heartbeat
        import flwr.supernode.fleet_http_connection as connection
        import flwr.supernode.start_client_internal as loop
        from flwr.supernode.cli import flower_supernode

        quicken(loop, os.environ[BELL])
        held = os.environ.get(HELD_NODE)
        stay_connected(
            connection,
            heartbeat,
            Path(os.environ[AUTHORITY]),
            int(held) if held else None,
        )
        flower_supernode()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"Exit Code: 1 {code}\n")
    finally:  # a server for nobody would stay
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
