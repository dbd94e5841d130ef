"""The Flower ServerApp of the coordinator: a transport for round/round.py, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from ridgeway.common.base.errors import Refused, RidgewayError, RoundFailed
from ridgeway.common.deploy.flower_patches import part_puller, shorten_part_pause
from ridgeway.common.protocol.flower import MESSAGE_TYPE, from_record, to_record
from ridgeway.common.protocol.packet import Packet
from ridgeway.coordinator.round.ask import PeerAnswer, PeerFailure, take_order
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import progress_file
from ridgeway.coordinator.round.round import check_round, deliver_newest, run_round

app = ServerApp()
_LEAST_PAUSE_S = 0.2
MOST_PAUSE_S = 2.0
"""A look for answers costs the SuperLink 10 ms a holder, so pauses are a tenth of the time waited,
within these.
"""
shorten_part_pause(part_puller())
UNREADABLE = Packet(b"", "")
LINK = "RIDGEWAY_COORDINATOR"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the operator asked for in the coordinator's folder; what happens is written there as
    it happens.

    Anyone on the machine can submit a run, so what it does comes from the operator's order alone,
    and the folder from the environment. What an operator can mend is the last line of the progress
    file, and no traceback in Flower's log.
    """
    link = Path(os.environ[LINK])
    order = take_order(link, context.run_id)
    federation = Federation(link.parent)
    with (
        suppress(RidgewayError),
        progress_file(federation.progress(order.name)) as watch,
        federation.logged(),
        superlink_answers(),
    ):
        transport = GridTransport(grid)
        if order.work == "deliver":
            deliver_newest(federation, transport, watch)
        elif order.work == "dry_run":
            check_round(federation, transport, watch, order)
        else:
            run_round(federation, transport, watch, order)


@contextmanager
def superlink_answers() -> Iterator[None]:
    """Flower tries again where the SuperLink is away; what it gives up for good becomes a
    sentence.
    """
    try:
        yield
    except httpx.HTTPError as error:
        raise RoundFailed(
            f"the SuperLink refuses or does not answer ({error}); check that"
            " `coordinator up` is running, then try again: accepted data is kept"
        ) from error


class GridTransport:
    """Flower's Grid as the transport of a round."""

    def __init__(self, grid: Grid, least_pause_s: float = _LEAST_PAUSE_S) -> None:
        self._grid = grid
        self._least_pause_s = least_pause_s
        self._late: dict[str, int] = {}

    def peers(self) -> Sequence[int]:
        return sorted(self._grid.get_node_ids())

    def exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> Iterator[tuple[int, PeerAnswer]]:
        began = time.monotonic()
        # mostly one for all
        records = {id(packet): to_record(packet) for packet in set(packets.values())}
        messages = [
            Message(records[id(packet)], peer, MESSAGE_TYPE)
            for peer, packet in packets.items()
        ]
        sent = dict(zip(self._grid.push_messages(messages), packets, strict=True))
        waiting = {number: peer for number, peer in sent.items() if number}
        while waiting:
            yield from self._arrived(waiting)
            waited = time.monotonic() - began
            if not waiting or waited >= seconds:
                break
            pause = max(waited / 10, self._least_pause_s)
            time.sleep(min(pause, MOST_PAUSE_S, seconds - waited))
        yield from self._arrived(self._late)
        self._late |= waiting

    def _arrived(self, waiting: dict[str, int]) -> Iterator[tuple[int, PeerAnswer]]:
        """What has come since, fetched one by one: memory stays small, and no peer can spoil
        another's reply.
        """
        for number in list(waiting):
            try:
                replies = list(self._grid.pull_messages([number]))
            except httpx.HTTPError:  # the SuperLink is away for the moment
                continue
            except Exception:  # Flower cannot put together what this peer has sent
                yield waiting.pop(number), None
                continue
            for reply in replies:
                yield waiting.pop(number), _packet(reply)
                break


def _packet(reply: Message) -> Packet | PeerFailure:
    if reply.has_error():
        reason = "".join(filter(str.isprintable, reply.error.reason or ""))
        return PeerFailure(reply.error.code, reason[:200])
    try:
        return from_record(reply.content)
    except Refused:
        return UNREADABLE
