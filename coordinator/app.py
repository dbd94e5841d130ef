"""The Flower ServerApp of the coordinator: a transport for rounds.py, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from common.errors import Refused
from common.flower import MESSAGE_TYPE, from_record, to_record
from common.messages import Packet
from coordinator.federation import Federation
from coordinator.progress import ProgressFile
from coordinator.rounds import deliver_newest, run_round

app = ServerApp()
AT_ONCE = 4
"""Replies are fetched so many at a time, so that memory does not grow with the number of holders."""
POLL_S = 0.5
UNREADABLE = Packet(b"", "")
LINK = "RIDGEWAY_COORDINATOR"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the operator asked for in the coordinator's folder; what happens is written there as it happens.

    Holders see a run's configuration, so it holds no path: the folder comes with the environment.
    """
    federation = Federation(Path(os.environ[LINK]).parent)
    work = {"round": run_round, "deliver": deliver_newest}[str(context.run_config["work"])]
    with ProgressFile(federation.progress(str(context.run_config["name"]))) as watch, federation.logged():
        work(federation, GridTransport(grid), watch)


class GridTransport:
    """Flower's Grid as the transport of a round."""

    def __init__(self, grid: Grid, poll_s: float = POLL_S) -> None:
        self._grid, self._poll_s = grid, poll_s
        self._late: dict[str, int] = {}

    def peers(self) -> Sequence[int]:
        return sorted(self._grid.get_node_ids())

    def exchange(self, packet: Packet, peers: Sequence[int], seconds: float) -> Iterator[tuple[int, Packet | None]]:
        until = time.monotonic() + seconds
        record = to_record(packet)
        messages = [Message(record, peer, MESSAGE_TYPE) for peer in peers]
        sent = dict(zip(self._grid.push_messages(messages), peers, strict=True))
        waiting = {number: peer for number, peer in sent.items() if number}
        while waiting:
            yield from self._arrived(waiting)
            if not waiting or time.monotonic() >= until:
                break
            time.sleep(self._poll_s)
        yield from self._arrived(self._late)
        self._late |= waiting

    def _arrived(self, waiting: dict[str, int]) -> Iterator[tuple[int, Packet | None]]:
        """What has come since; it is waited for no longer."""
        numbers = list(waiting)
        for start in range(0, len(numbers), AT_ONCE):
            for reply in self._grid.pull_messages(numbers[start : start + AT_ONCE]):
                peer = waiting.pop(reply.metadata.reply_to_message_id, None)
                if peer is not None:
                    yield peer, _packet(reply)


def _packet(reply: Message) -> Packet | None:
    if reply.has_error():
        return None
    try:
        return from_record(reply.content)
    except Refused:
        return UNREADABLE
