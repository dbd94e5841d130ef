"""What messages weigh on Flower's wire, and a ClientApp around the holders' own that weighs and times all that passes.

Knows Flower's serialisation. Knows nothing of rounds.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING

from common.messages import Packet

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp


def record_bytes(record: Message | RecordDict) -> int:
    """The bytes of everything that Flower takes a message or its content apart to."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(part.deflate()) for part in get_all_nested_objects(record).values())


def packet_bytes(packet: Packet) -> int:
    """What a packet weighs as the content of a message."""
    from common.flower import to_record

    return record_bytes(to_record(packet))


class Weighing:
    """down, up: bytes to and from holders, by what was asked. seconds: holders' own; weighing: what this took."""

    def __init__(self, app: ClientApp) -> None:
        self._app = app
        self.down: Counter[str] = Counter()
        self.up: Counter[str] = Counter()
        self.seconds = 0.0
        self.weighing = 0.0

    def __call__(self, message: Message, context: Context) -> Message:
        started = time.perf_counter()
        kind = _kind(message)
        self.down[kind] += record_bytes(message)
        begun = time.perf_counter()
        reply = self._app(message, context)
        done = time.perf_counter()
        self.up[kind] += record_bytes(reply)
        self.seconds += done - begun
        self.weighing += begun - started + time.perf_counter() - done
        return reply


def _kind(message: Message) -> str:
    from common.flower import from_record

    return str(json.loads(from_record(message.content).header)["kind"])
